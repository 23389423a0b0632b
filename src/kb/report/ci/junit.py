"""JUnit XML: a test case for each unit, failed where a finding is as bad as the run's threshold; one in error for each
input that could not be checked.
"""

from typing import Any

from kb.core.finding import SEVERITIES, Finding, Severity
from kb.core.result import CheckResult, UnitResult, Unusable
from kb.report.check.faults import fault_line, fault_text
from kb.report.check.places import relative_path
from kb.report.values import printable
from kb.report.words import Words


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
