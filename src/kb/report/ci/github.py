"""GitHub Actions' workflow commands, which become annotations on the changed lines."""

from collections.abc import Mapping

from kb.core.result import CheckResult
from kb.report.check.faults import fault_text
from kb.report.check.places import relative_path
from kb.report.values import printable
from kb.report.words import Words

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
    listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{name} {listed}::{_data(message)}\n"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
