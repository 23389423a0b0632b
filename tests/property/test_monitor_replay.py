"""Whatever a file holds, it is replayed or refused with a reason: no other exception, no reading that cannot be."""

import contextlib

from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples
from kb.commands.monitor.columns import COLUMNS, csv_header, json_line
from kb.commands.monitor.replay import Replay
from kb.core.text import UserError

_CELL = st.one_of(
    st.sampled_from(["", "0", "1", "-1", "1e400", "nan", "2026-01-02T03:04:05Z", "0001-01-01", '"', "x", "9" * 30]),
    st.text(max_size=8),
)
_ROW = st.lists(_CELL, min_size=0, max_size=len(COLUMNS) + 1).map(",".join)
_FULL_ROW = st.lists(_CELL, min_size=len(COLUMNS), max_size=len(COLUMNS)).map(",".join)
_HEAD = st.sampled_from(
    [csv_header().strip(), "time,gpu", "memory.used [MiB], index, timestamp", '{"kb_monitor":1}', "x"]
)
_KEYS = st.sampled_from(
    ["key", "pid", "used_bytes", "processes", "throttle", "name", "source", "seconds_per_step", "gpus"]
)
_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=4)),
    max_leaves=12,
)
_OBJECT = st.dictionaries(st.sampled_from(["gpus", "host", "tree", "speed", "gpu_note", "notes", "time"]), _VALUE)


def replay(lines: list[str], fields: tuple[str, ...] = ()) -> None:
    with contextlib.suppress(UserError):
        for snapshot in Replay(enumerate(lines, 1), "x", fields):
            assert snapshot.time >= 0
            json_line(snapshot)  # and can be written again
            for state in snapshot.gpus:
                assert state.used_bytes is None or state.used_bytes >= 0


@settings(max_examples=examples(40, 100), deadline=None)
@given(head=_HEAD, rows=st.lists(st.one_of(_ROW, _FULL_ROW, st.text(max_size=40)), max_size=6))
@example(head="time,gpu", rows=["2026-01-02T03:04:05+23:59,0", "1970-01-01T00:00:00Z,"])
@example(head="time,gpu", rows=["9999-12-31T23:59:59-23:59,0"])
def test_no_text_raises_anything_but_a_reason(head: str, rows: list[str]) -> None:
    replay([head, *rows])
    replay(rows, ("index", "memory.used"))


@settings(max_examples=examples(40, 100), deadline=None)
@given(data=_OBJECT)
def test_no_json_raises_anything_but_a_reason(data: dict) -> None:
    import json

    replay([json.dumps({"time": "2026-01-02T03:04:05Z", **data, "kb_monitor": 1})])
