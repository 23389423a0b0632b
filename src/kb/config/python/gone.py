"""Imports of names that a library no longer has: they stop the program before anything else."""

import ast
from collections.abc import Container, Iterator, Mapping, Sequence

from kb.config.discovery import describes_run
from kb.config.python.held import Sources
from kb.config.python.places import Imported
from kb.config.python.syntax import Module, dotted_name
from kb.config.python.walk import root_name
from kb.core.document import Setting, Unit

GROUP = "imports."
"""What such facts begin with: ``imports.transformers.adamw``, the library and the name, in small letters."""
LIBRARIES = frozenset(("transformers", "trl", "peft", "datasets"))
_OF_SYS = ("path", "modules")  # what changes where an import finds its module
_APART = "experimental"  # of TRL: there the names live on


def gone_imports(module: Module, path: str, sources: Sources, known: Container[str]) -> dict[str, Setting]:
    """The names that a module imports at its top and that some release of their library lacks.

    What stands in a ``try`` or under a condition is not looked at: the program is prepared for its absence. Nor is what
    comes after the program may have put the name back, looks elsewhere for modules, or has asked for a release.

    Args:
        known: the facts of such names.
    """
    found: dict[str, Setting] = {}
    of_libraries: set[str] = set()
    for node in module.tree.body:
        if _prepares(node, of_libraries):
            break
        of_libraries.update(_from_libraries(node))
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


def _from_libraries(node: ast.stmt) -> Iterator[str]:
    """The names under which a statement brings in one of the libraries, or something of it."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] in LIBRARIES:
                yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in LIBRARIES:
        yield from (alias.asname or alias.name for alias in node.names)


def _prepares(node: ast.stmt, of_libraries: Container[str]) -> bool:
    """Whether an import after this statement may find more than the library has, or is not come to.

    Args:
        of_libraries: the names under which the libraries were brought in before.
    """
    if isinstance(node, ast.If | ast.Assert) and any("version" in name.lower() for name in _names_in(node.test)):
        return True
    return any(_changes(each, of_libraries) for each in ast.walk(node))


def _changes(node: ast.AST, of_libraries: Container[str]) -> bool:
    """Whether a part of a statement gives one of the libraries a name, or changes where modules are found."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node.ctx, ast.Store | ast.Del) and root_name(node) in of_libraries:
            return True
        of_sys = isinstance(node, ast.Attribute) and node.attr in _OF_SYS
        return of_sys and (dotted_name(node.value) or "").rpartition(".")[2] == "sys"
    if isinstance(node, ast.ImportFrom):
        return node.module == "sys" and any(alias.name in (*_OF_SYS, "*") for alias in node.names)
    if isinstance(node, ast.Import):
        return any(alias.name == "sys" and alias.asname for alias in node.names)
    if isinstance(node, ast.Call) and dotted_name(node.func) == "setattr":
        return any(root_name(given) in of_libraries for given in node.args[:1])
    return False


def _names_in(test: ast.expr) -> Iterator[str]:
    """Every name in an expression, after a dot too."""
    for each in ast.walk(test):
        if isinstance(each, ast.Name | ast.Attribute):
            yield each.id if isinstance(each, ast.Name) else each.attr


EVERYTHING = ("training.", "trl.", "data.", "lora.", "quantization.", "model.", "generation.", "inference.", "run.")


def of_few_words(path: str, dialect: str, settings: Mapping[str, Setting], keys: Mapping[str, Setting]) -> Unit:
    """A unit of which nothing else is known, at the place of the first."""
    span = next(iter((settings or keys).values())).span
    return Unit(
        path=path,
        section=None,
        dialect=dialect,
        settings=settings,
        span=span,
        hidden=EVERYTHING,
        keys=keys,
        sets_up_nothing=True,
    )


def with_gone(
    units: Sequence[Unit], gone: Mapping[str, Setting], path: str, module: Module, dialect: str
) -> list[Unit]:
    """The units of a module with its imports in the first; of one that sets up no training, a unit of the imports
    alone, of which nothing else is known. What a file says that would not be read but for its imports counts; what it
    leaves out does not, as it may be no run at all."""
    if not gone:
        return list(units)
    if not units:
        return [of_few_words(path, dialect, gone, {})]
    first_unit = units[0]._replace(settings={**units[0].settings, **gone})
    every = [first_unit, *units[1:]]
    if describes_run(module.text.encode("utf-8", "surrogatepass")):
        return every
    return [unit._replace(hidden=tuple(dict.fromkeys((*unit.hidden, *EVERYTHING)))) for unit in every]
