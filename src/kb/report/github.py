"""GitHub Actions' workflow commands, which become annotations on the changed lines."""

from kb.core.result import CheckResult
from kb.report.places import relative_path
from kb.report.words import Words

COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def github_report(result: CheckResult, words: Words, *, base: str | None = None) -> str:
    """One ``::error file=…,line=…::message`` for each finding that counts; nothing where there is none."""
    lines = []
    for unit in result.units:
        path = relative_path(unit.unit.path, base)
        for finding in unit.counted():
            span = finding.span
            where = {"file": path, "line": span.line, "endLine": span.end_line}
            if span.end_line == span.line:  # GitHub takes columns for one line only
                where |= {"col": span.column, "endColumn": span.end_column}
            where["title"] = f"kb: {finding.rule}"
            properties = ",".join(f"{name}={_property(str(value))}" for name, value in where.items())
            lines.append(f"::{COMMANDS[finding.severity]} {properties}::{_data(words.message(finding))}\n")
    return "".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
