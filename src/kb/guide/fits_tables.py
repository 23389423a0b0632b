"""What fits where, as pages show it: tables of the largest batches, and heat maps."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from kb.advice.run.row_lengths import reads_target
from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.guide.fits import BATCHES, LENGTHS, Map, Row
from kb.guide.library import Library, say
from kb.guide.markup import badge, filter_box, held, svg, svg_text, told, wide_table
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


CELL_WIDTH, CELL_HEIGHT, LABEL_WIDTH, LABEL_HEIGHT = 58, 30, 74, 26


def heat_map_svg(
    title: str,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    cells: Sequence[Sequence[str]],
    names: Mapping[str, str],
    axes: tuple[str, str],
) -> str:
    """A grid coloured by verdict (``fits``, ``tight``, ``oom``, ``beyond``), each cell marked and named too, since
    colour alone says nothing to many."""
    marks = {"fits": "✓", "tight": "~", "likely_oom": "✕", "oom": "✕", "beyond": "–", "unknown": "?"}
    width = LABEL_WIDTH + CELL_WIDTH * len(column_labels)
    height = LABEL_HEIGHT * 2 + CELL_HEIGHT * len(row_labels)
    parts = [svg_text(LABEL_WIDTH, 14, axes[1], "start"), svg_text(LABEL_WIDTH - 8, LABEL_HEIGHT + 16, axes[0], "end")]
    for column, label in enumerate(column_labels):
        parts.append(svg_text(LABEL_WIDTH + CELL_WIDTH * (column + 0.5), LABEL_HEIGHT + 16, label, "middle"))
    for row, label in enumerate(row_labels):
        top = LABEL_HEIGHT * 2 + CELL_HEIGHT * row
        parts.append(svg_text(LABEL_WIDTH - 8, top + 19, label, "end"))
        for column, status in enumerate(cells[row]):
            left = LABEL_WIDTH + CELL_WIDTH * column
            said = escape(f"{label} × {column_labels[column]}: {names[status]}")
            parts.append(
                f'<g><title>{said}</title><rect class="kb-{status}" x="{left + 1}" y="{top + 1}" '
                f'width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}" rx="3"/>'
                f"{svg_text(left + CELL_WIDTH / 2, top + 19, marks[status], 'middle', 'kb-on')}</g>"
            )
    return svg(width, height, title, parts)


STATUSES = ("fits", "tight", "likely_oom", "oom", "beyond", "unknown")


def heat_maps(library: Library, pairs: Sequence[tuple[Model, Gpu]], maps: Mapping[tuple[str, str], Map | None]) -> str:
    """A map for each model on its GPU, with the largest batch by length as text; those where nothing fits are named."""
    shown, empty = [], []
    for model, gpu in pairs:
        found = maps[model.id, gpu.id]
        if found:
            shown.append(_map(library, model, gpu, found))
        else:
            empty.append(say(library.language, "heat.pair", model=model.id, gpu=gpu.id))
    parts = [held("".join(shown), "kb-maps")] if shown else []
    if empty:
        parts.append(say(library.language, "heat.none", pairs=", ".join(f"`{pair}`" for pair in empty)))
    return "\n\n".join(parts)


def _map(library: Library, model: Model, gpu: Gpu, found: Map) -> str:
    language, cells = library.language, found.cells
    names = {status: say(language, f"verdict.{status}") for status in STATUSES}
    shown_way = say(language, f"way.{found.way}")
    title = say(language, "heat.title", model=model.name, gpu=gpu.name.removeprefix("NVIDIA "), way=shown_way)
    axes = (say(language, "heat.length"), say(language, "heat.batch"))
    drawing = heat_map_svg(title, [str(n) for n in LENGTHS], [str(n) for n in BATCHES], cells, names, axes)
    said = []
    for length, row in zip(LENGTHS, cells, strict=True):
        largest = max((batch for batch, status in zip(BATCHES, row, strict=True) if status == "fits"), default=0)
        if largest:
            said.append(say(language, "heat.row", length=length, batch=largest))
    named = f"<figcaption><b>{escape(title)}</b> {badge(library, 'computed')}</figcaption>"
    found_at = f"<figcaption>{escape('; '.join(said))}.</figcaption>"
    return f'<figure class="kb-figure" tabindex="0">{named}{drawing}{found_at}</figure>'
