"""The shipped catalogue and guide, read once for all of a process's tests, and a machine of one of its GPUs."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from kb import knowledge
from kb.advice.fit.estimator import on_gpu
from kb.config.reader import ConfigReader
from kb.core.catalog import Catalog, Dialect
from kb.core.document import Unit
from kb.core.facts import FactType
from kb.core.hardware import Machine
from kb.core.model import Model
from kb.memory import parameter_count


@cache
def load_catalog(*, whole: bool = False) -> Catalog:
    return knowledge.load_catalog(whole=whole)


@cache
def load_guide() -> Mapping[str, Any]:
    return knowledge.load_guide()


CATALOG = load_catalog()


def machine(gpu: str, **values: int) -> Machine:
    return on_gpu(CATALOG.gpus[gpu])._replace(**{"host_memory_bytes": 60 * 10**9, "cpus": 48, **values})


def shallow(model: Model, layers: int = 2) -> Model:
    """The model with two layers of each kind: the memory engine follows layer by layer, and one is like another."""
    arch = model.architecture
    depths = {name: layers for name in ("encoder_layers", "decoder_layers") if getattr(arch, name) > layers}
    if arch.vision is not None:
        full, states = arch.vision.full_layers, arch.vision.states
        depths["vision"] = arch.vision._replace(
            depth=2, full_layers=(1,) if full else (), states=(1,) if states else ()
        )
    of_each = {
        name: getattr(arch, name)[:layers] for name in ("slides", "turns", "dense", "windows", "mixes", "reuses")
    }  # by layer
    arch = arch._replace(**depths, **of_each)
    return model._replace(architecture=arch, parameters=parameter_count(arch))


def soon_followed(model: Model) -> Model:
    """The model of two layers, which the memory engine answers for soon."""
    return shallow(model)


@cache
def shallow_catalog() -> Catalog:
    """The shipped catalogue with every model of two layers: for tests of what is read, whatever memory it takes."""
    known = load_catalog()
    return known._replace(models={name: shallow(model) for name, model in known.models.items()})


def read_units(
    text: str, path: str, dialects: Mapping[str, Dialect], facts: Mapping[str, FactType], *, dialect: str | None = None
) -> list[Unit]:
    """:meth:`ConfigReader.read` for a single file."""
    return ConfigReader(dialects, facts).read(text, path, dialect=dialect)
