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
from kb.core.document import Setting, Unit
from kb.core.record import NamedTuple

_ASKS_RELEASE = ("version", "signature", "hasattr", "available")  # in what a program looks at before it gives a name


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

    Not of a call in a ``try``, or where the program asks which release it has: that one is prepared.

    Args:
        classes: called classes, each with its library and, of a trainer, the arguments that some release does not take.
    """
    called = [(call, name) for call in calls if (name := _trainer(call, names, path, sources, classes))]
    if not called or takes_more(module, names, path, sources):
        return TrainerArguments()
    prepared = {id(node) for node in _prepared(module.tree, False)}
    keys: dict[str, Setting] = {}
    for call, name in called:
        if id(call.node) in prepared:
            continue
        by_name = {keyword.arg for keyword in call.node.keywords}
        for each in given[call.number].known:
            if len(each.path) == 2 and each.path[1] in by_name:
                entry = (each.path, each.key, each.value)
                made = placed(each.value.plain(), entry, module.source, borrowed=False)
                keys.setdefault(name, made)
                keys.setdefault(f"{name}.{each.path[1]}", made)
    return TrainerArguments(keys, any(f"{name}.{key}" in keys for _, name in called for key in classes[name]["judged"]))


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


def _prepared(node: ast.AST, inside: bool) -> Iterator[ast.AST]:
    """The calls that a program makes only where it has looked whether they can be made."""
    if isinstance(node, ast.Call) and inside:
        yield node
    inside = inside or isinstance(node, ast.Try) or (isinstance(node, ast.If | ast.IfExp) and _asks(node.test))
    for each in ast.iter_child_nodes(node):
        yield from _prepared(each, inside)


def _asks(test: ast.expr) -> bool:
    """Whether a condition is about a release."""
    found = (each for each in ast.walk(test) if isinstance(each, ast.Name | ast.Attribute))
    words = [each.id if isinstance(each, ast.Name) else each.attr for each in found]
    return any(asked in word.lower() for word in words for asked in _ASKS_RELEASE)


def with_arguments(units: Sequence[Unit], found: TrainerArguments, path: str, dialect: str) -> list[Unit]:
    """The units of a module with what its calls give to trainers as keys of the first; of one that sets up no training,
    a unit of these alone where a release does not take one.
    """
    if not units:
        return [of_few_words(path, dialect, {}, found.keys)] if found.judged else []
    first, *others = units
    return [first._replace(keys={**found.keys, **first.keys}), *others] if found.keys else list(units)
