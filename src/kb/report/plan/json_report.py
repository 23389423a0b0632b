"""``kb.plan --format json``, schema 1: ``rules/schema/output/plan.json`` says it in full."""

from collections.abc import Sequence
from typing import Any

from kb.advice.plan import Ledger, Level, Step
from kb.advice.plan_whole import PlannedUnit
from kb.report.check.json_report import machine_object, plain, prediction_object, to_json
from kb.report.plan.text import changes_of
from kb.report.words import Words

SCHEMA = 1
Object = dict[str, Any]


def plan_json(planned: Sequence[PlannedUnit], words: Words, version: str, rules_version: str) -> str:
    machine = planned[0].room.machine
    return to_json(
        {
            "schema": SCHEMA,
            "kb": version,
            "rules": rules_version,
            "machine": machine_object(machine),
            "plans": [_unit(one, words) for one in planned],
        }
    )


def _unit(planned: PlannedUnit, words: Words) -> Object:
    result, plan = planned.result, planned.plan
    before, after = plan.effective
    return {
        "path": result.unit.path,
        "section": result.unit.section,
        "model": result.model.id if result.model else None,
        "short": list(plan.short),
        "reached": plan.reached,
        "effective_batch": {"before": before, "after": after},
        "gpu": _ledger(plan.gpu, words),
        "host": _ledger(plan.host, words),
        "set": {name: plain(values[1]) for name, values in changes_of(plan).items()},
        "prediction": prediction_object(planned.room.predict(plan.setup)),
    }


def _ledger(ledger: Ledger, words: Words) -> Object:
    return {
        "state": ledger.state,
        "state_after": ledger.state_after,
        "limit_bytes": ledger.limit_bytes,
        "target_bytes": ledger.target_bytes,
        "before": _level(ledger.before),
        "after": _level(ledger.after),
        "steps": [_step(step, words) for step in ledger.steps],
        "other_resource_change_bytes": ledger.other_change,
        "larger_gpu": ledger.larger_gpu.id if ledger.larger_gpu else None,
        "larger_gpu_after": ledger.larger_after.id if ledger.larger_after else None,
    }


def _level(level: Level) -> Object:
    return {"low_bytes": level.low, "expected_bytes": level.expected, "high_bytes": level.high}


def _step(step: Step, words: Words) -> Object:
    return {
        "name": step.name,
        "phase": step.phase,
        "set": {name: {"before": plain(before), "after": plain(after)} for name, (before, after) in step.set.items()},
        "before": _level(step.before),
        "after": _level(step.after) if step.after else None,
        "lost": words(f"plan.lost.{step.name}", **step.values),
        "nearest": [{"batch": batch, "accumulation": steps} for batch, steps in step.values.get("nearest", ())],
        "source": step.source,
        "lines": step.lines,
    }
