"""How long a pipeline takes: its stages by batch, each one's share, and what another batch buys in the whole. Pure.

Stages, claims and training are given, or those of a row of ``rules/runtimes``. A stage that the batch speeds up
shortens the whole only by its own share of it (Amdahl's law): where a rate-limited API takes nine tenths of the time,
the batch decides about the last tenth.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.expression import Unknown, compile_tree
from kb.core.record import NamedTuple
from kb.core.text import Text, UserError, nearest, text_of


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


MINUTES = {"min": 1.0, "s": 1 / 60}


class Claim(NamedTuple):
    """A total that a note gives for one batch, with its place and, where there is one, the erratum about it."""

    batch: int
    total: Minutes
    relative_speed: float
    source: str
    lines: str
    erratum: str | None = None


class Pipeline(NamedTuple):
    """One job: its stages in order, and what its note says of the whole. ``baseline`` is the batch it starts from."""

    id: str
    title: Text
    stages: tuple[Stage, ...]
    claims: tuple[Claim, ...]
    baseline: int | None
    sources: tuple[str, ...]

    def claim(self, batch: int) -> Claim | None:
        return next((claim for claim in self.claims if claim.batch == batch), None)


class TrainingRow(NamedTuple):
    """A training run that a note tells of: its time by steps, and the total in minutes that the note expected."""

    id: str
    title: Text
    time: TrainingTime
    claimed_minutes: float | None
    lines: str
    erratum: str | None
    sources: tuple[str, ...]


def runtime_row(rows: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The row named ``name``.

    Raises:
        UserError: there is none; the nearest name is said.
    """
    if name in rows:
        row: Mapping[str, Any] = rows[name]
        return row
    meant = nearest(name, rows)
    key = "runtime.unknown_meant" if meant else "runtime.unknown"
    raise UserError(key, name=name, meant=meant[0] if meant else "", known=", ".join(sorted(rows)))


def pipeline_of(row: Mapping[str, Any], wanted: str | None, errata: Sequence[Mapping[str, Any]]) -> Pipeline:
    """A row's pipeline: the one named, else the one with the most stages, else all of the row's stages.

    Raises:
        UserError: the row has no pipeline of that name.
    """
    pipelines = {pipeline["id"]: pipeline for pipeline in row.get("pipelines", ())}
    stages = {stage["id"]: _stage(stage, row) for stage in row["stages"]}
    if wanted is not None and wanted not in pipelines:
        raise UserError("runtime.unknown_pipeline", name=wanted, known=", ".join(pipelines) or "–")
    chosen = pipelines[wanted] if wanted else max(pipelines.values(), key=lambda one: len(one["stages"]), default=None)
    baseline = row.get("baseline", {}).get("value")
    return Pipeline(
        id=row["id"],
        title=text_of(row["title"]),
        stages=tuple(stages[name] for name in chosen["stages"]) if chosen else tuple(stages.values()),
        claims=tuple(_claim(total, errata) for total in chosen["rows"]) if chosen else (),
        baseline=int(baseline) if baseline else None,
        sources=tuple(row["sources"]),
    )


def training_of(row: Mapping[str, Any], errata: Sequence[Mapping[str, Any]]) -> TrainingRow:
    """The training run of a row that has one; its effective batch is what the workload makes up."""
    training, workload = row["training"], row["workload"]
    batch = workload.get("batch", {}).get("value")
    steps = workload.get("gradient_accumulation_steps", {}).get("value", 1)
    total = training.get("total", {})
    return TrainingRow(
        id=row["id"],
        title=text_of(row["title"]),
        time=TrainingTime(
            seconds_per_step=float(training["seconds_per_step"]["value"]),
            steps=int(training["steps"]["value"]),
            batch=int(batch * steps) if batch else None,
        ),
        claimed_minutes=total["value"] * MINUTES[total["unit"]] if total else None,
        lines=total.get("lines", ""),
        erratum=erratum_at(errata, total.get("source", ""), total.get("lines", "")),
        sources=tuple(row["sources"]),
    )


def _stage(data: Mapping[str, Any], row: Mapping[str, Any]) -> Stage:
    fixed, by_batch = None, {}
    for time in data["times"]:
        minutes = Minutes(time.get("low", time.get("value")), time.get("high", time.get("value")))
        minutes = minutes.scaled(MINUTES[time["unit"]]) if time["unit"] != "min" else minutes
        if "batch" in time:
            by_batch[time["batch"]] = minutes
        else:
            fixed = minutes
    return Stage(data["id"], text_of(data["title"]), by_batch, fixed, _calls(data, row))


def _calls(data: Mapping[str, Any], row: Mapping[str, Any]) -> Calls | None:
    """The calls of a rate-limited stage: all of them by the row's expression, over those for one item."""
    each = data.get("n_samples", {}).get("value")
    if not data.get("rate_limited") or not each:
        return None
    total = data.get("calls", {})
    value = total.get("value")
    if "compute_tree" in total:
        names = {name: entry["value"] for name, entry in row["workload"].items() if "value" in entry}
        names["n_samples"] = each
        value = compile_tree(total["compute_tree"])(lambda name: names.get(name, Unknown(frozenset((name,)))))
    return Calls(samples=int(each), items=round(value / each) if isinstance(value, int | float) else None)


def _claim(total: Mapping[str, Any], errata: Sequence[Mapping[str, Any]]) -> Claim:
    return Claim(
        batch=total["batch"],
        total=Minutes(total["low"], total["high"]).scaled(MINUTES[total["unit"]]),
        relative_speed=total["relative_speed"],
        source=total["source"],
        lines=total.get("lines", ""),
        erratum=erratum_at(errata, total["source"], total.get("lines", "")),
    )


def erratum_at(errata: Sequence[Mapping[str, Any]], source: str, lines: str) -> str | None:
    """The id of an erratum about these very lines of a source; None where there is none."""
    for erratum in errata:
        claim = erratum["claim"]
        if lines and claim["source"] == source and _overlap(str(claim["lines"]), lines):
            return str(erratum["id"])
    return None


def _overlap(one: str, other: str) -> bool:
    (start, end), (first, last) = (
        (int(low), int(high or low)) for low, _, high in (text.partition("-") for text in (one, other))
    )
    return start <= last and first <= end


def differing_claims(pipeline: Pipeline, comparison: Comparison) -> list[tuple[Claim, float]]:
    """Claims about either run that their own stages contradict, with the speed-up that the stages give.

    A claim is held to as many decimals as its note gives.
    """
    found = []
    claim = pipeline.claim(comparison.changed.batch)
    if claim is not None and pipeline.baseline == comparison.baseline.batch:
        decimals = len(str(claim.relative_speed).partition(".")[2])
        if round(comparison.whole.middle, decimals) != claim.relative_speed:
            found.append((claim, comparison.whole.middle))
    return found
