"""Where a place of a notebook file lies as its reader sees it: the cell, and the line in it."""

from kb.config.faults import ConfigError
from kb.config.notebook.cells import Notebook, read_notebook
from kb.core.finding import Span


class CellPlaces:
    """The cells of one notebook, read when the first place is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._notebook: Notebook | None = None

    def place(self, span: Span) -> tuple[int, int] | None:
        """The number of the cell, from 1, and the line in it, from 1; None of a place in no cell's source."""
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
        return cell.number, source.python.count("\n", cell.start, offset) + 1
