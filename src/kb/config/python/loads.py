"""What a Python program loads from a file of data: its path written out, joined, or the default of a flag."""

import ast
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb.config.python.arithmetic import FromOutsideError, UnknownValueError
from kb.config.python.forms import is_called
from kb.config.python.held import Held, Loaded, Origin
from kb.config.python.names import Names
from kb.config.python.places import Where
from kb.config.python.syntax import dotted_name
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

MAX_STEPS = 24  # from one name to the next
_READS = (
    "open",
    "read_text",
    "read",
    "Path",
    "str",
    "resolve",
    "absolute",
    "abspath",
    "expanduser",
)  # around the path of a file that is loaded


class _Path(NamedTuple):
    """The path of a file; ``joined`` where it is put together of several parts."""

    text: str
    joined: bool = False


def loaded(own: "Expressions", names: Names, node: ast.Call, at: Where) -> Loaded:
    """What the file says that a call such as ``yaml.safe_load(open("run.yaml"))`` loads.

    Of a program that is given a config, that is what it loads by a path that its command line gives.

    Raises:
        UnknownValueError: the path cannot be told, the file is not there, or the call makes something else of it.
    """
    if not node.args or any(each.arg != "Loader" for each in node.keywords):
        raise UnknownValueError
    shared = own.shared
    before, shared.by_default = shared.by_default, False
    given = shared.config
    try:
        path = _path(own, names, node.args[0], at, 0)
        outside = shared.by_default and not path.joined
    except FromOutsideError:
        if given is None:
            raise
        path, outside = _Path(given.path), True
    if given is not None and outside:
        shared.by_default = before
        return Loaded(given.root.plain(), Origin(given, given.root))
    shared.by_default |= before
    found = own.data(path.text)
    if found is None:
        raise UnknownValueError
    if given is not None and os.path.abspath(found[0]) == os.path.abspath(given.path):
        return Loaded(given.root.plain(), Origin(given, given.root))
    return Loaded(found[1])


def _path(own: "Expressions", names: Names, node: ast.expr, at: Where, depth: int) -> _Path:
    """The path of a file that is opened, read, or named; of one that begins at the program's own, what follows."""
    if depth > MAX_STEPS:
        raise UnknownValueError
    if isinstance(node, ast.Name):
        scope = names.scope_of(node.id, at)
        opened = names.opened(node.id, scope) if scope is not None else None
        if opened is not None and opened.value is not None:
            return _path(own, names, opened.value, opened.where.told(at), depth + 1)
        bound = own.bound(node.id, at)
        if bound is not None and isinstance(bound.value, ast.Call | ast.BinOp | ast.Attribute | ast.Subscript):
            return _path(own, names, bound.value, bound.where.told(at), depth + 1)
    if _is_own_folder(node):
        return _Path(".")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _joined(own, names, (node.left, node.right), at, depth)
    if isinstance(node, ast.Call) and (dotted_name(node.func) or "").endswith("path.join"):
        return _joined(own, names, node.args, at, depth)
    if isinstance(node, ast.Call) and is_called(node, _READS):
        of_path = isinstance(node.func, ast.Attribute) and node.func.attr != "Path"
        inner = node.func.value if of_path and isinstance(node.func, ast.Attribute) else (*node.args, None)[0]
        if inner is None:
            raise UnknownValueError
        return _path(own, names, inner, at, depth + 1)
    if isinstance(node, ast.Subscript) and dotted_name(node.value) == "sys.argv":
        raise FromOutsideError
    found = own.references.follow(node, at, depth + 1)
    if isinstance(found, Held) and found.value is not node:  # an argument: what the caller gives for it
        return _path(found.owner, found.owner.names, found.value, found.at, depth + 1)
    data = found.data if isinstance(found, Loaded) else own.read(node, at, depth + 1).data
    if data is None and own.shared.by_default:
        raise FromOutsideError
    if type(data) is not str:
        raise UnknownValueError
    return _Path(data)


def _joined(own: "Expressions", names: Names, parts: Sequence[ast.expr], at: Where, depth: int) -> _Path:
    try:
        found = [_path(own, names, each, at, depth + 1) for each in parts]
    except FromOutsideError:
        raise UnknownValueError from None
    return _Path("/".join(each.text for each in found), joined=True)


def _is_own_folder(node: ast.expr) -> bool:
    """``Path(__file__).parent.parent``, ``os.path.dirname(__file__)``: a folder above the program, where its files are
    looked for.
    """
    inside = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    goes_up = bool(names & {"parent", "parents", "dirname"})
    return goes_up and "__file__" in inside and not any(isinstance(each, ast.BinOp) for each in ast.walk(node))
