"""What the lengths of a data set say: quantiles, what each max_length would cut, how much of a batch is padding."""

from collections.abc import Sequence
from math import ceil

from kb.core.record import NamedTuple
from kb.core.setup import LENGTH_SHARES

USUAL = tuple(2**power for power in range(6, 21))  # lengths that people set as max_length
SHOWN = 7  # of them, the longest that still matter


class Cut(NamedTuple):
    """What ``max_length`` cuts. Both shares are of 1: samples that are cut, and tokens that are lost."""

    max_length: int
    samples: float
    tokens: float


class LengthSpread(NamedTuple):
    """Lengths in tokens; ``lengths`` are at each of ``LENGTH_SHARES``. ``padding`` is the share of a batch that is
    padding where its samples are drawn at random and padded to their longest; ``enough`` the shortest usual length that
    leaves 99 of 100 samples whole."""

    samples: int
    mean: float
    lengths: tuple[int, ...]
    longest: int
    cuts: tuple[Cut, ...]
    padding: float
    enough: Cut


def spread_of(lengths: Sequence[int], batch: int) -> LengthSpread:
    """The spread of at least one length above 0.

    Quantiles are lengths that occur (nearest rank). The padding of a batch is computed from the expected longest of
    ``batch`` lengths drawn from these: the i-th of n is the longest with the chance (i/n)^batch − ((i−1)/n)^batch.
    """
    ordered = sorted(lengths)
    count, tokens = len(ordered), sum(ordered)

    def quantile(hundredths: int) -> int:
        return ordered[max(ceil(hundredths * count / 100), 1) - 1]

    def cut(most: int) -> Cut:
        over = [length - most for length in ordered if length > most]
        return Cut(most, len(over) / count, sum(over) / tokens)

    longest = sum(
        length * ((at / count) ** batch - ((at - 1) / count) ** batch) for at, length in enumerate(ordered, start=1)
    )
    return LengthSpread(
        samples=count,
        mean=tokens / count,
        lengths=tuple(quantile(round(100 * share)) for share in LENGTH_SHARES.values()),
        longest=ordered[-1],
        cuts=tuple(map(cut, _shown(ordered[-1]))),
        padding=max(0.0, round(1 - tokens / count / longest, 9)),  # equal lengths have none
        enough=cut(_at_least(quantile(99))),
    )


def _at_least(length: int) -> int:
    """The shortest usual length that holds ``length``; itself beyond them."""
    return next((usual for usual in USUAL if usual >= length), length)


def _shown(longest: int) -> tuple[int, ...]:
    """The usual lengths that cut something, and the first that does not."""
    return tuple(usual for usual in USUAL if usual <= _at_least(longest))[-SHOWN:]
