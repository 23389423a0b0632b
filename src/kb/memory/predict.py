"""One setup, one architecture, one machine → one :class:`MemoryReport`, by closed forms."""

from collections.abc import Mapping

from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport, Phase, PhaseName, Term, Verdict
from kb.core.model import Architecture
from kb.core.setup import Assumption, TrainingSetup
from kb.memory.evaluation import evaluation_peak, kept_steps
from kb.memory.generation import generation_peak
from kb.memory.host import host_ledger
from kb.memory.ledger import Peak, Terms
from kb.memory.shape import shape_of
from kb.memory.states import States, states_of
from kb.memory.training import training_peak

FAMILIES = ("t5", "bart")


class UnsupportedFamilyError(ValueError):
    """No closed form for this family yet."""


def predict(
    setup: TrainingSetup,
    architecture: Architecture,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    gpu_memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    host_limit_bytes: int | None = None,
    checkpoint_bytes: int | None = None,
) -> MemoryReport:
    """GPU memory by phase and host memory, with a verdict against the GPU (04-memory, level 0).

    Args:
        constants: figures of ``rules/constants.yaml``, sizes in bytes.
        gpu: the catalogued GPU; ``gpu_memory_bytes`` and ``compute_capability``, as found, win over it.
        host_limit_bytes: the container's limit, or the host's memory.
        checkpoint_bytes: the model's files; by default its parameters in fp32.

    Raises:
        UnsupportedFamilyError: no closed form for ``architecture.family``.
    """
    if architecture.family not in FAMILIES:
        raise UnsupportedFamilyError(
            f"no closed form for the {architecture.family} family ({architecture.model_type}) yet"
        )
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    memory = gpu_memory_bytes if gpu_memory_bytes is not None else (gpu.memory_total if gpu else None)
    context = _context(constants, capability, gpu)
    workspace = round(
        constants["cublas_workspace_hopper_bytes" if capability and capability[0] >= 9 else "cublas_workspace_bytes"]
    )
    states = states_of(setup, architecture)
    peaks = _peaks(setup, architecture, states, workspace, constants["block_remainder_bytes"])
    phases = tuple(_phase(name, peak, constants, context) for name, peak in peaks.items())
    host = host_ledger(
        setup,
        constants=constants,
        checkpoint_bytes=checkpoint_bytes if checkpoint_bytes is not None else states.parameters,
        saved_bytes=(states.parameters if setup.method == "full" else states.adapters) if setup.do_train else 0,
        offloaded_bytes=0,
        gathered_bytes=0,
        limit_bytes=host_limit_bytes,
    )
    return MemoryReport(
        level="closed",
        assumed=setup.assumed + _assumptions(setup, states),
        phases=phases,
        host=host,
        verdict=_verdict(phases, memory, constants),
    )


def _peaks(
    setup: TrainingSetup, arch: Architecture, states: States, workspace: int, remainder: float
) -> dict[PhaseName, Peak]:
    weights: Terms = {
        "parameters": states.parameters,
        "adapters": states.adapters,
        "quantization": states.quantization,
    }
    peaks: dict[PhaseName, Peak] = {"load": Peak("loading", weights, states.weights)}
    resident: Terms = weights | {"workspace": workspace}
    if setup.do_train:
        shape = shape_of(setup, arch, batch=setup.per_device_train_batch_size, source=setup.max_source_length,
                         target=setup.max_target_length,
                         lora_head=any(module.stack == "head" for module in states.targets))  # fmt: skip
        peaks["train"] = training_peak(setup, states, shape, workspace, remainder)
        resident = weights | {"optimizer": states.optimizer, "buckets": states.buckets, "workspace": 2 * workspace}
    if setup.do_eval:
        shape = shape_of(setup, arch, batch=setup.per_device_eval_batch_size, source=setup.max_source_length,
                         target=setup.max_target_length)  # fmt: skip
        peaks["evaluate"] = evaluation_peak(setup, shape, resident, states.cast_adapters, remainder)
        if setup.predict_with_generate:
            peaks["generate"] = generation_peak(shape, resident, beams=setup.generation_num_beams,
                                                new_tokens=setup.generation_max_length, accelerated=setup.method == "full", remainder=remainder)  # fmt: skip
    if setup.do_predict:
        shape = shape_of(setup, arch, batch=setup.inference_batch_size or setup.per_device_eval_batch_size,
                         source=setup.max_source_length, target=setup.max_target_length)  # fmt: skip
        alone = generation_peak(shape, weights | {"workspace": workspace}, beams=setup.inference_num_beams,
                                new_tokens=setup.inference_max_length, accelerated=False, remainder=remainder)  # fmt: skip
        if "generate" not in peaks or alone.allocated > peaks["generate"].allocated:
            peaks["generate"] = alone
    if setup.do_train:
        peaks["save"] = Peak("saving", {k: v for k, v in resident.items() if v}, sum(resident.values()))
    return peaks


def _context(
    constants: Mapping[str, float], capability: tuple[int, int] | None, gpu: Gpu | None
) -> tuple[int, int, int]:
    """CUDA context and libraries: low, expected, high."""
    if gpu is not None and gpu.context_bytes is not None:
        return gpu.context_bytes, gpu.context_bytes, gpu.context_bytes
    name = f"context_sm{capability[0]}{capability[1]}_bytes" if capability else "context_bytes"
    expected = constants.get(name, constants["context_bytes"])
    return (
        round(min(expected, constants["context_low_bytes"])),
        round(expected),
        round(max(expected, constants["context_high_bytes"])),
    )


def _phase(name: PhaseName, peak: Peak, constants: Mapping[str, float], context: tuple[int, int, int]) -> Phase:
    band = constants.get(f"band_{name}", 0.05)
    reserved = round(peak.allocated * constants["reserved_mean"])
    return Phase(
        name=name,
        terms=tuple(Term(term, size) for term, size in peak.terms.items()),
        peak_allocated_bytes=peak.allocated,
        peak_reserved_bytes=reserved,
        process_used_bytes=reserved + context[1],
        low_bytes=round(peak.allocated * (1 - band)) + context[0],
        high_bytes=round(peak.allocated * (1 + band) * constants["reserved_upper"]) + context[2],
        moment=peak.moment,
    )


def _verdict(phases: tuple[Phase, ...], memory: int | None, constants: Mapping[str, float]) -> Verdict:
    """``oom`` only where even the low end is over the card; ``tight`` where the limit lies in the band."""
    deciding = max(phases, key=lambda phase: phase.process_used_bytes)
    term = max(deciding.terms, key=lambda term: term.bytes).name if deciding.terms else None
    if memory is None:
        return Verdict(status="unknown", phase=deciding.name, term=term)
    worst_low = max(phase.low_bytes for phase in phases)
    worst_high = max(phase.high_bytes for phase in phases)
    usable = memory * constants.get("usable_memory_ratio", 1.0)
    if worst_low > memory:
        return Verdict(status="oom", phase=deciding.name, term=term)
    return Verdict(status="tight" if worst_high > usable else "fits", phase=deciding.name, term=term)


def _assumptions(setup: TrainingSetup, states: States) -> tuple[Assumption, ...]:
    found = []
    if setup.do_eval and not (setup.eval_samples or setup.predict_with_generate or setup.prediction_loss_only):
        found.append(Assumption(name="evaluation.samples", value=kept_steps(setup, 1), reason="one_evaluation_step"))
    if setup.world_size > 1 or setup.fsdp:
        found.append(Assumption(name="parallel.world_size", value=setup.world_size, reason="even_shards"))
    return tuple(found)
