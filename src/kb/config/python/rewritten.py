"""Which keys of a config a program gives other values than the config says, as far as its text alone tells."""

import ast
from collections.abc import Collection, Iterator

from kb.config.python.forms import is_called
from kb.config.python.syntax import dotted_name
from kb.config.python.walk import CHANGING, root_name, walk

_COPIES = ("replace", "evolve", "model_copy", "merge", "_replace")  # config objects with other values in them
_FROM_ENVIRONMENT = ("getenv", "environ.get")
_CONFIG_WINS = ("set_defaults", "setattr(args", "setattr(self")  # what a file says goes over the defaults of flags


def rewritten(text: str, keys: Collection[str]) -> frozenset[str]:
    """The keys, of those that are asked about, that a program changes, or may: what it trains with is another value.

    Args:
        text: the program's, with that of the modules that it brings in.
        keys: those of the config.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    merging = set(_of_merging(tree))
    nodes = [node for node in ast.walk(tree) if node not in merging]
    if not any(isinstance(each, ast.Call) and _is_load(each) for each in nodes):
        return frozenset()
    holders = _holders(nodes, keys)
    if any(_changes_any(each, holders) for each in nodes) or _is_bound_anew(nodes, holders):
        return frozenset(keys)
    changed = set(walk(tree).stored) | _of_methods(nodes)
    flags_win = not any(each in text for each in _CONFIG_WINS)
    unset = set(_unset_flags(nodes))
    for node in nodes:
        changed.update(_set_by(node, flags_win=flags_win))
        changed.update(_computed_from(node, keys, unset))
    changed |= _assigned_again(nodes, keys)
    return frozenset(keys) & changed


def _of_merging(tree: ast.Module) -> Iterator[ast.AST]:
    """Functions that lay one mapping over another, whatever these hold: which of them the config is, who calls says."""
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef) and "merge" in each.name:
            yield from ast.walk(each)


def _key_read(node: ast.AST, keys: Collection[str]) -> tuple[str, str] | None:
    """The name and the key of ``config["batch"]`` and ``config.get("batch")``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in keys:
        return root_name(node.value) or "", str(node.slice.value)
    if isinstance(node, ast.Call) and is_called(node, ("get",)) and node.args and isinstance(node.func, ast.Attribute):
        key = node.args[0]
        if isinstance(key, ast.Constant) and key.value in keys:
            return root_name(node.func.value) or "", str(key.value)
    if isinstance(node, ast.Attribute) and node.attr in keys:
        return root_name(node.value) or "", node.attr
    return None


def _holders(nodes: Collection[ast.AST], keys: Collection[str]) -> set[str]:
    """The names by which a program asks for keys of the config, and those that stand for the same."""
    found = {read[0] for node in nodes if (read := _key_read(node, keys)) is not None} - {"", "self", "args"}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return found


def _changes_any(node: ast.AST, holders: Collection[str]) -> bool:
    """Whether any key may get another value here: ``config[key] = value``, ``config.update(vars(args))``, ``a | b``."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return not isinstance(node.slice, ast.Constant) and root_name(node.value) in holders
    if isinstance(node, ast.AugAssign):
        known = isinstance(node.value, ast.Dict) or (
            isinstance(node.value, ast.Call) and is_called(node.value, ("dict",))
        )
        return isinstance(node.op, ast.BitOr) and root_name(node.target) in holders and not known
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        given = node.args[0] if node.args else None
        plain = given is None or isinstance(given, ast.Constant | ast.Dict)
        return node.func.attr in ("update", "__setitem__") and root_name(node.func.value) in holders and not plain
    return False


def _is_bound_anew(nodes: Collection[ast.AST], holders: Collection[str]) -> bool:
    """Whether a name that holds the config gets another in its place: a second file, two that are put together."""
    for node in nodes:
        if not isinstance(node, ast.Assign) or not any(getattr(each, "id", "") in holders for each in node.targets):
            continue
        value = node.value
        if isinstance(value, ast.Dict):
            spread = [each for key, each in zip(value.keys, value.values, strict=True) if key is None]
            if len(spread) > 1 and root_name(spread[-1]) not in {*holders, *_loads(spread[-1])}:
                return True
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr) and root_name(value.right) not in holders:
            return not isinstance(value.right, ast.Dict)
    loads = [
        name.id
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_load(node.value)
        for name in node.targets
        if isinstance(name, ast.Name) and name.id in holders
    ]
    in_functions = any(isinstance(node, ast.FunctionDef) for node in nodes)  # of which each has names of its own
    return len(loads) != len(set(loads)) and not in_functions


def _loads(node: ast.expr) -> set[str | None]:
    """What stands for the config where it is loaded in place: ``{**defaults, **yaml.safe_load(file)}``."""
    return {root_name(node)} if isinstance(node, ast.Call) and _is_load(node) else set()


def _is_load(node: ast.Call) -> bool:
    return is_called(node, ("safe_load", "load", "full_load", "loads", "parse_yaml_file", "parse_json_file"))


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
        elif isinstance(given, ast.Call) and is_called(given, ("dict",)):
            yield from (each.arg for each in given.keywords if each.arg)
    elif isinstance(node, ast.Call) and (is_called(node, _COPIES) or (is_called(node, ("dict",)) and node.args)):
        yield from (each.arg for each in node.keywords if each.arg)
    elif isinstance(node, ast.Call) and is_called(node, ("add_argument",)) and flags_win and not _is_unset(node):
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
        if isinstance(node, ast.Call) and is_called(node, ("add_argument",)) and _is_unset(node):
            yield from _flag_names(node)


def _computed_from(node: ast.AST, keys: Collection[str], unset: Collection[str]) -> Iterator[str]:
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
        read = _key_read(each, keys)
        if read is not None:
            yield read[1]


def _assigned_again(nodes: Collection[ast.AST], keys: Collection[str]) -> set[str]:
    """The keys whose value stands under a name that gets another one too: ``b = config["batch"]``, ``b //= 2``."""
    held: dict[str, str] = {}
    count: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            count[node.id] = count.get(node.id, 0) + 1
        if isinstance(node, ast.Assign) and (read := _key_read(node.value, keys)) is not None:
            held |= {each.id: read[1] for each in node.targets if isinstance(each, ast.Name)}
    return {key for name, key in held.items() if count.get(name, 0) > 1}
