"""Readings of a run held against the notes' targets and danger lines (rules/formulas/targets). Pure."""

from collections.abc import Mapping
from typing import Any, Literal

from kb.advice.decision import nominal_gb
from kb.core.record import NamedTuple
from kb.core.snapshot import Sample
from kb.core.units import GIB

Label = Literal["ok", "below", "above", "danger", "safe"]


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
