"""Imports of names that a library no longer has: they stop the program before anything else."""

import ast
from collections.abc import Container, Mapping, Sequence

from kb.config.discovery import names_of_calls
from kb.config.python.held import Sources
from kb.config.python.places import Imported
from kb.config.python.syntax import Module
from kb.core.document import Setting, Unit

GROUP = "imports."
"""What such facts begin with: ``imports.transformers.adamw``, the library and the name, in small letters."""
_APART = "experimental"  # of TRL: there the names live on


def gone_imports(module: Module, path: str, sources: Sources, known: Container[str]) -> dict[str, Setting]:
    """The names that a module imports at its top and that some release of their library lacks.

    What stands in a ``try`` or under a condition is not looked at: the program is prepared for its absence.

    Args:
        known: the facts of such names.
    """
    found: dict[str, Setting] = {}
    for node in module.tree.body:
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        library, *below = node.module.split(".")
        if _APART in below or sources.module(path, Imported(node.module, 0, None)) is not None:
            continue
        names = [(alias.name, alias) for alias in node.names] + [(part, node) for part in below[:1]]
        for name, place in names:
            fact = f"{GROUP}{library}.{name.lower()}"
            if fact in known and fact not in found:
                start, end = module.extent(place)
                span = module.source.between(module.place(start), module.place(end))
                found[fact] = Setting(True, span, span, (name,), alias=True)
    return found


EVERYTHING = ("training.", "trl.", "data.", "lora.", "quantization.", "model.", "generation.", "inference.", "run.")


def with_gone(
    units: Sequence[Unit], gone: Mapping[str, Setting], path: str, module: Module, dialect: str
) -> list[Unit]:
    """The units of a module with its imports in the first; of one that sets up no training, a unit of the imports
    alone, of which nothing else is known."""
    if not gone:
        return list(units)
    if units and names_of_calls(module.text.encode("utf-8", "surrogatepass")):
        return [units[0]._replace(settings={**units[0].settings, **gone}), *units[1:]]
    first = next(iter(gone.values())).span
    return [Unit(path=path, section=None, dialect=dialect, settings=gone, span=first, hidden=EVERYTHING)]
