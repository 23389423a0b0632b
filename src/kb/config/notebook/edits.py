"""Edits of a notebook: cells rewritten, and the text of its code as one file."""

import json
from collections.abc import Mapping, Sequence

from kb.config.fixing.changes import CannotEditError, Change, Path, Region, Splice
from kb.config.notebook.cells import NotebookSource, read_notebook
from kb.config.python.edits import PythonData, PythonEdits
from kb.config.python.reader import PythonReader
from kb.config.text.source import Source
from kb.core.document import Unit
from kb.core.finding import Edit, Span


def escaped(text: str, at: int, source: NotebookSource) -> str:
    """``text`` as it stands inside the JSON string around offset ``at`` of the notebook."""
    pieces = [json.dumps(line, ensure_ascii=False)[1:-1] for line in text.split("\n")]
    between = _line_break(at, source)
    return between.join(pieces)


def _in_source(start: int, end: int, source: NotebookSource) -> bool:
    """Whether a piece of the notebook lies within the sources of its cells, in whole characters."""
    return source.forth(source.back(start)) == start and start <= end and source.back(end) >= source.back(start)


def _written(one: Splice, source: NotebookSource) -> Splice:
    """The splice with its place and its text as the notebook's file has them.

    Raises:
        CannotEditError: the place lies in no source of a cell.
    """
    start = source.forth(one.start)
    end = start if one.start == one.end else source.forth(one.end)
    if end < start:
        raise CannotEditError("config.fix.no-place")
    return Splice(start, end, escaped(one.text, start, source))


def _line_break(at: int, source: NotebookSource) -> str:
    """A line break within the source: in a list of lines it ends one string and begins the next."""
    opening, closing = _string_around(at, source.text)
    if opening is None:
        return "\\n"
    text = source.text
    start = opening
    while start and text[start - 1] in " \t\r\n":
        start -= 1
    end = closing + 1
    while text[end : end + 1] in (" ", "\t", "\r", "\n", ","):
        end += 1
    if text[start - 1 : start] not in (",", "["):
        return "\\n"  # one string for the whole cell
    if text[end : end + 1] == '"':
        return '\\n"' + text[closing + 1 : end] + '"'
    return '\\n",' + text[start:opening] + '"'


def _string_around(at: int, text: str) -> tuple[int | None, int]:
    """The offsets of the quotes of the JSON string that holds ``at``."""
    opening = at
    while True:
        opening = text.rfind('"', 0, opening)
        if opening < 0:
            return None, at
        slashes = opening
        while slashes and text[slashes - 1] == "\\":
            slashes -= 1
        if (opening - slashes) % 2 == 0:
            break
    closing = at
    while closing < len(text) and text[closing] != '"':
        closing += 2 if text[closing] == "\\" else 1
    return opening, closing


class CodeText:
    """All that a text of Python calls says.

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, text: str, path: str, reader: PythonReader, constants: Mapping[str, str]) -> None:
        self._reader, self._constants = reader, constants
        self._notebook: NotebookSource | None = None
        if path.endswith(".ipynb"):
            notebook = read_notebook(text)
            self._notebook = notebook.source
            self._python = PythonData(notebook.source, notebook.joined, reader)
        else:
            self._python = PythonData(Source(text), text, reader)
        self.data = self._python.data

    def paths_at(self, regions: Sequence[Region]) -> set[Path]:
        return self._python.paths_at(regions)

    def plan(self, edits: tuple[Edit, ...], unit: Unit, at: Span) -> Change:
        """The splices of all the edits, in the file's own text.

        Raises:
            CannotEditError: one of them cannot be made safely.
        """
        texts = tuple(edit for edit in edits if edit.op == "replace")
        others = tuple(edit for edit in edits if edit.op != "replace")
        change = Change()
        if others:
            place = at.start if self._notebook is None else self._notebook.back(at.start)
            change = PythonEdits(self._python, unit, self._reader, self._constants).plan(others, place)
            if self._notebook is not None:
                change.splices = [_written(one, self._notebook) for one in change.splices]
        for edit in texts:
            assert edit.span is not None
            change.splices.append(self._replaced(edit.span, str(edit.value)))
            change.touched.append(edit.span)
        return change

    def _replaced(self, span: Span, text: str) -> Splice:
        if self._notebook is not None and text and _in_source(span.start, span.end, self._notebook):
            text = escaped(text, span.start, self._notebook)
        return Splice(span.start, span.end, text)
