"""What a Python program loads from a file of data: its path written out, joined, or the default of a flag."""

import ast
from typing import TYPE_CHECKING, Any

from kb.config.python.arithmetic import UnknownValueError
from kb.config.python.forms import is_called
from kb.config.python.names import Names
from kb.config.python.places import Where

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

MAX_STEPS = 24  # from one name to the next
_READS = ("open", "read_text", "read", "Path")  # around the path of a file that is loaded


def loaded(own: "Expressions", names: Names, node: ast.Call, at: Where) -> Any:
    """What the file says that a call such as ``yaml.safe_load(open("run.yaml"))`` loads.

    Raises:
        UnknownValueError: the path cannot be told, the file is not there, or the call makes something else of it.
    """
    if not node.args or any(each.arg != "Loader" for each in node.keywords):
        raise UnknownValueError
    data = own.data(_path(own, names, node.args[0], at, 0))
    if data is None:
        raise UnknownValueError
    return data


def _path(own: "Expressions", names: Names, node: ast.expr, at: Where, depth: int) -> str:
    """The path of a file that is opened, read, or named."""
    if depth > MAX_STEPS:
        raise UnknownValueError
    if isinstance(node, ast.Name):
        scope = names.scope_of(node.id, at)
        opened = names.opened(node.id, scope) if scope is not None else None
        if opened is not None and opened.value is not None:
            return _path(own, names, opened.value, opened.where, depth + 1)
    if isinstance(node, ast.Call) and is_called(node, _READS):
        of_path = isinstance(node.func, ast.Attribute) and node.func.attr != "Path"
        inner = node.func.value if of_path and isinstance(node.func, ast.Attribute) else (*node.args, None)[0]
        if inner is None:
            raise UnknownValueError
        return _path(own, names, inner, at, depth + 1)
    data = own.read(node, at, depth + 1).data
    if type(data) is not str:
        raise UnknownValueError
    return data
