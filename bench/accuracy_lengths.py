"""kb beside published runs on data of varied lengths: the most that PyTorch held of the GPU."""

from collections.abc import Iterable, Sequence
from typing import Any

from accuracy_rows import ROOT, Left, Row
from accuracy_scores import Predictions, as_data, as_table, lines_of
from truth_rows import truth_rows

from kb.core.catalog import Catalog
from kb.core.units import GIB
from kb.memory import architecture_from_config
from kb.memory.engine.report import reserved_by_lengths

PUBLISHED = ROOT / "bench" / "published"
HEAD = "## Published runs on varied lengths"
VARIED, LONGEST = "kb, lengths of the data", "kb, every batch at the maximum"
BAND = 0.20  # what is counted as near
EVERY = "all"


def published_rows(catalog: Catalog) -> list[Row]:
    """Rows of the project's own copy of published figures.

    Raises:
        ValueError: nothing can be made of one.
    """
    rows = list(truth_rows(PUBLISHED, catalog))
    for row in rows:
        if isinstance(row, Left):
            raise ValueError(f"{row.id}: {row.reason}")
    return [row for row in rows if isinstance(row, Row)]


def answers(rows: Iterable[Row]) -> dict[str, dict[str, dict[str, int]]]:
    """What kb says PyTorch reserves: no more than the GPU has, as it gives back what is cached before it fails."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        taken = reserved_by_lengths(
            row.setup, architecture_from_config(row.config), row.gpu.compute_capability if row.gpu else row.capability
        )
        most = max(row.memory_bytes or taken.varied, taken.needed)
        sizes = {VARIED: min(taken.varied, most), LONGEST: min(taken.fixed, most)}
        found[row.id] = {name: {"reserved": size} for name, size in sizes.items()}
    return found


def compared(rows: Sequence[Row]) -> tuple[dict[str, Any], str]:
    """The scores as data and as a section of the page."""
    said = answers(rows)
    lines = lines_of(rows, said, _model) + lines_of(rows, said, lambda row: EVERY)
    far = [row for row in rows if abs(_error(row, said)) > BAND]
    alike = sum(abs(_error(row, said, LONGEST)) <= BAND for row in rows)
    data = {
        "rows": len(rows),
        "inside": len(rows) - len(far),
        "inside_longest": alike,
        "band": BAND,
        "lines": as_data(lines),
        "far": [_far(row, said) for row in far],
    }
    said_so = f"Inside ±{BAND:.0%}: {len(rows) - len(far)} of {len(rows)}; were every batch at the maximum, {alike}."
    return data, "\n\n".join([*_about(rows), said_so, as_table(lines, (VARIED, LONGEST), "model"), *_listed(far, said)])


def _about(rows: Sequence[Row]) -> list[str]:
    return [
        HEAD,
        f"{len(rows)} runs of ms-swift's benchmark on an A100 80GB (bench/published, every second row of its page): "
        "`max_memory_reserved` after up to thousands of batches of one dataset, without the CUDA context. Samples "
        "longer than the maximum are left out, as ms-swift does; the lengths of the rest are log-normal, by the mean "
        "and the spread that the page gives. Runs of one tokenizer and one maximum saw the same order of samples, so "
        "their errors are not independent. Baichuan2's own code is followed as Llama's, Qwen's as Qwen2's.",
        "Ten batches are followed, at even shares of the lengths; with more of them, or in another order, more is found "
        "to be held, for some rows by half: the agreement is that of ten.",
    ]


def _listed(far: Sequence[Row], said: Predictions) -> list[str]:
    lines = [f"- {row.model}, {row.setup.max_source_length} tokens: {_sizes(row, said)}" for row in far]
    return ["Outside:\n\n" + "\n".join(lines)] if lines else []


def _far(row: Row, said: Predictions) -> dict[str, Any]:
    return {
        "id": row.id,
        "model": row.model,
        "tokens": row.setup.max_source_length,
        "measured": row.truth["reserved"],
        "predicted": said[row.id][VARIED]["reserved"],
    }


def _sizes(row: Row, said: Predictions) -> str:
    found = said[row.id][VARIED]["reserved"]
    return f"measured {row.truth['reserved'] / GIB:.1f} GiB, kb {found / GIB:.1f} ({_error(row, said):+.0%})"


def _error(row: Row, said: Predictions, by: str = VARIED) -> float:
    return said[row.id][by]["reserved"] / row.truth["reserved"] - 1


def _model(row: Row) -> str:
    return f"{row.model}, {row.setup.method}"
