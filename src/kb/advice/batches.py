"""Effective batch = per device × accumulation × GPUs: what holds one exactly, and what comes nearest."""

from typing import NamedTuple


class Split(NamedTuple):
    """One way to make up an effective batch. ``world`` is the data-parallel size."""

    batch: int
    accumulation: int
    world: int = 1

    @property
    def effective(self) -> int:
        return self.batch * self.accumulation * self.world


class Splits(NamedTuple):
    """``exact``: every way with a batch that fits, largest batch first; empty where none gives the effective batch.

    ``below`` and ``above`` are the nearest that take as few accumulation steps as the largest batch allows; None where
    such a batch is exact, or there is none.
    """

    wanted: int
    exact: tuple[Split, ...]
    below: Split | None
    above: Split | None

    def nearest(self) -> Split | None:
        """Of the two the one nearer to what is wanted; the smaller of equals."""
        found = [split for split in (self.below, self.above) if split is not None]
        return min(found, key=lambda split: abs(split.effective - self.wanted), default=None)


def splits_of(effective: int, largest: int, world: int = 1) -> Splits:
    """Every way to an effective batch with at most ``largest`` samples on each of ``world`` GPUs.

    Raises:
        ValueError: a number under 1.
    """
    if min(effective, largest, world) < 1:
        raise ValueError(f"batches and GPUs count from 1: {effective}, {largest}, {world}")
    rank, left_over = divmod(effective, world)
    exact: tuple[Split, ...] = ()
    if not left_over:
        batches = (batch for batch in range(min(largest, rank), 0, -1) if rank % batch == 0)
        exact = tuple(Split(batch, rank // batch, world) for batch in batches)
    steps = -(-effective // (largest * world))  # as few as the largest batch allows
    under = effective // (steps * world)
    below = Split(under, steps, world) if under >= 1 else None
    above = Split(under + 1, steps, world) if under + 1 <= largest else None
    if below and below.effective == effective:
        below = above = None
    return Splits(wanted=effective, exact=exact, below=below, above=above)
