"""A check as Markdown, for a comment on a pull request or a job's summary: findings as a table, then the fit panel."""

from kb.core.finding import Finding
from kb.core.result import CheckResult, UnitResult
from kb.report.check.faults import fault_line
from kb.report.check.panel import fit_panel
from kb.report.check.places import relative_path
from kb.report.check.text import about, summary_line
from kb.report.markdown import code, escaped, fenced, table
from kb.report.style import Style
from kb.report.width import joined
from kb.report.words import Words

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
