"""The line of source that a finding points at, with a caret underline that stands under the right characters."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kb.core.finding import Span
from kb.report.terminal import Style, columns, cut, expand_tabs
from kb.report.values import printable

if TYPE_CHECKING:
    from kb.config.notebook.places import CellPlace, CellPlaces


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
            from kb.config.notebook.places import CellPlaces

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
