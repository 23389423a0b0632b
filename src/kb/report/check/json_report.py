"""The JSON contract, schema 1: ``rules/schema/output/check.json`` says it in full. Sizes are whole bytes."""

from collections.abc import Mapping
from typing import Any

from kb.core.finding import Because, Edit, Finding, Fix, OnRelease, Span, Suppression
from kb.core.result import CheckResult, GpuFit, UnitResult, Unusable
from kb.core.setup import Assumption, TrainingSetup
from kb.report.check.changes import condition_of
from kb.report.check.tally import fault_text
from kb.report.check.told import untold
from kb.report.json_parts import Object, encode, escaped, head, machine_object, plain, prediction_object
from kb.report.words import Words


def json_report(result: CheckResult, words: Words) -> str:
    """The whole report as one JSON object, a line for each unit; keys are always in the same order.

    Indenting would take the encoder written in Python: 1 ms a file, as long as reading it.
    """
    before, after = json_ends(result, words, result.summary())
    return f"{before}{units_json(result, words)}{after}"


def json_ends(result: CheckResult, words: Words, summary: Mapping[str, int]) -> tuple[str, str]:
    """What stands before the units and after them; of ``result`` all but its units counts."""
    whole = {**check_object(result._replace(units=()), words), "summary": summary}
    last = ("unusable", "summary")
    before = encode({key: value for key, value in whole.items() if key not in ("files", *last)}).removesuffix("}")
    after = encode({key: whole[key] for key in last}).removeprefix("{")
    return escaped(f'{before}, "files": [\n'), escaped(f"\n], {after}\n")


def units_json(result: CheckResult, words: Words) -> str:
    """The units alone, one on a line, a comma after each but the last."""
    return escaped(",\n".join(encode(_unit(unit, words)) for unit in result.units))


def check_object(result: CheckResult, words: Words) -> Object:
    return {
        **head(result.version, result.rules_version),
        "machine": machine_object(result.machine),
        "files": [_unit(unit, words) for unit in result.units],
        "unusable": [_fault(fault, words) for fault in result.unusable],
        "summary": result.summary(),
    }


def _unit(unit: UnitResult, words: Words) -> Object:
    made: Object = {
        "path": unit.unit.path,
        "section": unit.unit.section,
        "dialect": unit.unit.dialect,
        "setup": _setup(unit.setup, unit) if unit.setup else None,
        "prediction": prediction_object(unit.prediction) if unit.prediction else None,
    }
    if unit.unit.read_by:
        made["read_by"] = unit.unit.read_by
    if unit.prediction is None and unit.note:
        made["note"] = words(f"note.{unit.note}", **unit.note_values)
    if unit.gpu_fits:
        made["gpu_fits"] = [_gpu_fit(fit) for fit in unit.gpu_fits]
    if unit.if_so:
        made["verdict_assumes"] = [_assumption(each) for each in unit.if_so]
    made["findings"] = [_finding(finding, words) for finding in unit.findings]
    if unit.hidden_notes:
        made["hidden_notes"] = unit.hidden_notes
    made["not_evaluated"] = [{"rule": rule.rule, "needs": list(rule.needs)} for rule in unit.not_evaluated]
    return made


def _fault(fault: Unusable, words: Words) -> Object:
    return {
        "path": fault.path,
        "line": fault.line,
        "column": fault.column,
        "message": fault_text(fault, words),
        "fault": "kb" if fault.internal else "input",
    }


def _setup(setup: TrainingSetup, unit: UnitResult) -> Object:
    made: Object = {"model_name": setup.model_name, "model": unit.model.id if unit.model else None}
    for each in setup._fields:
        if each not in ("model_name", "assumed", "uncompared"):  # the last is never a config's
            made[each] = plain(getattr(setup, each))
    made["method"] = setup.method if setup.method_known else None
    if unit.prediction is None:
        made |= dict.fromkeys(untold(setup, unit.unit))
    made["effective_batch_size"] = setup.effective_batch_size if setup.batch_known else None
    return made


def _gpu_fit(fit: GpuFit) -> Object:
    return {
        "gpu": fit.gpu.id,
        "name": fit.gpu.name,
        "status": fit.verdict.status,
        "phase": fit.verdict.phase,
        "term": fit.verdict.term,
        "process_used_bytes": fit.process_used_bytes,
        "limit_bytes": fit.limit_bytes,
    }


def _finding(finding: Finding, words: Words) -> Object:
    made: Object = {
        "rule": finding.rule,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "certainty": finding.certainty,
        **_place(finding.span),
        "message": words.message(finding),
        "facts": {name: _fact(name, value, words) for name, value in finding.facts.items()},
        "because": [_because(each, words) for each in finding.because],
        "fix": fix_object(fix) if (fix := finding.ready("safe") or finding.ready("unsafe")) else None,
        "doc": words.pages.path(finding.rule, words.language),
        "suppressed": _suppression(finding.suppressed) if finding.suppressed else None,
    }
    if page := words.pages.address(finding.rule, words.language):
        made["doc_url"] = page
    if finding.if_so:
        made["assumes"] = [_assumption(each) for each in finding.if_so]
    if finding.on_releases:
        made["on_releases"] = [_on_release(each) for each in finding.on_releases]
    if offered := [fix for fix in finding.fixes if not fix.certain]:
        made["offered"] = [_offer(fix) for fix in offered]
    return made


def _because(each: Because, words: Words) -> Object:
    made = {"fact": each.name, "value": _fact(each.name, each.value, words), "origin": each.origin}
    return {**made, "place": each.place or None}


def _assumption(each: Assumption) -> Object:
    return {"name": each.name, "value": plain(each.value), "reason": each.reason}


def _on_release(on: OnRelease) -> Object:
    """The releases for which it holds: from ``since`` on, before ``before``; and what the project allows."""
    since, before = (".".join(map(str, bound)) if bound else None for bound in (on.since, on.before))
    said = {"specifier": on.specifier, "place": on.place or None}
    return {"library": on.library, "since": since, "before": before, **said}


def _offer(fix: Fix) -> Object:
    """A fix that no one can say yet whether it applies: its condition, and the facts that would settle it."""
    return {**fix_object(fix), "if": condition_of(fix), "needs": list(fix.needs)}


def _place(span: Span) -> Object:
    return {
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def _fact(name: str, value: Any, words: Words) -> Any:
    fact = words.facts.get(name)
    if fact and fact.type == "version" and isinstance(value, tuple):
        return words.fact(name, value)
    return round(value) if fact and fact.type == "bytes" and isinstance(value, float) else plain(value)


def fix_object(fix: Fix) -> Object:
    """``set`` holds the new values; ``remove``, ``rename`` and ``replace`` are there only where the fix does that."""
    made: Object = {"safety": fix.safety, "set": {edit.name: plain(edit.value) for edit in _of(fix, "set")}}
    if removed := [edit.name for edit in _of(fix, "remove")]:
        made["remove"] = removed
    if renamed := {edit.name: str(edit.value) for edit in _of(fix, "rename")}:
        made["rename"] = renamed
    if replaced := [{**_place(edit.span), "text": str(edit.value)} for edit in _of(fix, "replace") if edit.span]:
        made["replace"] = replaced
    return made


def _of(fix: Fix, op: str) -> list[Edit]:
    return [edit for edit in fix.edits if edit.op == op]


def _suppression(suppression: Suppression) -> Object:
    return {
        "kind": suppression.kind,
        "reason": suppression.reason,
        "until": suppression.until,
        "line": suppression.line,
    }
