"""Memory over the events of a trace: a line to draw, the peak of each phase, and what was alive there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kb.torch_runs.simulation.events import Event


class Point(NamedTuple):
    """After event ``event`` of the trace; bytes."""

    event: int
    allocated_bytes: int
    reserved_bytes: int


class Span(NamedTuple):
    """Events ``start`` to ``end`` (without it) of one phase."""

    phase: str
    start: int
    end: int


class Timeline(NamedTuple):
    """A trace thinned out for drawing: every peak is still there. There is no clock: events are the axis."""

    points: tuple[Point, ...]
    spans: tuple[Span, ...]
    events: int


class PhasePeak(NamedTuple):
    """Peaks of one phase. ``event`` is the number of the allocation that made the allocated one, -1 where none did."""

    allocated_bytes: int
    reserved_bytes: int
    event: int


class Block(NamedTuple):
    """A block that is alive: the number of its allocation, and that event."""

    number: int
    event: Event


def head(phase: str) -> str:
    """The report's phase that a tracer's belongs to: ``train`` of ``train:backward``."""
    return phase.partition(":")[0]


def timeline_of(events: Sequence[Event], most: int = 1500) -> Timeline:
    """The events as at most about ``most`` points: the highest and the last of every stretch."""
    stretch = max(1, -(-2 * len(events) // most))
    points: list[Point] = []
    highest = last = Point(0, 0, 0)
    for point in _walk(events):
        if point.event % stretch == 0 and point.event:
            points += [highest, last] if highest.event < last.event else [last]
            highest = point
        elif point.allocated_bytes >= highest.allocated_bytes:
            highest = point
        last = point
    if events:
        points += [highest, last] if highest.event < last.event else [last]
    return Timeline(tuple(points), tuple(_spans(events)), len(events))


def _walk(events: Sequence[Event]) -> Iterator[Point]:
    allocated = reserved = 0
    for number, event in enumerate(events):
        if event.action == "alloc":
            allocated += event.size
        elif event.action == "free":
            allocated -= event.size
        elif event.action == "segment_alloc":
            reserved += event.size
        else:
            reserved -= event.size
        yield Point(number, allocated, reserved)


def _spans(events: Sequence[Event]) -> Iterator[Span]:
    start = 0
    for number in range(1, len(events) + 1):
        if number == len(events) or events[number].phase != events[start].phase:
            yield Span(events[start].phase, start, number)
            start = number


def peaks_of(events: Sequence[Event]) -> dict[str, PhasePeak]:
    """Each phase's highest allocated and reserved bytes, by the report's name, in the order of the run.

    A phase begins with what is there when its first event happens.
    """
    peaks: dict[str, PhasePeak] = {}
    before = Point(-1, 0, 0)
    for event, point in zip(events, _walk(events), strict=True):
        name = head(event.phase)
        known = peaks.get(name, PhasePeak(before.allocated_bytes, before.reserved_bytes, before.event))
        if point.allocated_bytes > known.allocated_bytes:
            known = known._replace(allocated_bytes=point.allocated_bytes, event=point.event)
        peaks[name] = known._replace(reserved_bytes=max(known.reserved_bytes, point.reserved_bytes))
        before = point
    return peaks


def end_of(events: Sequence[Event]) -> PhasePeak:
    """What is there after the last event."""
    *_, last = _walk(events)
    return PhasePeak(last.allocated_bytes, last.reserved_bytes, last.event)


def alive_at(events: Sequence[Event], number: int) -> list[Block]:
    """The blocks that are alive after event ``number``, in the order in which they were made."""
    alive: dict[int, Block] = {}
    for at, event in enumerate(events[: number + 1]):
        if event.action == "alloc":
            alive[event.address] = Block(at, event)
        elif event.action == "free":
            del alive[event.address]
    return list(alive.values())


class TopTensor(NamedTuple):
    """Tensors of one kind that are alive at a peak.

    ``number`` tensors of ``size_bytes`` each, made by ``op`` in ``module`` during ``phase``; ``term`` is the ledger's
    entry that they count for. Layers of one kind are one entry: their numbers are ``*`` in ``module``.
    """

    size_bytes: int
    number: int
    term: str
    module: str
    op: str
    phase: str


def top_tensors(blocks: Sequence[Block], terms: Mapping[int, str], most: int = 12) -> tuple[TopTensor, ...]:
    """The kinds of tensor that take most memory together, largest first; ``terms`` by the number of the block."""
    found: dict[tuple[int, str, str, str, str], int] = {}
    for number, event in blocks:
        kind = (event.requested or event.size, terms[number], _kind(event.module), event.op, event.phase)
        found[kind] = found.get(kind, 0) + 1
    ordered = sorted(found.items(), key=lambda item: (-item[0][0] * item[1], item[0]))
    return tuple(TopTensor(kind[0], number, *kind[1:]) for kind, number in ordered[:most])


def _kind(module: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in module.split("."))
