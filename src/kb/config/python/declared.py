"""What a program's own flags are where the command does not say them: read off its source, never run.

Flags are declared by the classes that ``HfArgumentParser`` and its like are given, by ``add_argument``, or by the
function that ``fire`` calls.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache

_PARSERS = frozenset(("HfArgumentParser", "TrlParser", "H4ArgumentParser"))
_DECLARES = ("ArgumentParser", "TrlParser", "add_argument", "fire.Fire")
_SWITCHES = {"store_true": "False", "store_false": "True"}
MAX_BASES = 20  # of a class, one built on the other

Declared = Mapping[str, str | None]
"""Flag without its dashes, with _ for - → its default as a command would write it; None where it cannot be told."""


@lru_cache(64)
def declared(text: str) -> Declared:
    """The flags of a program with the values that they have where nothing is given.

    Args:
        text: its source, with that of the project's modules that it imports behind it.

    A flag without a default, one declared twice with different ones, and one that the program sets later are None. Text
    that is no Python declares nothing.
    """
    if not any(mark in text for mark in _DECLARES):
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a text is for the program's author to hear of
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    nodes = list(ast.walk(tree))
    found: dict[str, str | None] = {}
    for name, value in _all(nodes):
        found[name] = value if name not in found or found[name] == value else None
    return found | dict.fromkeys(_set_later(nodes) & found.keys())


def _all(nodes: list[ast.AST]) -> Iterator[tuple[str, str | None]]:
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _PARSERS and (node.args or node.keywords):
            given = node.args[0] if node.args else node.keywords[0].value
            for name in [each.id for each in ast.walk(given) if isinstance(each, ast.Name)]:
                yield from _of_class(name, classes)
        elif called == "add_argument":
            yield from _of_argument(node)
        elif called == "Fire" and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in functions:
            yield from _of_function(functions[node.args[0].id])


def _of_class(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, str | None]]:
    """The fields of a class and of those of the project's own that it is built on; its own come first."""
    seen: set[str] = set()
    fields: set[str] = set()
    waiting = [name]
    while waiting and len(seen) < MAX_BASES:
        at = waiting.pop(0)
        if at in seen or at not in classes:
            continue
        seen.add(at)
        waiting += [each.id for each in classes[at].bases if isinstance(each, ast.Name)]
        for node in classes[at].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id not in fields:
                fields.add(node.target.id)
                yield node.target.id, _of_field(node.value)


def _of_field(value: ast.expr | None) -> str | None:
    if isinstance(value, ast.Call):  # field(default=…, metadata=…)
        value = next((each.value for each in value.keywords if each.arg == "default"), None)
    return _written(value)


def _of_argument(call: ast.Call) -> Iterator[tuple[str, str | None]]:
    flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    names = [flag[2:].replace("-", "_") for flag in flags if flag.startswith("--")]
    given = {each.arg: each.value for each in call.keywords}
    action = given.get("action")
    switch = _SWITCHES.get(str(action.value)) if isinstance(action, ast.Constant) else None
    value = _written(given["default"]) if "default" in given else switch
    yield from ((name, value) for name in names)


def _of_function(function: ast.FunctionDef) -> Iterator[tuple[str, str | None]]:
    arguments = function.args
    placed = [*arguments.posonlyargs, *arguments.args]
    for argument, value in zip(placed[len(placed) - len(arguments.defaults) :], arguments.defaults, strict=True):
        yield argument.arg, _written(value)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield argument.arg, _written(default)


def _written(value: ast.expr | None) -> str | None:
    """A constant as a command would write it; None of anything else, of nothing and of an empty text."""
    try:
        read = None if value is None else ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return str(read) if isinstance(read, (str, bool, int, float)) and read != "" else None


def _set_later(nodes: list[ast.AST]) -> set[str]:
    """The names that the program gives a value itself once it has read its flags: ``args.max_length = 512``."""
    targets: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets.append(node.target)
    return {
        each.attr for each in targets
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id != "self"
    }  # fmt: skip
