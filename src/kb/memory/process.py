"""From allocated bytes to what the process uses on the GPU, with its band; and the verdict against a card."""

from collections.abc import Mapping

from kb.core.hardware import Gpu
from kb.core.memory_report import STATUSES, Phase, PhaseName, Term, Verdict, phase_status
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.units import MIB, rounded_down
from kb.memory.counts import count
from kb.memory.ledger import Peak

BIAS_WORKSPACE = MIB  # cuBLASLt's, which a product with a bias goes through (CUDABlas.cpp; seen in runs on a T4)


class Context(NamedTuple):
    """CUDA context and libraries, in bytes."""

    low: int
    expected: int
    high: int


def context_of(constants: Mapping[str, float], capability: tuple[int, int] | None, gpu: Gpu | None) -> Context:
    """The context's bytes: measured for this GPU, or for its generation, within what is known of any."""
    if gpu is not None and gpu.context_bytes is not None:
        return Context(gpu.context_bytes, gpu.context_bytes, gpu.context_bytes)
    expected = constants["context_bytes"]
    if capability is not None:
        expected = constants.get(f"context_sm{capability[0]}{capability[1]}_bytes", expected)
    low, high = min(expected, constants["context_low_bytes"]), max(expected, constants["context_high_bytes"])
    return Context(round(low), round(expected), round(high))


def phase_of(
    name: PhaseName,
    peak: Peak,
    constants: Mapping[str, float],
    context: Context,
    *,
    checkpointing: bool = False,
    eager: bool = False,
) -> Phase:
    """A peak as the process sees it. Evaluation and checkpointed training leave more holes than other phases, and the
    recomputed score matrices of eager attention the most.

    Low is what the run cannot do without: allocated memory less the error band (the allocator gives cached blocks back
    before it fails) and the smallest context. High is allocated plus the band, times the upper ratio of reserved
    memory, plus the largest context.
    """
    band = constants[f"band_{name}"]
    kind: str = name
    if checkpointing and name == "train" and peak.moment != "optimizer_step":  # nothing is recomputed there
        kind = "checkpointing_eager" if eager else "checkpointing"
    mean = constants.get(f"reserved_mean_{kind}", constants["reserved_mean"])
    upper = constants.get(f"reserved_upper_{kind}", constants["reserved_upper"])
    reserved = round(peak.allocated * mean)
    return Phase(
        name=name,
        terms=tuple(Term(term, size) for term, size in peak.terms.items()),
        peak_allocated_bytes=peak.allocated,
        peak_reserved_bytes=reserved,
        process_used_bytes=reserved + context.expected,
        low_bytes=round(peak.allocated * (1 - band)) + context.low,
        high_bytes=round(peak.allocated * (1 + band) * upper) + context.high,
        moment=peak.moment,
        use=peak.use,
        batch=peak.batch,
    )


def usable_bytes(memory: int, constants: Mapping[str, float]) -> int:
    """What a process gets of a GPU's ``memory``, rounded down to the tenth of a GiB that reports show."""
    return rounded_down(memory * constants["usable_memory_ratio"])


def judged(
    phases: tuple[Phase, ...], memory: int | None, constants: Mapping[str, float]
) -> tuple[tuple[Phase, ...], Verdict]:
    """The phases, each with its status, and the worst. The phase that uses most decides, by its largest term."""
    if not phases:
        return phases, Verdict(status="unknown")
    if memory is not None:
        usable = usable_bytes(memory, constants)
        phases = tuple(phase._replace(status=phase_status(phase, memory, usable)) for phase in phases)
    worst = max(phases, key=lambda phase: ("unknown", *STATUSES).index(phase.status)).status
    deciding = max(phases, key=lambda phase: phase.process_used_bytes)
    term = max(deciding.terms, key=lambda term: term.bytes).name if deciding.terms else None
    return phases, Verdict(status=worst, phase=deciding.name, term=term)


def kept_workspace(arch: Architecture, workspace: int, *, quantized: bool, trained: bool, checkpointed: bool) -> int:
    """Bytes that cuBLAS and cuBLASLt keep once a forward pass, and where ``trained`` a backward pass, has run.

    cuBLASLt's comes with the first linear layer that has a bias; autograd's thread meets one only where checkpointing
    makes layers again. 4-bit layers add their biases themselves, so that only heads over classes are left.

    Args:
        workspace: bytes of one thread's cuBLAS workspace.
    """
    blocks = count(arch).biases > 0 and not quantized
    forward = BIAS_WORKSPACE if blocks or arch.family == "encoder" else 0
    if not trained:
        return workspace + forward
    return 2 * workspace + forward + (BIAS_WORKSPACE if blocks and checkpointed else 0)
