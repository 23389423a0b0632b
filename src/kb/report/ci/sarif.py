"""SARIF 2.1.0, for code scanning. Columns count characters, which ``columnKind`` says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kb.core.catalog import Rule
from kb.core.document import Unit
from kb.core.finding import Finding, Fix, Span, Suppression
from kb.core.result import CheckResult, UnitResult, Unusable
from kb.report.check.changes import condition_of, place_name
from kb.report.check.tally import fault_text
from kb.report.ci.formats import Fingerprints, uri
from kb.report.condition import condition_text
from kb.report.json_parts import plain, to_json
from kb.report.words import Words

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}
RANKS = {"certain": 90.0, "likely": 60.0, "assumed": 30.0}  # of 100: how much a result matters to its reader
PRECISION = {"high": "high", "medium": "medium", "low": "low"}

Object = dict[str, Any]
Replacements = Callable[[Unit, Finding, Fix], Sequence[tuple[Span, str]] | None]
"""What a fix does to the text: spans and what goes in their place; None where that is not known."""


def sarif_report(
    result: CheckResult,
    words: Words,
    rules: Mapping[str, Rule],
    *,
    replacements: Replacements | None = None,
    base: str | None = None,
) -> str:
    """One SARIF log with one run, suppressed findings included.

    Args:
        result: what was found.
        words: the language of the messages.
        rules: the catalogue; those that fired are described, in full where the whole catalogue was loaded.
        replacements: the text edits of a fix, for ``fixes``.
        base: the folder that URIs are relative to; the working folder by default.
    """
    fired = sorted({finding.rule for unit in result.units for finding in unit.findings})
    index = {rule: number for number, rule in enumerate(fired)}
    fingerprints = Fingerprints(result, base)
    results = [
        _result(unit, finding, words, index, fingerprints, replacements, base)
        for unit in result.units
        for finding in unit.findings
    ]
    driver = {
        "name": "kb",
        "semanticVersion": result.version,
        "rules": [_rule(rule, rules.get(rule), words) for rule in fired],
        "properties": {"rulesVersion": result.rules_version},
    }
    run = {
        "tool": {"driver": driver},
        "language": words.language,
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(result.unusable, words, base)],
        "results": results,
    }
    return to_json({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]})


def _invocation(unusable: Sequence[Unusable], words: Words, base: str | None) -> Object:
    """Whether everything that was asked for could be checked, and what could not."""
    made: Object = {"executionSuccessful": not unusable}
    if unusable:
        made["toolExecutionNotifications"] = [_notification(fault, words, base) for fault in unusable]
    return made


def _notification(fault: Unusable, words: Words, base: str | None) -> Object:
    made: Object = {"level": "error", "message": {"text": fault_text(fault, words)}}
    if fault.path:
        place: Object = {"artifactLocation": {"uri": uri(fault.path, base)}}
        if fault.line is not None:
            place["region"] = {"startLine": fault.line}
            if fault.column is not None:
                place["region"]["startColumn"] = fault.column
        made["locations"] = [{"physicalLocation": place}]
    return made


def _rule(name: str, rule: Rule | None, words: Words) -> Object:
    if rule is None:
        return {"id": name}
    title = words.described(rule.title)
    why = words.described(rule.why) or title
    hint = words("report.explain_hint", rule=name)
    sources = "".join(f"\n- {source}" for source in rule.sources)
    markdown = f"{why}\n\n`kb rules explain {name}`" + (f"\n\n{words('explain.sources')}\n{sources}" if sources else "")
    page = words.pages.address(name, words.language)
    return {
        "id": name,
        **({"helpUri": page} if page else {}),
        "shortDescription": {"text": title},
        "fullDescription": {"text": why},
        "help": {"text": f"{why}\n\n{hint}", "markdown": markdown},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {
            "tags": [rule.area],
            "precision": PRECISION[rule.confidence],
            "problem.severity": "recommendation" if rule.severity == "info" else rule.severity,
            "since": rule.since,
        },
    }


def _result(
    unit: UnitResult,
    finding: Finding,
    words: Words,
    index: Mapping[str, int],
    fingerprints: Fingerprints,
    replacements: Replacements | None,
    base: str | None,
) -> Object:
    place = {"uri": uri(unit.unit.path, base)}
    location: Object = {"physicalLocation": {"artifactLocation": place, "region": _region(finding.span)}}
    if unit.unit.section:
        location["logicalLocations"] = [{"name": unit.unit.section, "kind": "object"}]
    made: Object = {
        "ruleId": finding.rule,
        "ruleIndex": index[finding.rule],
        "level": LEVELS[finding.severity],
        "message": {"text": words.message(finding)},
        "locations": [location],
        "partialFingerprints": {"kbFinding/v1": fingerprints.next(unit, finding)},
        # where one result has this, all must: absent would mean that nobody looked
        "suppressions": [_suppression(finding.suppressed)] if finding.suppressed else [],
        "rank": RANKS[finding.certainty],
        "properties": {
            "confidence": finding.confidence,
            "certainty": finding.certainty,
            "assumes": [{"name": each.name, "value": plain(each.value)} for each in finding.if_so],
            "facts": {name: plain(value) for name, value in finding.facts.items()},
        },
    }
    if finding.related:
        made["relatedLocations"] = [
            {
                "id": number,
                "physicalLocation": {"artifactLocation": place, "region": _region(span)},
                "message": {"text": place_name(name, unit.unit, words) or name or words("report.related")},
            }
            for number, (name, span) in enumerate(finding.related, 1)
        ]
    if replacements is not None:
        fixes = [_fix(fix, replacements(unit.unit, finding, fix), finding, place, words) for fix in finding.fixes]
        if fixes := [fix for fix in fixes if fix]:
            made["fixes"] = fixes
    return made


def _region(span: Span) -> Object:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def _suppression(suppression: Suppression) -> Object:
    return {
        "kind": "inSource" if suppression.kind == "comment" else "external",
        "justification": suppression.reason,
    }


def _fix(
    fix: Fix, edits: Sequence[tuple[Span, str]] | None, finding: Finding, place: Object, words: Words
) -> Object | None:
    if not edits:
        return None
    changes = [{"deletedRegion": _region(span), "insertedContent": {"text": text}} for span, text in edits]
    title = words.fix_title(fix, finding)
    properties: Object = {"safety": fix.safety}
    if not fix.certain:  # only offered: whoever applies it must know that its condition holds
        properties["if"] = condition_of(fix)
        title = f"{words('report.offered', condition=condition_text(fix, words))} {title}"
    return {
        "description": {"text": title},
        "artifactChanges": [{"artifactLocation": place, "replacements": changes}],
        "properties": properties,
    }
