"""A row of ``rules/runtimes`` as the stages, claims and training of :mod:`kb.advice.runtime`. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.runtime import Calls, Comparison, Minutes, Stage, TrainingTime
from kb.core.expression import Unknown, compile_tree
from kb.core.record import NamedTuple
from kb.core.text import Text, UserError, nearest, text_of

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
