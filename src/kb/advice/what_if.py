"""What each memory option would save: the same run with one setting changed, predicted beside it."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from kb.advice.estimator import Estimator
from kb.core.memory_report import MemoryReport
from kb.core.record import NamedTuple
from kb.core.setup import LigerKernels, TrainingSetup
from kb.memory import UnsupportedArchitectureError

AMPERE = (8, 0)  # compute capability from which a GPU computes in bf16


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
