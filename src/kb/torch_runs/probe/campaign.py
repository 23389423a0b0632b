"""The procedures of ``kb.probe``: which trials follow one another, and what comes of them. The runner runs them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kb.advice.batches import Expected, Seen, Sought, after, seek
from kb.advice.watching import judge
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.snapshot import Sample
from kb.memory.search import largest_within
from kb.torch_runs.probe.running import Runner, measure
from kb.torch_runs.probe.trial import Journal, Kind, Outcome, Trial

Pair = tuple[Trial, Outcome]
Make = Callable[[int], Trial]
Tell = Callable[[int, Trial, Outcome], None]
MEMORY_TARGET = "gpu-memory-training"
UTILISATION_TARGET = "gpu-utilisation-search"
ENOUGH = 0.95  # of the best throughput: fewer workers that reach it are taken


class Recommended(NamedTuple):
    """The setting to start from. ``number`` is a batch, or of a host probe workers.

    ``used_bytes`` and ``share`` (of the GPU, or of the host's limit) are what it takes; ``tried``: seen in a trial, not
    computed from one. ``reason`` is a key of i18n under ``probe.reason``.
    """

    number: int
    reason: str
    used_bytes: int | None = None
    share: float | None = None
    tried: bool = True


class Card(NamedTuple):
    """The memory that trials are held against, in bytes; None is not known."""

    name: str | None = None
    total_bytes: int | None = None
    usable_bytes: int | None = None


class Probed(NamedTuple):
    """A whole campaign. ``setup`` is the run, with the recommended setting in it where there is one; None of a command.
    ``auto_find`` are the batches that ``auto_find_batch_size`` would have run."""

    kind: Kind
    backend: str
    name: str
    pairs: tuple[Pair, ...]
    card: Card = Card()
    host_limit_bytes: int | None = None
    sought: Sought | None = None
    recommended: Recommended | None = None
    setup: TrainingSetup | None = None
    command: tuple[str, ...] = ()
    auto_find: tuple[int, ...] = ()
    target: tuple[float, float] | None = None  # the guide's share of the GPU, as ratios
    one_sequence: bool = False
    notes: tuple[str, ...] = ()  # what detection has to say of the machine: keys of i18n under `machine.`

    @property
    def ran(self) -> bool:
        return any(outcome.fits for _, outcome in self.pairs)


class Bench:
    """Runs one trial after another, journalled, and tells of each."""

    def __init__(self, runner: Runner, journal: Journal | None, tell: Tell) -> None:
        self._runner, self._journal, self._tell = runner, journal, tell
        self.pairs: list[Pair] = []

    def run(self, trial: Trial) -> Outcome:
        """Raises: UserError: the journal cannot be written."""
        for pair in measure([trial], self._runner, self._journal):
            self.pairs.append(pair)
            self._tell(len(self.pairs), *pair)
            return pair[1]
        raise RuntimeError("the runner gave no outcome")


def search_batch(
    bench: Bench, make: Make, start: int, *, most: int, expected: Expected | None, limit_bytes: int | None
) -> Sought:
    """Look for the largest batch that runs."""
    seeking = seek(start, expected=expected, limit_bytes=limit_bytes, most=most)
    try:
        batch = next(seeking)
        while True:
            outcome = bench.run(make(batch))
            broke = outcome.status not in ("ok", "oom")
            batch = seeking.send(Seen(batch, outcome.fits, outcome.peak_bytes if outcome.fits else None, broke))
    except StopIteration as ended:
        found: Sought = ended.value
        return found


def recommend_batch(
    sought: Sought, expected: Expected | None, card: Card, target: tuple[float, float] | None
) -> Recommended | None:
    """The largest batch inside the guide's target, by what the trials took; without that the largest that ran."""
    if not sought.largest:
        return None
    line = after(sought.trials, expected)
    tried = {trial.batch: trial.peak_bytes for trial in sought.trials if trial.fits}
    if line is None or target is None or not card.total_bytes:
        used = tried.get(sought.largest)
        return Recommended(
            sought.largest, "largest", used, used / card.total_bytes if used and card.total_bytes else None
        )
    batch = largest_within(line, int(card.total_bytes * target[1]), 1, sought.largest)
    reason = "inside_target" if batch else "over_target"
    batch = batch or 1
    used = tried.get(batch) or line(batch)
    return Recommended(batch, reason, used, used / card.total_bytes, batch in tried)


def climb(
    bench: Bench, make: Make, batches: Iterable[int], card: Card, thresholds: Mapping[str, Any]
) -> Recommended | None:
    """The notes' ramp: batch by batch, until memory or utilisation is where it should be, or a trial fails."""
    best: Recommended | None = None
    for batch in batches:
        outcome = bench.run(make(batch))
        if not outcome.fits:
            break
        labels = judged(outcome, card, thresholds)
        share = outcome.peak_bytes / card.total_bytes if outcome.peak_bytes and card.total_bytes else None
        memory = labels.get(MEMORY_TARGET)
        if memory == "above":
            best = best or Recommended(batch, "over_target", outcome.peak_bytes, share)
            break
        reason = (
            "inside_target" if memory == "ok" else "utilised" if labels.get(UTILISATION_TARGET) == "ok" else "largest"
        )
        best = Recommended(batch, reason, outcome.peak_bytes, share)
        if reason != "largest":
            break
    return best


def judged(outcome: Outcome, card: Card, thresholds: Mapping[str, Any]) -> dict[str, str]:
    """The label of each of the guide's training targets that says something of an outcome."""
    sample = Sample(
        gpu_used=outcome.peak_bytes if card.total_bytes else None,
        gpu_total=card.total_bytes,
        gpu_utilisation=outcome.utilisation,
    )
    return {found.threshold: found.label for found in judge(sample, thresholds, "training")}


def target_of(thresholds: Mapping[str, Any], name: str = MEMORY_TARGET) -> tuple[float, float] | None:
    """A target's ends as ratios; None where the guide has no such target."""
    row = next((row for row in thresholds["thresholds"] if row["id"] == name), None)
    return None if row is None else (row.get("low", 0) / 100, row.get("high", 100) / 100)


def count_workers(
    bench: Bench, make: Make, counts: Sequence[int], limit_bytes: int | None, share: float
) -> Recommended | None:
    """Data loader workers by number; the fewest that give nearly the best rate, within the share of host memory."""
    found: list[tuple[int, float, int | None]] = []
    for workers in counts:
        outcome = bench.run(make(workers))
        if not outcome.fits:
            break
        found.append((workers, outcome.samples_per_second or 0.0, host_bytes(outcome)))
    room = [row for row in found if limit_bytes is None or row[2] is None or row[2] <= limit_bytes * share]
    if not room:
        return None
    best = max(rate for _, rate, _ in room)
    workers, _, used = next(row for row in room if row[1] >= ENOUGH * best)
    part = used / limit_bytes if used and limit_bytes else None
    return Recommended(workers, "fastest" if best else "fits_host", used, part)


def host_bytes(outcome: Outcome) -> int | None:
    """Host memory of all the trial's processes: the proportional set where it is known."""
    for name in ("total_pss_bytes", "peak_pss_bytes", "peak_rss_bytes"):
        if outcome.host.get(name):
            return int(outcome.host[name])
    return None


def doubling(most: int) -> Iterator[int]:
    """0, 1, 2, 4 … up to ``most``."""
    yield 0
    workers = 1
    while workers <= most:
        yield workers
        workers *= 2
