"""What `kb history` says, as text and as JSON: of memory, what is predicted, what a note estimated, what was measured,
and the verdicts.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kb.advice.history import EFFECTIVE, Entry, History, Measured, Row, change, held_against
from kb.core.hardware import Machine
from kb.core.memory_report import WORKING
from kb.core.record import NamedTuple
from kb.core.units import GIB, GPU_UNIT, HOST_UNIT, format_bytes
from kb.report.check.panel import assumed_lines
from kb.report.json_parts import Object, fields, machine_object, plain, prediction_object
from kb.report.terminal import INDENT, Style, columns, cut, table, wrap
from kb.report.values import format_value, host_limit, host_size, printable, size
from kb.report.words import Words

GB = 10**9
UNITS = {"gpu": GPU_UNIT, "host": HOST_UNIT}


def memory_rows(history: History, words: Words, style: Style) -> list[list[str]]:
    """A label, a cell for each version and the change from first to last; rows that nothing is known of are left out.

    Sizes in GiB, the host's in GB, without their unit, which the labels give; figures of notes as they were written,
    what was measured on the GPU in GiB too.
    """

    def row(key: str, cell: Callable[[Entry], str]) -> list[str]:
        return [words(key), *(cell(entry) or style.dash for entry in history.entries), style.dash]

    rows = [_phase_row(name, history.entries, words, style) for name in WORKING]
    rows += [
        row("history.gpu_range", lambda entry: _gpu_range(entry, style)),
        row("history.gpu_claimed", lambda entry: entry.version.claimed.get("gpu", "")),
        row("history.gpu_measured", _gpu_measured),
        row("history.gpu_verdict", lambda entry: gpu_verdict(entry, words) if history.gpu_limit_bytes else ""),
        row("history.host_range", lambda entry: _host_range(entry, style)),
        row("history.host_claimed", lambda entry: entry.version.claimed.get("host", "")),
        row("history.mixed_claimed", lambda entry: entry.version.claimed.get("mixed", "")),
        row("history.host_measured", lambda entry: measured_text(entry, "host")),
        row("history.host_verdict", lambda entry: host_verdict(entry, words) if history.host_limit_bytes else ""),
    ]
    return [row for row in rows if any(cell != style.dash for cell in row[1:])]


def percent(ratio: float | None) -> str:
    """A change as people write it: ``−40%``, ``+8%``, ``0%``; with a decimal where it would read as none."""
    if ratio is None:
        return ""
    shown = f"{abs(ratio) * 100:.0f}"
    if shown == "0" and ratio:
        shown = f"{abs(ratio) * 100:.1g}"
    return f"{'−' if ratio < 0 else '+' if ratio > 0 else ''}{shown}%"


def overall(ratio: float | None, style: Style) -> str:
    """The last column's cell."""
    return style.dash if ratio is None else percent(ratio)


def _phase_row(name: str, entries: Sequence[Entry], words: Words, style: Style) -> list[str]:
    phases = [entry.report and entry.report.phase(name) for entry in entries]
    values = [phase.process_used_bytes if phase else None for phase in phases]
    known = [count for count in values if count is not None]
    cells, before = [], None
    for count in values:
        step = change(before, count)
        text = style.dash if count is None else f"{count / GIB:.1f}"
        cells.append(f"{text} ({percent(step)})" if step else text)
        before = before if count is None else count
    label = words("history.gpu_phase", phase=words.named("phase", name))
    return [label, *cells, overall(change(known[0], known[-1]) if len(known) > 1 else None, style)]


def _gpu_range(entry: Entry, style: Style) -> str:
    peak = entry.gpu_peak()
    return f"{peak.low_bytes / GIB:.1f}{style.dash}{peak.high_bytes / GIB:.1f}" if peak else ""


def _host_range(entry: Entry, style: Style) -> str:
    if entry.report is None:
        return ""
    host = entry.report.host
    return f"{host.low_bytes / GB:.1f}{style.dash}{host.peak_bytes / GB:.1f}"


def measured_text(entry: Entry, kind: str) -> str:
    """A measurement as it was written, else in the unit of its ``kind``, ``gpu`` or ``host``; empty without one."""
    measured = entry.version.measured
    if measured is None:
        return ""
    if kind == "gpu":
        return measured.gpu_said or (size(measured.gpu_bytes) if measured.gpu_bytes is not None else "")
    return measured.host_said or (host_size(measured.host_bytes) if measured.host_bytes is not None else "")


def _gpu_measured(entry: Entry) -> str:
    """A measurement as it was written, with what it is in GiB."""
    said, measured = measured_text(entry, "gpu"), entry.version.measured
    return _exactly(said, measured.gpu_bytes, UNITS["gpu"]) if measured and measured.gpu_bytes and said else said


def gpu_verdict(entry: Entry, words: Words) -> str:
    return words.named("verdict_short", entry.report.verdict.status) if entry.report else ""


def host_verdict(entry: Entry, words: Words) -> str:
    return words.named("verdict", entry.report.host.status) if entry.report else ""


def held_lines(entry: Entry, words: Words, style: Style) -> list[str]:
    """A sentence for each measurement: whether it lies in the predicted range."""
    measured, peak = entry.version.measured, entry.gpu_peak()
    if measured is None or entry.report is None:
        return []
    found = []
    if measured.gpu_bytes is not None and peak is not None:
        found.append(("gpu", measured.gpu_bytes, peak.low_bytes, peak.high_bytes))
    if measured.host_bytes is not None:
        host = entry.report.host
        found.append(("host", measured.host_bytes, host.low_bytes, host.peak_bytes))
    return [
        words(
            f"history.held.{held_against(count, low, high)}",
            version=entry.version.label,
            memory=words(f"history.memory.{kind}"),
            measured=_exactly(measured_text(entry, kind), count, UNITS[kind]),
            range=format_bytes(low, UNITS[kind]).split(" ")[0] + style.dash + format_bytes(high, UNITS[kind]),
            source=measured.source,
        )
        for kind, count, low, high in found
    ]


def _exactly(said: str, count: int, unit: str) -> str:
    """The figure as written, with what it is in the unit that this report has where it was written in another."""
    written = said.replace(" ", "").lower().endswith(unit.lower())
    return said if written else f"{said} ({format_bytes(count, unit)})"


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
    parts = [f"{short_name(row.name)} {cut(words.value(_first(row)), WIDEST_NAME)}" for row in rows[:MOST_SAME]]
    parts += [words("history.more", n=len(rows) - MOST_SAME)] if len(rows) > MOST_SAME else []
    return f"{words('history.same')} {', '.join(parts)}"


def _first(row: Row) -> Any:
    return next((value for value in row.values if value is not None), None)


def _dim(text: str, style: Style) -> list[str]:
    return style.lines(text, "dim", INDENT, INDENT * 2)


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
    made = []
    for row in rows:
        cells = [words("history.effective") if row.name == EFFECTIVE else short_name(row.name)]
        for value, step, default in zip(row.values, row.changes, row.defaults, strict=True):
            text = cut(words.value(value), WIDEST_CELL, style.ellipsis) if value is not None else style.dash
            text = words("history.default", value=text) if default else text
            cells.append(f"{text} ({percent(step)})" if step else text)
        made.append([*cells, overall(row.change, style)])
    return made


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


def history_object(history: History, machine: Machine, words: Words, *, unchanged: int, shallow: bool) -> Object:
    """Everything that the matrix shows, and each version's whole prediction."""
    return {
        "machine": machine_object(machine),
        "gpu_limit_bytes": history.gpu_limit_bytes,
        "host_limit_bytes": history.host_limit_bytes,
        "versions": [_entry(entry, history, words) for entry in history.entries],
        "matrix": [_row(row) for row in history.rows],
        "unchanged_settings": {row.name: plain(_first(row)) for row in history.same},
        "versions_left_out": unchanged,
        "shallow": shallow,
    }


def _entry(entry: Entry, history: History, words: Words) -> Object:
    version, setup, report = entry.version, entry.setup, entry.report
    note = None
    if version.fault:
        note = fault_text(version.path, version.fault, words)
    elif entry.note:
        note = words(f"note.{entry.note[0]}", **entry.note[1])
    return {
        **fields(version, "label", "path"),
        "section": version.unit.section if version.unit else None,
        **fields(version, "commit", "when", "subject"),
        "model": entry.model,
        "settings": {name: plain(each.value) for name, each in version.unit.settings.items()} if version.unit else None,
        "effective_batch_size": setup.effective_batch_size if setup and setup.do_train else None,
        "prediction": prediction_object(report) if report else None,
        "verdicts": {
            "gpu": report.verdict.status if report else "unknown",
            "host": report.host.status if report else "unknown",
        },
        "measured": _measured(version.measured, entry) if version.measured else None,
        "claimed": dict(version.claimed),
        "note": note,
    }


def _measured(measured: Measured, entry: Entry) -> Object:
    peak, report = entry.gpu_peak(), entry.report
    gpu, host = measured.gpu_bytes, measured.host_bytes
    return {
        "gpu_bytes": gpu,
        "gpu_said": measured.gpu_said or None,
        "gpu_against_prediction": held_against(gpu, peak.low_bytes, peak.high_bytes) if gpu and peak else None,
        "host_bytes": host,
        "host_said": measured.host_said or None,
        "host_against_prediction": (
            held_against(host, report.host.low_bytes, report.host.peak_bytes) if host and report else None
        ),
        "source": measured.source,
    }


def _row(row: Row) -> Object:
    return {
        "setting": row.name,
        "values": plain(row.values),
        "defaults": list(row.defaults),
        "changes": [None if change is None else round(change, 6) for change in row.changes],
        "change": None if row.change is None else round(row.change, 6),
    }
