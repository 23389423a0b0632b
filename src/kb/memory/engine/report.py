"""Recordings as a report's phases: peaks with the terms of what was alive, and the moment they lie at; and what is
reserved where every batch is as long as its longest sample of a spread of lengths.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import erf, sqrt
from typing import Any

from kb.core.memory_report import HostLedger, MemoryReport, Phase, PhaseName, TakenByLengths, Verdict
from kb.core.model import DYNAMIC_4BIT, Architecture
from kb.core.setup import LENGTH_SHARES, TORCHAO, Assumption, DataLengths, PostTraining, TrainingSetup
from kb.memory.answers import kept
from kb.memory.config_fields import UnsupportedArchitectureError
from kb.memory.engine.ddp import finds_unused
from kb.memory.engine.deepened import recorded_deep
from kb.memory.engine.families import model_class
from kb.memory.engine.faults import DdpRefusesError, NotFollowedError
from kb.memory.engine.follow import Found, beside, follow, follow_inside, phase_found
from kb.memory.engine.optimizers import KNOWN
from kb.memory.engine.options import options_of, unshared
from kb.memory.engine.predict import check_answers, check_followed, is_deep, record_training
from kb.memory.engine.world import AMPERE, Recording
from kb.memory.parameters import default_targets, match_targets
from kb.memory.process import Context, judged, usable_bytes
from kb.memory.releases import coarsely_compared
from kb.memory.states import FP32

STEPS = 10
COPIES_OF_A_STEP = 3
BYTES_OF_A_LOGIT = 16  # of Unsloth's loss: in 16 bits, in fp32, its log-softmax and the gradient (its own count)
MEDIAN_SHARE = 3  # assumed: half of the samples are shorter than the maximum's third
TOP = 0.99  # assumed: the maximum is the 99th percentile of a log-normal, and longer ones are cut


def report_of(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    memory: int | None,
    capability: tuple[int, int] | None,
    among: bool = False,
) -> MemoryReport:
    """The run's phases with the verdict against ``memory`` bytes of a GPU, which may be one ``among`` many.

    The report's host ledger is empty: it is the caller's.

    Raises:
        UnsupportedArchitectureError: something that the engine does not follow, by name.
    """
    band, upper = _bands(setup, constants)
    limits = None if memory is None else limits_of(setup, constants, context, memory)
    most: Mapping[PhaseName, Found] = {}
    try:
        found = follow(setup, _least(architecture), capability or AMPERE, limits, among=among)
        if architecture.delta is not None:  # nothing says which code runs: the range holds both
            most = follow(setup, architecture, capability or AMPERE).phases
    except NotFollowedError as error:
        raise refused(architecture, error) from None
    phases = tuple(phase_found(name, found.phases[name], setup, context, band, upper) for name in found.phases)
    high = {name: phase_found(name, each, setup, context, band, upper).high_bytes for name, each in most.items()}
    phases = tuple(each._replace(high_bytes=max(each.high_bytes, high.get(each.name, 0))) for each in phases)
    if memory is not None:
        phases = beside(phases, setup, architecture, memory)
    phases = with_others_kernels(phases, setup, architecture, memory, constants)
    phases, verdict = judged(phases, memory, constants)
    if found.ran_out:
        verdict = Verdict("oom", verdict.phase, verdict.term)
    return MemoryReport(
        "engine", assumed_of(setup, architecture, capability), phases, HostLedger((), 0, 0, None), verdict
    )


def with_others_kernels(
    phases: tuple[Phase, ...],
    setup: TrainingSetup,
    architecture: Architecture,
    memory: int | None,
    constants: Mapping[str, float],
) -> tuple[Phase, ...]:
    """The phases with what kernels that are not followed may take besides, in training's high end.

    Unsloth's loss is in pieces as large as half of what the GPU has free (unsloth_zoo/fused_losses/
    cross_entropy_loss.py; since 2026 they are small), so that a run that fits without still fits. torchao's step is
    compiled, tensor by tensor; what of it no kernel holds together is at most a few copies in fp32 (inferred).
    """
    if not setup.do_train:
        return phases
    most = after = 0
    if setup.unsloth and setup.fused_loss:
        most = setup.per_device_train_batch_size * setup.max_source_length * architecture.vocab_size * BYTES_OF_A_LOGIT
    if setup.optim in TORCHAO:
        after = COPIES_OF_A_STEP * FP32 * _largest_trained(setup, architecture)

    def with_kernels(phase: Phase) -> Phase:
        free = most if memory is None else (usable_bytes(memory, constants) - phase.high_bytes) // 2
        return phase._replace(high_bytes=phase.high_bytes + max(0, min(most, free)) + after)

    return tuple(with_kernels(each) if each.name == "train" else each for each in phases)


def _largest_trained(setup: TrainingSetup, a: Architecture) -> int:
    """Parameters of the largest tensor that is trained, at most."""
    widest = max(a.vocab_size, a.d_ff, a.d_model)
    if setup.method != "full":
        return setup.lora_r * widest
    return max(widest, 2 * a.experts * a.expert_ff) * a.d_model


def _least(architecture: Architecture) -> Architecture:
    """The model with the least that kernels of layers without attention keep, where there are such layers."""
    delta = architecture.delta
    return architecture if delta is None else architecture._replace(delta=delta._replace(least=True))


def _is_measured(post: PostTraining) -> bool:
    """Whether runs on a GPU were within 1 % of the loss (rules/measurements/trl-h100-*, TRL 1.16)."""
    if post.liger is not None:
        return False
    return post.kind == "reward" or (post.head == "fused" and post.kind in ("sft", "dpo", "kto", "grpo", "rloo"))


def assumed_of(
    setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int] | None
) -> tuple[Assumption, ...]:
    """What the report takes for granted; each reason is a key of i18n."""
    assumed = setup.assumed
    if capability is None:
        assumed += (Assumption("gpu.compute_capability", ".".join(map(str, AMPERE)), "kernels_of_ampere"),)
    if setup.fsdp or setup.zero_stage or unshared(setup):
        reason = "deepspeed_source" if _is_read(setup) else "first_process"
        assumed += (Assumption("parallel.world_size", setup.world_size, reason),)
    elif setup.data_parallel_size > 1 and setup.do_train and setup.spread.find_unused is None:
        assumed += (Assumption("training.ddp_find_unused_parameters", finds_unused(setup), "library_default"),)
    if setup.load_in_8bit and not setup.load_in_4bit:
        assumed += (Assumption("lora.load_in_8bit", True, "no_outliers"),)
    if setup.post is not None and not _is_measured(setup.post):
        assumed += (Assumption("training.loss", setup.post.kind, "loss_computed"),)
    assumed += _of_fused_loss(setup, architecture)
    if setup.unsloth and setup.do_train:
        assumed += (Assumption("model.loader", "unsloth", "unsloth_source"),)
    elif setup.do_train and setup.gradient_checkpointing and setup.offloads_checkpoints:
        assumed += (Assumption("training.offloaded_checkpoints", True, "checkpoints_away"),)
    if architecture.delta is not None:
        assumed += (Assumption("model.model_type", architecture.model_type, "delta_kernels"),)
    if _perhaps_dynamic(setup):
        assumed += (Assumption("quantization.load_in_4bit", True, "dynamic_4bit"),)
    if setup.attn_implementation == "sdpa" and model_class(architecture).is_eager(architecture):
        assumed += (Assumption("training.attn_implementation", "eager", "no_sdpa_of_the_type"),)
    if setup.attn_implementation == "flash":
        assumed += (Assumption("training.attn_implementation", "sdpa", "flash_as_sdpa"),)
    if setup.do_eval and not (setup.predict_with_generate or setup.prediction_loss_only or setup.eval_samples):
        assumed += (Assumption("evaluation.samples", setup.eval_accumulation_steps or 1, "one_evaluation_step"),)
    if setup.method != "full":
        targets = setup.lora_target_modules or default_targets(architecture)
        unmatched = match_targets(architecture, targets)[1] if targets else ()
        if architecture.experts and setup.earlier.experts_apart:  # their layers are not among the architecture's
            from kb.memory.engine.families.decoder_experts import WRAPPED  # few models need it

            unmatched = tuple(name for name in unmatched if name.rpartition(".")[2] not in WRAPPED)
        if unmatched:
            assumed += (Assumption("lora.target_modules", list(unmatched), "unmatched_targets"),)
    return assumed


def _of_fused_loss(setup: TrainingSetup, architecture: Architecture) -> tuple[Assumption, ...]:
    """Of a loss without whole logits: that it is read from Liger's source, and what of Liger is not followed."""
    if not setup.fused_loss:
        return ()
    from kb.memory.engine.families import decoder_liger as liger  # most runs have no such loss

    fused = options_of(setup, default_targets(architecture) or ()).fused
    assert fused is not None
    if not (liger.kernels_of(architecture, fused) if fused.named else architecture.family == "decoder"):
        return (Assumption("model.has_liger_loss", False, "no_liger_of_the_type"),)
    if not fused.named:
        return (Assumption("training.fused_loss", True, "fused_as_liger"),)
    found: tuple[Assumption, ...] = ()
    if liger.has_fused_head(architecture, fused):
        found = (Assumption("training.fused_loss", True, "liger_source"),)
    if liger.left_out(architecture, fused):
        found += (Assumption("training.use_liger_kernel", True, "liger_layers"),)
    return found


def _bands(setup: TrainingSetup, constants: Mapping[str, float]) -> tuple[float, float]:
    """The error of allocated memory, and by how much reserved memory may be found too low."""
    name = "band_earlier_release" if coarsely_compared(setup.earlier) else "band_simulated"
    band = constants["band_train" if _is_read(setup) or setup.uncompared else name]
    upper = constants["band_simulated_quantized"] if setup.packs else band
    return band, upper + constants["dynamic_4bit_share"] if _perhaps_dynamic(setup) else upper


def _perhaps_dynamic(setup: TrainingSetup) -> bool:
    """Whether the checkpoint may have layers that Unsloth left in 16 bits. It loads its own file for many a name that
    is asked for in 4 bits (unsloth/models/mapper.py); which layers, that file's ``llm_int8_skip_modules`` alone says.
    """
    return setup.load_in_4bit and (setup.unsloth or (setup.model_name or "").casefold().endswith(DYNAMIC_4BIT))


def _is_read(setup: TrainingSetup) -> bool:
    """What DeepSpeed does below stage 3 of ZeRO, Unsloth's layers and checkpoints, and a kernel of Triton's, is read
    from their source alone; stage 3 was run in the simulation."""
    alone = setup.do_train and (setup.fused_loss or setup.unsloth or setup.offloads_checkpoints)
    return setup.zero_stage in (1, 2) or unshared(setup) or alone


def limits_of(setup: TrainingSetup, constants: Mapping[str, float], context: Context, memory: int) -> tuple[int, int]:
    """Bytes that PyTorch may reserve on a GPU of ``memory``: so many are surely there, and so many may be."""
    surely = (usable_bytes(memory, constants) - context.high) / (1 + _bands(setup, constants)[1])
    return int(surely), memory - context.low


def _taken(value: Any) -> TakenByLengths:
    return TakenByLengths(*value)


@kept(tuple, _taken)
def reserved_by_lengths(
    setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int] | None
) -> TakenByLengths:
    """What training takes of the GPU with batches padded to their longest sample: of the project's data where the setup
    knows its lengths, else of an assumed spread.

    Raises:
        UnsupportedArchitectureError: something that the engine does not follow, by name.
    """
    from kb.memory.engine.expandable import ExpandableAllocator  # one table is made of it

    lengths = varied(setup.max_source_length, setup.per_device_train_batch_size, known=setup.lengths)
    try:
        alike, drawn = (_training(setup, architecture, capability or AMPERE, sources) for sources in (None, lengths))
    except NotFollowedError as error:
        raise UnsupportedArchitectureError(f"{architecture.model_type}: {error.what}") from None
    fixed, varying = alike.phases["train"], drawn.phases["train"]
    paged = drawn.peaks(ExpandableAllocator())["train"].reserved
    return TakenByLengths(fixed.allocated, fixed.reserved, varying.reserved, paged)


def _training(
    setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int], sources: Sequence[int] | None
) -> Recording:
    def record(architecture: Architecture, kind: Callable[[], Recording]) -> list[Recording]:
        return [record_training(setup, architecture, capability, sources, kind=kind)]

    (found,) = recorded_deep(setup, architecture, record) or record(architecture, Recording)
    return found


def varied(most: int, rows: int, steps: int = STEPS, known: DataLengths | None = None) -> list[int]:
    """The padded lengths of ``steps`` batches of ``rows`` samples; the last is as long as any may be.

    The spread is that of the data where it is ``known``, between its lengths as if it were even; else assumed:
    log-normal. Either is cut at ``most``. Nothing is drawn at random: batches are the percentiles of a
    sequence that fills the range evenly (van der Corput), so that the same question has the same answer.
    """
    share = [_evenly(step) ** (1 / rows) for step in range(1, steps)]
    if known is None:
        found = [most * MEDIAN_SHARE ** (_normal(p) / _normal(TOP) - 1) for p in share]
    else:
        found = [_between(known.input, p) for p in share]
    return [*(max(1, min(most, round(length))) for length in found), most]


def _between(lengths: Sequence[int], share: float) -> float:
    """The length that ``share`` of the samples do not exceed."""
    ends = zip(pairwise(LENGTH_SHARES.values()), pairwise(lengths), strict=True)
    (low, high), (short, long) = next(each for each in ends if share <= each[0][1])
    return short + (long - short) * (share - low) / (high - low)


def _evenly(number: int) -> float:
    """The bits of ``number`` mirrored behind the point."""
    found, weight = 0.0, 0.5
    while number:
        found += weight * (number & 1)
        number >>= 1
        weight /= 2
    return found


def _normal(share: float) -> float:
    """The point below which ``share`` of a standard normal lies, to nine digits."""
    low, high = -8.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 + erf(middle / sqrt(2))) / 2 < share:
            low = middle
        else:
            high = middle
    return low


def follows(setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int] | None) -> bool:
    """Whether the engine follows all of the run, layer by layer, on GPUs of this compute capability."""
    if is_deep(architecture) or one_by_one(setup, architecture, capability):
        return False
    return why_not(setup, architecture) is None


def one_by_one(setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int] | None) -> bool:
    """Whether experts that are one parameter are multiplied one by one, which is not followed (``grouped_mm`` asks for
    8.0)."""
    if setup.earlier.experts_apart or architecture.engine or not architecture.experts:
        return False
    return capability is not None and capability < AMPERE


def why_not(setup: TrainingSetup, architecture: Architecture) -> str | None:
    """What of a run the engine does not follow, in the field's words; None where it follows all of it."""
    try:
        options_of(setup, default_targets(architecture) or ())
        check_followed(architecture, setup)
        if setup.do_train and setup.optim not in KNOWN:
            return f"optim {setup.optim}"
        check_answers(setup)
    except NotFollowedError as error:
        return error.what
    return None


def refused(architecture: Architecture, error: NotFollowedError) -> UnsupportedArchitectureError:
    """What a user reads of it."""
    kind = architecture.model_type
    what = error.what.removesuffix(f" of {kind}")  # the sentence names the type itself
    said = f"{kind}: {error.what}: the memory engine does not follow that"
    if isinstance(error, DdpRefusesError):
        return UnsupportedArchitectureError(said, "ddp_refuses", names=error.names)
    return UnsupportedArchitectureError(said, "engine_not_followed", type=kind, what=what)


def phases_inside(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    capability: tuple[int, int] | None,
    limit: Callable[[float], int],
) -> tuple[Phase, ...]:
    """The run's phases where PyTorch may reserve ``limit`` bytes, which depend on how much too low reserved memory may
    be found. Each is looked at by itself: one that runs out of them goes on past them.

    Raises:
        UnsupportedArchitectureError: something that the engine does not follow, by name.
    """
    band, upper = _bands(setup, constants)
    try:
        found = follow_inside(setup, architecture, capability or AMPERE, limit(upper))
    except NotFollowedError as error:
        raise refused(architecture, error) from None
    return tuple(phase_found(name, each, setup, context, band, upper) for name, each in found.phases.items())
