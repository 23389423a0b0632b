"""What a report quotes of a file: the line that a finding points at, and the changes of a fix, old and new."""

from collections.abc import Mapping, Sequence

from kb.core.document import KEY, Unit
from kb.core.expression import is_unknown
from kb.core.finding import Edit, Fix, Span
from kb.core.typed import TYPE_CHECKING, Any
from kb.report.terminal import Style, columns, cut, expand_tabs, unbroken
from kb.report.values import printable
from kb.report.words import Words

if TYPE_CHECKING:
    from kb.config.notebook.cells import CellPlace, CellPlaces


class SourceLines:
    """The lines of every file, split once."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._lines: dict[str, Sequence[str]] = {}
        self._cells: dict[str, CellPlaces] = {}

    def quoted(self, path: str, span: Span) -> tuple[str | None, Span]:
        """The line that a span begins on, and the span in it; of a notebook the line of the cell."""
        place = self.cell(path, span)
        return (self.line(path, span.line), span) if place is None else (place.line, place.span)

    def cell(self, path: str, span: Span) -> "CellPlace | None":
        """The place in a cell of a notebook; None in any other file."""
        if not path.endswith(".ipynb"):
            return None
        if path not in self._cells:
            from kb.config.notebook.cells import CellPlaces  # of notebooks alone

            self._cells[path] = CellPlaces(self._texts.get(path, ""))
        return self._cells[path].place(span)

    def line(self, path: str, number: int) -> str | None:
        """Line ``number`` (from 1) of a file, without its break; None where there is none."""
        lines = self._lines.get(path)
        if lines is None:
            # YAML also breaks lines at U+2028 and others; editors and our columns do not
            text = self._texts.get(path, "").replace("\r\n", "\n").replace("\r", "\n")
            lines = self._lines[path] = text.split("\n")
        return lines[number - 1] if 1 <= number <= len(lines) else None


def quote_line(line: str, span: Span, style: Style, role: str = "error") -> list[str]:
    """Two lines: the source after a gutter, and carets under the span (to the line's end where it goes on).

    A line wider than the report is shown from near the span.
    """
    start = min(max(span.column - 1, 0), len(line))
    end = min(span.end_column - 1, len(line)) if span.end_line == span.line else len(line.rstrip())
    gutter = f"{span.line:>5} | "
    before, marked, after = _expand(line, start, max(end, start))
    room = style.width - len(gutter)
    before, marked, after = _window(before, marked, after, room, style.ellipsis)
    carets = "^" * max(columns(marked), 1)
    return [
        style.paint(gutter, "dim") + (before + marked + after).rstrip(),
        style.paint(" " * (len(gutter) - 2) + "| ", "dim") + " " * columns(before) + style.paint(carets, role),
    ]


def _expand(line: str, start: int, end: int) -> tuple[str, str, str]:
    """The three parts of the line around the span, tabs spread and control characters made visible."""
    parts = [line[:start], line[start:end], line[end:]]
    shown = ["\t".join(printable(piece) for piece in part.split("\t")) for part in parts]
    before, through, whole = (expand_tabs("".join(shown[:count])) for count in (1, 2, 3))
    return before, through[len(before) :], whole[len(through) :]


def _window(before: str, marked: str, after: str, room: int, ellipsis: str) -> tuple[str, str, str]:
    if columns(before) + columns(marked) + columns(after) <= room:
        return before, marked, after
    kept_marked = cut(marked, max(room - 20, 8), ellipsis)
    space = room - columns(kept_marked)
    lead = min(columns(before), max(space - columns(after), space // 2))
    if columns(before) > lead:
        tail = before[::-1]
        before = ellipsis + cut(tail, lead - columns(ellipsis), "")[::-1]
    return before, kept_marked, cut(after, space - columns(before), ellipsis)


def key_of(unit: Unit, name: str) -> str:
    """How the file itself calls a setting; the last part of its canonical name where the file lacks it."""
    setting = unit.setting(name)
    return printable(str(setting.path[-1])) if setting and setting.path else name.rpartition(".")[2]


def place_name(name: str, unit: Unit, words: Words) -> str | None:
    """What to call a related place: a setting's key, or i18n's ``related.name``; None where ``name`` is a quotation."""
    if name in words.facts or name.startswith(KEY):
        return key_of(unit, name)
    return words.messages.get(f"related.{name}") if name else ""


def condition_of(fix: Fix) -> str:
    """What must hold for a fix that is only offered: ``gpu.native_bf16``; empty where nothing must."""
    if fix.when is None:
        return ""
    from kb.report.condition import unparse  # hardly a fix has one

    return unparse(fix.when)


def describe_fix(fix: Fix, unit: Unit, words: Words, style: Style, sources: SourceLines) -> str:
    """Every change of the fix, old → new: ``per_device_train_batch_size: 20 → 8, fp16: true → false``.

    Its blanks inside a change are no-break spaces, for :func:`kb.report.terminal.wrap`.
    """
    changing = [edit for edit in fix.edits if not _is_so(edit, unit)] or fix.edits
    changes = (_describe(edit, unit, words, style, sources) for edit in changing)
    return ", ".join(unbroken(change) for change in changes if change)


def _is_so(edit: Edit, unit: Unit) -> bool:
    """Whether the file says already what an edit sets: beside another change that is no change."""
    setting = unit.setting(edit.name) if edit.op == "set" else None
    return setting is not None and type(setting.value) is type(edit.value) and bool(setting.value == edit.value)


def _describe(edit: Edit, unit: Unit, words: Words, style: Style, sources: SourceLines) -> str:
    if edit.op == "replace":
        old = _spanned(edit, unit, sources)
        return f"{old} {style.arrow} {as_written(edit.value)}" if old and "\n" not in str(edit.value) else ""
    key = key_of(unit, edit.name)
    if edit.op == "remove":
        return words("report.remove_key", key=key)
    if edit.op == "rename":
        return f"{key} {style.arrow} {printable(str(edit.value))}"
    setting = unit.setting(edit.name)
    if setting is not None and setting.bare and setting.path and not setting.alias:  # `--fp16` has no value to show
        if edit.value == setting.value:
            return ""
        words_after = "" if isinstance(edit.value, bool) else f" {as_written(edit.value)}"
        return f"{key} {style.arrow} {key}{words_after}" if edit.value else words("report.remove_key", key=key)
    return f"{key}: {_old_value(edit, unit, words)} {style.arrow} {as_written(edit.value)}"


def _old_value(edit: Edit, unit: Unit, words: Words) -> str:
    setting = unit.setting(edit.name)
    if setting is not None:
        return "…" if is_unknown(setting.value) else cut(as_written(setting.value), 40)
    fact = words.facts.get(edit.name)
    if fact is None or fact.default in (None, edit.value):  # what the fix writes is another format's default
        return words("report.unset")
    return words("report.default_value", value=as_written(fact.default))


def _spanned(edit: Edit, unit: Unit, sources: SourceLines) -> str:
    span = edit.span
    if span is None or span.line != span.end_line:
        return ""
    line, span = sources.quoted(unit.path, span)
    if line is None:
        return ""
    return cut(printable(line[span.column - 1 : span.end_column - 1]), 40)


def as_written(value: Any) -> str:
    """A value as YAML writes it: ``true``, ``null``, ``[q, v]``, ``5e-05``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(as_written(item) for item in value)}]"
    return cut(printable(str(value)), 120)
