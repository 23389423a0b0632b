"""Suppression comments in the cells of a notebook: read where Python reads them, told where the file has them."""

import datetime
from collections.abc import Collection, Sequence

from kb.config.notebook.cells import NotebookSource, read_notebook
from kb.config.python.syntax import string_extents
from kb.config.suppressions import Suppressed, read_suppressions, suppress
from kb.config.text.places import Places
from kb.core.document import Event
from kb.core.finding import Finding, Span


def suppress_in_cells(
    findings: Sequence[Finding],
    text: str,
    *,
    today: datetime.date,
    known: Collection[str],
    decided: Collection[str],
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
    return Suppressed(settled, tuple(_forth(event, source) for event in outcome.events))


def _back(span: Span, source: NotebookSource, lines: Places) -> Span:
    if span.start < 0:
        return span
    return lines.span(source.back(span.start), source.back(span.end))


def _forth(event: Event, source: NotebookSource) -> Event:
    def moved(span: Span) -> Span:
        return source.places().span(source.forth(span.start), source.forth(span.end))

    edits = tuple(edit if edit.span is None else edit._replace(span=moved(edit.span)) for edit in event.edits)
    return event._replace(span=moved(event.span), edits=edits)
