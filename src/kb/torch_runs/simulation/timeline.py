"""What the allocator's model did, event by event; a line to draw, each phase's peak with what was alive, a snapshot.

PyTorch's memory snapshot is the pickle that https://docs.pytorch.org/memory_viz draws. Its format is that of
``torch.cuda.memory._snapshot`` (torch 2.13: ``torch/cuda/memory.py``, ``class Snapshot``): the segments as they stand
at the end, and every act of the allocator. In place of Python's stack there is one frame that names operator, module
and phase.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from kb.core.record import NamedTuple
from kb.memory.timeline import ROLES, Point, Timeline, TopTensor, role_of, spans_of, thinned, top_tensors

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


def timeline_of(events: Sequence[Event], terms: Mapping[int, str], most: int = 1500) -> Timeline:
    """The events thinned out to about ``most`` points; ``terms`` are the ledger's of each allocation, by its number."""
    points = thinned(_walk(events, terms), len(events), most)
    return Timeline(points, tuple(spans_of([event.phase for event in events])), len(events))


def _walk(events: Sequence[Event], terms: Mapping[int, str]) -> Iterator[Point]:
    """After each event; what a block is larger than its tensor counts as workspace."""
    allocated = reserved = 0
    roles, workspace = [0] * len(ROLES), role_of("workspace")
    alive: dict[int, tuple[int, int]] = {}  # address → role, bytes asked for
    for number, event in enumerate(events):
        if event.action in ("alloc", "free"):
            sign = 1 if event.action == "alloc" else -1
            if sign > 0:
                alive[event.address] = role_of(terms.get(number, "")), event.requested or event.size
            role, size = alive[event.address]
            allocated += sign * event.size
            roles[role] += sign * size
            roles[workspace] += sign * (event.size - size)
        else:
            reserved += event.size if event.action == "segment_alloc" else -event.size
        yield Point(number, allocated, reserved, tuple(roles))


def peaks_of(events: Sequence[Event]) -> dict[str, PhasePeak]:
    """Each phase's highest allocated and reserved bytes, by the report's name, in the order of the run.

    A phase begins with what is there when its first event happens.
    """
    peaks: dict[str, PhasePeak] = {}
    before = Point(-1, 0, 0, ())
    for event, point in zip(events, _walk(events, {}), strict=True):
        name = head(event.phase)
        known = peaks.get(name, PhasePeak(before.allocated_bytes, before.reserved_bytes, before.event))
        if point.allocated_bytes > known.allocated_bytes:
            known = known._replace(allocated_bytes=point.allocated_bytes, event=point.event)
        peaks[name] = known._replace(reserved_bytes=max(known.reserved_bytes, point.reserved_bytes))
        before = point
    return peaks


def end_of(events: Sequence[Event]) -> PhasePeak:
    """What is there after the last event."""
    *_, last = _walk(events, {})
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


def largest(blocks: Sequence[Block], terms: Mapping[int, str]) -> tuple[TopTensor, ...]:
    """The kinds of tensor that take most of what is alive; ``terms`` by the number of the block."""
    return top_tensors(
        TopTensor(event.requested or event.size, 1, terms[number], event.module, event.op, event.phase)
        for number, event in blocks
    )


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
