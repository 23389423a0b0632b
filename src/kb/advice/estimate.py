"""One run's estimate: what is wrong with the run itself, else its prediction; and what each memory option would save:
the same run with one setting changed, predicted beside it. Pure.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kb.advice.facts.unit_facts import UnitFacts
from kb.advice.fit.estimator import Estimator
from kb.advice.run.named_model import unknown_model
from kb.advice.run.no_prediction import NO_MODEL_OF_THE_RUN, Note, unfollowed, unpredictable
from kb.advice.run.row_lengths import longest_input, taken_by_lengths, with_taken
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.hardware import Machine
from kb.core.memory_report import OVER, MemoryReport
from kb.core.model import Architecture, Model
from kb.core.record import NamedTuple
from kb.core.result import GpuFit
from kb.core.setup import Assumption, LigerKernels, TrainingSetup
from kb.core.text import UserError
from kb.memory import (
    UnknownTargetsError,
    UnsupportedArchitectureError,
    default_targets,
    match_targets,
    modules,
    targets_for,
)

if TYPE_CHECKING:
    from kb.memory.engine.trace import Traced
    from kb.memory.throughput import Throughput


class Option(NamedTuple):
    """A change of settings, as one writes it; ``changes`` is None where the run has it already, or cannot."""

    written: str
    changes: Callable[[TrainingSetup], Mapping[str, Any] | None]


class Saving(NamedTuple):
    """What a change saves of what is alive at the peak, in bytes (below 0: what it takes more), and the process's GPU
    memory with it."""

    written: str
    bytes: int
    peak_bytes: int


def _halved(setup: TrainingSetup) -> Mapping[str, Any] | None:
    """Half the batch with twice the accumulation: the effective batch stays."""
    batch = setup.per_device_train_batch_size
    if batch < 2 or batch % 2:
        return None
    return {
        "per_device_train_batch_size": batch // 2,
        "gradient_accumulation_steps": setup.gradient_accumulation_steps * 2,
    }


Changes = Callable[[TrainingSetup], Mapping[str, Any] | None]


def _when(holds: Callable[[TrainingSetup], bool], **changes: Any) -> Changes:
    return lambda setup: changes if holds(setup) else None


def _post(holds: Callable[[Any], bool], **changes: Any) -> Changes:
    """Of runs beyond plain training."""
    return lambda s: {"post": s.post._replace(**changes)} if s.post is not None and holds(s.post) else None


def _asleep(setup: TrainingSetup) -> Mapping[str, Any] | None:
    """vLLM that gives its memory back while the model trains."""
    post = setup.post
    if post is None or post.colocated is None or post.colocated.sleeps:
        return None
    return {"post": post._replace(colocated=post.colocated._replace(sleeps=True))}


def _is_full(setup: TrainingSetup) -> bool:
    return setup.method == "full"


def _is_wide(setup: TrainingSetup) -> bool:
    return not setup.autocast and setup.weights == "fp32"


def _keeps_inputs(setup: TrainingSetup) -> bool:
    """Layers in 8 bits hold their inputs past a checkpoint that is not reentrant."""
    return setup.load_in_8bit and setup.gradient_checkpointing and not setup.use_reentrant and setup.world_size == 1


LIGER = "use_liger_kernel: true"
OPTIONS = (
    Option("gradient_checkpointing: true", _when(lambda s: not s.gradient_checkpointing, gradient_checkpointing=True)),
    Option("gradient_checkpointing_kwargs: {use_reentrant: true}", _when(_keeps_inputs, use_reentrant=True)),
    Option("per_device_train_batch_size / 2, gradient_accumulation_steps × 2", _halved),
    Option("bf16: true", _when(_is_wide, bf16=True)),
    Option("fp16: true", _when(_is_wide, fp16=True)),
    Option("dtype: bfloat16", _when(lambda s: s.method == "lora" and s.weights == "fp32", weights="bf16")),
    Option(LIGER, _when(lambda s: not s.fused_loss, fused_loss=True, liger_kernels=LigerKernels())),
    Option("attn_implementation: sdpa", _when(lambda s: s.attn_implementation == "eager", attn_implementation="sdpa")),
    Option("optim: adamw_8bit", _when(lambda s: s.optim.startswith("adamw_torch"), optim="adamw_8bit")),
    Option("optim: adafactor", _when(lambda s: _is_full(s) and s.optim != "adafactor", optim="adafactor")),
    Option("LoRA", _when(_is_full, method="lora")),
    Option("QLoRA", _when(lambda s: s.method != "qlora" and not s.load_in_8bit, method="qlora", load_in_4bit=True)),
    Option("precompute_ref_log_probs: true", _post(lambda p: p.kind in ("dpo", "kto") and p.reference != "none",
                                                   reference="none")),
    Option("vllm_enable_sleep_mode: true", _asleep),
    Option("vllm_mode: server", _post(lambda p: p.colocated is not None, colocated=None)),
)  # fmt: skip


def what_if(
    setup: TrainingSetup, report: MemoryReport, estimator: Estimator, fused_types: Collection[str] = ()
) -> tuple[Saving, ...]:
    """The options that the run does not have yet, what saves most first; what cannot be predicted is left out.

    Args:
        fused_types: model types whose loss Liger computes in pieces.
    """
    found = []
    capability = estimator.gpu.compute_capability if estimator.gpu else None
    unfit = "bf16" if capability is not None and capability < AMPERE else "fp16"
    for option in OPTIONS:
        changes = option.changes(setup) if setup.do_train else None
        fuses = option.written != LIGER or estimator.model.architecture.model_type in fused_types
        if changes is None or unfit in changes or not fuses:
            continue
        changed = setup._replace(**changes)
        if changed.method != "full" and _is_full(setup) and changed.post is not None:
            referred = "adapter_off" if changed.post.reference == "model" else changed.post.reference
            changed = changed._replace(post=changed.post._replace(reference=referred))
        try:
            after = estimator.predict(changed)
            # what the engine does not follow is answered roughly: then both are
            before = report if after.level == report.level else estimator.roughly().predict(setup)
        except UnsupportedArchitectureError:  # the changed run is not followed, and is not known
            continue
        found.append(Saving(option.written, _alive(before) - _alive(after), _peak(after)))
    return tuple(sorted(found, key=lambda saving: -saving.bytes))


def _alive(report: MemoryReport) -> int:
    """What is cached beside it fills whatever GPU there is, and so tells nothing of a change."""
    return max((phase.peak_allocated_bytes for phase in report.phases), default=0)


def _peak(report: MemoryReport) -> int:
    return max((phase.process_used_bytes for phase in report.phases), default=0)


AMPERE = (8, 0)  # compute capability from which a GPU computes in bf16; its kernels are taken where no GPU is named


class ModelFiles(NamedTuple):
    """A model's ``config.json`` as written, and the folder it was read from; None where it is a row of rules/models."""

    config: Mapping[str, Any]
    folder: str | None

    @property
    def has_code(self) -> bool:
        """Whether the config names classes of the model's own, which only ``--trust-remote-code`` lets run."""
        return bool(self.config.get("auto_map"))


class Estimated(NamedTuple):
    """One run and what is predicted of it.

    ``report`` is None until a simulation gives one, where the model's architecture is not known. ``files`` are
    the model's where it is not catalogued. ``notes`` are sentences for the reader: keys of i18n and their values.
    ``simulated`` is what a simulation found beside the report, ``followed`` what the memory engine did where the
    run over time was asked for.
    """

    unit: Unit
    setup: TrainingSetup
    model: Model | None
    machine: Machine
    report: MemoryReport | None
    gpu_fits: tuple[GpuFit, ...] = ()
    files: ModelFiles | None = None
    notes: tuple[Note, ...] = ()
    simulated: Any = None
    followed: "Traced | None" = None

    throughput: "Throughput | None" = None

    @property
    def drawn(self) -> Any:
        """The run over time with the largest tensors at its peaks, from whoever found them; None of a rough answer."""
        return self.simulated or self.followed


def estimate(
    prepared: UnitFacts, catalog: Catalog, assumed: tuple[Assumption, ...] = (), *, open_model: bool = False
) -> Estimated:
    """The unit's prediction.

    Args:
        prepared: the unit's setup, model and machine.
        assumed: what whoever made the unit took for granted.
        open_model: the model may be one that kb does not know, which a simulation will build.

    Raises:
        UserError: the model is not known, a value is open, or the run would end in an error whatever the memory.
    """
    unit, machine, setup, model = prepared.unit, prepared.machine, prepared.setup, prepared.model
    if prepared.note is not None and not (open_model and model is None):
        raise _unusable(prepared.note, setup, catalog)
    if not (setup.do_train or setup.do_eval or setup.do_predict):
        raise UserError("estimate.no_phase")
    setup = setup._replace(assumed=setup.assumed + assumed)
    if model is None:
        return Estimated(unit=unit, setup=setup, model=None, machine=machine, report=None)
    setup = _with_targets(setup, model.architecture)
    _check_run(setup, model)
    estimator = Estimator(model, machine, catalog.constants)
    try:
        report = with_taken(estimator.predict(setup), setup, model, machine)
        gpu_fits = () if machine.gpus else estimator.on_gpus(setup, catalog.gpus)
    except UnsupportedArchitectureError as error:
        if open_model:
            return Estimated(unit=unit, setup=setup, model=model, machine=machine, report=None)
        raise unpredictable(error, model.name) from None
    what = unfollowed(setup, model.architecture) if report is not None and report.level == "rough" else None
    return Estimated(
        unit=unit,
        setup=setup,
        model=model,
        machine=machine,
        report=report,
        gpu_fits=gpu_fits,
        notes=(("estimate.not_followed", {"what": what}),) if what is not None else (),
        throughput=estimator.throughput(setup),
    )


def with_varied_lengths(one: Estimated) -> Estimated:
    """The run with a note of what it holds where batches are padded to their longest sample."""
    if one.model is None or not one.setup.do_train:
        return one._replace(notes=(*one.notes, ("estimate.varied_no_training", {})))
    try:
        found = taken_by_lengths(one.setup, one.model, one.machine)
    except UnsupportedArchitectureError as error:
        return one._replace(notes=(*one.notes, ("estimate.varied_not_followed", {"reason": str(error)})))
    values = {
        "allocated": found.needed,
        "fixed": found.fixed,
        "varied": found.varied,
        "expandable": found.expandable,
    }
    key = "estimate.varied" if one.setup.lengths is None else "estimate.varied_of_data"
    return one._replace(notes=(*one.notes, (key, values)))


def with_timeline(one: Estimated, catalog: Catalog, moments: int = 0) -> Estimated:
    """The run as the memory engine follows it, over time; with a note that says why where it does not.

    Args:
        moments: at how many of its moments to tell what is alive, besides the peaks.
    """
    gpu = one.machine.smallest_gpu
    capability = gpu.compute_capability if gpu else None
    if one.model is None:
        return one._replace(notes=(*one.notes, ("estimate.timeline_no_model", {})))
    what = unfollowed(one.setup, one.model.architecture)
    if what is not None:
        return one._replace(notes=(*one.notes, ("estimate.timeline_not_followed", {"what": what})))
    from kb.memory.engine.trace import trace  # only this option needs it

    estimator = Estimator(one.model, one.machine, catalog.constants)
    report = estimator.predict(one.setup)
    if one.report is not None:
        report = report._replace(lengths=one.report.lengths)
    limit = estimator.reservable_bytes(one.setup)
    found = trace(one.setup, one.model.architecture, capability or AMPERE, limit, moments)
    return one._replace(report=report, followed=found)


def with_savings(one: Estimated, catalog: Catalog) -> Estimated:
    """The run with a note for each memory option that it does not have: what it would save."""
    if one.model is None or one.report is None or not one.setup.do_train:
        return one._replace(notes=(*one.notes, ("estimate.what_if_no_training", {})))
    fused = catalog.facts["model.has_liger_loss"].model_types
    found = what_if(one.setup, one.report, Estimator(one.model, one.machine, catalog.constants), fused)
    told: list[Note] = [
        (
            "estimate.what_if" if saving.bytes >= 0 else "estimate.what_if_more",
            {"option": saving.written, "saved": abs(saving.bytes), "left": saving.peak_bytes},
        )
        for saving in found
    ]
    return one._replace(notes=(*one.notes, *(told or [("estimate.what_if_nothing", {})])))


def _unusable(note: Note, setup: TrainingSetup, catalog: Catalog) -> UserError:
    """Why nothing can be predicted, as an error."""
    name, values = note
    if name == "model_not_known":
        return unknown_model(str(setup.model_name), catalog)
    if name == "no_model_named":
        return UserError("estimate.no_model")
    if name in NO_MODEL_OF_THE_RUN:
        return UserError(f"note.{name}", **values)
    if name == "unresolved_values":
        return UserError("estimate.unresolved", settings=values["settings"])
    return UserError(name.replace("model_config_", "model_config."), **values)


def _check_run(setup: TrainingSetup, model: Model) -> None:
    """What would end in an error at run time, whatever the memory.

    Raises:
        UserError: more tokens than learned positions, LoRA targets of which none is in the model, or an encoder that is
            to generate.
    """
    if setup.do_predict and model.architecture.family == "encoder":
        raise UserError("estimate.encoder_generates_nothing", model=model.name)
    most = model.architecture.max_positions if model.architecture.hears else longest_input(model)
    for name, length in _lengths(setup, model.architecture).items():
        if most is not None and length > most:
            raise UserError("estimate.too_long", name=name, length=length, model=model.name, most=most)
    if setup.method != "full":
        _check_targets(setup.lora_target_modules, model)


def _with_targets(setup: TrainingSetup, architecture: Architecture) -> TrainingSetup:
    """A question that names no LoRA targets is about the usual ones where PEFT has none for the type, and says so."""
    if setup.method == "full" or setup.lora_target_modules or default_targets(architecture):
        return setup
    targets = targets_for(architecture)
    assumed = Assumption("lora.target_modules", list(targets), "no_default_targets")
    return setup._replace(lora_target_modules=targets, assumed=(*setup.assumed, assumed))


def _check_targets(targets: tuple[str, ...] | None, model: Model) -> None:
    with suppress(UnknownTargetsError):
        if match_targets(model.architecture, targets)[0]:
            return
    known = ", ".join(dict.fromkeys(module.leaf for module in modules(model.architecture)))
    raise UserError("estimate.unknown_targets", targets=", ".join(targets or ()), model=model.name, known=known)


def _lengths(setup: TrainingSetup, arch: Architecture) -> Mapping[str, int]:
    """The longest row of positions of each part of the run, by the setting that decides it."""
    found = {} if arch.hears else {"max_source_length": setup.max_source_length}
    if arch.family in ("t5", "bart"):
        if setup.do_train or setup.do_eval:
            found["max_target_length"] = setup.max_target_length
        if setup.do_eval and setup.predict_with_generate:
            found["generation_max_length"] = setup.generation_max_length
        if setup.do_predict:
            found["inference_max_length"] = setup.inference_max_length
    elif arch.family == "decoder" and setup.do_predict:
        found["max_source_length + inference_max_length"] = setup.max_source_length + setup.inference_max_length
    return found


def runs_out(estimated: Sequence[Estimated]) -> bool:
    """Whether any of the runs is said to run out, of the GPU's memory or of the host's."""
    reports = [one.report for one in estimated if one.report is not None]
    return any(status in OVER for report in reports for status in (report.verdict.status, report.host.status))
