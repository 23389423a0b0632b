"""A config's versions as a matrix for a terminal: settings, effective batch, memory, verdicts, and what changed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kb.advice.history import EFFECTIVE, Entry, History, Row
from kb.core.hardware import Machine
from kb.report.check.undecided import assumed_lines
from kb.report.history.memory import held_lines, memory_rows, overall, percent
from kb.report.style import Style
from kb.report.table import table
from kb.report.values import format_value, host_limit, printable, size
from kb.report.width import columns, cut, wrap
from kb.report.words import Words

INDENT = "  "
WIDEST_CELL = 22
WIDEST_NAME = 40
MOST_SAME = 14
Cells = list[str]


class LeftOut(NamedTuple):
    """What the matrix does not show: commits that changed no setting, and what a shallow clone may lack."""

    unchanged: int = 0
    shallow: bool = False


def history_text(
    history: History, machine: Machine, words: Words, style: Style, left_out: LeftOut, remarks: Sequence[str] = ()
) -> str:
    """The whole report; ``remarks`` are sentences of a note about the whole."""
    lines = [*_heading(history, machine, words, style), ""]
    body = [*setting_rows(history.rows, words, style), *memory_rows(history, words, style)]
    lines += _tables(body, [printable(entry.version.label) for entry in history.entries], words, style)
    lines += ["", *_commits(history.entries, words, style)]
    lines += _said_lines(history, words, style)
    for remark in remarks:
        lines += wrap(remark, style.width, INDENT, INDENT * 2)
    if history.same:
        lines += _dim(_same(history.same, words), style)
    reports = [entry.report for entry in history.entries if entry.report]
    lines += assumed_lines(reports[-1].assumed, words, style) if reports else []
    if left_out.unchanged:
        lines += _dim(words.count("history.left_out", left_out.unchanged), style)
    if left_out.shallow:
        lines += _dim(words("history.shallow"), style)
    return "\n".join(lines).rstrip() + "\n"


def short_name(name: str) -> str:
    """A setting as people write it: the Trainer's own without their group."""
    return name.removeprefix("training.")


def _same(rows: Sequence[Row], words: Words) -> str:
    """The settings that never changed; of many only the first."""
    parts = [f"{short_name(row.name)} {cut(_shown(_first(row), words), WIDEST_NAME)}" for row in rows[:MOST_SAME]]
    parts += [words("history.more", n=len(rows) - MOST_SAME)] if len(rows) > MOST_SAME else []
    return f"{words('history.same')} {', '.join(parts)}"


def _first(row: Row) -> Any:
    return next((value for value in row.values if value is not None), None)


def _dim(text: str, style: Style) -> list[str]:
    return [style.paint(line, "dim") for line in wrap(text, style.width, INDENT, INDENT * 2)]


def _heading(history: History, machine: Machine, words: Words, style: Style) -> list[str]:
    title = style.paint(words.count("history.versions", len(history.entries)), "heading")
    gpu = machine.gpus[0].name if machine.gpus else ""
    limit = history.gpu_limit_bytes
    parts = [f"{gpu} {size(limit)}" if limit else words("history.no_gpu")]
    host = history.host_limit_bytes
    parts.append(words("history.host_limit", limit=host_limit(host)) if host else words("history.no_host_limit"))
    return [title, *wrap(style.dot.join(parts), style.width, INDENT, INDENT)]


def setting_rows(rows: Sequence[Row], words: Words, style: Style) -> list[Cells]:
    """A label, a cell for each version, and the change from first to last."""
    return [_setting_row(row, words, style) for row in rows]


def _setting_row(row: Row, words: Words, style: Style) -> Cells:
    name = words("history.effective") if row.name == EFFECTIVE else short_name(row.name)
    cells = []
    for value, step, default in zip(row.values, row.changes, row.defaults, strict=True):
        text = cut(_shown(value, words), WIDEST_CELL, style.ellipsis) if value is not None else style.dash
        text = words("history.default", value=text) if default else text
        cells.append(f"{text} ({percent(step)})" if step else text)
    return [name, *cells, overall(row.change, style)]


def _shown(value: Any, words: Words) -> str:
    return words.value(value)


def _tables(body: Sequence[Cells], labels: Sequence[str], words: Words, style: Style) -> list[str]:
    """The matrix; in several tables, one under another, where the versions do not fit beside one another."""
    head = [
        words("history.setting"),
        *(cut(label, WIDEST_CELL, style.ellipsis) for label in labels),
        words("history.change"),
    ]
    rows = [head, *body]
    widths = [max(columns(row[at]) for row in rows) + 2 for at in range(len(head))]
    room = style.width - widths[0] - widths[-1]
    lines: list[str] = []
    at = 1
    while at < len(head) - 1:
        end, used = at, 0
        while end < len(head) - 1 and (end == at or used + widths[end] <= room):
            used += widths[end]
            end += 1
        last = [len(head) - 1] if end == len(head) - 1 and len(labels) > 1 else []
        part = [[row[column] for column in (0, *range(at, end), *last)] for row in rows]
        lines += ([""] if lines else []) + table(part)
        at = end
    return lines


def _commits(entries: Sequence[Entry], words: Words, style: Style) -> list[str]:
    """When each version was made and what its commit says, where that is known."""
    rows = []
    for entry in entries:
        version = entry.version
        if version.when or version.subject:
            when = (version.when or "")[:16].replace("T", " ")
            subject = "" if version.subject == version.label else version.subject or ""
            rows.append([printable(version.label), when, format_value(subject)])
    if not rows:
        return []
    room = style.width - len(INDENT) - max(columns(row[0]) for row in rows) - 16 - 4
    return [*table([[*row[:2], cut(row[2], room, style.ellipsis)] for row in rows], left=(0, 1, 2)), ""]


def _said_lines(history: History, words: Words, style: Style) -> list[str]:
    """What the matrix cannot hold: where a measurement lies, which version has no prediction, and why."""
    lines: list[str] = []
    for entry in history.entries:
        version = entry.version
        if version.fault:
            lines += wrap(fault_text(printable(version.label), version.fault, words), style.width, INDENT, INDENT * 2)
        elif entry.note:
            text = words(f"note.{entry.note[0]}", **entry.note[1])
            lines += wrap(f"{printable(version.label)}: {text}", style.width, INDENT, INDENT * 2)
        for text in held_lines(entry, words, style):
            lines += wrap(text, style.width, INDENT, INDENT * 2)
    return lines


def fault_text(where: str, fault: tuple[str, Any], words: Words) -> str:
    """``where:line:column: what is wrong``."""
    key, values = fault
    place = [where, *(str(values[name]) for name in ("line", "column") if values.get(name) is not None)]
    return f"{':'.join(place)}: {words(key, **{'path': where, **values})}"
