"""A Python file or a notebook on its way through a fix: what it says, and the splices of edits in its own text."""

from collections.abc import Mapping, Sequence

from kb.config.fixing.outcome import Region
from kb.config.fixing.tree_edits import Change, Path
from kb.config.notebook.cells import NotebookSource, read_notebook
from kb.config.notebook.edits import escaped, in_notebook, in_source
from kb.config.python.data import PythonData
from kb.config.python.edits import PythonEdits
from kb.config.python.reader import PythonReader
from kb.config.text.source import Source
from kb.config.text.splices import Splice
from kb.core.document import Unit
from kb.core.finding import Edit, Span

SUFFIXES = (".py", ".ipynb")


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
                change.splices = in_notebook(change.splices, self._notebook)
        for edit in texts:
            assert edit.span is not None
            change.splices.append(self._replaced(edit.span, str(edit.value)))
            change.touched.append(edit.span)
        return change

    def _replaced(self, span: Span, text: str) -> Splice:
        if self._notebook is not None and text and in_source(span.start, span.end, self._notebook):
            text = escaped(text, span.start, self._notebook)
        return Splice(span.start, span.end, text)
