"""Where a place of a notebook file lies as its reader sees it: the cell, and the line in it."""

from kb.config.files import ConfigError
from kb.config.notebook.cells import Notebook, read_notebook
from kb.core.finding import Span
from kb.core.record import NamedTuple


class CellPlace(NamedTuple):
    """A place in a cell: the cell's number and the line in it, both from 1, the line's text, and the span in it."""

    cell: int
    row: int
    line: str
    span: Span


class CellPlaces:
    """The cells of one notebook, read when the first place is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._notebook: Notebook | None = None

    def place(self, span: Span) -> CellPlace | None:
        """The cell and the line that hold the start of a span; None of a place in no cell's source."""
        if self._notebook is None:
            try:
                self._notebook = read_notebook(self._text)
            except ConfigError:
                return None
        source = self._notebook.source
        if span.start < 0:
            return None
        offset = source.back(span.start)
        cell = self._notebook.cell_at(offset)
        if cell is None or not source.forth(cell.start) <= span.start <= source.forth(cell.end):
            return None
        start = max(source.python.rfind("\n", 0, offset) + 1, cell.start)
        row = source.python.count("\n", cell.start, offset) + 1
        end = source.python.find("\n", offset, cell.end)
        line = source.python[start : cell.end if end < 0 else end].rstrip("\r")
        width = min(source.back(span.end) - offset, len(line) - (offset - start))
        column = offset - start + 1
        return CellPlace(cell.number, row, line, Span(row, column, row, column + max(width, 0)))
