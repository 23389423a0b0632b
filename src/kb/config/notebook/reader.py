"""A notebook as units: its Python, its command lines, and the comments that suppress findings."""

import datetime
from collections.abc import Collection, Sequence

from kb.config.files import ConfigError
from kb.config.marks import bears_marks
from kb.config.notebook.cells import CellText, Notebook, NotebookSource, blank, read_notebook
from kb.config.python.held import Sources
from kb.config.python.reader import PythonReader
from kb.config.python.syntax import Module, string_extents
from kb.config.shell.command import CommandReader, read_shell
from kb.config.suppressions import Suppressed, read_suppressions, suppress
from kb.config.text.source import Move, Places, moved_event
from kb.core.document import Setting, Unit
from kb.core.finding import Finding, Span


def suppress_in_cells(
    findings: Sequence[Finding], text: str, *, today: datetime.date, known: Collection[str], decided: Collection[str]
) -> Suppressed:
    """As :func:`kb.config.suppressions.suppress`, of findings whose spans are places in the notebook file."""
    notebook = read_notebook(text)
    source = notebook.source
    directives = read_suppressions(source.python, string_extents(notebook.joined))
    lines = Places(source.python)
    inside = [finding._replace(span=_back(finding.span, source, lines)) for finding in findings]
    outcome = suppress(inside, directives, today=today, known=known, decided=decided)
    settled = tuple(
        finding._replace(suppressed=found.suppressed) for finding, found in zip(findings, outcome.findings, strict=True)
    )
    return Suppressed(settled, tuple(moved_event(event, _forth(source)) for event in outcome.events))


def _back(span: Span, source: NotebookSource, lines: Places) -> Span:
    if span.start < 0:
        return span
    return lines.span(source.back(span.start), source.back(span.end))


def _forth(source: NotebookSource) -> Move:
    """From places in the Python of the cells to those in the notebook file."""
    return lambda span: source.places().span(source.forth(span.start), source.forth(span.end))


def read_cells(
    text: str, path: str, python: PythonReader, commands: CommandReader, sources: Sources | None = None
) -> list[Unit]:
    """The runs of a notebook, each under the cell that describes it; all spans are places in the notebook file.

    Args:
        sources: the project's files around it.

    Raises:
        ConfigError: it is no notebook, or a cell that seems to describe a run is no Python; with the place.
    """
    notebook = read_notebook(text)
    for cell, _ in notebook.broken:
        if bears_marks(cell.text.encode("utf-8", "surrogatepass")):
            raise fault_of(notebook, cell)
    analysis = python.analyse(Module(notebook.source, notebook.joined), path, sources)
    units = python.units(analysis, path)
    units += [_moved(unit, notebook.source) for unit in read_shell(notebook.shell, path, commands) if unit.settings]
    return _named(sorted(units, key=lambda unit: unit.span.start), notebook)


def fault_of(notebook: Notebook, cell: CellText) -> ConfigError:
    """What Python says of a cell, at its place in the file."""
    alone = blank(notebook.source.python[: cell.start])
    rest = blank(notebook.source.python[cell.end :])
    try:
        Module(notebook.source, alone + cell.text + rest)
    except ConfigError as fault:
        row = 1
        if fault.line is not None and fault.column is not None:
            offset = notebook.source.places().offset(fault.line, fault.column)
            row = notebook.source.python.count("\n", cell.start, notebook.source.back(offset)) + 1
        values = {**fault.values, "cell": cell.number, "row": row}
        return ConfigError("config.cell-syntax", fault.line, fault.column, **values)
    return ConfigError("config.cell-syntax", cell=cell.number, row=1, reason="")


def _named(units: Sequence[Unit], notebook: Notebook) -> list[Unit]:
    """Each unit under ``cell 3``; of several in one cell with its own name too."""
    cells = [notebook.cell_at(notebook.source.back(unit.span.start)) for unit in units]
    numbers = [cell.number if cell is not None else 0 for cell in cells]
    named = []
    for unit, number in zip(units, numbers, strict=True):
        section = f"cell {number}"
        if numbers.count(number) > 1 and unit.section:
            section += f": {unit.section}"
        named.append(unit._replace(section=section))
    return named


def _moved(unit: Unit, source: NotebookSource) -> Unit:
    """A command's unit with its places in the notebook. No fix writes into it: the shell's quotes lie in JSON's."""

    span = _forth(source)

    def setting(own: Setting) -> Setting:
        return own._replace(span=span(own.span), key_span=span(own.key_span), alias=True)

    return unit._replace(
        span=span(unit.span),
        settings={name: setting(each) for name, each in unit.settings.items()},
        keys={name: setting(each) for name, each in unit.keys.items()},
        events=tuple(moved_event(each._replace(edits=()), span) for each in unit.events),
    )
