"""A matrix of trials on a cluster: one table, or JSON."""

from typing import TYPE_CHECKING, Any

from kb.core.memory_report import WORKING
from kb.report.json_parts import head, to_json
from kb.report.probe.json_report import trial_object
from kb.report.probe.text import ended, phase_size, reason_of
from kb.report.terminal import INDENT, Style, columns, table, wrap
from kb.report.values import printable, short_name, size
from kb.report.words import Words

if TYPE_CHECKING:
    from kb.torch_runs.probe.trial import Cell, Matrix

COLUMNS = ("gpu", "model", "batch", "outcome", "share", "step", "predicted", "node")
LEFT = ("gpu", "model", "outcome", "node")
SPARE = ("step", "evaluate", "generate", "share")  # what goes first where a terminal is narrow


def matrix_text(matrix: "Matrix", words: Words, style: Style) -> str:
    """The whole report, with a line break at its end."""
    heading = words("probe.matrix", address=matrix.address, number=len(matrix.cells))
    lines = [style.paint(line, "heading") for line in wrap(heading, style.width)]
    if matrix.backend == "fake":
        lines += [style.paint(line, "dim") for line in wrap(words("probe.nothing_measured"), style.width, INDENT)]
    lines += ["", *_table(matrix, words, style)]
    notes = [note for cell in matrix.cells for note in _notes(cell, words)]
    if notes:
        lines.append("")
        lines += [line for note in dict.fromkeys(notes) for line in wrap(note, style.width, INDENT, INDENT * 2)]
    return "\n".join(lines) + "\n"


def _table(matrix: "Matrix", words: Words, style: Style) -> list[str]:
    """A row a cell; where the width has no room for all columns, without those that matter least."""
    heads = {name: words(f"probe.column.{name}") for name in COLUMNS}
    heads |= {name: words.named("phase", name) for name in WORKING}
    names, rows = list(COLUMNS), [_row(cell, words) for cell in matrix.cells]
    names[4:4] = WORKING
    known = [name for name in names if any(row[name] for row in rows)]
    while True:
        cells = [[heads[name] for name in known], *([row[name] or style.dash for name in known] for row in rows)]
        lines = table(cells, left=[at for at, name in enumerate(known) if name in LEFT])
        spare = next((name for name in SPARE if name in known), None)
        if spare is None or max(map(columns, lines)) <= style.width:
            return lines
        known.remove(spare)


def _row(cell: "Cell", words: Words) -> dict[str, str]:
    trial, outcome = cell.trial, cell.outcome
    expected = max((sizes.get("process_bytes", 0) for sizes in trial.predicted.values()), default=0)
    share = outcome.peak_bytes / cell.gpu.memory_total if outcome.fits and outcome.peak_bytes else None
    return {
        "gpu": short_name(cell.gpu),
        "model": printable(trial.model or ""),
        "batch": str(trial.batch),
        "outcome": ended(outcome, words),
        **{phase: phase_size(outcome, phase) for phase in WORKING},
        "share": f"{share:.0%}" if share is not None else "",
        "step": words("probe.seconds", seconds=outcome.step_seconds) if outcome.step_seconds else "",
        "predicted": size(expected) if expected else "",
        "node": printable(outcome.node or ""),
    }


def _notes(cell: "Cell", words: Words) -> list[str]:
    """Why a trial failed, which nodes were lost, which other GPU ran it."""
    outcome, named = cell.outcome, {"gpu": short_name(cell.gpu), "model": cell.trial.model, "batch": cell.trial.batch}
    notes = []
    if not outcome.fits and (reason := reason_of(outcome, words)):
        notes.append(words("probe.matrix_failed", reason=reason, **named))
    if lost := outcome.machine.get("lost_nodes"):
        notes.append(words("probe.matrix_lost", nodes=", ".join(lost), times=outcome.machine["losses"], **named))
    if cell.found is not None:
        notes.append(words("probe.matrix_other_gpu", found=cell.found, **named))
    return notes


def matrix_json(matrix: "Matrix", version: str, rules_version: str) -> str:
    """One object: ``cells`` in the order of the axes, each a trial of ``kb.probe --format json`` with its GPU."""
    cells: list[dict[str, Any]] = [
        {
            "gpu": cell.gpu.id,
            "model": cell.trial.model,
            "other_gpu": cell.found,
            **trial_object((cell.trial, cell.outcome)),
        }
        for cell in matrix.cells
    ]
    measured = matrix.backend != "fake"
    about = {**head(version, rules_version), "kind": "matrix", "backend": matrix.backend}
    return to_json({**about, "measured": measured, "address": matrix.address, "cells": cells})
