"""Rough reports: of runs that are not followed exactly, of many runs at once, and for first guesses.

What is allocated comes from a shallow model (:mod:`kb.memory.engine.shallow`); what is reserved is taken from it by the
ratios that traces and measured runs have, in a wide band.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kb.core.memory_report import WITHOUT_LOW_END, HostLedger, MemoryReport, Phase, PhaseName
from kb.core.model import Architecture
from kb.core.setup import Assumption, TrainingSetup
from kb.memory.answers import kept
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.follow import Followed, Run, beside, counted, over_at_rest, read, rows_of, written
from kb.memory.engine.nearest import Nearest, nearest
from kb.memory.engine.report import assumed_of, one_by_one, refused, with_others_kernels
from kb.memory.engine.shallow import Line, lines, roughly, run_of
from kb.memory.process import Context, Peak, judged, likely, phase_of

Capability = tuple[int, int] | None
# Of each generation the cards that stand for all: kernels of attention change with the first, workspaces with the last.
GENERATIONS = ((7, 5), (8, 6), (9, 0))
UNREAD_BATCH = 2  # of a run whose lines are asked for: they hold for each


def rough_report(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    memory: int | None,
    capability: Capability,
) -> MemoryReport:
    """The run's phases with the verdict against ``memory`` bytes of a GPU. The host ledger is empty: the caller's.

    Raises:
        UnsupportedArchitectureError: something that the engine does not follow, nor anything near it, by name.
    """
    near, asked = _nearest(setup, architecture), setup
    setup, architecture = near.setup, near.architecture
    assumed = assumed_of(setup, architecture, capability) + near.assumed
    if one_by_one(setup, architecture, capability):
        shown = ".".join(map(str, GENERATIONS[1]))
        assumed += (Assumption("gpu.compute_capability", shown, "experts_together"),)
    phases = rough_phases(setup, architecture, constants, context, capability)
    if memory is not None:
        phases = beside(phases, setup, architecture, memory)
    phases = with_others_kernels(phases, asked, architecture, memory, constants)
    phases, verdict = judged(phases, memory, constants)
    if verdict.status == "oom" and not _has_low_end(near, constants, context, memory, capability):
        phases, verdict = likely(phases, verdict)
    return MemoryReport("rough", assumed, phases, HostLedger((), 0, 0, None), verdict)


def _nearest(setup: TrainingSetup, architecture: Architecture) -> Nearest:
    try:
        return nearest(setup, architecture)
    except NotFollowedError as error:
        raise refused(architecture, error) from None


def _has_low_end(
    near: Nearest, constants: Mapping[str, float], context: Context, memory: int | None, capability: Capability
) -> bool:
    """Whether no assumption only raises the low end, or what lies there before the first step is over by itself."""
    raised = WITHOUT_LOW_END & {each.reason for each in near.assumed}
    if not raised or memory is None:
        return True
    if "packed_whole" in raised:
        return False  # before the first step, too
    return over_at_rest(near.setup, near.architecture, constants, context, memory, capability)


def rough_phases(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    capability: Capability,
) -> tuple[Phase, ...]:
    """Each phase as the process sees it.

    Raises:
        UnsupportedArchitectureError: something that the engine does not follow, by name.
    """
    try:
        found = _roughly(_run(setup, architecture, capability))
    except NotFollowedError as error:
        raise refused(architecture, error) from None
    phases = []
    for name, each in found.phases.items():
        peak = Peak(each.moment, each.terms, each.allocated, each.use, rows_of(each, setup))
        phases.append(phase_of(name, peak, constants, context, **_holes(setup)))
    return tuple(phases)


def phases_by_batch(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    capability: Capability,
) -> Callable[[int], tuple[Phase, ...]]:
    """Each phase as the process sees it, by the batch of each; without terms.

    Raises:
        UnsupportedArchitectureError: something that the engine does not follow, by name.
    """
    near = _nearest(setup, architecture)
    setup, architecture = near.setup, near.architecture
    try:
        known = _lines(run_of(_run(setup, architecture, capability), UNREAD_BATCH))
    except NotFollowedError as error:
        raise refused(architecture, error) from None
    holes = _holes(setup)

    def phases(batch: int) -> tuple[Phase, ...]:
        found = []
        for name, growing in known.items():
            # how much more is reserved depends on the moment, so the highest process need not be the highest line
            peaks = (Peak(line.moment, (), round(line.bytes + line.each * batch)) for line in growing)
            each = (phase_of(name, peak, constants, context, **holes) for peak in peaks)
            found.append(max(each, key=lambda phase: phase.high_bytes))
        return tuple(found)

    return phases


def _holes(setup: TrainingSetup) -> dict[str, bool]:
    return {"checkpointing": setup.gradient_checkpointing, "eager": setup.attn_implementation == "eager"}


def generation_of(capability: Capability) -> tuple[int, int]:
    """The compute capability that stands for a GPU's generation in rough answers."""
    if capability is None or (8, 0) <= capability < (9, 0):
        return GENERATIONS[1]
    return GENERATIONS[0] if capability < (8, 0) else GENERATIONS[2]


def _run(setup: TrainingSetup, architecture: Architecture, capability: Capability) -> Run:
    generation = GENERATIONS[1] if one_by_one(setup, architecture, capability) else generation_of(capability)
    return Run(counted(setup), architecture, generation)


@kept(written, read)
def _roughly(run: Run) -> Followed:
    return roughly(run)


Lines = Mapping[PhaseName, tuple[Line, ...]]


def _written(found: Lines) -> Any:
    return dict(found)


def _read(value: Any) -> Lines:
    return {name: tuple(Line(*line) for line in each) for name, each in value.items()}


@kept(_written, _read)
def _lines(run: Run) -> Lines:
    return lines(run)
