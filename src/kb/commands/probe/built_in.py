"""Trials of a model with random weights: from flags or a config to a setup, its prediction, and one trial a batch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kb.advice.estimate import Estimated
from kb.advice.estimator import Estimator
from kb.advice.question import NamedMachine
from kb.commands.probe.place import Place
from kb.commands.probe.request import ProbeRequest
from kb.core.catalog import Catalog
from kb.core.memory_report import WORKING
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.text import UserError
from kb.memory import UnsupportedArchitectureError
from kb.session.estimating import estimate_file, estimate_flags
from kb.session.prepare import file_checker
from kb.session.project import find_project, folder_of
from kb.session.simulating import catalogued_files, with_model_files
from kb.torch_runs.probe.trial import Limits, Trial, setup_json

if TYPE_CHECKING:
    from kb.torch_runs.probe.trial import Limits, Trial

EVALUATION_STEPS = 3  # as the trial's process runs
SMOKE_STEPS = 10
FEWEST_STEPS = 4  # two to warm up and two that are measured; a search needs no more
ACCUMULATED = 2  # steps that accumulate: their gradients wait beside the step's own, however many there are
PACKAGES = ("torch", "transformers", "accelerate")


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
    limits: "Limits"
    steps: int
    effective: int | None

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

    def trial(self, batch: int) -> "Trial":
        """One trial at ``batch``."""
        return trial_of(
            self.request.kind,
            self.place,
            self.setup_with(batch),
            self.config,
            self.name,
            phases=self.phases,
            steps=self.steps,
            predicted=self.predicted(batch),
            limits=self.limits,
        )


def trial_of(
    kind: str,
    place: Place,
    setup: TrainingSetup,
    config: Mapping[str, Any],
    name: str,
    *,
    phases: tuple[str, ...],
    steps: int,
    predicted: Mapping[str, Mapping[str, int]],
    limits: "Limits",
) -> "Trial":
    """One process's work, from a whole setup and the model's ``config.json``."""
    told = setup_json(setup._replace(model_name=None, world_size=1))
    return Trial(
        kind=kind,  # type: ignore[arg-type]
        backend=place.backend,  # type: ignore[arg-type]
        setup=told,
        config=dict(config),
        model=name,
        phases=phases,
        steps=steps,
        predicted=predicted,
        device=place.device,
        fake=place.fake,
        limits=limits,
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
    family = one.model.architecture.family if one.model else None
    setup, phases = _with_phases(one.setup, request, family)
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
    )


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
        found, _ = estimate_file(question.config, question.section, question.run, checker, open_model=True)
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
