"""Events as a line, as peaks by phase, and as what was alive there."""

import pickle
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kb.memory.timeline import Point, Span
from kb.torch_runs.simulation.timeline import (
    Event,
    PhasePeak,
    alive_at,
    largest,
    peaks_of,
    snapshot_of,
    timeline_of,
    write_snapshot,
)
from simulation_needs import require_simulator

MIB = 1 << 20


def made(action: str, address: int, size: int, phase: str, op: str = "", module: str = "", requested: int = 0) -> Event:
    return Event(action, address, size, op, module, phase, requested)  # type: ignore[arg-type]


TRACE = (
    made("segment_alloc", 0, 20 * MIB, "load"),
    made("alloc", 0, 8 * MIB, "load", "empty", "", 8 * MIB - 100),
    made("alloc", 8 * MIB, 2 * MIB, "train:forward", "mm", "encoder.block.0.q"),
    made("alloc", 10 * MIB, 2 * MIB, "train:forward", "mm", "encoder.block.1.q"),
    made("segment_alloc", 100 * MIB, 30 * MIB, "train:backward"),
    made("alloc", 100 * MIB, 30 * MIB, "train:backward", "add"),
    made("free", 8 * MIB, 2 * MIB, "train:backward"),
    made("free", 100 * MIB, 30 * MIB, "train:backward"),
    made("segment_free", 100 * MIB, 30 * MIB, "save"),
)


def test_each_phase_has_its_peak_and_begins_with_what_is_there() -> None:
    assert peaks_of(TRACE) == {
        "load": PhasePeak(8 * MIB, 20 * MIB, 1),
        "train": PhasePeak(42 * MIB, 50 * MIB, 5),
        "save": PhasePeak(10 * MIB, 50 * MIB, 7),
    }


def test_what_is_alive_at_the_peak() -> None:
    assert [block.number for block in alive_at(TRACE, 5)] == [1, 2, 3, 5]
    assert [block.number for block in alive_at(TRACE, len(TRACE) - 1)] == [1, 3]


def test_tensors_of_all_layers_are_counted_as_one_kind() -> None:
    blocks = alive_at(TRACE, 5)
    terms = {block.number: "activations_encoder" if block.event.op == "mm" else "parameters" for block in blocks}
    first, second, third = largest(blocks, terms)
    assert (first.op, first.size_bytes) == ("add", 30 * MIB)
    assert (second.op, second.size_bytes) == ("empty", 8 * MIB - 100)
    assert (third.number, third.module, third.term) == (2, "encoder.block.*.q", "activations_encoder")


def test_spans_cover_the_trace() -> None:
    spans = timeline_of(TRACE, {}).spans
    assert spans == (Span("load", 0, 2), Span("train:forward", 2, 4), Span("train:backward", 4, 8), Span("save", 8, 9))


def test_no_events_draw_nothing() -> None:
    assert timeline_of((), {}) == ((), (), 0)
    assert peaks_of(()) == {}


@given(st.lists(st.integers(1, 100), max_size=400), st.integers(4, 50))
def test_thinning_out_keeps_the_peak_and_the_end(sizes: list[int], most: int) -> None:
    events = []
    for number, size in enumerate(sizes):
        events.append(made("alloc", number, size, "train:forward"))
        if size % 3:
            events.append(made("free", number, size, "train:forward"))
    points = timeline_of(events, {}, most).points
    full = timeline_of(events, {}, 4 * len(events) + 4).points
    assert len(full) == len(events)
    assert len(points) <= most + 2
    assert [point.event for point in points] == sorted({point.event for point in points})
    if events:
        assert max(point.allocated_bytes for point in points) == max(point.allocated_bytes for point in full)
        assert points[-1] == full[-1] == Point(len(events) - 1, *full[-1][1:])


def test_the_snapshot_holds_the_end_and_every_event(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot.pickle")
    write_snapshot(TRACE, path)
    with open(path, "rb") as stream:
        snapshot = pickle.load(stream)
    (segment,) = snapshot["segments"]
    assert [(block["state"], block["size"]) for block in segment["blocks"]] == [
        ("active_allocated", 8 * MIB),
        ("inactive", 2 * MIB),
        ("active_allocated", 2 * MIB),
        ("inactive", 8 * MIB),
    ]
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert actions.count("free_requested") == actions.count("free_completed") == 2
    assert actions.count("segment_alloc") == 2


def test_pieces_of_an_expandable_segment_under_one_block_are_one_segment() -> None:
    events = (
        made("segment_alloc", 0, 20 * MIB, "load"),
        made("segment_alloc", 20 * MIB, 20 * MIB, "load"),
        made("alloc", 0, 30 * MIB, "load"),
    )
    (segment,) = snapshot_of(events)["segments"]
    assert segment["total_size"] == 40 * MIB == sum(block["size"] for block in segment["blocks"])


def test_pytorchs_own_tools_read_the_snapshot() -> None:
    require_simulator()
    from torch.cuda import _memory_viz as viz

    snapshot = snapshot_of(TRACE)
    assert "total_reserved: 20.0MiB" in viz.segsum(snapshot)
    assert "cudaMalloc" in viz.trace(snapshot)
    assert "<script" in viz.trace_plot(snapshot)
    assert "<script" in viz.segment_plot(snapshot)
