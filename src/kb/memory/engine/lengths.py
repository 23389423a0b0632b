"""Which lengths a run sees: every batch at the maximum, or as long as its longest sample of a spread of lengths."""

from math import erf, sqrt

STEPS = 10
MEDIAN_SHARE = 3  # assumed: half of the samples are shorter than the maximum's third
TOP = 0.99  # assumed: the maximum is the 99th percentile of a log-normal, and longer ones are cut


def varied(most: int, rows: int, steps: int = STEPS) -> list[int]:
    """The padded lengths of ``steps`` batches of ``rows`` samples; the last is as long as any may be.

    The spread is assumed: log-normal, cut at ``most``. Nothing is drawn at random: batches are the percentiles of a
    sequence that fills the range evenly (van der Corput), so that the same question has the same answer.
    """
    share = [_evenly(step) ** (1 / rows) for step in range(1, steps)]
    found = [most * MEDIAN_SHARE ** (_normal(p) / _normal(TOP) - 1) for p in share]
    return [*(max(1, min(most, round(length))) for length in found), most]


def _evenly(number: int) -> float:
    """The bits of ``number`` mirrored behind the point."""
    found, weight = 0.0, 0.5
    while number:
        found += weight * (number & 1)
        number >>= 1
        weight /= 2
    return found


def _normal(share: float) -> float:
    """The point below which ``share`` of a standard normal lies, to nine digits."""
    low, high = -8.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 + erf(middle / sqrt(2))) / 2 < share:
            low = middle
        else:
            high = middle
    return low
