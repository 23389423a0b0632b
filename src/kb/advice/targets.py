"""Readings of a run held against the notes' targets and danger lines (rules/formulas/targets). Pure.

Reads what ``nvidia-smi --query-gpu=… --format=csv`` printed or saved, so that no GPU is needed to judge a record.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kb.advice.decision import nominal_gb
from kb.core.units import GIB, MIB

Label = Literal["ok", "below", "above", "danger", "safe"]


class Sample(NamedTuple):
    """What was read at one time; None is not known. Bytes, shares as ratios, ``step_ratio`` over the baseline.

    ``host_limit`` is the container's limit, or the host's memory where there is none.
    """

    gpu_used: int | None = None
    gpu_total: int | None = None
    gpu_utilisation: float | None = None
    host_used: int | None = None
    host_limit: int | None = None
    step_ratio: float | None = None
    worker_bytes: int | None = None


class Judged(NamedTuple):
    """One reading by one threshold. ``value`` is in the threshold's unit; the row says what it is for and who says so.

    ``ok`` is inside a target, ``below`` and ``above`` are beside it; ``danger`` and ``safe`` are lines that were
    reached.
    """

    threshold: str
    metric: str
    value: float
    unit: str
    label: Label
    row: Mapping[str, Any]


def judge(sample: Sample, targets: Mapping[str, Any], scope: str | None = None) -> tuple[Judged, ...]:
    """Every threshold that says something of the sample, in the file's order.

    Args:
        targets: ``load_guide()["formulas"]["targets"]``.
        scope: ``training`` or ``inference``; thresholds for the other one are left out. None asks all.

    A threshold that is for another size of card, or whose reading is not known, says nothing; neither does a danger or
    a safe line that was not reached: between them the note has no name.
    """
    found = []
    for row in targets["thresholds"]:
        if scope is not None and row.get("scope", scope) != scope:
            continue
        if "gpu_memory_gb" in row and (not sample.gpu_total or nominal_gb(sample.gpu_total) != row["gpu_memory_gb"]):
            continue
        value = _value(row["metric"], sample)
        label = None if value is None else _label(value, row)
        if value is not None and label is not None:
            found.append(Judged(row["id"], row["metric"], value, row["unit"], label, row))
    return tuple(found)


def _value(metric: str, sample: Sample) -> float | None:
    """The reading in the notes' unit. Their GB of a card are GiB: they read nvidia-smi, and a 24 GB card has 24 GiB."""
    if metric == "gpu_memory_share":
        return _percent(sample.gpu_used, sample.gpu_total)
    if metric == "host_memory_share":
        return _percent(sample.host_used, sample.host_limit)
    if metric == "gpu_memory_used":
        return None if sample.gpu_used is None else sample.gpu_used / GIB
    if metric == "gpu_utilisation":
        return None if sample.gpu_utilisation is None else sample.gpu_utilisation * 100
    if metric == "worker_memory":
        return None if sample.worker_bytes is None else sample.worker_bytes / 1e9
    return sample.step_ratio if metric == "step_time_ratio" else None


def _percent(used: int | None, limit: int | None) -> float | None:
    return None if used is None or not limit else used / limit * 100


def _label(value: float, row: Mapping[str, Any]) -> Label | None:
    low, high = row.get("low", float("-inf")), row.get("high", float("inf"))
    if row["state"] == "watch":
        return None
    if row["state"] in ("danger", "safe"):
        return row["state"] if low <= value <= high else None
    return "below" if value < low else "above" if value > high else "ok"


class GpuLine(NamedTuple):
    """One GPU in one row of nvidia-smi's CSV; ``line`` from 1, ``gpu`` its index or bus id where the record has it."""

    line: int
    sample: Sample
    gpu: str | None = None
    time: str | None = None


def read_gpu_csv(text: str, fields: Sequence[str] = ()) -> Iterator[GpuLine]:
    """The rows of nvidia-smi's CSV, in order; ``[N/A]`` is not known.

    Args:
        text: a record with one header or several (each run of nvidia-smi writes one). Lines between that are no rows
            of the query, such as those of ``free``, are passed over.
        fields: the queried fields in their order, where it was written without a header.

    Raises:
        ValueError: no header in the text, and no ``fields``.
    """
    names = list(fields)
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split(",")]
        header = [cell.partition(" [")[0] for cell in cells]
        if "memory.used" in header or "utilization.gpu" in header:
            names = header
        elif len(cells) == len(names):
            row = dict(zip(names, cells, strict=True))
            used, total = _mib(row.get("memory.used")), _mib(row.get("memory.total"))
            share = _number(row.get("utilization.gpu"), "%")
            if used is not None or share is not None:
                sample = Sample(gpu_used=used, gpu_total=total, gpu_utilisation=None if share is None else share / 100)
                yield GpuLine(number, sample, row.get("index", row.get("pci.bus_id")), row.get("timestamp"))
    if not names:
        raise ValueError("no header of nvidia-smi's CSV: query with --format=csv, or name the fields of the query")


def _mib(cell: str | None) -> int | None:
    """nvidia-smi's CSV gives memory in MiB, with the unit or without it."""
    number = _number(cell, "MiB")
    return None if number is None else round(number * MIB)


def _number(cell: str | None, unit: str) -> float | None:
    text = (cell or "").removesuffix(unit).strip()
    return float(text) if text.replace(".", "", 1).isdecimal() else None
