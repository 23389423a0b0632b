"""A diagnosis as JSON; its schema is ``rules/schema/output/diagnose.json``."""

from typing import Any

from kb.advice.diagnosis import Cause, Diagnosis
from kb.advice.remedy_steps import Step
from kb.report.check.json_report import plain, to_json
from kb.report.values import printable

LONGEST = 1000  # characters of an evidence line


def diagnosis_json(diagnosis: Diagnosis, language: str) -> str:
    """The causes, best first. A value of ``set`` is null where only the config could give it."""
    return to_json({"causes": [_cause(cause, language) for cause in diagnosis.causes]})


def _cause(cause: Cause, language: str) -> dict[str, Any]:
    return {
        "cause": cause.id,
        "resource": cause.resource,
        "confidence": cause.confidence,
        "evidence": [{"line": line, "text": printable(text[:LONGEST])} for line, text in cause.evidence],
        "remedies": [_step(step, language) for step in cause.steps],
    }


def _step(step: Step, language: str) -> dict[str, Any]:
    text = step.text.in_language(language)
    return {
        "step": f"{text} `{step.run}`" if step.run else text,
        "set": {change.name: plain(change.new) for change in step.changes},
    }
