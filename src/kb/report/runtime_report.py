"""Run times for a terminal and as JSON: stages and shares, training by steps, the bars of a log.

JSON is schema 1, which ``rules/schema/output/runtime.json`` says in full; its times are in minutes or seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.runtime import (
    Claim,
    Comparison,
    Minutes,
    Pipeline,
    RunTime,
    SpeedUp,
    TrainingRow,
    TrainingTime,
    calls_per_minute,
)
from kb.advice.speed_log import Bar, Pace, SpeedLog
from kb.report.json_parts import Object, fields
from kb.report.terminal import INDENT, Style, table, wrap
from kb.report.words import Words

SHOWN_BARS = 8


def figure(value: float, decimals: int = 1) -> str:
    """A number without trailing zeros: ``7``, ``10.5``."""
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def span(time: Minutes, style: Style) -> str:
    """``7–9``, or one figure where both ends are the same."""
    low, high = figure(time.low), figure(time.high)
    return low if low == high else f"{low}{style.dash}{high}"


def duration(seconds: float, words: Words) -> str:
    """Whole seconds as ``2h48m28s``; the hours are left out where there are none."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return words("runtime.hours", hours=str(hours), minutes=f"{minutes:02d}", seconds=f"{rest:02d}")
    return words("runtime.minutes", minutes=str(minutes), seconds=f"{rest:02d}")


def _titled(name: str, title: str, style: Style) -> list[str]:
    return [f"{style.paint(name, 'heading')}{style.dot}{title}", ""]


def _heading(pipeline: Pipeline, words: Words, style: Style) -> list[str]:
    if not pipeline.id:
        return [style.paint(words("runtime.own_stages"), "heading"), ""]
    return _titled(pipeline.id, pipeline.title.in_language(words.language), style)


def _said(words: Words, style: Style, key: str, **values: Any) -> list[str]:
    return wrap(words(key, **values), style.width, INDENT, INDENT)


def run_text(
    pipeline: Pipeline,
    run: RunTime,
    comparison: Comparison | None,
    claims: Sequence[tuple[Claim, float]],
    words: Words,
    style: Style,
) -> str:
    """One pipeline with one batch, beside another batch where there is one to compare with."""
    lines = _heading(pipeline, words, style)
    lines += table(stage_rows(run, comparison, words, style))
    lines.append("")
    lines += bottleneck_lines(run, words, style)
    if comparison is not None:
        lines += _bought(comparison, words, style)
    for claim, ratio in claims:
        place = f"{claim.source}:{claim.lines}"
        claimed = str(claim.relative_speed)
        lines += _said(words, style, "runtime.claim_differs", place=place, claimed=claimed, computed=f"{ratio:.2f}")
        if claim.erratum:
            lines += _said(words, style, "runtime.see_erratum", erratum=claim.erratum)
    if pipeline.sources:
        lines += _said(words, style, "runtime.times_from", sources=", ".join(pipeline.sources))
    return "\n".join(lines) + "\n"


def stage_rows(run: RunTime, comparison: Comparison | None, words: Words, style: Style) -> list[list[str]]:
    """A heading, a row for each stage, and the total; beside another batch where there is one to compare with."""
    head = [words("runtime.stage")]
    if comparison is not None:
        head.append(words("runtime.batch", batch=comparison.baseline.batch))
    head += [words("runtime.batch", batch=run.batch), words("runtime.until"), words("runtime.share")]
    head += [words("runtime.speed_up")] if comparison is not None else []
    rows = [head]
    for at, row in enumerate(run.stages):
        cells = [row.stage.title.in_language(words.language)]
        if comparison is not None:
            cells.append(span(comparison.baseline.stages[at].time, style))
        cells += [span(row.time, style), span(row.until, style), f"{row.share * 100:.1f}%"]
        cells += [f"{comparison.stages[at].middle:.2f}×"] if comparison is not None else []
        rows.append(cells)
    total = [words("runtime.total")]
    total += [span(comparison.baseline.total, style)] if comparison is not None else []
    total += [span(run.total, style), "", "100%"]
    total += [f"{comparison.whole.middle:.2f}×"] if comparison is not None else []
    return [*rows, total]


def bottleneck_lines(run: RunTime, words: Words, style: Style) -> list[str]:
    """Which stage holds it up, and what limits that one."""
    worst = run.bottleneck
    name, share = worst.stage.title.in_language(words.language), f"{worst.share * 100:.0f}%"
    lines = _said(words, style, "runtime.bottleneck", stage=name, share=share)
    for row in run.stages:
        rate = calls_per_minute(row.stage)
        if rate is not None and row.stage.calls:
            lines += _said(
                words,
                style,
                "runtime.rate_limited",
                stage=row.stage.title.in_language(words.language),
                calls=f"{row.stage.calls.total:,}",
                samples=row.stage.calls.samples,
                rate=span(rate, style),
            )
    return lines


def _bought(comparison: Comparison, words: Words, style: Style) -> list[str]:
    whole = comparison.whole
    before, after = comparison.baseline.batch, comparison.changed.batch
    if comparison.batched is None:
        return _said(words, style, "runtime.nothing_bought", before=before, after=after)
    ends = sorted((whole.low, whole.high))
    lines = _said(
        words,
        style,
        "runtime.bought",
        before=before,
        after=after,
        share=f"{comparison.batched_share * 100:.1f}%",
        stages=f"{comparison.batched.middle:.2f}",
        whole=f"{whole.middle:.2f}",
        low=f"{ends[0]:.2f}",
        high=f"{ends[1]:.2f}",
    )
    if comparison.ceiling is not None:
        lines += _said(words, style, "runtime.ceiling", ceiling=f"{comparison.ceiling:.2f}")
    return lines


def overview_text(pipeline: Pipeline, runs: Sequence[RunTime], words: Words, style: Style) -> str:
    """One pipeline with every batch that all its stages have a time for; the first run is what speed-ups refer to."""
    lines = _heading(pipeline, words, style)
    head = [words("runtime.stage"), *(words("runtime.batch", batch=run.batch) for run in runs)]
    rows = [head]
    for at, stage in enumerate(pipeline.stages):
        rows.append([stage.title.in_language(words.language), *(span(run.stages[at].time, style) for run in runs)])
    rows.append([words("runtime.total"), *(span(run.total, style) for run in runs)])
    first = runs[0].total.middle
    rows.append([words("runtime.speed_up"), *(f"{first / run.total.middle:.2f}×" for run in runs)])
    lines += [*table(rows), ""]
    lines += bottleneck_lines(runs[0], words, style)
    lines += _said(words, style, "runtime.choose_batch", name=pipeline.id) if pipeline.id else []
    return "\n".join(lines) + "\n"


def training_text(time: TrainingTime, words: Words, style: Style, row: TrainingRow | None = None) -> str:
    """Training by steps: how long, how fast, how many samples; beside what a note expected."""
    lines = _titled(row.id, row.title.in_language(words.language), style) if row else []
    cells = [[words("runtime.step_time"), words("runtime.per_step", seconds=figure(time.seconds_per_step, 3))]]
    cells.append([words("runtime.step_rate"), words("runtime.per_minute", steps=figure(time.steps_per_minute, 2))])
    if time.steps is not None and time.total_seconds is not None:
        shown = duration(time.total_seconds, words)
        cells.append([words("runtime.whole"), words("runtime.for_steps", time=shown, steps=f"{time.steps:,}")])
    if time.samples_per_second is not None:
        shown = words("runtime.samples_per_second", rate=f"{time.samples_per_second:.2f}", batch=time.batch)
        cells.append([words("runtime.throughput"), shown])
    if time.samples is not None:
        cells.append([words("runtime.samples_seen"), f"{time.samples:,}"])
    lines += table(cells, left=(0, 1))
    if row and row.claimed_minutes is not None and time.total_seconds is not None:
        claimed = duration(row.claimed_minutes * 60, words)
        more = time.total_seconds / 60 / row.claimed_minutes - 1
        place = f"{row.sources[0]}:{row.lines}"
        lines += ["", *_said(words, style, "runtime.total_claimed", place=place, claimed=claimed, more=f"{more:+.1%}")]
        if row.erratum:
            lines += _said(words, style, "runtime.see_erratum", erratum=row.erratum)
    return "\n".join(lines) + "\n"


def log_text(
    path: str, log: SpeedLog, paces: Sequence[Pace | None], batch: int | None, words: Words, style: Style
) -> str:
    """The bars of a log, longest first, and whether the first one has slowed down."""
    lines = _titled(
        words("runtime.standard_input") if path == "-" else path, words.count("runtime.log_lines", log.lines), style
    )
    names = ("runtime.bar", "runtime.step_time", "runtime.it_per_second", "runtime.readings", "runtime.left")
    rows = [[words(name) for name in names]]
    for bar in log.bars[:SHOWN_BARS]:
        left = bar.remaining_seconds
        rows.append(
            [
                _bar_name(bar, words),
                words("runtime.per_step", seconds=figure(bar.latest, 3)),
                f"{1 / bar.latest:.3f}",
                f"{bar.count_all:,}",
                duration(left, words) if left else style.dash,
            ]
        )
    lines += table(rows)
    if batch is not None:
        rate = words("runtime.samples_per_second", rate=f"{batch / log.bars[0].latest:.2f}", batch=batch)
        lines += ["", f"{INDENT}{words('runtime.throughput')}: {rate}"]
    lines += ["", *_pace(paces[0], words, style)]
    if log.summary:
        shown = ", ".join(f"{name} {figure(value, 3)}" for name, value in log.summary.items())
        lines += _said(words, style, "runtime.trainer_said", values=shown)
    return "\n".join(lines) + "\n"


def _bar_name(bar: Bar, words: Words) -> str:
    done, of = bar.last.done, bar.last.of
    steps = f"{done}/{of}" if of is not None else str(done) if done is not None else ""
    return " ".join(part for part in (bar.name, steps) if part) or words("runtime.unnamed_bar")


def _pace(pace: Pace | None, words: Words, style: Style) -> list[str]:
    if pace is None:
        return _said(words, style, "runtime.no_pace")
    baseline = words("runtime.baseline_given" if pace.given else "runtime.baseline_own")
    key = "runtime.slow" if pace.alert else "runtime.steady"
    values = {"ratio": f"{pace.ratio:.2f}", "baseline": figure(pace.baseline, 3), "which": baseline}
    lines = _said(words, style, key, **values)
    if pace.first_slow_line is not None:
        readings, line = f"{pace.slow_readings:,}", f"{pace.first_slow_line:,}"
        lines += _said(words, style, "runtime.slow_readings", readings=readings, line=line)
    return [style.paint(line, "error") if pace.alert else line for line in lines]


def list_text(rows: Mapping[str, Any], words: Words, style: Style) -> str:
    """The known run times by id."""
    cells = [[style.paint(name, "heading"), row["title"][words.language]] for name, row in sorted(rows.items())]
    lines = [words("runtime.known"), *table(cells, left=(0, 1)), "", *_said(words, style, "runtime.how")]
    return "\n".join(lines) + "\n"


def run_object(
    pipeline: Pipeline, runs: Sequence[RunTime], comparison: Comparison | None, claims: Sequence[tuple[Claim, float]]
) -> Object:
    """A pipeline with one batch or several, and what the last buys over the first where that was asked."""
    return {
        "kind": "pipeline",
        "id": pipeline.id or None,
        "runs": [_run(run) for run in runs],
        "comparison": _comparison(comparison) if comparison else None,
        "claims_differing": [
            {
                **fields(claim, "batch", "relative_speed"),
                "computed": round(computed, 6),
                **fields(claim, "source", "lines", "erratum"),
            }
            for claim, computed in claims
        ],
        "sources": list(pipeline.sources),
    }


def _minutes(time: Minutes) -> Object:
    return {"low": round(time.low, 6), "high": round(time.high, 6)}


def _run(run: RunTime) -> Object:
    return {
        "batch": run.batch,
        "stages": [
            {
                "stage": row.stage.name,
                "minutes": _minutes(row.time),
                "until_minutes": _minutes(row.until),
                "share": round(row.share, 6),
                "depends_on_batch": row.stage.fixed is None,
                "calls": row.stage.calls.total if row.stage.calls else None,
                "calls_per_minute": _minutes(rate) if (rate := calls_per_minute(row.stage)) else None,
            }
            for row in run.stages
        ],
        "total_minutes": _minutes(run.total),
        "bottleneck": {"stage": run.bottleneck.stage.name, "share": round(run.bottleneck.share, 6)},
    }


def _speed_up(ratio: SpeedUp) -> Object:
    """JSON has no infinity: a stage that is gone altogether has no ratio."""
    return {name: None if value == float("inf") else round(value, 6) for name, value in ratio._asdict().items()}


def _comparison(comparison: Comparison) -> Object:
    return {
        "baseline": comparison.baseline.batch,
        "batch": comparison.changed.batch,
        "speed_up": _speed_up(comparison.whole),
        "stages": [
            {"stage": row.stage.name, "speed_up": _speed_up(ratio)}
            for row, ratio in zip(comparison.changed.stages, comparison.stages, strict=True)
        ],
        "batched_share": round(comparison.batched_share, 6),
        "batched_speed_up": _speed_up(comparison.batched) if comparison.batched else None,
        "ceiling": _rounded(comparison.ceiling),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def training_object(time: TrainingTime, row: TrainingRow | None) -> Object:
    return {
        "kind": "training",
        "id": row.id if row else None,
        "seconds_per_step": _rounded(time.seconds_per_step),
        "steps_per_minute": _rounded(time.steps_per_minute),
        "steps": time.steps,
        "batch": time.batch,
        "total_seconds": _rounded(time.total_seconds),
        "samples_per_second": _rounded(time.samples_per_second),
        "samples": time.samples,
        "claimed_minutes": row.claimed_minutes if row else None,
        "erratum": row.erratum if row else None,
        "sources": list(row.sources) if row else [],
    }


def log_object(path: str, log: SpeedLog, paces: Sequence[Pace | None], batch: int | None) -> Object:
    return {
        "kind": "log",
        "path": path,
        "lines": log.lines,
        "bars": [_bar(bar, pace, batch) for bar, pace in zip(log.bars, paces, strict=True)],
        "summary": dict(log.summary),
        "alert": any(pace.alert for pace in paces[:1] if pace),
    }


def _bar(bar: Bar, pace: Pace | None, batch: int | None) -> Object:
    left = bar.remaining_seconds
    return {
        "name": bar.name,
        "done": bar.last.done,
        "of": bar.last.of,
        "readings": bar.count_all,
        "seconds_per_step": round(bar.latest, 6),
        "median_seconds_per_step": round(bar.seconds_per_step, 6),
        "steps_per_second": round(1 / bar.latest, 6),
        "samples_per_second": None if batch is None else round(batch / bar.latest, 6),
        "remaining_seconds": None if left is None else round(left, 3),
        "pace": {
            "baseline_seconds_per_step": round(pace.baseline, 6),
            "baseline": "given" if pace.given else "own",
            "ratio": round(pace.ratio, 6),
            **fields(pace, "alert", "slow_readings", "first_slow_line"),
        }
        if pace
        else None,
    }


def list_object(rows: Mapping[str, Any]) -> Object:
    known = []
    for name, row in sorted(rows.items()):
        times = [time for stage in row.get("stages", ()) for time in stage["times"]]
        batches = sorted({time["batch"] for time in times if "batch" in time})
        known.append({"id": name, "title": row["title"], "batches": batches})
    return {"kind": "list", "runtimes": known}
