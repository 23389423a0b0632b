"""Drawings of the guide: heat maps, and the frame of the others."""

from collections.abc import Mapping, Sequence
from html import escape

from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.guide.fits import BATCHES, LENGTHS, Map
from kb.guide.library import Library
from kb.guide.markup import badge, held
from kb.guide.site_words import say

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


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """A drawing of this many pixels, with a title for who cannot see it."""
    head = f'<svg class="kb-drawing" role="img" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
    return f"{head}<title>{escape(title)}</title>{''.join(parts)}</svg>"


def svg_text(x: float, y: float, words: str, anchor: str, kind: str = "kb-label") -> str:
    """Words in a drawing; ``anchor`` is ``start``, ``middle`` or ``end``."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


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
