"""Effective batch = per device × accumulation × GPUs: what holds one exactly, and what comes nearest."""

from kb.core.record import NamedTuple


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


class Ceiling(NamedTuple):
    """The largest training batches that fit: where every step updates, and where steps accumulate.

    Accumulating holds the gradients beside each step's own, so that ``accumulated`` is the smaller.
    """

    single: int
    accumulated: int

    def reaches(self, effective: int, world: int) -> bool:
        """Whether some batch and accumulation come to ``effective``, or near it."""
        return self.accumulated >= 1 or self.single * world >= effective


def splits_of(effective: int, ceiling: Ceiling, world: int = 1) -> Splits:
    """Every way to an effective batch with what fits on each of ``world`` GPUs.

    Raises:
        ValueError: a number under 1, or a ceiling that does not reach.
    """
    if min(effective, world) < 1 or not ceiling.reaches(effective, world):
        raise ValueError(f"no batch: effective {effective} on {world} GPUs with at most {ceiling}")
    rank, left_over = divmod(effective, world)
    exact: tuple[Split, ...] = ()
    if not left_over:
        once = (Split(rank, 1, world),) if rank <= ceiling.single else ()
        batches = (batch for batch in range(min(ceiling.accumulated, rank - 1), 0, -1) if rank % batch == 0)
        exact = (*once, *(Split(batch, rank // batch, world) for batch in batches))
    return Splits(effective, exact, *_around(effective, ceiling, world))


def _around(effective: int, ceiling: Ceiling, world: int) -> tuple[Split | None, Split | None]:
    """The nearest below and above with as few steps as the ceiling allows; none where such a batch is exact."""
    if effective <= ceiling.single * world:
        steps, most = 1, ceiling.single
    else:
        steps, most = max(-(-effective // (ceiling.accumulated * world)), 2), ceiling.accumulated
    under, left_over = divmod(effective, steps * world)
    if not left_over:
        return None, None
    below = Split(under, steps, world) if under >= 1 else None
    above = Split(under + 1, steps, world) if under < most else None
    return below, above
