"""Trials of a model with random weights: from flags or a config to a setup, its prediction, and one trial a batch.

And where trials run: the GPU that is here, none, or one that a script plays; and whether it is free.
"""

import os
from collections.abc import Mapping
from typing import Any

from kb.advice.estimate import Estimated
from kb.advice.fit.estimator import Estimator
from kb.advice.question import NamedMachine
from kb.commands.probe.request import ProbeRequest
from kb.config.files import read_at_most
from kb.core.catalog import Catalog
from kb.core.hardware import DetectedGpu, Machine
from kb.core.memory_report import WORKING
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_json
from kb.core.text import UserError
from kb.machine.detect import detect, named_gpus
from kb.memory import UnsupportedArchitectureError
from kb.report.values import here
from kb.session.estimating import (
    catalogued_files,
    estimate_flags,
    estimate_sections,
    sections_of,
    with_model_files,
)
from kb.session.prepare import file_checker
from kb.session.project import find_project, folder_of
from kb.torch_runs.probe.campaign import Card
from kb.torch_runs.probe.trial import Limits, Trial

# What drivers, displays and an empty context hold; beyond it somebody is using the GPU.
IDLE_BYTES = 512 << 20
LISTS = ("hang_at", "crash_at", "kill_at", "host_oom_at", "oom_at")
NUMBERS = ("factor", "seconds")
MAPPINGS = ("phases", "utilisation")
EVALUATION_STEPS = 3  # as the trial's process runs
SMOKE_STEPS = 10
FEWEST_STEPS = 4  # two to warm up and two that are measured; a search needs no more
ACCUMULATED = 2  # steps that accumulate: their gradients wait beside the step's own, however many there are
PACKAGES = ("torch", "transformers", "accelerate")


class Place(NamedTuple):
    """``machine`` is what predictions are for. ``device`` is the value of CUDA_VISIBLE_DEVICES, ``fake`` the script of
    a GPU that is not there."""

    backend: str
    machine: Machine
    card: Card
    device: str | None = None
    fake: Mapping[str, Any] | None = None


class BuiltIn(NamedTuple):
    """A run of a model, to be tried at one batch after another.

    ``tied``: evaluation has the training's batch. ``estimator`` is None where nothing can be predicted. ``effective``
    is the effective batch to hold, None where nobody named one.
    """

    request: ProbeRequest
    place: Place
    setup: TrainingSetup
    name: str
    model: Model | None
    config: Mapping[str, Any]
    phases: tuple[str, ...]
    tied: bool
    estimator: Estimator | None
    limits: Limits
    steps: int
    effective: int | None
    buckets_apart: bool = False  # the run is of several processes, each with DDP's buckets, which no trial has

    def setup_with(self, batch: int) -> TrainingSetup:
        """The run with another batch."""
        changed = self.setup._replace(per_device_train_batch_size=batch)
        if self.tied:
            changed = changed._replace(per_device_eval_batch_size=batch)
            changed = changed._replace(inference_batch_size=batch) if changed.do_predict else changed
        return changed._replace(eval_samples=EVALUATION_STEPS * changed.per_device_eval_batch_size)

    def predicted(self, batch: int) -> dict[str, dict[str, int]]:
        """Level 0 by phase, as a trial measures it; empty where there is none."""
        if self.estimator is None:
            return {}
        return {
            phase.name: {
                "allocated_bytes": phase.peak_allocated_bytes,
                "reserved_bytes": phase.peak_reserved_bytes,
                "process_bytes": phase.process_used_bytes,
            }
            for phase in self.estimator.predict(self.setup_with(batch)).phases
            if phase.name in ("load", *self.phases)
        }

    def expected(self, batch: int) -> int:
        """Bytes of the process at its highest, as predicted."""
        return max(sizes["process_bytes"] for sizes in self.predicted(batch).values())

    def trial(self, batch: int) -> Trial:
        """One trial at ``batch``."""
        return Trial(
            kind=self.request.kind,  # type: ignore[arg-type]
            backend=self.place.backend,  # type: ignore[arg-type]
            setup=setup_json(self.setup_with(batch)._replace(model_name=None, world_size=1)),
            config=dict(self.config),
            model=self.name,
            phases=self.phases,
            steps=self.steps,
            predicted=self.predicted(batch),
            device=self.place.device,
            fake=self.place.fake,
            limits=self.limits,
        )


def built_in(request: ProbeRequest, place: Place, catalog: Catalog, *, here: bool = True) -> BuiltIn:
    """Prepare a model's run.

    Args:
        here: the trials run on this machine, and need their libraries here.

    Raises:
        UserError: the model or the config cannot be used, or a library that a real trial needs is missing.
    """
    if place.backend != "fake" and here:
        check_packages(PACKAGES)
    one = _estimated(request, catalog)
    files = one.files or catalogued_files(one, catalog, request.rules)
    if files.has_code:
        raise UserError("probe.own_code", type=str(files.config.get("model_type"))[:100])
    _check_plain(one.setup)
    family = one.model.architecture.family if one.model else None
    setup, phases = _with_phases(one.setup._replace(world_size=1), request, family)
    estimator = _estimator(one.model, place, catalog, setup)
    if place.backend == "fake" and estimator is None:
        raise UserError("probe.fake_needs_prediction", model=one.setup.model_name or "")
    return BuiltIn(
        request=request,
        place=place,
        setup=setup,
        name=one.model.id if one.model else str(one.setup.model_name or request.question.model_config),
        model=one.model,
        config=files.config,
        phases=phases,
        tied=request.run.eval_batch is None and request.question.config is None,
        estimator=estimator,
        limits=Limits(request.seconds, request.host_bytes),
        steps=request.steps or (SMOKE_STEPS if request.kind == "smoke" else FEWEST_STEPS),
        effective=_effective(request, one.setup),
        buckets_apart=one.setup.world_size > 1 and one.setup.do_train and not one.setup.spread.gradient_as_bucket_view,
    )


def _check_plain(setup: TrainingSetup) -> None:
    """A trial is the Trainer's own training, in one process: of any other run it would measure something else.

    Raises:
        UserError: the run is another.
    """
    if setup.post is not None:
        raise UserError("probe.not_plain", kind=setup.post.kind.upper())
    if setup.holds_more:
        raise UserError("probe.own_loop")
    if setup.fused_loss:
        raise UserError("probe.fused_loss")
    if setup.fsdp or setup.spread.tensor_parallel > 1:
        raise UserError("probe.sharded", kind="FSDP" if setup.fsdp else "tensor parallel")
    if setup.spread.deepspeed or setup.zero_stage or setup.offload_optimizer or setup.offload_param:
        raise UserError("probe.sharded", kind=f"DeepSpeed ZeRO-{setup.zero_stage}")


def _effective(request: ProbeRequest, setup: TrainingSetup) -> int | None:
    if request.question.effective_batch is not None:
        return request.question.effective_batch
    run = request.run
    named = request.question.config is not None or (run.batch is not None and run.accumulation is not None)
    return setup.per_device_train_batch_size * setup.gradient_accumulation_steps if named and setup.do_train else None


def check_packages(packages: tuple[str, ...]) -> None:
    """Raises: UserError: one of the libraries is not installed."""
    import importlib.util

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError("probe.missing_package", package=package)


def _estimated(request: ProbeRequest, catalog: Catalog) -> Estimated:
    question = request.question._replace(machine=NamedMachine(gpu="none"))
    checker = file_checker(catalog, find_project(folder_of(question.config)), question)
    if question.config is None:
        one = estimate_flags(question.run, checker, open_model=True)
    else:
        runs = sections_of(question.config, question.section, checker)
        found, _ = estimate_sections(runs, question.config, question.run, checker, open_model=True)
        if len(found) > 1:
            sections = ", ".join(str(each.unit.section) for each in found)
            raise UserError("probe.several_sections", path=question.config, sections=sections)
        one = found[0]
    return with_model_files(one, question.model_config)


def _with_phases(
    setup: TrainingSetup, request: ProbeRequest, family: str | None
) -> tuple[TrainingSetup, tuple[str, ...]]:
    """The run with the phases that are tried: those asked for; of flags all that the model has; else the config's."""
    if request.phases is None and request.question.config is not None:
        generates = setup.do_predict or (setup.do_eval and setup.predict_with_generate)
        own = (("train", setup.do_train), ("evaluate", setup.do_eval), ("generate", generates))
        return _accumulating(setup, request), tuple(name for name, has in own if has)
    phases = request.phases or (("train", "evaluate") if family == "encoder" else WORKING)
    if family == "encoder" and "generate" in phases:
        raise UserError("estimate.encoder_generates_nothing", model=setup.model_name or "")
    generates = "generate" in phases
    length = request.run.generation_length or setup.max_target_length
    setup = setup._replace(
        do_train="train" in phases,
        do_eval="evaluate" in phases or generates,
        do_predict=False,
        predict_with_generate=generates,
        prediction_loss_only=setup.prediction_loss_only,
        generation_max_length=length if request.question.config is None else setup.generation_max_length,
    )
    return _accumulating(setup, request), phases


def _accumulating(setup: TrainingSetup, request: ProbeRequest) -> TrainingSetup:
    """Steps that wait for others take memory that a single step does not: two show it, more only take longer."""
    steps = setup.gradient_accumulation_steps
    if request.kind == "smoke":
        return setup
    wanted = ACCUMULATED if steps > 1 or request.question.effective_batch is not None else 1
    return setup._replace(gradient_accumulation_steps=wanted)


def _estimator(model: Model | None, place: Place, catalog: Catalog, setup: TrainingSetup) -> Estimator | None:
    """Predictions for the place; None where there can be none, or no GPU whose memory it could be of."""
    if model is None or place.backend == "cpu":
        return None
    estimator = Estimator(model, place.machine, catalog.constants)
    try:
        estimator.predict(setup)
    except UnsupportedArchitectureError:
        return None
    return estimator


def place_of(request: ProbeRequest, catalog: Catalog) -> Place:
    """Raises: UserError: no GPU is here, it is in use, or the script cannot be used."""
    if request.backend == "fake":
        return _scripted(request, catalog)
    for option, value in (("--fake-limit", request.fake_limit), ("--fake-script", request.fake_script)):
        if value is not None:
            raise UserError("probe.only_with_fake", option=option)
    host = request.kind == "host"
    backend = request.backend or ("cpu" if host else "cuda")
    machine = detect(catalog.gpus, gpu="none" if backend == "cpu" else None)

    if backend == "cpu":
        return Place("cpu", machine, Card())
    if not machine.gpus:
        raise UserError("probe.no_gpu", reason_key=f"machine.{here(machine.gpu_note or 'no_driver')}")
    gpu = next((gpu for gpu in machine.gpus if request.device is None or _is(gpu, request.device)), None)
    if gpu is None:
        known = ", ".join(f"{gpu.number} ({gpu.name})" for gpu in machine.gpus)
        raise UserError("probe.no_such_device", device=request.device, known=known)
    _check_free(gpu, request.force)
    ratio = catalog.constants["usable_memory_ratio"]
    free = gpu.memory_total if gpu.memory_free is None else gpu.memory_free
    card = Card(gpu.name, gpu.memory_total, int(min(free, gpu.memory_total * ratio)))
    named = gpu.uuid or str(gpu.number)  # in CUDA_VISIBLE_DEVICES; no order of numbers can change a UUID
    return Place("cuda", machine._replace(gpus=(gpu,)), card, named)


def _is(gpu: DetectedGpu, device: str) -> bool:
    return device == str(gpu.number) or (gpu.uuid is not None and gpu.uuid.casefold().startswith(device.casefold()))


def _check_free(gpu: DetectedGpu, force: bool) -> None:
    if force:
        return
    others = [(pid, used) for pid, used in gpu.processes if pid != os.getpid()]
    if others:
        pids = ", ".join(str(pid) for pid, _ in others)
        known = [used for _, used in others if used is not None]
        raise UserError("probe.gpu_busy", gpu=gpu.name, pids=pids, used=sum(known) if known else None)
    if gpu.memory_free is None:
        return
    used = gpu.memory_total - gpu.memory_free - (gpu.memory_reserved or 0)
    if used > IDLE_BYTES:
        raise UserError("probe.gpu_in_use", gpu=gpu.name, used=used)


def _scripted(request: ProbeRequest, catalog: Catalog) -> Place:
    if request.command or request.kind == "host":
        raise UserError("probe.fake_runs_models")
    if request.fake_limit is None:
        raise UserError("probe.fake_needs_limit")

    script = read_script(request.fake_script) if request.fake_script else {}
    named = request.question.machine.gpu
    like = named_gpus(named, None, catalog.gpus)[0] if named else DetectedGpu(0, "", 0)
    gpu = like._replace(memory_total=request.fake_limit)
    machine = Machine(gpus=(gpu,), gpu_source="named")
    fake = {**script, "limit_bytes": request.fake_limit}
    return Place("fake", machine, Card(None, request.fake_limit, request.fake_limit), None, fake)


def read_script(path: str) -> dict[str, Any]:
    """A scripted GPU's behaviour, from YAML or JSON.

    Raises:
        UserError: the file cannot be read, or says what no script can.
    """
    import yaml

    try:
        data = yaml.safe_load(read_at_most(path, 1 << 20).decode("utf-8"))
    except OSError as error:
        raise UserError("probe.script_unreadable", path=path, reason=error.strerror or str(error)) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError("probe.script_unreadable", path=path, reason=str(error).splitlines()[0]) from None
    known = (*NUMBERS, *LISTS, *MAPPINGS)
    if not isinstance(data, dict):
        raise UserError("probe.bad_script", path=path, name="{}", known=", ".join(known))
    for name, value in data.items():
        if not _usable(name, value):
            raise UserError("probe.bad_script", path=path, name=str(name)[:100], known=", ".join(known))
    if isinstance(data.get("utilisation"), dict):
        data["utilisation"] = {str(batch): share for batch, share in data["utilisation"].items()}
    return data


def _usable(name: Any, value: Any) -> bool:
    def number(each: Any) -> bool:
        return isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < 1e6

    if name in LISTS:
        return isinstance(value, list) and all(isinstance(each, int) for each in value)
    if name in MAPPINGS and isinstance(value, dict):
        return all(map(number, value.values()))
    return number(value) if name in NUMBERS or name == "utilisation" else False
