"""The original guide's rows beside kb's own, in one table, and what is to be said of each."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.answer import ACCUMULATION, EVALUATE, INFERENCE, TRAIN, WORKERS, Notes, NotesRow
from kb.core.memory_report import Phase
from kb.core.record import NamedTuple
from kb.report.terminal import Style, table, wrap
from kb.report.values import size
from kb.report.words import Words

COLUMNS = (TRAIN, EVALUATE, ACCUMULATION, "effective", INFERENCE, WORKERS)

_BOUNDS = {"about": "~", "over": "> ", "at-least": ">= ", "at-most": "<= "}


class Own(NamedTuple):
    """kb's own row: values by setting (and ``effective``), and the phase that needs most."""

    values: Mapping[str, Any]
    phase: Phase
    status: str
    limit_bytes: int | None
    largest_train: int | None


def shown_rows(notes: Notes, task: str) -> list[NotesRow]:
    """This model's rows and those that conflict with them; other models' where this one has none. Of the task only."""
    wanted = TRAIN if task == "train" else INFERENCE
    own = [row for row in notes.own if wanted in row.values]
    rest = notes.conflicts if own else notes.others
    return own + [row for row in rest if wanted in row.values]


def notes_lines(own: Own | None, notes: Notes, task: str, words: Words, style: Style) -> list[str]:
    """The table, what its marks stand for, and why the rows differ."""
    rows = shown_rows(notes, task)
    if not rows:
        lines = wrap(words("recommend.no_notes"), style.width, "  ")
        if notes.gpus:
            lines += wrap(words("recommend.notes_elsewhere", gpus=", ".join(notes.gpus)), style.width, "  ")
        return lines
    columns = [name for name in COLUMNS if own is None or name in own.values or any(name in row.values for row in rows)]
    head = ["", *(words.named("recommend.column", name.rpartition(".")[2]) for name in columns)]
    cells = [[*head, words("recommend.column.predicted"), ""]]
    if own is not None:
        cells.append(
            ["kb", *(_cell(own.values.get(name), style) for name in columns), *_need(own.phase, own.status, words)]
        )
    for number, row in enumerate(rows, 1):
        values = {**row.values, "effective": row.effective}
        shown = (_cell(values.get(name), style) for name in columns)
        cells.append([f"[{number}]", *shown, *_need(row.phase, row.status, words)])
    last = len(head) + 1
    lines = table(cells, left=(0, last))
    for number, row in enumerate(rows, 1):
        lines += wrap(_source(number, row, words, style), style.width, "  ", "      ")
    return lines


def why_lines(own: Own | None, notes: Notes, task: str, words: Words, style: Style) -> list[str]:
    """Why the notes' rows are not the recommendation: by prediction, by one another, by what is known to be wrong."""
    rows = shown_rows(notes, task)
    numbers = {id(row): number for number, row in enumerate(rows, 1)}
    lines: list[str] = []
    for row in rows:
        if row in notes.own:
            lines += _bullet(_verdict(row, numbers[id(row)], own, words), style)
    against = [row for row in notes.conflicts if id(row) in numbers]
    if against:
        mine = next(row for row in rows if row in notes.own)
        these = " ".join(f"[{numbers[id(row)]}]" for row in against)
        key = "recommend.conflict_none_fits" if all(row.status == "oom" for row in against) else "recommend.conflict"
        lines += _bullet(words(key, these=these, mine=f"[{numbers[id(mine)]}]"), style)
        if own is not None and own.largest_train:
            lines += _bullet(words("recommend.conflict_use", batch=own.largest_train), style)
    seen: set[str] = set()
    shown = [
        (f"[{numbers[id(row)]}]", one) for row in rows for one in (row.errata if row in notes.own else row.errata[:1])
    ]
    for mark, erratum in [("", one) for one in notes.conflict_errata if against] + shown:
        if erratum.id not in seen:
            seen.add(erratum.id)
            text = words("recommend.erratum", mark=mark, id=erratum.id, use=str(erratum.use[words.language]))
            lines += _bullet(text.strip(), style)
    return lines


def _verdict(row: NotesRow, number: int, own: Own | None, words: Words) -> str:
    mark, phase = f"[{number}]", row.phase
    limit = own.limit_bytes if own else None
    if phase is None or limit is None or row.status == "unknown":
        return words("recommend.row_unknown", mark=mark)
    values = {"mark": mark, "low": size(phase.low_bytes), "high": size(phase.high_bytes), "limit": size(limit)}
    if row.status != "fits":
        return words(f"recommend.row_{row.status}", need=size(phase.process_used_bytes), **values)
    mine = own.values if own else {}
    same = any(name in row.values and mine.get(name) == row.values[name] for name in (TRAIN, INFERENCE))
    key = "row_same" if same else "row_fits"
    return words(f"recommend.{key}", need=size(phase.process_used_bytes), **values)


def _bullet(text: str, style: Style) -> list[str]:
    return wrap(text, style.width, "  - ", "    ")


def _cell(value: Any, style: Style) -> str:
    if value is None:
        return style.dash
    if isinstance(value, list | tuple):
        return style.dash.join(str(part) for part in value)
    return str(value)


def _need(phase: Phase | None, status: str, words: Words) -> Sequence[str]:
    return (size(phase.process_used_bytes) if phase else "?", words.named("verdict", status))


def _source(number: int, row: NotesRow, words: Words, style: Style) -> str:
    said = [words("recommend.note_source", source=row.source, lines=row.lines, model=row.model_said, gpu=row.gpu_said)]
    if row.method != "full":
        said.append(words.named("method", row.method))
    if row.copies > 1:
        said.append(words("recommend.copies", n=row.copies))
    if row.memory:
        value = row.memory["value"]
        figure = style.dash.join(map(str, value)) if isinstance(value, list) else str(value)
        bound = _BOUNDS.get(row.memory.get("bound", ""), "")
        said.append(words("recommend.note_memory", value=bound + figure, unit=row.memory.get("unit", "")))
    return f"[{number}] {style.dot.join(said)}"
