"""What the targets say of a reading, in words: inside, below, above; danger and safe lines that were reached."""

from collections.abc import Iterable
from typing import Any

from kb.advice.targets import Judged
from kb.report.terminal import Style
from kb.report.words import Words

_ROLES = {"ok": "fits", "above": "tight", "danger": "oom", "below": "info", "safe": "fits"}
_WORST_FIRST = ("danger", "above", "below", "ok", "safe")


def speaking(judged: Iterable[Judged], *metrics: str) -> list[Judged]:
    """Of the verdicts on these metrics, those that a line has room for: a danger line, and the first target."""
    rows = [row for row in judged if row.metric in metrics]
    danger = [row for row in rows if row.label == "danger"]
    targets = [row for row in rows if row.label not in ("danger", "safe")]
    return danger + targets[:1]


def verdict(row: Judged, words: Words, style: Style) -> str:
    """``inside 70–85% (gpu-memory-training)``."""
    said = words(f"monitor.label.{row.label}", range=_crossed(row, style) or bounds(row.row, style))
    return f"{style.paint(said, _ROLES[row.label])} ({row.threshold})"


def _crossed(row: Judged, style: Style) -> str:
    """The one bound that was crossed, where the target has only that: ``above 80%``, not ``above ≤ 80%``."""
    one_sided = (row.row.get("low") is None) != (row.row.get("high") is None)
    if not one_sided or row.label not in ("above", "below"):
        return ""
    return bounds(row.row, style).partition(" ")[2]


def verdicts(rows: Iterable[Judged], words: Words, style: Style) -> list[str]:
    """Each that is given, worst first."""
    ordered = sorted(rows, key=lambda row: _WORST_FIRST.index(row.label))
    return [verdict(row, words, style) for row in ordered]


def bounds(row: Any, style: Style) -> str:
    """``70–85%``, ``≤ 80%``, ``≥ 22 GB``, ``≤ 1.5×``."""
    low, high, unit = row.get("low"), row.get("high"), row["unit"]
    if row["metric"] == "gpu_memory_used":
        unit = "GiB"  # what the notes call GB of a card, see :mod:`kb.advice.targets`
    tail = "%" if unit == "%" else "×" if unit == "ratio" else f" {unit}"
    if low is not None and high is not None:
        return f"{low:g}{style.dash}{high:g}{tail}"
    least, most = ("≥", "≤") if style.unicode else (">=", "<=")
    return f"{least} {low:g}{tail}" if low is not None else f"{most} {high:g}{tail}"
