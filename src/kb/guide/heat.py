"""Batch × length as maps coloured by verdict, side by side."""

from collections.abc import Sequence
from functools import lru_cache
from html import escape

from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.guide.drawings import heat_map_svg
from kb.guide.fits import LENGTHS, heat_map
from kb.guide.library import Library, load_library
from kb.guide.markup import held
from kb.guide.site_words import say

BATCHES = (1, 2, 4, 8, 16, 32, 64)
STATUSES = ("fits", "tight", "oom", "beyond", "unknown")
# a map where nothing fits says nothing: the way that takes least is shown then
WAYS = ("full", "qlora_checkpointing")


def heat_maps(library: Library, pairs: Sequence[tuple[Model, Gpu]]) -> str:
    """A map for each model on its GPU, with the largest batch by length as text; those where nothing fits are named."""
    shown, empty = [], []
    for model, gpu in pairs:
        way = next((way for way in WAYS if any("fits" in row for row in _cells(model.id, gpu.id, way))), None)
        if way:
            shown.append(_map(library, model, gpu, way))
        else:
            empty.append(say(library.language, "heat.pair", model=model.id, gpu=gpu.id))
    parts = [held("".join(shown), "kb-maps")] if shown else []
    if empty:
        parts.append(say(library.language, "heat.none", pairs=", ".join(f"`{pair}`" for pair in empty)))
    return "\n\n".join(parts)


def _map(library: Library, model: Model, gpu: Gpu, way: str) -> str:
    language, cells = library.language, _cells(model.id, gpu.id, way)
    names = {status: say(language, f"verdict.{status}") for status in STATUSES}
    shown_way = say(language, f"way.{way}")
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


@lru_cache(maxsize=4096)  # both languages show the same
def _cells(model: str, gpu: str, way: str) -> list[list[str]]:
    catalog = load_library("ko").catalog  # the same in both
    return heat_map(catalog.models[model], catalog.gpus[gpu], catalog.constants, BATCHES, way)
