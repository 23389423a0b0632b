"""From allocated bytes to what the process uses on the GPU, with its band; and the verdict against a card."""

from collections.abc import Mapping

from kb.core.hardware import Gpu, Machine
from kb.core.memory_report import STATUSES, Phase, PhaseName, Term, Use, Verdict, phase_status
from kb.core.record import NamedTuple
from kb.core.units import rounded_down


class Peak(NamedTuple):
    """A phase's peak in bytes: the moment it lies at (a key of i18n under ``moment.``), and the terms of what is there.

    ``use`` and ``batch`` as in :class:`~kb.core.memory_report.Phase`.
    """

    moment: str
    terms: tuple[tuple[str, int], ...]
    allocated: int
    use: Use = ""
    batch: int | None = None


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
    mean, upper = reserved_of(name, peak.moment, constants, checkpointing=checkpointing, eager=eager)
    reserved = round(peak.allocated * mean)
    return Phase(
        name=name,
        terms=tuple(Term(term, size) for term, size in peak.terms),
        peak_allocated_bytes=peak.allocated,
        peak_reserved_bytes=reserved,
        process_used_bytes=reserved + context.expected,
        low_bytes=round(peak.allocated * (1 - band)) + context.low,
        high_bytes=round(peak.allocated * (1 + band) * upper) + context.high,
        moment=peak.moment,
        use=peak.use,
        batch=peak.batch,
    )


def reserved_of(
    name: str, moment: str, constants: Mapping[str, float], *, checkpointing: bool, eager: bool
) -> tuple[float, float]:
    """What is reserved over what is allocated at a phase's peak: as a rule, and at the upper end."""
    kind = name
    if checkpointing and name == "train" and moment != "optimizer_step":  # nothing is recomputed there
        kind = "checkpointing_eager" if eager else "checkpointing"
    mean = constants.get(f"reserved_mean_{kind}", constants["reserved_mean"])
    return mean, constants.get(f"reserved_upper_{kind}", constants["reserved_upper"])


def usable_bytes(memory: int, constants: Mapping[str, float]) -> int:
    """What a process gets of a GPU's ``memory``, rounded down to the tenth of a GiB that reports show."""
    return rounded_down(memory * constants["usable_memory_ratio"])


def usable_on(machine: Machine, constants: Mapping[str, float]) -> int | None:
    """What CUDA gives one process of the machine's smallest GPU; None where there is no GPU."""
    limit = machine.gpu_limit_bytes
    return None if limit is None else usable_bytes(limit, constants)


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


def likely(phases: tuple[Phase, ...], verdict: Verdict) -> tuple[tuple[Phase, ...], Verdict]:
    """The same, where no low end is known: nothing is surely out of memory, only likely."""
    phases = tuple(phase._replace(status="likely_oom") if phase.status == "oom" else phase for phase in phases)
    return phases, verdict._replace(status="likely_oom") if verdict.status == "oom" else verdict
