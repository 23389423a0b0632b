"""What a chapter's page calls for its tables and figures of the model, the GPU and the numbers that its reader gave."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kb.core.text import UserError
from kb.integrations.browser import catalog_of, fault_of, words_of
from kb.memory import UnsupportedArchitectureError
from kb.report.lessons import Case, case_of, figure_of, table_rows, values_of
from kb.report.words import Words

MOST = 4096  # an effective batch beyond it has no table of its own
GENERATED = ("beams", "generation", "caches")  # what a model of an encoder alone has not
COLUMNS = {"lengths": "source_length", "caches": "target_length"}  # whose columns are lengths
OWN_COUNT = {"workers": "workers", "beams": "beams", "generation": "batch", "batch": "batch", "caches": "batch"}


def own_table(asked: str, language: str) -> str:
    """A table of a chapter again, for another model and GPU.

    Args:
        asked: JSON: ``table`` (effective, beams, lengths, ways, workers, precisions, caches, serving, setups or
            options),
            ``model``, ``gpu``, ``source_length``, ``target_length``, ``effective_batch``, ``workers``, ``prefetch``,
            ``host_memory``, and what the page's own table has: ``batch``, ``counts``, ``way``, ``lengths``, ``what``.

    Returns:
        ``{"rows": cells by row, "values": of the caption, "columns": lengths or null}``, or ``{"fault": sentence}``.
        Rows of ``ways``, ``precisions``, ``setups`` and ``options`` lack their first cell, which the page has, and
        those of ``options`` the last two; a row of lengths begins with the GPU.
    """

    def made(wanted: dict[str, Any], case: Case, words: Words) -> dict[str, Any]:
        table = wanted["table"]
        if table in COLUMNS:
            wanted["lengths"] = _with(wanted["lengths"], wanted.get(COLUMNS[table]))
        columns = wanted.get("lengths")
        if table == "serving":
            wanted["lengths"] = _with(wanted["lengths"], wanted.get("source_length"))
        if table == "effective":
            effective = wanted["effective_batch"] = min(int(wanted["effective_batch"]), MOST)
            # batches to show for an effective batch: the powers of two that divide it, and itself
            powers = [2**power for power in range(8) if effective % 2**power == 0 and 2**power < effective]
            wanted["counts"] = [*powers, effective]
        else:
            wanted["counts"] = _counts(wanted)
        return {"rows": table_rows(case, words, wanted), "values": values_of(case, wanted), "columns": columns}

    return answer(asked, language, made)


def own_figure(asked: str, language: str) -> str:
    """A figure of a chapter again, for another model and GPU.

    Args:
        asked: JSON: as of :func:`own_table`, and what the page's own figure has (:func:`figure_of`).

    Returns:
        ``{"figure": HTML}``, every text in it escaped, or ``{"fault": sentence}``.
    """

    def made(wanted: dict[str, Any], case: Case, words: Words) -> dict[str, Any]:
        wanted["counts"] = _counts(wanted)
        if wanted["figure"] == "server":
            wanted["gpus"] = [wanted["gpu"]]
        return {"figure": figure_of(case, words, wanted)}

    return answer(asked, language, made)


def answer(asked: str, language: str, made: Callable[[dict[str, Any], Case, Words], dict[str, Any]]) -> str:
    """What ``made`` makes of what is asked, for the model and the GPU that it names, or ``{"fault": sentence}``."""
    wanted, words = json.loads(asked), words_of(language)
    try:
        case = case_of(
            catalog_of(), wanted["model"], wanted["gpu"], wanted.get("source_length"), wanted.get("target_length")
        )
        case = case._replace(quick=True)
        if (
            wanted.get("table") or wanted["figure"]
        ) in GENERATED and case.estimator.model.architecture.family == "encoder":
            raise UserError("estimate.encoder_generates_nothing", model=case.estimator.model.name)
        return json.dumps(made(wanted, case, words), ensure_ascii=False)
    except UnsupportedArchitectureError:  # of what the table compares, the model has none
        return json.dumps({"fault": words("own.not_followed", model=wanted["model"])}, ensure_ascii=False)
    except UserError as error:
        return fault_of(error, language)


def _counts(wanted: Mapping[str, Any]) -> list[Any]:
    """What the page varies, with the reader's own number of it."""
    own = wanted.get(OWN_COUNT.get(wanted.get("table") or wanted["figure"], ""))
    return _with(wanted.get("counts", ()), own)


def _with(counts: Sequence[Any], own: Any) -> list[Any]:
    return sorted({*counts, int(own)}) if own else [*counts]
