"""What a chapter's page calls for the tables of the model and the GPU that its reader chose."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.text import UserError
from kb.integrations.browser import catalog_of, words_of
from kb.memory import UnsupportedArchitectureError
from kb.report.lesson_rows import Case, Cell, beam_rows, case_of, effective_rows, length_rows, way_rows
from kb.report.words import Words
from kb.session.cli import load_words_or_none, said

MOST = 4096  # an effective batch beyond it has no table of its own


def own_table(asked: str, language: str) -> str:
    """A table of a chapter again, for another model and GPU.

    Args:
        asked: JSON: ``table`` (effective, beams, lengths or ways), ``model``, ``gpu``, ``source_length``,
            ``target_length``, ``effective_batch``, and what the page's own table has: ``batch``, ``counts``, ``way``,
            ``lengths``, ``what``.

    Returns:
        ``{"rows": cells by row, "values": of the caption}``, or ``{"fault": sentence}``. Rows of a comparison lack
        their first cell, which the page has; a row of lengths begins with the GPU.
    """
    wanted = json.loads(asked)
    try:
        case = case_of(
            catalog_of(), wanted["model"], wanted["gpu"], wanted.get("source_length"), wanted.get("target_length")
        )
        rows = _rows(wanted, case, words_of(language))
    except UnsupportedArchitectureError:  # of what the table compares, the model has none
        return json.dumps({"fault": words_of(language)("own.not_followed", model=wanted["model"])}, ensure_ascii=False)
    except UserError as error:
        return json.dumps({"fault": said(load_words_or_none(language), error.key, **error.values)}, ensure_ascii=False)
    values = {**case.named(), "batch": wanted.get("batch")}
    return json.dumps({"rows": rows, "values": values}, ensure_ascii=False)


def _rows(wanted: Mapping[str, Any], case: Case, words: Words) -> Sequence[Sequence[Cell]]:
    if wanted["table"] == "effective":
        effective = min(int(wanted["effective_batch"]), MOST)
        return effective_rows(case, words, effective, _divisors(effective))
    model = case.estimator.model
    if wanted["table"] == "beams":
        if model.architecture.family == "encoder":
            raise UserError("estimate.encoder_generates_nothing", model=model.name)
        return beam_rows(case, words, wanted["batch"], wanted["counts"])
    if wanted["table"] == "lengths":
        gpu: Cell = ((case.named()["gpu"], ""),)
        return [[gpu, *length_rows(case, wanted["way"], wanted["lengths"])]]
    return [cells for _, _, cells in way_rows(case, words, wanted["what"], wanted["batch"])]


def _divisors(effective: int) -> list[int]:
    """Batches to show for an effective batch: the powers of two that divide it, and itself."""
    powers = [2**power for power in range(8) if effective % 2**power == 0 and 2**power < effective]
    return [*powers, effective]
