"""Which model a config means: by hub name in any case, by alias, or by the last part of a path."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kb.core.catalog import Catalog
from kb.core.model import Model
from kb.core.text import UserError

if TYPE_CHECKING:
    from kb.advice.model_guess import ModelGuesser


# Unsloth's names for a model whose weights it stores in 4 bits.
# Their copies under `unsloth/` are saved as Llama's architecture: the same size, the fused projections in parts.
_SPLIT_BY_UNSLOTH = ("phi-4", "phi-3-mini")
_IN_4BIT = ("-unsloth-bnb-4bit", "-bnb-4bit")


class ModelIndex:
    """Catalogued models by every name they answer to."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._guesser: ModelGuesser | None = None
        self._by_name: dict[str, Model] = {}
        self._by_tail: dict[str, Model] = {}
        for model in models.values():
            for name in (model.id, model.name, *model.aliases):
                folded = name.casefold()
                self._by_name[folded] = model
                self._by_tail.setdefault(folded.rpartition("/")[2], model)

    def resolve(self, name: str | None) -> Model | None:
        """The model that ``name`` means, or None: a name that is only similar is another model.

        ``google/mt5-base``, ``mt5-base`` and ``./models/mt5-base/`` are one: owners differ, dimensions do not.
        """
        if not name:
            return None
        wanted = name.strip().rstrip("/").casefold()
        for suffix in _IN_4BIT:
            wanted = wanted.removesuffix(suffix)
        found = self._by_name.get(wanted) or self._by_tail.get(wanted.rpartition("/")[2])
        if found is not None and found.id in _SPLIT_BY_UNSLOTH and wanted.startswith("unsloth/"):
            parts = found.architecture._replace(model_type="llama", fused_qkv=False, fused_gates=False)
            return found._replace(architecture=parts)
        return _of_this_name(found, wanted) if found is not None and found.other_weights else found

    def guess(self, name: str) -> Model | None:
        """The model whose family and size a name says; a guess, and marked as one."""
        from kb.advice.model_guess import ModelGuesser  # most names are known

        if self._guesser is None:
            self._guesser = ModelGuesser(self._models)
        return self._guesser.guess(name)


def _of_this_name(model: Model, wanted: str) -> Model:
    """The model with the type that the checkpoint of this very name stores."""
    tail = wanted.rpartition("/")[2]
    stored = next((each for name, each in model.other_weights if name.casefold().rpartition("/")[2] == tail), None)
    return model if stored is None else model._replace(weights_dtype=stored)


def unknown_model(name: str, catalog: Catalog) -> UserError:
    """The error for a model that kb does not know, with the nearest that it does."""
    from kb.core.text import nearest

    names = {each: model.id for model in catalog.models.values() for each in (model.id, model.name, *model.aliases)}
    meant = list(dict.fromkeys(names[each] for each in nearest(name, names, count=4)))[:3]
    key = "recommend.unknown_model" if meant else "recommend.unknown_model_alone"
    return UserError(key, name=name[:100], meant=", ".join(meant))
