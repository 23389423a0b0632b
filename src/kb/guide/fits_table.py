"""What fits, as a table: the largest batches by way, rows by model family or by GPU."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from kb.advice.usual import reads_target
from kb.core.model import Model
from kb.guide.fits import Row
from kb.guide.library import Library
from kb.guide.markup import filter_box, told, wide_table
from kb.guide.site_words import say
from kb.report.lessons import SHOWN_WAYS
from kb.report.values import short_name

KINDS = ("seq2seq", "decoder", "encoder")


def kind_of(model: Model) -> str:
    """What a model's stacks make of it: ``seq2seq``, ``decoder`` or ``encoder``."""
    family = model.architecture.family
    return family if family in KINDS else "seq2seq"


def by_family(models: Sequence[Model]) -> list[tuple[str, list[Model]]]:
    """Models of one family together, the smallest first; families by kind, then by name."""

    def family(model: Model) -> tuple[int, str]:
        return KINDS.index(kind_of(model)), model.architecture.model_type

    ordered = sorted(models, key=lambda model: (*family(model), model.parameters, model.id))
    return [
        (found[0].architecture.model_type, found) for found in (list(group) for _, group in groupby(ordered, family))
    ]


def fits_by_model(library: Library, rows: Sequence[Row]) -> str:
    """One GPU: a row for each model, by family."""
    language, catalog = library.language, library.catalog
    known = {row.model: row for row in rows}
    groups = []
    for name, models in by_family([catalog.models[row.model] for row in rows]):
        title = f"<code>{escape(name)}</code> {escape(say(language, f'kind.{kind_of(models[0])}'))}"
        lines = [
            (f'<a href="../../models/{model.id}/">{escape(model.id)}</a>', *_cells(model, known[model.id]))
            for model in models
        ]
        groups.append((title, lines))
    shown = wide_table(say(language, "fits.heading"), _head(language, "fits.model"), groups, told(library, "computed"))
    return f"{filter_box(library, alone=True)}\n\n{shown}"


def fits_by_gpu(library: Library, model: Model, rows: Sequence[Row]) -> str:
    """One model: a row for each GPU, as the rows are ordered."""
    language, gpus = library.language, library.catalog.gpus
    lines = [
        (f'<a href="../../gpus/{row.gpu}/">{escape(short_name(gpus[row.gpu]))}</a>', *_cells(model, row))
        for row in rows
    ]
    head, about = _head(language, "fits.gpu"), told(library, "computed")
    shown = wide_table(say(language, "fits.where"), head, [("", lines)], about)
    return f"{filter_box(library, alone=True)}\n\n{shown}"


def _head(language: str, first: str) -> list[str]:
    keys = (first, "fits.precision", "fits.lengths", *(f"way.{way}" for way in SHOWN_WAYS))
    return [escape(say(language, key)) for key in (*keys, "fits.evaluation", "fits.inference")]


def _cells(model: Model, row: Row) -> list[str]:
    target = f"/{row.target_length}" if reads_target(model.architecture) else ""
    batches = [*(row.train[way] for way in SHOWN_WAYS), row.evaluation, row.inference]
    return [row.precision, f"{row.source_length}{target}", *(str(batch) if batch else "–" for batch in batches)]
