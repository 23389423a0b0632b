"""Run times as JSON, schema 1: ``rules/schema/output/runtime.json`` says it in full. Times in minutes or seconds."""

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

Object = dict[str, Any]


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
                "batch": claim.batch,
                "relative_speed": claim.relative_speed,
                "computed": round(computed, 6),
                "source": claim.source,
                "lines": claim.lines,
                "erratum": claim.erratum,
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
    return {name: _finite(value) for name, value in ratio._asdict().items()}


def _finite(value: float) -> float | None:
    """JSON has no infinity: a stage that is gone altogether has no ratio."""
    return None if value == float("inf") else round(value, 6)


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
        "ceiling": None if comparison.ceiling is None else round(comparison.ceiling, 6),
    }


def training_object(time: TrainingTime, row: TrainingRow | None) -> Object:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "kind": "training",
        "id": row.id if row else None,
        "seconds_per_step": rounded(time.seconds_per_step),
        "steps_per_minute": rounded(time.steps_per_minute),
        "steps": time.steps,
        "batch": time.batch,
        "total_seconds": rounded(time.total_seconds),
        "samples_per_second": rounded(time.samples_per_second),
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
        "pace": _pace(pace) if pace else None,
    }


def _pace(pace: Pace) -> Object:
    return {
        "baseline_seconds_per_step": round(pace.baseline, 6),
        "baseline": "given" if pace.given else "own",
        "ratio": round(pace.ratio, 6),
        "alert": pace.alert,
        "slow_readings": pace.slow_readings,
        "first_slow_line": pace.first_slow_line,
    }


def list_object(rows: Mapping[str, Any]) -> Object:
    known = [{"id": name, "title": row["title"], "batches": _batches(row)} for name, row in sorted(rows.items())]
    return {"kind": "list", "runtimes": known}


def _batches(row: Mapping[str, Any]) -> list[int]:
    return sorted({time["batch"] for stage in row.get("stages", ()) for time in stage["times"] if "batch" in time})
