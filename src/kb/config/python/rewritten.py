"""Which keys of a config a program gives other values than the config says, as far as its text alone tells."""

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from functools import lru_cache

from kb.config.python.places import walk
from kb.config.python.syntax import called_name, dotted_name, parsed, root_name
from kb.core.record import NamedTuple

MOST_TEXTS = 64  # whose reading is kept
_LAYS_OVER = ("update", "__setitem__")
_COPIES = ("replace", "evolve", "model_copy", "merge", "_replace")  # config objects with other values in them
_FROM_ENVIRONMENT = ("getenv", "environ.get")
_CONFIG_WINS = ("set_defaults", "setattr(args", "setattr(self")  # what a file says goes over the defaults of flags


class _Told(NamedTuple):
    """What a source says, whatever keys are asked about: read once for all configs of a project."""

    reads: frozenset[tuple[str, str]]  # name and key of ``config["batch"]``
    aliases: tuple[tuple[frozenset[str], str], ...]  # names, and the name that they stand for from there on
    opened: frozenset[str]  # names of mappings of which any key may be changed
    bound: tuple["_Bound", ...]  # names that get a mapping made of several
    loads: tuple[str, ...]  # names that get what a file says
    in_functions: bool  # of which each has names of its own
    changed: frozenset[str]
    computed: frozenset[str]
    held: tuple[tuple[str, str], ...]  # a name, and the key that it gets the value of
    again: frozenset[str]  # names that get more than one value


class _Bound(NamedTuple):
    """``names = {**a, **b}`` or ``names = a | b``: what lies on top, and names that stand for it being the config."""

    names: frozenset[str]
    top: str | None
    harmless: frozenset[str | None]
    written: bool | None = None  # of ``|``: whether the keys on top are written out


def rewritten(text: str, keys: Collection[str]) -> frozenset[str]:
    """The keys, of those that are asked about, that a program changes, or may: what it trains with is another value.

    Args:
        text: the program's, with that of the modules that it brings in.
        keys: those of the config.
    """
    told = _told(text)
    if told is None:
        return frozenset()
    asked = frozenset(keys)
    holders = {name for name, key in told.reads if key in asked} - {"", "self", "args"}
    for names, name in told.aliases:
        if name in holders:
            holders |= names
    if not told.opened.isdisjoint(holders) or _is_bound_anew(told, holders):
        return asked
    held = {name: key for name, key in told.held if key in asked}
    again = {key for name, key in held.items() if name in told.again}
    return asked & (told.changed | told.computed | again)


@lru_cache(MOST_TEXTS)
def _told(text: str) -> _Told | None:
    """None of a text that is no Python, or that loads no file."""
    tree = parsed(text)
    if tree is None:
        return None
    merging = set(_of_merging(tree))
    nodes = [node for node in ast.walk(tree) if node not in merging]
    if not any(isinstance(each, ast.Call) and _is_load(each) for each in nodes):
        return None
    flags_win = not any(each in text for each in _CONFIG_WINS)
    unset = set(_unset_flags(nodes))
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    stores = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return _Told(
        reads=frozenset(read for node in nodes if (read := _key_read(node)) is not None),
        aliases=tuple((_named(each), each.value.id) for each in assigned if isinstance(each.value, ast.Name)),
        opened=frozenset(name for node in nodes if (name := _opened(node)) is not None),
        bound=tuple(found for each in assigned if (found := _bound(each)) is not None),
        loads=tuple(
            name
            for each in assigned
            if isinstance(each.value, ast.Call) and _is_load(each.value)
            for name in (getattr(target, "id", "") for target in each.targets)
            if name
        ),
        in_functions=any(isinstance(node, ast.FunctionDef) for node in nodes),
        changed=frozenset(walk(tree).stored | _of_methods(nodes)).union(
            *(_set_by(node, flags_win=flags_win) for node in nodes)
        ),
        computed=frozenset(key for node in nodes for key in _computed_from(node, unset)),
        held=tuple(
            (name, read[1])
            for each in assigned
            if (read := _key_read(each.value)) is not None
            for name in sorted(_named(each))
        ),
        again=frozenset(name for name, count in stores.items() if count > 1),
    )


def _named(node: ast.Assign) -> frozenset[str]:
    return frozenset(each.id for each in node.targets if isinstance(each, ast.Name))


def _of_merging(tree: ast.Module) -> Iterator[ast.AST]:
    """Functions that lay one mapping over another, whatever these hold: which of them the config is, who calls says."""
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef) and "merge" in each.name:
            yield from ast.walk(each)


def _key_read(node: ast.AST) -> tuple[str, str] | None:
    """The name and the key of ``config["batch"]``, ``config.get("batch")`` and ``config.batch``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return root_name(node.value) or "", str(node.slice.value)
    if isinstance(node, ast.Call) and called_name(node) == "get" and node.args and isinstance(node.func, ast.Attribute):
        key = node.args[0]
        if isinstance(key, ast.Constant):
            return root_name(node.func.value) or "", str(key.value)
    if isinstance(node, ast.Attribute):
        return root_name(node.value) or "", node.attr
    return None


def _opened(node: ast.AST) -> str | None:
    """The name of which any key may get another value here: ``config[key] = value``, ``config.update(vars(args))``,
    ``config |= other``.
    """
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return None if isinstance(node.slice, ast.Constant) else root_name(node.value)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
        made = called_name(node.value) == "dict"
        return None if made or isinstance(node.value, ast.Dict) else root_name(node.target)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LAYS_OVER:
        given = node.args[0] if node.args else None
        plain = given is None or isinstance(given, ast.Constant | ast.Dict)
        return None if plain else root_name(node.func.value)
    return None


def _bound(node: ast.Assign) -> _Bound | None:
    """A name that gets another mapping in its place, put together from several."""
    names, value = _named(node), node.value
    if isinstance(value, ast.Dict):
        spread = [each for key, each in zip(value.keys, value.values, strict=True) if key is None]
        top = spread[-1] if len(spread) > 1 else None
        loaded = isinstance(top, ast.Call) and _is_load(top)  # in place: {**defaults, **yaml.safe_load(file)}
        return None if top is None else _Bound(names, root_name(top), frozenset((root_name(top),) if loaded else ()))
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return _Bound(names, root_name(value.right), frozenset(), isinstance(value.right, ast.Dict))
    return None


def _is_bound_anew(told: _Told, holders: Collection[str]) -> bool:
    """Whether a name that holds the config gets another in its place: a second file, two that are put together."""
    for each in told.bound:
        if each.names.isdisjoint(holders) or each.top in holders or each.top in each.harmless:
            continue
        return not each.written
    loads = [name for name in told.loads if name in holders]
    return len(loads) != len(set(loads)) and not told.in_functions


def _is_load(node: ast.Call) -> bool:
    return called_name(node) in ("safe_load", "load", "full_load", "loads", "parse_yaml_file", "parse_json_file")


def _of_methods(nodes: Collection[ast.AST]) -> set[str]:
    """What methods beside ``__init__`` give the object that they belong to: ``__post_init__``."""
    return {
        target.attr
        for method in nodes
        if isinstance(method, ast.FunctionDef) and method.name == "__post_init__"
        for node in ast.walk(method)
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
    }


def _set_by(node: ast.AST, *, flags_win: bool) -> Iterator[str]:
    """The keys that one expression gives a value of its own, over what is there."""
    if isinstance(node, ast.Dict) and None in node.keys:  # {**config, "batch": 1}; before it, a default
        last = max(number for number, key in enumerate(node.keys) if key is None)
        yield from (str(key.value) for key in node.keys[last:] if isinstance(key, ast.Constant))
    elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.BitOr):
        given = node.right if isinstance(node, ast.BinOp) else node.value
        if isinstance(given, ast.Dict):
            yield from (str(key.value) for key in given.keys if isinstance(key, ast.Constant))
        elif isinstance(given, ast.Call) and called_name(given) == "dict":
            yield from (each.arg for each in given.keywords if each.arg)
    elif isinstance(node, ast.Call) and (called_name(node) in _COPIES or (called_name(node) == "dict" and node.args)):
        yield from (each.arg for each in node.keywords if each.arg)
    elif isinstance(node, ast.Call) and called_name(node) == "add_argument" and flags_win and not _is_unset(node):
        yield from _flag_names(node)


def _is_unset(flag: ast.Call) -> bool:
    """Whether a flag that the command line leaves out is None."""
    given = {each.arg: each.value for each in flag.keywords}
    default = given.get("default", ast.Constant(None))
    return isinstance(default, ast.Constant) and default.value is None


def _flag_names(flag: ast.Call) -> Iterator[str]:
    """The names that a program knows a flag by."""
    names = (each.value for each in flag.args if isinstance(each, ast.Constant))
    yield from (str(name).lstrip("-").replace("-", "_") for name in names)


def _unset_flags(nodes: Collection[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call) and called_name(node) == "add_argument" and _is_unset(node):
            yield from _flag_names(node)


def _computed_from(node: ast.AST, unset: Collection[str]) -> Iterator[str]:
    """The keys of which something else is made before it is used: ``args.batch or config["batch"]``.

    Args:
        unset: flags that are None unless the command line gives them.
    """
    behind: list[ast.expr] = []
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        first = node.values[0]
        behind = [] if isinstance(first, ast.Attribute) and first.attr in unset else node.values[1:]
    elif isinstance(node, ast.Call) and (dotted_name(node.func) or "").endswith(_FROM_ENVIRONMENT):
        behind = node.args[1:]
    for each in behind:
        read = _key_read(each)
        if read is not None:
            yield read[1]
