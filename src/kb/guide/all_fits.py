"""Every model on every GPU, computed once for both languages and data/, on all cores; kept until it would change."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from kb.core.record import NamedTuple
from kb.guide.curves import Curves
from kb.guide.fits import Map, Row, fit_of, map_of
from kb.guide.kept import kept, mark_of
from kb.knowledge import load_catalog

# models and GPUs whose maps stand on the pages of GPUs and models
TYPICAL_MODELS = ("mt5-base", "kobart", "llama-3.2-1b", "klue-roberta-base")
USUAL_GPUS = ("t4", "rtx-3090", "rtx-4090", "l40s", "a100-80gb")


class Fits(NamedTuple):
    """``maps`` are by model and GPU: of usual GPUs and of typical models. None where nothing fits. ``models``: all that
    were asked, whether they fit or not."""

    rows: list[Row]
    maps: Mapping[tuple[str, str], Map | None]
    models: Collection[str]


@lru_cache(maxsize=1)
def all_fits(folder: str, preview: bool = False) -> Fits:
    """Everything, from ``folder`` where models, GPUs, figures and memory model are those it was computed from.

    Args:
        preview: of the typical models alone, one of each family.
    """
    name, models = ("preview-fits", TYPICAL_MODELS) if preview else ("fits", tuple(load_catalog().models))
    parts = kept(folder, name, _mark(), lambda: _computed(models))
    rows = [Row(*row) for part in parts for row in part["rows"]]
    maps = {(model, gpu): Map(*shown) if shown else None for part in parts for model, gpu, shown in part["maps"]}
    return Fits(rows, maps, models)


def _computed(models: Collection[str]) -> list[dict[str, Any]]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor() as pool:
        return list(pool.map(_of_model, models, chunksize=min(4, len(models) // 2 or 1)))


_catalog = lru_cache(maxsize=1)(load_catalog)  # once in each process


def _of_model(name: str) -> dict[str, Any]:
    """One model's rows and maps, ready for JSON."""
    catalog = _catalog()
    model = catalog.models[name]
    curves = Curves(model, catalog.constants)
    # by memory, so that each card's curve lies between points that the one before has found
    gpus = sorted(catalog.gpus.values(), key=lambda gpu: gpu.memory_total)
    found = {gpu.id: fit_of(model, gpu, catalog.constants, curves) for gpu in gpus}
    rows = [row for row in (found[gpu] for gpu in catalog.gpus) if row is not None]
    shown = [name for name in catalog.gpus if rows and (model.id in TYPICAL_MODELS or name in USUAL_GPUS)]
    maps = [(model.id, name, map_of(model, catalog.gpus[name], catalog.constants, curves)) for name in shown]
    return {"rows": rows, "maps": maps}


def _mark() -> str:
    """A hash of everything that it depends on: models, GPUs, figures, and the code that computes."""
    catalog = load_catalog()
    own = (f"guide/{name}.py" for name in ("all_fits", "curves", "fits"))
    return mark_of((catalog.models, catalog.gpus, catalog.constants), ("advice", "core", "memory"), own)
