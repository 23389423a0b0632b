"""What the allocator's model did, event by event; a line to draw, each phase's peak with what was alive, a snapshot.

PyTorch's memory snapshot is the pickle that https://docs.pytorch.org/memory_viz draws. Its format is that of
``torch.cuda.memory._snapshot`` (torch 2.13: ``torch/cuda/memory.py``, ``class Snapshot``): the segments as they stand
at the end, and every act of the allocator. In place of Python's stack there is one frame that names operator, module
and phase.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Action = Literal["alloc", "free", "segment_alloc", "segment_free"]


class Event(NamedTuple):
    """One act of the allocator. Sizes in bytes; addresses are the model's own.

    ``size`` is the block's, or the segment's, after rounding; ``requested`` what the tensor holds. ``op`` is the
    operator that made the tensor, ``module`` the path of the module whose forward ran, ``phase`` the tracer's.
    """

    action: Action
    address: int
    size: int
    op: str = ""
    module: str = ""
    phase: str = ""
    requested: int = 0


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


SMALL_SEGMENT_BYTES = 2 << 20
Frames = list[dict[str, Any]]
FramesOf = Callable[[Event], Frames]


def write_snapshot(events: Sequence[Event], path: str) -> None:
    """Write the pickle.

    Raises:
        OSError: the file cannot be written.
    """
    import pickle

    with open(path, "wb") as stream:
        pickle.dump(snapshot_of(events), stream)


def snapshot_of(events: Sequence[Event]) -> dict[str, Any]:
    """The snapshot's object, of one device."""
    made: dict[tuple[str, str, str], Frames] = {}

    def frames_of(event: Event) -> Frames:
        """One list for all events of a kind, which pickle then stores once."""
        kind = (event.op, event.module, event.phase)
        if kind not in made:
            name = f"{event.op} ({event.phase})" if event.op else event.phase
            made[kind] = [{"filename": event.module or event.phase, "line": 0, "name": name}]
        return made[kind]

    blocks = alive_at(events, len(events) - 1)
    segments = [_segment(*ends, blocks, frames_of) for ends in _segments(events, blocks)]
    trace = [entry for number, event in enumerate(events) for entry in _entries(number, event, frames_of)]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {}, "external_annotations": []}


def _entries(number: int, event: Event, frames_of: FramesOf) -> list[dict[str, Any]]:
    """A free is two entries, as PyTorch writes it; without streams they follow at once."""
    actions = ("free_requested", "free_completed") if event.action == "free" else (event.action,)
    shared = {"addr": event.address, "size": event.size, "stream": 0, "time_us": number, "frames": frames_of(event)}
    return [{"action": action, **shared} for action in actions]


def _segments(events: Sequence[Event], blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """(address, end) of what is held at the end. Pages of an expandable segment that a block spans are one."""
    held: list[tuple[int, int]] = []
    for event in events:
        start, end = event.address, event.address + event.size
        if event.action == "segment_alloc":
            held.append((start, end))
        elif event.action == "segment_free":
            cut = [((low, min(high, start)), (max(low, end), high)) for low, high in held]
            held = [piece for pieces in cut for piece in dict.fromkeys(pieces) if piece[0] < piece[1]]
    spanned = {start for _, event in blocks for start, _ in held if event.address < start < event.address + event.size}
    joined: list[tuple[int, int]] = []
    for start, end in sorted(held):
        if start in spanned:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _segment(address: int, end: int, blocks: Sequence[Block], frames_of: FramesOf) -> dict[str, Any]:
    """A segment with its blocks in the order of their addresses, the free stretches between them included."""
    inside = sorted((event for _, event in blocks if address <= event.address < end), key=lambda event: event.address)
    parts: list[dict[str, Any]] = []
    at = address
    for event in inside:
        if event.address > at:
            parts.append(_part(at, event.address - at, 0, "inactive", []))
        parts.append(
            _part(event.address, event.size, event.requested or event.size, "active_allocated", frames_of(event))
        )
        at = event.address + event.size
    if at < end:
        parts.append(_part(at, end - at, 0, "inactive", []))
    active = sum(event.size for event in inside)
    return {
        "device": 0,
        "address": address,
        "total_size": end - address,
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(event.requested or event.size for event in inside),
        "stream": 0,
        "segment_type": "small" if end - address <= SMALL_SEGMENT_BYTES else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": parts,
    }


def _part(address: int, size: int, requested: int, state: str, frames: Frames) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}
