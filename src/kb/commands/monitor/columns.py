"""How a snapshot is written down and read again: as rows of a CSV, one for each GPU, or as one line of JSON."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kb.core.record import NamedTuple
from kb.core.snapshot import GpuProcess, GpuState, HostState, ProcessState, ServerState, Snapshot, SpeedState, TreeState

# A CSV's columns, by the record that they are of; each with its field.
_GPU = {
    "gpu": "key",
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_used_bytes": "used_bytes",
    "gpu_total_bytes": "total_bytes",
    "gpu_utilisation": "utilisation",
    "gpu_power_watts": "power_watts",
    "gpu_temperature_celsius": "temperature_celsius",
}
_HOST = {
    "host_used_bytes": "used_bytes",
    "host_limit_bytes": "limit_bytes",
    "host_source": "source",
    "oom_kills": "oom_kills",
    "shm_used_bytes": "shm_used_bytes",
    "shm_total_bytes": "shm_total_bytes",
}
_TREE = {"tree_pss_bytes": "pss_bytes", "workers": "workers", "worker_pss_bytes": "worker_pss_bytes"}
_SPEED = {"seconds_per_step": "seconds_per_step", "step_ratio": "ratio", "step": "done", "steps": "of"}
_SERVER = {f"server_{field}": field for field in ("engine", "kv_usage", "running", "waiting", "preemptions")}
_TEXTS = ("key", "name", "uuid", "source", "engine")
_RATIOS = ("utilisation", "power_watts", "temperature_celsius", "seconds_per_step", "ratio", "kv_usage")
COLUMNS = ("time", *_GPU, "gpu_throttle", "gpu_watched_bytes", *_HOST, *_TREE, *_SPEED, "gpu_note", *_SERVER)
_MOST = 1e18
_LAST = 253_402_300_799  # the year 9999 in UTC, past which no date is written
FORMAT = 1
_FLAGS = ("watched", "worker")
_LISTS = ("throttle", "notes")


class BadCell(ValueError):  # noqa: N818
    """A value that cannot be what its column says; ``name`` is the column's."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.name, self.text = name, text


def stamp(time: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def csv_header() -> str:
    return ",".join(COLUMNS) + "\n"


def csv_rows(snapshot: Snapshot) -> str:
    """A line for each GPU, the host's columns on each; one line without a GPU where there is none."""
    shared: dict[str, Any] = {"time": stamp(snapshot.time), "gpu_note": snapshot.gpu_note}
    for record, columns in (
        (snapshot.host, _HOST),
        (snapshot.tree, _TREE),
        (snapshot.speed, _SPEED),
        (snapshot.server, _SERVER),
    ):
        if record is not None:
            shared |= {column: getattr(record, field) for column, field in columns.items()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for state in snapshot.gpus or (None,):
        cells = {**shared, **(_gpu_cells(state) if state else {})}
        writer.writerow(["" if cells.get(name) is None else cells[name] for name in COLUMNS])
    return out.getvalue()


def _gpu_cells(state: GpuState) -> dict[str, Any]:
    watched = [each.used_bytes for each in state.processes if each.watched and each.used_bytes is not None]
    cells: dict[str, Any] = {column: getattr(state, field) for column, field in _GPU.items()}
    return cells | {"gpu_throttle": " ".join(state.throttle), "gpu_watched_bytes": sum(watched) if watched else None}


def time_of(text: str) -> float:
    """Seconds since 1970 of :func:`stamp`, or of nvidia-smi's ``2026/01/02 03:04:05.678``, read as UTC.

    Raises:
        BadCell: it is neither.
    """
    try:
        made = datetime.fromisoformat(text.replace("/", "-"))
    except ValueError:
        raise BadCell("time", text) from None
    seconds = (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()
    if not 0 <= seconds <= _LAST:
        raise BadCell("time", text)
    return seconds


def state_of(row: dict[str, str]) -> GpuState:
    """The GPU of a CSV row.

    Raises:
        BadCell: a number is none.
    """
    watched = _number(row, "gpu_watched_bytes", int)
    return GpuState(
        **_fields(row, _GPU),
        throttle=tuple(row.get("gpu_throttle", "").split()),
        processes=() if watched is None else (GpuProcess(0, watched, watched=True),),
    )


def snapshot_of(row: dict[str, str], gpus: Sequence[GpuState]) -> Snapshot:
    """The snapshot of a CSV row, with the GPUs of the rows of the same time.

    Raises:
        BadCell: a number or the time is none.
    """

    def has(column: str) -> bool:
        return bool(row.get(column, "").strip())

    host = _fields(row, _HOST)
    return Snapshot(
        time_of(row["time"]),
        tuple(gpus),
        HostState(**host | {"source": host["source"] or "unknown"}),
        TreeState(**_fields(row, _TREE)) if has("workers") else None,
        SpeedState(**_fields(row, _SPEED)) if has("seconds_per_step") else None,
        row.get("gpu_note") or None,
        server=ServerState(**_fields(row, _SERVER)) if has("server_engine") else None,
    )


def _fields(row: dict[str, str], columns: Mapping[str, str]) -> dict[str, Any]:
    """A record's fields from its columns; a number that is not there is None."""
    return {
        field: row.get(column, "") if field in _TEXTS else _number(row, column, float if field in _RATIOS else int)
        for column, field in columns.items()
    }


def _number(row: dict[str, str], name: str, kind: Callable[[str], Any]) -> Any:
    text = row.get(name, "").strip()
    if not text:
        return None
    try:
        number = kind(text)
    except ValueError:
        raise BadCell(name, text) from None
    return checked(name, number, text)


def checked(name: str, number: Any, text: str) -> Any:
    """The number, if it is one that a reading can have.

    Raises:
        BadCell: it is not.
    """
    if isinstance(number, bool) or not math.isfinite(number) or not 0 <= number <= _MOST:
        raise BadCell(name, text)
    return number


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
_GPU_STATE = _Shape(GpuState, frozenset(("key", "name", "uuid")), (("processes", _PROCESS_ON_GPU, True),))
_TREE_STATE = _Shape(TreeState, frozenset(), (("processes", _Shape(ProcessState, frozenset(("name",))), True),))
_SNAPSHOT = _Shape(
    Snapshot,
    frozenset(("gpu_note",)),
    (
        ("gpus", _GPU_STATE, True),
        ("host", _Shape(HostState, frozenset(("source",))), False),
        ("tree", _TREE_STATE, False),
        ("speed", _Shape(SpeedState, frozenset()), False),
        ("server", _Shape(ServerState, frozenset(("engine", "reason"))), False),
    ),
)


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
