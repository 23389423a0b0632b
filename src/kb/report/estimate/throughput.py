"""A training step's predicted time, in words and as JSON; always with what it rests on."""

from typing import Any

from kb.memory.throughput import Throughput
from kb.report.style import Style
from kb.report.width import wrap
from kb.report.words import Words

INDENT = "  "


def throughput_lines(found: Throughput | None, gpu: str | None, words: Words, style: Style) -> list[str]:
    """The band, and where it comes from; nothing where it is not known.

    Args:
        gpu: the id of the GPU it is for.
    """
    if found is None:
        return []
    dash = style.dash
    values = {
        "seconds": f"{_short(found.step_seconds_low)}{dash}{_short(found.step_seconds_high)}",
        "rate": f"{_short(found.samples_per_second_low)}{dash}{_short(found.samples_per_second_high)}",
    }
    basis = "throughput.basis" if gpu == found.measured_on else "throughput.basis_other"
    return [
        style.paint(words("throughput.title"), "heading"),
        *wrap(words("throughput.band", **values), style.width, INDENT),
        *wrap(words(basis), style.width, INDENT),
    ]


def throughput_object(found: Throughput | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "status": found.status,
        "measured_on": found.measured_on,
        "step_seconds": {"low": _rounded(found.step_seconds_low), "high": _rounded(found.step_seconds_high)},
        "samples_per_second": {
            "low": _rounded(found.samples_per_second_low),
            "high": _rounded(found.samples_per_second_high),
        },
        "roofline_seconds": _rounded(found.roofline_seconds),
        "operations": round(found.operations),
        "bytes": round(found.bytes),
        "bound": found.bound,
    }


def _short(value: float) -> str:
    """Two digits, never as a power of ten: ``0.031``, ``4.2``, ``130``."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.6f}".rstrip("0").rstrip(".")


def _rounded(value: float) -> float:
    """Four digits: more would feign a precision that the band does not have."""
    return float(f"{value:.4g}")
