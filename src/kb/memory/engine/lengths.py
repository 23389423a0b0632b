"""Which lengths a run sees: every batch at the maximum, or as long as its longest sample of a spread of lengths."""

from collections.abc import Sequence
from itertools import pairwise
from math import erf, sqrt

from kb.core.setup import LENGTH_SHARES, DataLengths

STEPS = 10
MEDIAN_SHARE = 3  # assumed: half of the samples are shorter than the maximum's third
TOP = 0.99  # assumed: the maximum is the 99th percentile of a log-normal, and longer ones are cut


def varied(most: int, rows: int, steps: int = STEPS, known: DataLengths | None = None) -> list[int]:
    """The padded lengths of ``steps`` batches of ``rows`` samples; the last is as long as any may be.

    The spread is that of the data where it is ``known``, between its lengths as if it were even; else assumed:
    log-normal. Either is cut at ``most``. Nothing is drawn at random: batches are the percentiles of a
    sequence that fills the range evenly (van der Corput), so that the same question has the same answer.
    """
    share = [_evenly(step) ** (1 / rows) for step in range(1, steps)]
    if known is None:
        found = [most * MEDIAN_SHARE ** (_normal(p) / _normal(TOP) - 1) for p in share]
    else:
        found = [_between(known.input, p) for p in share]
    return [*(max(1, min(most, round(length))) for length in found), most]


def _between(lengths: Sequence[int], share: float) -> float:
    """The length that ``share`` of the samples do not exceed."""
    ends = zip(pairwise(LENGTH_SHARES.values()), pairwise(lengths), strict=True)
    (low, high), (short, long) = next(each for each in ends if share <= each[0][1])
    return short + (long - short) * (share - low) / (high - low)


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
