"""How a snapshot is written down as one line of JSON, and read again."""

import json
from collections.abc import Callable
from typing import Any

from kb.commands.monitor.columns import BadCell, checked, stamp, time_of
from kb.core.record import NamedTuple
from kb.core.snapshot import GpuProcess, GpuState, HostState, ProcessState, ServerState, Snapshot, SpeedState, TreeState

FORMAT = 1


def json_line(snapshot: Snapshot) -> str:
    """The whole snapshot, processes too, as one line."""
    data = {"kb_monitor": FORMAT, **_plain(snapshot), "time": stamp(snapshot.time)}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items() if part not in (None, (), "")}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


class _Shape(NamedTuple):
    """A record of JSON and the records inside it: (field, its shape, whether it is a list)."""

    made: Callable[..., Any]
    words: frozenset[str]
    inner: tuple[tuple[str, "_Shape", bool], ...] = ()


_PROCESS_ON_GPU = _Shape(GpuProcess, frozenset(("name",)))
_STATE = _Shape(GpuState, frozenset(("key", "name", "uuid")), (("processes", _PROCESS_ON_GPU, True),))
_TREE = _Shape(TreeState, frozenset(), (("processes", _Shape(ProcessState, frozenset(("name",))), True),))
_SNAPSHOT = _Shape(
    Snapshot,
    frozenset(("gpu_note",)),
    (
        ("gpus", _STATE, True),
        ("host", _Shape(HostState, frozenset(("source",))), False),
        ("tree", _TREE, False),
        ("speed", _Shape(SpeedState, frozenset()), False),
        ("server", _Shape(ServerState, frozenset(("engine", "reason"))), False),
    ),
)
_FLAGS = ("watched", "worker")
_LISTS = ("throttle", "notes")


def snapshot_from_json(data: Any) -> Snapshot:
    """The snapshot of :func:`json_line`; fields that this version does not know are left out.

    Raises:
        BadCell: a value is not what its field says.
    """
    if not isinstance(data, dict) or data.get("kb_monitor") != FORMAT or not isinstance(data.get("time"), str):
        raise BadCell("kb_monitor", str(data)[:60])
    made: Snapshot = _made({**data, "time": time_of(data["time"])}, _SNAPSHOT, "snapshot")
    return made


def _made(data: Any, shape: _Shape, name: str) -> Any:
    if not isinstance(data, dict):
        raise BadCell(name, str(data)[:60])
    inner = {field: (inside, many) for field, inside, many in shape.inner}
    values: dict[str, Any] = {}
    for field in shape.made._fields:  # type: ignore[attr-defined]
        if data.get(field) is None:
            continue
        value = data[field]
        if field in inner:
            inside, many = inner[field]
            if many and not isinstance(value, list):
                raise BadCell(field, str(value)[:60])
            values[field] = tuple(_made(one, inside, field) for one in value) if many else _made(value, inside, field)
        else:
            values[field] = _plain_value(field, value, field in shape.words)
    try:
        return shape.made(**values)
    except TypeError:  # a field without which there is no such record
        raise BadCell(name, str(data)[:60]) from None


def _plain_value(field: str, value: Any, is_word: bool) -> Any:
    if field in _LISTS and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if is_word and isinstance(value, str):
        return value
    if field in _FLAGS and isinstance(value, bool):
        return value
    if isinstance(value, int | float) and not is_word:
        return checked(field, value, str(value)[:60])
    raise BadCell(field, str(value)[:60])
