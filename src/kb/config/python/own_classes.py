"""Classes of arguments by whose they are: a project's own, or the library's, and what that class never had."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kb.config.dialect.settings import Part
from kb.config.dialect.targets import Target
from kb.config.python.calls import Call, CallTable
from kb.config.python.held import Sources
from kb.config.python.lineage import Lineage, imports_of, of_library, reached
from kb.config.python.names import Names
from kb.config.python.places import Imported
from kb.config.python.syntax import Module, dotted_name

TRAINER = "trainer"  # the group of what is given the arguments
_TAKES_MORE = "unsloth"  # puts classes of its own in the place of TRL's, which take any name
# A class put in the place of a library's, or its arguments changed: `transformers.Trainer = A`, `Trainer.__init__ = a`
_PUTS = (
    r"\.(?:[A-Z]\w{0,60})?(?:Trainer|Arguments|Config)[ \t]*=(?!=)|\.__init__[ \t]*=(?!=)"
    r"|patch\([\"'](?:trl|transformers)\."
)


def as_based(call: Call, module: Module, names: Names, path: str, sources: Sources, table: CallTable) -> Call | None:
    """A call of a run as what the called class is built on, where the project defines a class of that name, in this
    module or in one that it is imported from. None where that is no library's: a dataclass ``SFTConfig``, say.
    A trainer of the project's own trains as the one of TRL's does that it is built on.
    """
    trains = call.kind.group == TRAINER and not call.kind.sets
    written = dotted_name(call.node.func)
    if not (trains or call.kind.dialect) or call.home is not None or not written:
        return call
    texts = _defining(written, module, names, path, sources)
    if not texts:
        return call
    lines = [Lineage(where, sources, table) for _, where, _ in texts]
    kind, *others = (line.kind_of(*each, called_here=each[1] == path) for line, each in zip(lines, texts, strict=True))
    if any(other != kind for other in others):
        kind = None
    if trains:
        same = kind is not None and kind.group == TRAINER
        return call._replace(kind=call.kind._replace(sets=kind.sets)) if kind is not None and same else call
    if kind is None or kind.dialect is None:
        return None
    return call._replace(kind=kind, declared=frozenset().union(*(line.fields for line in lines)))


def _defining(written: str, module: Module, names: Names, path: str, sources: Sources) -> list[tuple[str, str, str]]:
    """What a module has a class from: the name there, the path and the text of each of the project's modules; none
    where it may be from elsewhere.
    """
    first, dotted, _ = written.partition(".")
    imports = [found for _, found in names.imports_of(first)]
    here = [(written, path, module.text)]
    if dotted and not imports and names.binds(first):
        imports = imports_of(first, module.text)  # `import project.args`
    elif not dotted and (names.is_class(first) or any(names.imports_of("*"))):
        return here
    elif not dotted and not imports and names.binds(first):
        return here  # a function, or another name for a class
    if any(of_library(found) for found in imports):
        return []
    brought = [reached(written, found) for found in imports]
    found = [(each.name or first, sources.module(path, each)) for each in brought]
    texts = [(name, *where) for name, where in found if where is not None]
    return texts if len(texts) == len(brought) else []


def as_declared(part: Part, call: Call) -> Part:
    """What a call says, where its class declares fields of its own: their names are no matter of the library's. Nor is
    what a trainer is given a name of the class of arguments, of which the rules on names are.
    """
    if call.kind.group == TRAINER:
        part.settings |= {name: each._replace(declared=True) for name, each in part.settings.items()}
    if call.declared:
        part.settings |= {
            name: each._replace(declared=True)
            for name, each in part.settings.items()
            if each.path and each.path[-1] in call.declared
        }
        part.keys = part.keys.without(call.declared)
        part.events[:] = [event for event in part.events if event.values.get("key") not in call.declared]
    return part


def left_to_class(call: Call, targets: Mapping[str, list[Target]]) -> Iterator[str]:
    """The settings for which the call's class has a default of its own."""
    yield from (target.fact.name for name in sorted(call.declared) for target in targets.get(name, ()))


def never_had(
    calls: Collection[Call], module: Module, names: Names, path: str, sources: Sources, classes: Mapping[str, Any]
) -> dict[int, list[tuple[ast.keyword, Mapping[str, Any]]]]:
    """The keywords, by the number of their call, that no release of its class has, each with what is said of it.

    Only of the library's own class, as the module imports it: not of one that the project defines or changes.

    Args:
        classes: classes of arguments, each with its library and every name that any release of it takes.
    """
    known = [call for call in calls if call.home is None and call.name in classes]
    if not known or takes_more(module, names, path, sources):
        return {}
    found: dict[int, list[tuple[ast.keyword, Mapping[str, Any]]]] = {}
    for call in known:
        row = classes[call.name]
        takes = {*row["names"], *classes.get(row.get("base", ""), {"names": ()})["names"]}
        odd = [each for each in call.node.keywords if each.arg is not None and each.arg not in takes]
        written = dotted_name(call.node.func) or ""
        if odd and is_librarys_own(written, names, row["package"], path, sources) and not _is_tried(call, module.tree):
            said = {"class": call.name, "library": row["package"], "newest": row["newest"]}
            found[call.number] = [(each, {"key": str(each.arg), **said}) for each in odd]
    return found


def is_librarys_own(written: str, names: Names, package: str, path: str, sources: Sources) -> bool:
    """Whether a name as it is called can be nothing but the library's class."""
    first, last = written.partition(".")[0], written.rpartition(".")[2]
    brought = [found for _, found in names.imports_of(first)]
    if not brought or not names.is_imported_alone(first) or names.is_changed_in_place(first):
        return False
    if names.stored & {"__init__", last}:
        return False
    if any(each.level or each.module.partition(".")[0] != package for each in brought):
        return False
    whole = all(each.name in (None, last) for each in brought)  # `import TrainingArguments`, not of another name
    return whole and sources.module(path, Imported(package, 0, None)) is None


def _is_tried(call: Call, tree: ast.Module) -> bool:
    """Whether another call of the class waits for this one to fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(each is call.node for part in node.body for each in ast.walk(part)):
            handled = [each for handler in node.handlers for each in ast.walk(handler) if isinstance(each, ast.Call)]
            if any((dotted_name(each.func) or "").rpartition(".")[2] == call.name for each in handled):
                return True
    return False


def takes_more(module: Module, names: Names, path: str, sources: Sources) -> bool:
    """Whether classes that take any name may stand in the place of the library's."""
    return any(_TAKES_MORE in text or re.search(_PUTS, text) for text in _texts(module, names, path, sources))


def _texts(module: Module, names: Names, path: str, sources: Sources) -> Iterator[str]:
    """The module's own text, and those of the project's modules that it imports."""
    yield module.text
    for imported in names.every_import():
        found = sources.module(path, imported)
        if found is not None:
            yield found[1]
