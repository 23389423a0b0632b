"""A trace as PyTorch's own memory snapshot: the pickle that https://docs.pytorch.org/memory_viz draws.

The format is that of ``torch.cuda.memory._snapshot`` (torch 2.13: ``torch/cuda/memory.py``, ``class Snapshot``): the
segments as they stand at the end, and every act of the allocator. In place of Python's stack there is one frame that
names operator, module and phase.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kb.torch_runs.simulation.events import Event
from kb.torch_runs.simulation.timeline import Block, alive_at

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
