"""What calls of a library's trainers are given: some releases take it and others do not. Keys ``DPOTrainer.beta``."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.config.dialect.keys import placed
from kb.config.python.calls import Call
from kb.config.python.given import Arguments
from kb.config.python.gone import of_few_words
from kb.config.python.held import Sources
from kb.config.python.names import Names
from kb.config.python.own_classes import TRAINER, is_librarys_own, takes_more
from kb.config.python.syntax import Module, dotted_name
from kb.core.document import Setting, Unit, nth_call
from kb.core.record import NamedTuple

_OF_RELEASES = ("version", "signature")  # in names by which a program looks which release it has
_ASKS = (*_OF_RELEASES, "hasattr", "available")
_JUDGED_IN = ("hf", "trl")  # formats whose tables have such arguments


class TrainerArguments(NamedTuple):
    """What the calls of a module give to trainers; ``judged``: whether some release does not take one of them."""

    keys: Mapping[str, Setting] = {}
    judged: bool = False


def trainer_arguments(
    calls: Sequence[Call],
    given: Mapping[int, Arguments],
    module: Module,
    names: Names,
    path: str,
    sources: Sources,
    classes: Mapping[str, Any],
) -> TrainerArguments:
    """What is given by name to the library's own trainers, each once; a class that is called is a key too.

    Not where the program may be prepared for several releases: a call in a ``try``, one of several calls that differ.

    Args:
        classes: called classes, each with its library and, of a trainer, the arguments that some release does not take.
    """
    called = [(call, name) for call in calls if (name := _trainer(call, names, path, sources, classes))]
    if not called or takes_more(module, names, path, sources) or _looks_at_release(module.tree):
        return TrainerArguments()
    guarded = _guarded(module.tree)
    keys: dict[str, Setting] = {}
    for name in dict.fromkeys(name for _, name in called):
        own = [call for call, each in called if each == name]
        by_all = _given_by_all(classes[name], own, module.tree)
        for number, call in enumerate(own, 1):
            for each in given[call.number].known if id(call.node) not in guarded else ():
                if len(each.path) == 2 and each.path[1] in by_all:
                    entry = (each.path, each.key, each.value)
                    made = placed(each.value.plain(), entry, module.source, borrowed=False)
                    keys.setdefault(name, made)
                    keys[nth_call(f"{name}.{each.path[1]}", number)] = made
    return TrainerArguments(keys, len(keys) > len({name for _, name in called} & keys.keys()))


def _given_by_all(row: Mapping[str, Any], calls: Sequence[Call], tree: ast.Module) -> set[str]:
    """The arguments that some release does not take and that all calls of a class are given by name. Of one that the
    program gives in one call and not in another, or whose newer name it has somewhere, it may choose itself.
    """
    given = set.intersection(*({keyword.arg or "" for keyword in call.node.keywords} for call in calls))
    judged: Mapping[str, str | None] = row["judged"]
    nodes = list(ast.walk(tree))
    said = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    said |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {key for key, newer in judged.items() if key in given and newer not in said}


def _trainer(call: Call, names: Names, path: str, sources: Sources, classes: Mapping[str, Any]) -> str | None:
    """The library's trainer whose arguments a call takes: it is called, or a class built on it that adds none."""
    if call.kind.group != TRAINER or call.home is not None:
        return None
    written = dotted_name(call.node.func) or ""
    if names.is_class(written):
        bases = names.bases(written)
        if len(bases) != 1 or names.has_method(written, ("__init__", "__new__")):
            return None
        written = bases[0]
    name = written.rpartition(".")[2]
    row = classes.get(name, {})
    return name if "judged" in row and is_librarys_own(written, names, row["package"], path, sources) else None


def _guarded(tree: ast.Module) -> set[int]:
    """The calls that a program makes only where it has looked whether they can be made, or waits for them to fail."""
    found: set[int] = set()
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, inside = left.pop()
        if inside and isinstance(node, ast.Call):
            found.add(id(node))
        inside = inside or isinstance(node, ast.Try | ast.TryStar | ast.Match)
        inside = inside or (isinstance(node, ast.With | ast.AsyncWith) and _waits_to_fail(node))
        inside = inside or (isinstance(node, ast.If | ast.IfExp) and _has(node.test, _ASKS))
        left += [(each, inside) for each in ast.iter_child_nodes(node)]
    return found


def _waits_to_fail(node: ast.With | ast.AsyncWith) -> bool:
    return any(_has(item.context_expr, ("suppress", "raises")) for item in node.items)


def _looks_at_release(tree: ast.Module) -> bool:
    """Whether a program chooses by a release, or by what a signature has: what it then gives is its own matter."""
    nodes = list(ast.walk(tree))
    told = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign | ast.NamedExpr) and _has(node.value, _OF_RELEASES)
        for target in (node.targets if isinstance(node, ast.Assign) else (node.target,))
        if isinstance(target, ast.Name)
    }
    tests = [node.test for node in nodes if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert)]
    return any(_has(test, _OF_RELEASES) or not told.isdisjoint(_names_in(test)) for test in tests)


def _has(expression: ast.expr, words: Sequence[str]) -> bool:
    """Whether a name in an expression has one of the words in it."""
    return any(word in name.lower() for name in _names_in(expression) for word in words)


def _names_in(expression: ast.expr) -> Iterator[str]:
    for each in ast.walk(expression):
        if isinstance(each, ast.Name | ast.Attribute):
            yield each.id if isinstance(each, ast.Name) else each.attr


def with_arguments(units: Sequence[Unit], found: TrainerArguments, path: str, dialect: str) -> list[Unit]:
    """The units of a module with what its calls give to trainers as keys of the first training; of one that sets up
    none, a unit of these alone.
    """
    if not found.keys:
        return list(units)
    at = next((number for number, unit in enumerate(units) if unit.dialect in _JUDGED_IN), None)
    if at is None:
        return [*units, of_few_words(path, dialect, {}, found.keys)] if found.judged else list(units)
    own = units[at]._replace(keys={**found.keys, **units[at].keys})
    return [*units[:at], own, *units[at + 1 :]]
