"""Batch × length as maps coloured by verdict, side by side."""

from collections.abc import Mapping, Sequence
from html import escape

from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.guide.drawings import heat_map_svg
from kb.guide.fits import BATCHES, LENGTHS, Map
from kb.guide.library import Library
from kb.guide.markup import held
from kb.guide.site_words import say

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
    return f'<figure class="kb-figure"><figcaption><b>{escape(title)}</b></figcaption>{drawing}' + (
        f"<figcaption>{escape('; '.join(said))}.</figcaption></figure>"
    )
