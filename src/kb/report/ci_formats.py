"""Reports for continuous integration: GitHub annotations, GitLab code quality, JUnit, Markdown, and SARIF 2.1.0 for
code scanning (its columns count characters, which ``columnKind`` says).
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kb.core.catalog import Rule
from kb.core.document import Unit
from kb.core.finding import SEVERITIES, Finding, Fix, Severity, Span, Suppression
from kb.core.result import CheckResult, UnitResult, Unusable
from kb.report.check.changes import SourceLines, condition_of, place_name
from kb.report.check.panel import fit_panel
from kb.report.check.text import about, fault_line, fault_text, summary_line
from kb.report.condition import condition_text
from kb.report.json_parts import plain, to_json
from kb.report.markdown import code, escaped, fenced, table
from kb.report.terminal import Style, joined
from kb.report.values import printable
from kb.report.words import Words

STDIN = "stdin"


def relative_path(path: str, base: str | None = None) -> str:
    """``path`` from ``base`` (the working folder by default), with ``/``; absolute where it lies outside."""
    if path == "-":
        return STDIN
    if os.path.isabs(path):
        base = os.path.abspath(base or os.curdir)
        if os.path.commonpath([base, os.path.abspath(path)]) == base:
            path = os.path.relpath(path, base)
    path = os.path.normpath(path)
    return path.replace(os.sep, "/")


def uri(path: str, base: str | None = None) -> str:
    """A URI reference, percent-encoded; relative where ``path`` is inside ``base``."""
    from urllib.parse import quote

    relative = relative_path(path, base)
    encoded = quote(relative.encode("utf-8", "surrogateescape"), safe="/")
    if relative.startswith("/"):
        return f"file://{encoded}"
    first = encoded.partition("/")[0]
    return f"./{encoded}" if ":" in first else encoded


class Fingerprints:
    """A hash for each finding: of its rule, file, section and line's text, and which of several alike it is.

    It does not hold the line's number, so that a finding keeps its fingerprint when lines above it come and go.
    """

    def __init__(self, result: CheckResult, base: str | None = None) -> None:
        self._sources = SourceLines(result.sources_text)
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._base = base

    def next(self, unit: UnitResult, finding: Finding) -> str:
        """The fingerprint of one finding; to be asked once for each, in the report's order."""
        import hashlib

        line = self._sources.quoted(unit.unit.path, finding.span)[0] or ""
        path = relative_path(unit.unit.path, self._base)
        content = (finding.rule, path, unit.unit.section or "", " ".join(line.split()))
        self._seen[content] += 1
        whole = "\0".join((*content, str(self._seen[content])))
        return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]


COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def github_report(result: CheckResult, words: Words, *, base: str | None = None) -> str:
    """One ``::error file=…,line=…::message`` for each finding that counts and each input that could not be checked."""
    lines = []
    for unit in result.units:
        path = relative_path(unit.unit.path, base)
        for finding in unit.counted():
            span = finding.span
            where = {"file": path, "line": span.line, "endLine": span.end_line}
            if span.end_line == span.line:  # GitHub takes columns for one line only
                where |= {"col": span.column, "endColumn": span.end_column}
            where["title"] = f"kb: {finding.rule}"
            lines.append(_command(COMMANDS[finding.severity], where, words.message(finding)))
    for fault in result.unusable:
        place = (relative_path(fault.path, base) if fault.path else None, fault.line, fault.column)
        where = {name: at for name, at in zip(("file", "line", "col"), place, strict=True) if at is not None}
        lines.append(_command("error", {**where, "title": "kb"}, fault_text(fault, words)))
    return "".join(lines)


def _command(name: str, properties: Mapping[str, object], message: str) -> str:
    values = {key: _data(str(each)).replace(":", "%3A").replace(",", "%2C") for key, each in properties.items()}
    listed = ",".join(f"{key}={value}" for key, value in values.items())
    return f"::{name} {listed}::{_data(message)}\n"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


SEVERITY = {"error": "major", "warning": "minor", "info": "info"}


def gitlab_report(result: CheckResult, words: Words, *, base: str | None = None) -> str:
    """An entry for each finding that counts and each input that could not be checked.

    Fingerprints are unique in the report and survive moved lines.
    """
    fingerprints = Fingerprints(result, base)
    return to_json(
        [
            {
                "description": words.message(finding),
                "check_name": finding.rule,
                "fingerprint": fingerprints.next(unit, finding),
                "severity": SEVERITY[finding.severity],
                "location": {
                    "path": relative_path(unit.unit.path, base),
                    "lines": {"begin": finding.span.line, "end": finding.span.end_line},
                },
            }
            for unit in result.units
            for finding in unit.counted()
        ]
        + [_fault(fault, words, base) for fault in result.unusable]
    )


def _fault(fault: Unusable, words: Words, base: str | None) -> dict[str, object]:
    import hashlib

    path = relative_path(fault.path, base)
    return {
        "description": fault_text(fault, words),
        "check_name": "kb",
        "fingerprint": hashlib.sha256(f"{fault.key}\0{path}".encode("utf-8", "surrogatepass")).hexdigest()[:32],
        "severity": "critical",
        "location": {"path": path, "lines": {"begin": fault.line or 1}},
    }


def junit_report(result: CheckResult, words: Words, *, fail_on: Severity = "error", base: str | None = None) -> str:
    """One suite. Findings at or above ``fail_on`` are the case's failure; milder ones its output."""
    from xml.etree import ElementTree

    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    cases = [_case(ElementTree, unit, words, failing, base) for unit in result.units]
    cases += [_errored(ElementTree, fault, words, base) for fault in result.unusable]
    failures = sum(case.find("failure") is not None for case in cases)
    sums = {"tests": str(len(cases)), "failures": str(failures), "errors": str(len(result.unusable))}
    root = ElementTree.Element("testsuites", {"name": "kb", **sums})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "kb.check", **sums, "skipped": "0"})
    suite.extend(cases)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(
    etree: Any,
    unit: UnitResult,
    words: Words,
    failing: tuple[Severity, ...],
    base: str | None,
) -> Any:
    path = relative_path(unit.unit.path, base)
    name = f"{path} [{unit.unit.section}]" if unit.unit.section else path
    case = etree.Element("testcase", classname="kb.check", name=printable(name), file=printable(path))
    failed = [finding for finding in unit.counted() if finding.severity in failing]
    milder = [finding for finding in unit.counted() if finding.severity not in failing]
    if failed:
        failure = etree.SubElement(case, "failure", type=failed[0].rule)
        failure.set("message", _xml(words.count("count.findings", len(failed))))
        failure.text = _xml(_listed(failed, path, words))
    if milder:
        etree.SubElement(case, "system-out").text = _xml(_listed(milder, path, words))
    return case


def _errored(etree: Any, fault: Unusable, words: Words, base: str | None) -> Any:
    path = relative_path(fault.path, base) if fault.path else "kb"
    case = etree.Element("testcase", classname="kb.check", name=printable(path), file=printable(path))
    error = etree.SubElement(case, "error", type=fault.key, message=_xml(fault_text(fault, words)))
    error.text = _xml(fault_line(fault, words))
    return case


def _listed(findings: list[Finding], path: str, words: Words) -> str:
    return "\n".join(
        f"{path}:{finding.span.line}:{finding.span.column}: {words.named('severity', finding.severity)} "
        f"{finding.rule}: {words.message(finding)}"
        for finding in findings
    )


def _xml(text: str) -> str:
    """Of the hidden characters XML 1.0 cannot hold some, not even escaped: they are written out, as on a screen."""
    return "\n".join(printable(line) for line in text.split("\n"))


MARK = "<!-- kb-check -->"  # by which the comment is found again, to be renewed
MOST_CHARACTERS = 60_000  # a comment on GitHub holds 65,536
PLAIN = Style(width=88)


def markdown_report(result: CheckResult, words: Words, *, base: str | None = None) -> str:
    """The whole comment; of what is too much for one, the count."""
    parts = [MARK, f"### kb: {escaped(summary_line(result, words))}"]
    parts += [f"- {escaped(fault_line(fault, words))}" for fault in result.unusable]
    size = sum(map(len, parts))
    for number, unit in enumerate(result.units):
        part = _unit(unit, result, words, base)
        size += len(part)
        if size > MOST_CHARACTERS:
            parts.append(words("report.and_more", n=len(result.units) - number))
            break
        parts.append(part)
    return "\n\n".join(parts) + "\n"


def _unit(unit: UnitResult, result: CheckResult, words: Words, base: str | None) -> str:
    name = code(relative_path(unit.unit.path, base))
    if unit.unit.section:
        name += f" {code(unit.unit.section)}"
    lines = [f"#### {name}", "", escaped(joined(about(unit, words), PLAIN.dot)), ""]
    findings = unit.counted()
    if findings:
        head = [words(f"report.column.{column}") for column in ("line", "severity", "rule", "message")]
        lines += [*table(head, [_row(finding, words) for finding in findings]), ""]
    panel = fit_panel(unit, result.machine, words, PLAIN)
    if panel:
        lines += fenced(panel)
    return "\n".join(lines).rstrip()


def _row(finding: Finding, words: Words) -> list[str]:
    place = f"{finding.span.line}:{finding.span.column}"
    return [place, words.named("severity", finding.severity), code(finding.rule), escaped(words.message(finding))]


# Those that need nothing but the result.
REPORTS = {"github": github_report, "gitlab": gitlab_report, "markdown": markdown_report}


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
    # whether everything that was asked for could be checked, and what could not
    unusable = result.unusable
    made: Object = {"executionSuccessful": not unusable}
    if unusable:
        made["toolExecutionNotifications"] = [_notification(fault, words, base) for fault in unusable]
    run = {
        "tool": {"driver": driver},
        "language": words.language,
        "columnKind": "unicodeCodePoints",
        "invocations": [made],
        "results": results,
    }
    return to_json({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]})


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
