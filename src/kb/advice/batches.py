"""Batches: what holds an effective batch (per device × accumulation × GPUs), how many rows at once are worth it, and
the largest batch that runs. Pure.

The largest is found in few trials: begin at the prediction, correct it by what a trial took.

A trial tells its peak, and usually there is a prediction for each batch: one trial that runs tells how far the
prediction is off, and the next goes where the corrected one meets the limit. Where that fails it brackets and bisects.
:func:`seek` is a generator; who tries is the caller's business. The trials of the Trainer's ``auto_find_batch_size``
stand beside it: that one only ever shrinks, and leaves accumulation alone.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Literal

from kb.advice.fit.estimator import Estimator
from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.search import LARGEST_BATCH, largest_within


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


Expected = Callable[[int], int]
# Where nothing has run yet, the prediction is taken to be this much too low, then twice as much, and so on.
FIRST_MARGIN = 0.1
MOST_BROKEN = 3
# accelerate's find_executable_batch_size halved before 1.9.0 and multiplies by 0.9 since (accelerate-3684).
_SHRINKS_BY_A_TENTH = (1, 9, 0)


class Seen(NamedTuple):
    """One batch that was tried. ``peak_bytes`` of one that ran, where it is known; ``broke``: it failed, and not for
    want of memory."""

    batch: int
    fits: bool
    peak_bytes: int | None = None
    broke: bool = False


class Sought(NamedTuple):
    """What a search came to. ``largest`` is 0 where no batch ran.

    ``next_one`` says why not one more: ``failed`` in a trial, ``computed`` to pass the limit, ``not_allowed`` (over
    ``most``), or ``unknown`` where the search was given up because every trial broke.
    """

    trials: tuple[Seen, ...]
    largest: int
    next_one: Literal["failed", "computed", "not_allowed", "unknown"]


def seek(
    start: int, *, expected: Expected | None = None, limit_bytes: int | None = None, most: int = LARGEST_BATCH
) -> Generator[int, Seen, Sought]:
    """Batches to try, one after another; send each one's :class:`Seen`. The search is the generator's value.

    Args:
        start: the batch to begin with; the prediction's largest where there is one.
        expected: bytes that a batch is predicted to take; never falling.
        limit_bytes: what there is of them.
        most: no larger batch is tried.

    Raises:
        ValueError: ``start`` is not between 1 and ``most``.
    """
    if not 1 <= start <= most:
        raise ValueError(f"no batch to begin with: start {start}, most {most}")
    trials: list[Seen] = []
    fitting, failing, batch = 0, most + 1, start
    while True:
        seen = yield batch
        trials.append(seen)
        fitting, failing = (batch, failing) if seen.fits else (fitting, batch)
        if failing - fitting <= 1:
            return Sought(tuple(trials), fitting, "failed" if failing <= most else "not_allowed")
        if not fitting:
            if len(trials) >= MOST_BROKEN and all(trial.broke for trial in trials):
                return Sought(tuple(trials), 0, "unknown")
            batch = _lower(expected, limit_bytes, failing, len(trials))
            continue
        reach = corrected(trials, expected, limit_bytes, fitting, failing - 1)
        if not seen.fits:
            batch = (fitting + failing) // 2
        elif reach is None:
            batch = min(fitting * 2, most) if failing > most else (fitting + failing) // 2
        elif reach <= fitting and failing <= most:
            return Sought(tuple(trials), fitting, "computed")
        else:
            batch = min(max(reach, fitting + 1), failing - 1)


def corrected(
    trials: list[Seen], expected: Expected | None, limit_bytes: int | None, lowest: int, highest: int
) -> int | None:
    """The largest batch of a range that the trials let expect to fit; ``lowest`` where no larger one does.

    The prediction times what the largest trial took of it; without a prediction the line through two trials. None where
    neither is known.
    """
    peaks = sorted((trial.batch, trial.peak_bytes) for trial in trials if trial.fits and trial.peak_bytes)
    if limit_bytes is None or not peaks:
        return None
    line = _line(peaks, expected)
    return None if line is None else max(largest_within(line, limit_bytes, lowest, highest), lowest)


def after(trials: tuple[Seen, ...], expected: Expected | None) -> Expected | None:
    """What a batch is expected to take once trials have run; None where they do not tell."""
    return _line(
        sorted((trial.batch, trial.peak_bytes) for trial in trials if trial.fits and trial.peak_bytes), expected
    )


def _line(peaks: list[tuple[int, int]], expected: Expected | None) -> Expected | None:
    if not peaks:
        return None
    batch, peak = peaks[-1]
    if expected is not None:
        ratio = peak / max(expected(batch), 1)
        return lambda other: round(expected(other) * ratio)
    if len(peaks) < 2:
        return None
    first, least = peaks[0]
    slope = max((peak - least) / (batch - first), 0)
    return lambda other: round(peak + slope * (other - batch))


def _lower(expected: Expected | None, limit_bytes: int | None, failing: int, failures: int) -> int:
    """Below a batch that failed: by the prediction with a growing margin, or half."""
    if expected is None or limit_bytes is None:
        return failing // 2
    margin = 1 + FIRST_MARGIN * 2 ** (failures - 1)
    return min(max(largest_within(expected, int(limit_bytes / margin), 1, failing - 1), 1), failing - 1)


def tried_by_accelerate(start: int, largest: int, version: tuple[int, ...]) -> tuple[int, ...]:
    """The batches that ``auto_find_batch_size`` runs, in order, where ``largest`` is the most that fits.

    The last is where it stops; where not even 1 fits it gives up after 1.

    Args:
        start: the run's own batch; it never tries a larger one.
        version: of accelerate: ``(1, 8, 1)`` halves, ``(1, 9, 0)`` and later multiply by 0.9 and round down.
    """
    tried, batch = [], start
    while batch:
        tried.append(batch)
        if batch <= largest:
            break
        batch = int(batch * 0.9) if version >= _SHRINKS_BY_A_TENTH else batch // 2
    return tuple(tried)


# The rule `long-generation-large-batch` begins here (guide-batch-inference).
LONG_GENERATION, LARGE_BATCH = 100, 32

Reason = Literal["memory", "busy", "share", "asked"]


class Capped(NamedTuple):
    """A batch to evaluate or generate with. ``reason``: ``memory`` is all that bounds it, the GPU is ``busy`` with
    ``rows`` rows already, or a long generation stays within the ``share`` of the GPU that the guide calls safe."""

    batch: int
    reason: Reason
    rows: int


def rows_worth(gpu: Gpu | None, gpus: Iterable[Gpu]) -> int:
    """Rows with which a GPU's arithmetic, not its memory, sets the speed: a power of two.

    A weight of two bytes is read once for all rows and takes two operations for each, so that reading and computing
    take equal time at operations a second / bytes a second rows (the roofline model). Of a GPU without figures, the
    least of all known ones.
    """
    known = [gpu] if gpu is not None and gpu.tensor_flops and gpu.memory_bandwidth else list(gpus)
    ridges = [one.tensor_flops / one.memory_bandwidth for one in known if one.tensor_flops and one.memory_bandwidth]
    return 1 << (int(min(ridges)).bit_length() - 1) if ridges else LARGE_BATCH


def evaluation_batch(largest: int, setup: TrainingSetup, rows: int) -> Capped:
    """The evaluation batch: no more rows than keep the GPU busy; each beam is a row."""
    most = max(rows // (setup.generation_num_beams if setup.predict_with_generate else 1), 1)
    return Capped(min(largest, most), "busy" if largest > most else "memory", rows)


def inference_batch(largest: int, setup: TrainingSetup, rows: int, estimator: Estimator) -> Capped:
    """The batch to generate with: the same below the guide's danger line, and of a long generation no more than the
    guide's share of the GPU."""
    most = max(rows // setup.inference_num_beams, 1)
    found = Capped(min(largest, most), "busy" if largest > most else "memory", rows)
    limit, constants = estimator.limit_bytes, estimator.constants
    if limit is None or not found.batch:
        return found

    def used(batch: int) -> int:
        phase: Phase | None = estimator.predict(setup._replace(inference_batch_size=batch)).phase("generate")
        return phase.process_used_bytes if phase else 0

    def within(share: str, batch: int) -> int:
        return largest_within(used, int(limit * constants[share]) - 1, 1, batch, first=batch)

    found = found._replace(batch=max(within("generation_danger_share", found.batch), 1))
    if found.batch < LARGE_BATCH or setup.inference_max_length <= LONG_GENERATION:
        return found
    safe = max(within("generation_safe_share", found.batch), LARGE_BATCH - 1)
    return found if safe >= found.batch else Capped(safe, "share", rows)
