"""The subprocess's answer as the report that every level of the memory model gives."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kb.core.hardware import Gpu
from kb.core.memory_report import HostLedger, MemoryReport, Phase, PhaseName, Term, Verdict
from kb.core.setup import Assumption
from kb.memory.process import Context, context_of, judged
from kb.torch_runs.simulation.timeline import Point, Span, Timeline, TopTensor

PHASES: tuple[PhaseName, ...] = ("load", "train", "evaluate", "generate", "save")


class Simulated(NamedTuple):
    """A simulation's whole answer. ``subprocess_peak_bytes`` is the host memory that simulating took.

    ``tops`` are the largest kinds of tensor alive at each phase's peak. The timeline is that of training and its
    evaluation, or of inference where there is only that.
    """

    report: MemoryReport
    timeline: Timeline
    tops: Mapping[str, tuple[TopTensor, ...]]
    software: Mapping[str, str]
    seconds: float
    subprocess_peak_bytes: int | None


class Target(NamedTuple):
    """What the run is held against. ``memory_bytes`` None: no GPU is named."""

    gpu: Gpu | None
    memory_bytes: int | None
    compute_capability: tuple[int, int]
    context: Context


def target_of(
    constants: Mapping[str, float],
    gpu: Gpu | None,
    memory_bytes: int | None,
    compute_capability: tuple[int, int],
) -> Target:
    """The GPU's memory and context; what was found wins over the catalogue."""
    memory = memory_bytes if memory_bytes is not None else (gpu.memory_total if gpu else None)
    return Target(gpu, memory, compute_capability, context_of(constants, compute_capability, gpu))


def report_of(
    content: Mapping[str, Any],
    target: Target,
    host: HostLedger,
    assumed: tuple[Assumption, ...],
    constants: Mapping[str, float],
    *,
    quantized: bool,
) -> MemoryReport:
    """Phases in their order, with the verdict.

    A run that reserved more than the card has was traced again inside of it: ``ran_out`` says that it failed there.
    """
    found = content["phases"]
    band = constants["band_simulated"]
    upper = constants["band_simulated_quantized"] if quantized else band
    phases = tuple(_phase(name, found[name], target.context, band, upper) for name in PHASES if name in found)
    phases, verdict = judged(phases, target.memory_bytes, constants)
    if content["ran_out"]:
        verdict = Verdict("oom", verdict.phase, verdict.term)
    return MemoryReport("simulated", assumed, phases, host, verdict)


def _phase(name: PhaseName, found: Mapping[str, Any], context: Context, band: float, upper: float) -> Phase:
    """Low is what the tensors need, as the allocator gives cached blocks back before it fails; high what it holds.

    ``band`` is the error of allocated memory, ``upper`` by how much reserved memory may be too low.
    """
    return Phase(
        name=name,
        terms=tuple(Term(term, size) for term, size in found["terms"].items()),
        peak_allocated_bytes=found["allocated_bytes"],
        peak_reserved_bytes=found["reserved_bytes"],
        process_used_bytes=found["reserved_bytes"] + context.expected,
        low_bytes=round(found["allocated_bytes"] * (1 - band)) + context.low,
        high_bytes=round(found["reserved_bytes"] * (1 + upper)) + context.high,
        moment=found["moment"],
    )


def timeline_from(data: Any) -> Timeline:
    """The timeline as JSON gives it back."""
    points, spans, events = data
    return Timeline(tuple(Point(*point) for point in points), tuple(Span(*span) for span in spans), events)


def tops_from(phases: Mapping[str, Any]) -> dict[str, tuple[TopTensor, ...]]:
    """The top tensors as JSON gives them back."""
    return {name: tuple(TopTensor(*top) for top in phase["tops"]) for name, phase in phases.items()}
