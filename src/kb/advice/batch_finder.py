"""The largest batch that runs, found by trying: each trial fits or runs out of memory. Pure; who tries is the caller's.

:func:`search` is a generator: it yields the batch to try and is sent whether it fitted. What accelerate would have
settled on with ``auto_find_batch_size`` stands beside it: that one only ever shrinks, and leaves accumulation alone.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

from kb.advice.batches import Ceiling, Splits, splits_of

# The same wish written as a setting of the Trainer, and the erratum that says what it leaves undone.
TRAINERS_OWN = ("training.auto_find_batch_size", True)
CAVEAT = "auto-find-batch-size-effective-batch"
# accelerate's find_executable_batch_size halved before 1.9.0 and multiplies by 0.9 since (accelerate-3684).
_SHRINKS_BY_A_TENTH = (1, 9, 0)


class Trial(NamedTuple):
    """One batch that was tried, and whether it ran."""

    batch: int
    fits: bool


class Found(NamedTuple):
    """What a search came to. ``largest`` is 0 where not even a batch of 1 ran.

    ``splits`` are the ways to the effective batch of the start with what fits; None where nothing does.
    """

    trials: tuple[Trial, ...]
    largest: int
    splits: Splits | None


def search(start: int, most: int | None = None) -> Generator[int, bool, tuple[Trial, ...]]:
    """Batches to try, one after another: halves from ``start`` until one fits, then the middle of what is left.

    Where ``start`` itself fits, it doubles up to ``most``; without ``most`` it stays there. Send each yielded batch's
    outcome (True: it fitted); the trials come back as the generator's value.

    Raises:
        ValueError: ``start`` is under 1, or ``most`` under ``start``.
    """
    ceiling = start if most is None else most
    if start < 1 or ceiling < start:
        raise ValueError(f"no batch to begin with: start {start}, most {ceiling}")
    trials: list[Trial] = []
    fitting, failing, batch = 0, ceiling + 1, start
    while failing - fitting > 1:
        fits = yield batch
        trials.append(Trial(batch, fits))
        fitting, failing = (batch, failing) if fits else (fitting, batch)
        if not fitting:
            batch = failing // 2
        elif failing > ceiling:
            batch = min(fitting * 2, ceiling)
        else:
            batch = (fitting + failing) // 2
    return tuple(trials)


def find_batch(
    fits: Callable[[int], bool], start: int, *, accumulation: int = 1, world: int = 1, most: int | None = None
) -> Found:
    """Run a whole search, and say how the effective batch of ``start`` is held with what was found.

    Args:
        fits: tries a batch; False means out of memory. It accumulates two steps or more where the answer may:
            gradients that wait for the next step take memory that a single step does not.
        accumulation: the run's own, beside ``start``.
        world: the data-parallel size.
    """
    trying = search(start, most)
    try:
        batch = next(trying)
        while True:
            batch = trying.send(fits(batch))
    except StopIteration as ended:
        trials: tuple[Trial, ...] = ended.value
    largest = max((trial.batch for trial in trials if trial.fits), default=0)
    wanted = start * accumulation * world
    return Found(trials, largest, splits_of(wanted, Ceiling(largest, largest), world) if largest else None)


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


def by_accelerate(start: int, largest: int, version: tuple[int, ...]) -> int:
    """The batch at which ``auto_find_batch_size`` stops where ``largest`` is the most that fits; 0: it gives up."""
    stops = tried_by_accelerate(start, largest, version)[-1]
    return stops if stops <= largest else 0
