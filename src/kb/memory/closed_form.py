"""One setup, one architecture → the phases of a run by closed forms: quick, with wide bands."""

from collections.abc import Mapping

from kb.core.memory_report import HostLedger, MemoryReport, Phase, PhaseName
from kb.core.model import Architecture
from kb.core.setup import Assumption, TrainingSetup
from kb.memory.adapters import CROSS
from kb.memory.closed_states import KNOWN_OPTIMIZERS, States, states_of
from kb.memory.evaluation import evaluation_peak, kept_steps
from kb.memory.generation import generation_peak
from kb.memory.ledger import Peak, Terms
from kb.memory.parallel import as_run
from kb.memory.process import Context, judged, kept_workspace, phase_of
from kb.memory.remainders import moments_remainder
from kb.memory.shape import Shape, shape_of
from kb.memory.training import training_peak

FLASH_FROM = (8, 0)  # compute capability from which scaled_dot_product_attention has its flash kernel
HOPPER = 9  # major compute capability from which cuBLAS takes a larger workspace


def closed_report(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    memory: int | None,
    capability: tuple[int, int] | None,
) -> MemoryReport:
    """The run's phases with the verdict against ``memory`` bytes of a GPU. The host ledger is empty: the caller's."""
    hopper = capability is not None and capability[0] >= HOPPER
    workspace = round(constants["cublas_workspace_hopper_bytes" if hopper else "cublas_workspace_bytes"])
    asked, setup = setup, as_run(setup)
    states = _with_moments(setup, architecture, states_of(setup, architecture))
    flash = capability is None or capability >= FLASH_FROM
    peaks = _peaks(setup, architecture, states, workspace, constants["block_remainder_bytes"], flash)
    holes = {"checkpointing": setup.gradient_checkpointing, "eager": setup.attn_implementation == "eager"}
    phases = tuple(phase_of(name, peak, constants, context, **holes) for name, peak in peaks.items())
    if setup.fused_loss:
        phases = tuple(map(_without_logits, phases))
    phases, verdict = judged(phases, memory, constants)
    assumed = setup.assumed + _assumptions(setup, architecture, states, cast=setup is not asked)
    return MemoryReport("closed", assumed, phases, HostLedger((), 0, 0, None), verdict)


LOGITS = ("activations_head", "loss", "logits")


def _without_logits(phase: Phase) -> Phase:
    """Training with a fused loss: whole logits are never made. How much less that is was not measured here, so that the
    high end still counts them.
    """
    spared = sum(term.bytes for term in phase.terms if term.name in LOGITS) if phase.name == "train" else 0
    if not spared:
        return phase
    return phase._replace(
        terms=tuple(term for term in phase.terms if term.name not in LOGITS),
        peak_allocated_bytes=phase.peak_allocated_bytes - spared,
        peak_reserved_bytes=phase.peak_reserved_bytes - spared,
        process_used_bytes=phase.process_used_bytes - spared,
        low_bytes=phase.low_bytes - spared,
    )


def _with_moments(setup: TrainingSetup, arch: Architecture, states: States) -> States:
    """The states with what is left over in the optimizer's moments where they lie in activations' segments."""
    width = 4 if setup.weights == "fp32" else 2
    whole = 2 * width * states.trainable
    if setup.method != "full" or setup.world_size > 1 or setup.gradient_checkpointing or arch.family != "encoder":
        return states
    if not states.optimizer >= whole > 0:
        return states
    row = setup.per_device_train_batch_size * setup.max_source_length * arch.d_model * (4 if setup.autocast else width)
    rest = moments_remainder(arch, width, row)
    return states if rest is None else states._replace(optimizer=whole + rest)


def _peaks(
    setup: TrainingSetup, arch: Architecture, states: States, workspace: int, remainder: float, flash: bool
) -> dict[PhaseName, Peak]:
    """Each phase's peak. What shares a process with training finds the optimizer's states there."""
    weights: Terms = {
        "parameters": states.parameters,
        "adapters": states.adapters,
        "quantization": states.quantization,
    }
    peaks: dict[PhaseName, Peak] = {"load": _rest("loading", weights | {"temporaries": states.load_temporaries})}
    quantized = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"

    def kept(trained: bool) -> int:
        checkpointed = setup.gradient_checkpointing
        return kept_workspace(arch, workspace, quantized=quantized, trained=trained, checkpointed=checkpointed)

    alone: Terms = weights | {"workspace": kept(False)}
    resident = alone
    if setup.do_train:
        resident = weights | {"optimizer": states.optimizer, "buckets": states.buckets, "workspace": kept(True)}
        resident |= {"gathered_parameters": states.gathered}
        shape = _shape(setup, arch, states, setup.per_device_train_batch_size, flash)
        peaks["train"] = training_peak(setup, states, shape, workspace, remainder)
    if setup.do_eval:
        shape = _shape(setup, arch, states, setup.per_device_eval_batch_size, flash)
        peaks["evaluate"] = evaluation_peak(setup, shape, resident, states.cast_adapters, remainder)
        if setup.predict_with_generate and arch.family != "encoder":
            peaks["generate"] = generation_peak(
                shape,
                resident,
                beams=setup.generation_num_beams,
                new_tokens=setup.generation_max_length,
                accelerated=setup.method == "full",
                remainder=remainder,
            )._replace(use="evaluation", batch=setup.per_device_eval_batch_size)
    if setup.do_predict and arch.family != "encoder":
        batch = setup.inference_batch_size or setup.per_device_eval_batch_size
        shape = _shape(setup, arch, states, batch, flash)
        found = generation_peak(
            shape,
            alone,
            beams=setup.inference_num_beams,
            new_tokens=setup.inference_max_length,
            accelerated=False,
            remainder=remainder,
        )
        if "generate" not in peaks or found.allocated > peaks["generate"].allocated:
            peaks["generate"] = found._replace(use="inference", batch=batch)
    if setup.do_train:
        peaks["save"] = _rest("saving", resident)
    return peaks


def _shape(setup: TrainingSetup, arch: Architecture, states: States, batch: int, flash: bool) -> Shape:
    lora_head = any(module.stack == "head" for module in states.targets)
    source, target = setup.max_source_length, setup.max_target_length
    if arch.family in ("decoder", "encoder"):  # prompt and answer are one sequence
        target = source
    return shape_of(
        setup,
        arch,
        batch=batch,
        source=source,
        target=target,
        lora_head=lora_head,
        lora_cross=any(module.name.endswith(CROSS) for module in states.targets),
        flash_kernel=flash,
    )


def _rest(moment: str, terms: Terms) -> Peak:
    return Peak(moment, {term: size for term, size in terms.items() if size}, sum(terms.values()))


def _assumptions(setup: TrainingSetup, arch: Architecture, states: States, *, cast: bool) -> tuple[Assumption, ...]:
    """What the prediction takes for granted; each reason is a key of i18n."""
    found = []

    def assume(name: str, value: object, reason: str) -> None:
        found.append(Assumption(name=name, value=value, reason=reason))

    keeps = setup.do_eval and not (setup.predict_with_generate or setup.prediction_loss_only)
    if keeps and not setup.eval_samples:
        assume("evaluation.samples", kept_steps(setup, 1), "one_evaluation_step")
    if setup.fused_loss:
        assume("training.fused_loss", True, "fused_loss")
    if setup.do_train and setup.optim not in KNOWN_OPTIMIZERS:
        assume("training.optim", setup.optim, "optimizer_as_adamw")
    if setup.method != "full" and states.unmatched:
        assume("lora.target_modules", list(states.unmatched), "unmatched_targets")
    if setup.method != "full" and setup.use_dora:
        assume("lora.use_dora", True, "dora_norms")
    if setup.load_in_8bit and not setup.load_in_4bit:
        assume("lora.load_in_8bit", True, "eight_bit_as_four")
    if setup.attn_implementation == "flash" and arch.family == "t5":
        assume("training.attn_implementation", "sdpa", "no_flash_for_t5")
    if setup.attn_implementation == "sdpa" and arch.score_cap:
        assume("training.attn_implementation", "eager", "no_sdpa_with_capped_scores")
    if setup.world_size > 1 or setup.fsdp:
        assume("parallel.world_size", setup.world_size, "even_shards")
    if cast:
        assume("parallel.weights", setup.weights, "cast_to_half")
    if setup.spread.tensor_parallel > 1:
        assume("parallel.tensor_parallel", setup.spread.tensor_parallel, "blocks_split")
    return tuple(found)
