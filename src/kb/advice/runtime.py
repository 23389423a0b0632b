"""How long a pipeline takes: its stages by batch, each one's share, and what another batch buys in the whole. Pure.

A stage that the batch speeds up shortens the whole only by its own share of it (Amdahl's law): where a rate-limited API
takes nine tenths of the time, the batch decides about the last tenth.
"""

from collections.abc import Mapping, Sequence

from kb.core.record import NamedTuple
from kb.core.text import Text, UserError


class Minutes(NamedTuple):
    """A time in minutes, as a range; both ends are equal where one figure is known."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def then(self, other: "Minutes") -> "Minutes":
        """The range of both, one after the other."""
        return Minutes(self.low + other.low, self.high + other.high)

    def scaled(self, factor: float) -> "Minutes":
        return Minutes(self.low * factor, self.high * factor)


class Calls(NamedTuple):
    """What a rate-limited stage asks for: ``samples`` calls for each of ``items`` (None where it is not known)."""

    samples: int
    items: int | None = None

    @property
    def total(self) -> int | None:
        return None if self.items is None else self.items * self.samples


class Stage(NamedTuple):
    """One stage. ``fixed`` is its time where the batch does not matter, ``by_batch`` where it does."""

    name: str
    title: Text
    by_batch: Mapping[int, Minutes] = {}
    fixed: Minutes | None = None
    calls: Calls | None = None

    def time(self, batch: int) -> Minutes | None:
        """The time with this batch; None where no figure is known for it."""
        return self.fixed or self.by_batch.get(batch)


class StageTime(NamedTuple):
    """One stage's time with one batch. ``until`` is the time when it ends; ``share`` is of the whole, by middles."""

    stage: Stage
    time: Minutes
    until: Minutes
    share: float


class RunTime(NamedTuple):
    """A whole pipeline with one batch."""

    batch: int
    stages: tuple[StageTime, ...]
    total: Minutes

    @property
    def bottleneck(self) -> StageTime:
        return max(self.stages, key=lambda row: row.time.middle)


class SpeedUp(NamedTuple):
    """How many times shorter: by the ranges' middles, by their low ends and by their high ends."""

    middle: float
    low: float
    high: float


class Comparison(NamedTuple):
    """What a batch change buys.

    ``whole`` is the speed-up of the pipeline, ``batched`` of the stages that the batch changes (None where it changes
    none), ``batched_share`` their share of the baseline's time, ``ceiling`` the speed-up if they took no time at all
    (None where nothing else takes any).
    """

    baseline: RunTime
    changed: RunTime
    whole: SpeedUp
    stages: tuple[SpeedUp, ...]
    batched: SpeedUp | None
    batched_share: float
    ceiling: float | None


def known_batches(stages: Sequence[Stage]) -> tuple[int, ...]:
    """Batches for which every stage has a time; none where no stage depends on the batch."""
    dependent = [set(stage.by_batch) for stage in stages if stage.fixed is None]
    return tuple(sorted(set.intersection(*dependent))) if dependent else ()


def run_time(stages: Sequence[Stage], batch: int) -> RunTime:
    """Every stage's time with ``batch``, and the whole.

    Raises:
        UserError: there are no stages, they take no time, or one has no figure for this batch; none is made up.
    """
    if not stages:
        raise UserError("runtime.no_stages")
    times: list[tuple[Stage, Minutes]] = []
    for stage in stages:
        time = stage.time(batch)
        if time is None:
            known = ", ".join(map(str, sorted(stage.by_batch))) or "–"
            raise UserError("runtime.no_time", stage=stage.name, batch=batch, known=known)
        times.append((stage, time))
    total = Minutes(0, 0)
    rows = []
    whole = sum(time.middle for _, time in times)
    if whole <= 0:
        raise UserError("runtime.takes_no_time")
    for stage, time in times:
        total = total.then(time)
        rows.append(StageTime(stage=stage, time=time, until=total, share=time.middle / whole))
    return RunTime(batch=batch, stages=tuple(rows), total=total)


def compare(baseline: RunTime, changed: RunTime) -> Comparison:
    """What going from ``baseline`` to ``changed`` buys; both are runs of the same stages."""
    pairs = list(zip(baseline.stages, changed.stages, strict=True))
    moved = [(before.time, after.time) for before, after in pairs if before.time != after.time]
    before, after = (_sum([pair[side] for pair in moved]) for side in (0, 1))
    share = before.middle / baseline.total.middle
    return Comparison(
        baseline=baseline,
        changed=changed,
        whole=_speed_up(baseline.total, changed.total),
        stages=tuple(_speed_up(before.time, after.time) for before, after in pairs),
        batched=_speed_up(before, after) if moved else None,
        batched_share=share,
        ceiling=1 / (1 - share) if share < 1 else None,
    )


def with_samples(stages: Sequence[Stage], samples: int) -> tuple[Stage, ...]:
    """The stages with another number of calls for each item: under a rate limit, time is calls over rate.

    Raises:
        UserError: no stage is rate-limited.
    """
    if not any(stage.calls for stage in stages):
        raise UserError("runtime.no_calls")
    return tuple(_resampled(stage, samples) for stage in stages)


def _resampled(stage: Stage, samples: int) -> Stage:
    if stage.calls is None or stage.fixed is None:
        return stage
    return stage._replace(
        fixed=stage.fixed.scaled(samples / stage.calls.samples), calls=stage.calls._replace(samples=samples)
    )


def calls_per_minute(stage: Stage) -> Minutes | None:
    """The rate that a rate-limited stage reaches, in calls a minute; None where its calls or its time are unknown."""
    calls = stage.calls and stage.calls.total
    if not calls or stage.fixed is None or not stage.fixed.low:
        return None
    return Minutes(calls / stage.fixed.high, calls / stage.fixed.low)


def _sum(times: Sequence[Minutes]) -> Minutes:
    return Minutes(sum(time.low for time in times), sum(time.high for time in times))


def _speed_up(before: Minutes, after: Minutes) -> SpeedUp:
    return SpeedUp(
        middle=_ratio(before.middle, after.middle),
        low=_ratio(before.low, after.low),
        high=_ratio(before.high, after.high),
    )


def _ratio(before: float, after: float) -> float:
    """``before / after``; infinite where a stage is gone altogether, 1 where it never took time."""
    if after:
        return before / after
    return float("inf") if before else 1.0


class TrainingTime(NamedTuple):
    """Training by optimizer steps. ``batch`` is the effective batch; what was not given stays None."""

    seconds_per_step: float
    steps: int | None = None
    batch: int | None = None

    @property
    def steps_per_minute(self) -> float:
        return 60 / self.seconds_per_step

    @property
    def total_seconds(self) -> float | None:
        return None if self.steps is None else self.steps * self.seconds_per_step

    @property
    def samples_per_second(self) -> float | None:
        return None if self.batch is None else self.batch / self.seconds_per_step

    @property
    def samples(self) -> int | None:
        """Samples seen in all steps, repeats counted."""
        return None if self.batch is None or self.steps is None else self.batch * self.steps
