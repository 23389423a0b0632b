"""What a program's own flags are where the command does not say them: read off its source, never run.

Flags are declared by the classes that ``HfArgumentParser`` and its like are given, by ``add_argument``, or by the
function that ``fire`` calls.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from kb.config.python.syntax import called_name, parsed
from kb.core.record import NamedTuple

_PARSERS = frozenset(("HfArgumentParser", "TrlParser", "H4ArgumentParser"))
_DECLARES = ("ArgumentParser", "TrlParser", "add_argument", "fire.Fire")
_SWITCHES = {"store_true": "False", "store_false": "True"}
LITERAL, YES_NO, ON, OFF, UNTOLD_MADE = "literal", "yes or no", "on", "off", "?"
_ACTIONS = {"store_true": ON, "store_false": OFF, "BooleanOptionalAction": ON}
MAX_BASES = 20  # of a class, one built on the other
_OF_FLAGS = re.compile(r"arg|opt|cfg|conf|param", re.I)  # what a program calls the flags that it has read


class Default(NamedTuple):
    """A flag's value where nothing is given, as a command would write it; None where there is none.

    Whether it ``can_be_told``, and whether it is a field of a class for ``HfArgumentParser`` (``of_class``). ``value``
    is the default as the source has it, ``spelt`` are all ways to write the flag, and ``made`` is what becomes of the
    text that a command gives; ``many`` where it takes several. ``others`` are flags that give the same name another
    value: ``--no_lora`` with ``dest="use_lora"``.
    """

    text: str | None
    can_be_told: bool = True
    of_class: bool = False
    value: ast.expr | None = None
    spelt: tuple[str, ...] = ()
    made: str = "str"
    many: bool = False
    others: tuple["Default", ...] = ()


Row = tuple[str, Default]
NOTHING, UNTOLD = Default(None), Default(None, can_be_told=False, made=UNTOLD_MADE)


@lru_cache(64)
def declared(own: str, imported: str = "") -> Mapping[str, Default]:
    """The flags of a program, without dashes and with _ for -.

    Args:
        own: its source.
        imported: that of the project's modules that it imports: a class that it uses may stand there, and the parser
            where its own source has none.

    One declared twice with different defaults and one that the program sets later cannot be told. Text that is no
    Python, and a program with commands of its own (``add_subparsers``), declares nothing.
    """
    if not any(mark in own or mark in imported for mark in _DECLARES):
        return {}
    mine, others = nodes_of(own), nodes_of(imported)
    classes: dict[str, ast.ClassDef] = {}
    for node in (*mine, *others):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, node)  # the program's own comes first
    for nodes in (mine, others):
        if any(called_name(node) in ("add_subparsers", "add_parser") for node in nodes):
            return {}
        rows, used = _rows(nodes, classes)
        if rows:
            found: dict[str, Default] = {}
            for name, value in rows:
                found[name] = _both(found[name], value) if name in found else value
            return found | dict.fromkeys(_set_later(nodes, used) & found.keys(), UNTOLD)
    return {}


def _both(one: Default, other: Default) -> Default:
    """A flag that is declared twice, or two flags of one ``dest`` with one default."""
    if one._replace(value=None) == other._replace(value=None):
        return other
    apart = {*one.spelt}.isdisjoint(other.spelt) and not one.of_class and not other.of_class
    alike = one.text == other.text and one.can_be_told and other.can_be_told
    return one._replace(others=(*one.others, other)) if apart and alike else UNTOLD


def nodes_of(text: str) -> list[ast.AST]:
    """Every node of a text; none of one that is no Python."""
    tree = parsed(text)
    return list(ast.walk(tree)) if tree is not None else []


def _rows(nodes: list[ast.AST], classes: Mapping[str, ast.ClassDef]) -> tuple[list[Row], list[ast.ClassDef]]:
    """What the parsers among these nodes declare, and the classes that they are given."""
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    rows: list[Row] = []
    used: list[ast.ClassDef] = []
    for node in nodes:
        called = called_name(node)
        if not isinstance(node, ast.Call) or not called:
            continue
        if called in _PARSERS and (node.args or node.keywords):
            given = node.args[0] if node.args else node.keywords[0].value
            for name in [each.id for each in ast.walk(given) if isinstance(each, ast.Name)]:
                chain = _chain(name, classes)
                used += chain
                rows += _of_classes(chain)
        elif called == "add_argument":
            rows += _of_argument(node)
        elif called == "Fire" and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in functions:
            rows += _of_function(functions[node.args[0].id])
    return rows, used


def _chain(name: str, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """A class and those of the project's own that it is built on."""
    chain: list[ast.ClassDef] = []
    waiting = [name]
    while waiting and len(chain) < MAX_BASES:
        found = classes.get(waiting.pop(0))
        if found is not None and found not in chain:
            chain.append(found)
            waiting += [each.id for each in found.bases if isinstance(each, ast.Name)]
    return chain


def _of_classes(chain: list[ast.ClassDef]) -> Iterator[Row]:
    """The fields of a class and of its bases; its own come first."""
    fields: set[str] = set()
    for each in chain:
        for node in each.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id not in fields:
                fields.add(node.target.id)
                made, many = _made_of(node.annotation)
                found = _of_field(node.value)
                yield node.target.id, found._replace(of_class=True, spelt=(node.target.id,), made=made, many=many)


def _made_of(annotation: ast.expr) -> tuple[str, bool]:
    """What ``HfArgumentParser`` makes of a text for a field of this type, and whether it takes several."""
    words = re.findall(r"\w+", ast.unparse(annotation))
    kinds = {each for each in words if each in ("str", "int", "float", "bool")}
    if len(kinds) != 1 or not {*words} <= {*kinds, "Optional", "None", "List", "list", "typing", "Union"}:
        return UNTOLD_MADE, False
    kind = kinds.pop()
    return YES_NO if kind == "bool" else kind, "List" in words or "list" in words


def _of_field(value: ast.expr | None) -> Default:
    if not isinstance(value, ast.Call):
        return _written(value)._replace(value=value)
    given = {each.arg: each.value for each in value.keywords}  # field(default=…, metadata=…)
    if "default_factory" in given or value.args:
        return UNTOLD
    return _written(given.get("default"))._replace(value=given.get("default"))


def _of_argument(call: ast.Call) -> Iterator[Row]:
    flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    given = {each.arg: each.value for each in call.keywords}
    action = given.get("action")
    switch = _SWITCHES.get(str(action.value)) if isinstance(action, ast.Constant) else None
    value = _written(given["default"]) if "default" in given else Default(switch)
    made = given.get("type")
    if isinstance(given.get("default"), ast.Constant) and isinstance(getattr(given["default"], "value", None), str):
        plain = made is None or getattr(made, "id", "") in ("str", "int", "float")
        value = value if plain else UNTOLD  # argparse makes something else of a text
    required = given.get("required")
    if isinstance(required, ast.Constant) and required.value is True:
        value = UNTOLD
    value = value._replace(
        value=given.get("default"),
        spelt=tuple(flag[2:].replace("-", "_") if flag.startswith("--") else flag for flag in flags),
        made=_made(given, action),
        many=isinstance(given.get("nargs"), ast.Constant),
    )
    dest = given.get("dest")
    if isinstance(dest, ast.Constant) and isinstance(dest.value, str) and f"--{dest.value}" not in flags:
        yield dest.value, value
    for flag in flags:
        if flag.startswith("--"):
            yield flag[2:].replace("-", "_"), value
        elif not flag.startswith("-"):  # by its place: a command always gives it
            yield flag, UNTOLD


def _of_function(function: ast.FunctionDef) -> Iterator[Row]:
    arguments = function.args
    placed = [*arguments.posonlyargs, *arguments.args]
    for argument, value in zip(placed[len(placed) - len(arguments.defaults) :], arguments.defaults, strict=True):
        yield argument.arg, _written(value)._replace(value=value, spelt=(argument.arg,), made=LITERAL)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield argument.arg, _written(default)._replace(value=default, spelt=(argument.arg,), made=LITERAL)


def _made(given: Mapping[str | None, ast.expr], action: ast.expr | None) -> str:
    """What ``add_argument`` makes of the text that a command gives, by its ``type`` and ``action``."""
    if action is not None and getattr(action, "value", "") != "store":
        named = action.value if isinstance(action, ast.Constant) else getattr(action, "attr", getattr(action, "id", ""))
        return _ACTIONS.get(str(named), UNTOLD_MADE)
    made = given.get("type")
    if made is None:
        return "str"
    name = getattr(made, "id", getattr(made, "attr", ""))
    if name in ("str", "int", "float", "bool"):
        return str(name)
    return YES_NO if "bool" in name.casefold() else UNTOLD_MADE


def _written(value: ast.expr | None) -> Default:
    """A constant as a command would write it; None and an empty text are nothing, anything else cannot be told, nor can
    what has to be given.
    """
    if value is None:
        return UNTOLD
    try:
        read = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return UNTOLD
    return as_default(read)


def as_default(value: Any) -> Default:
    """A value as a command would write it."""
    if value is None or value == "":
        return NOTHING
    return Default(str(value)) if isinstance(value, (str, bool, int, float)) else UNTOLD


def _set_later(nodes: list[ast.AST], used: list[ast.ClassDef]) -> set[str]:
    """The names that the program gives a value itself: ``args.max_length = 512``, ``parser.set_defaults(…)``,
    ``setattr(args, "max_length", 512)``, and ``self.max_length = 512`` in a class of flags.
    """
    found: set[str] = set()
    for node in nodes:
        for target in _targets(node):
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and is_of_flags(target.value.id)
            ):
                found.add(target.attr)
            elif isinstance(target, ast.Subscript) and called_name(target.value) == "vars":
                found.update(str(each.value) for each in ast.walk(target.slice) if isinstance(each, ast.Constant))
        if isinstance(node, ast.Call) and called_name(node) == "set_defaults":
            found.update(each.arg for each in node.keywords if each.arg)
        elif isinstance(node, ast.Call) and called_name(node) == "setattr" and len(node.args) == 3:
            found.update(str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant))
    for each in used:
        inner = (target for node in ast.walk(each) for target in _targets(node))
        found.update(target.attr for target in inner if isinstance(target, ast.Attribute))
    return found


@lru_cache(64)
def set_anyway(text: str) -> frozenset[str]:
    """The flags that a program gives a value of its own whatever a command says: ``args.targets = [...]``; not one that
    it fills in where a command leaves it out, ``if args.targets is None: …``.
    """
    nodes = nodes_of(text)
    filled = {
        target
        for node in nodes
        if isinstance(node, ast.If)
        for each in node.body
        for target in _set_later([each], [])
        if re.search(rf"\.{re.escape(target)} is None|not \w+\.{re.escape(target)}\b", ast.unparse(node.test))
    }
    return frozenset(_set_later(nodes, [])) - filled


def is_of_flags(name: str) -> bool:
    """Whether a name is what programs call the flags that they have read."""
    return name != "self" and _OF_FLAGS.search(name) is not None


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """What an assignment writes to, one by one."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    while targets:
        target = targets.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            targets += target.elts
        else:
            yield target
