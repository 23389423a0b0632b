"""Arithmetic, conversions, comparisons and questions to the GPU in a program's expressions: within bounds."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kb.config.python.held import Read, Symbol, UnknownValueError, elsewhere
from kb.config.python.places import Where
from kb.config.python.syntax import dotted_name
from kb.core.expression import Unknown
from kb.core.facts import NATIVE_BF16, NATIVE_BF16_IF_TRUE

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

MAX_NUMBER = 1e15
MAX_TEXT = 1000

_NUMERIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Collected(list[Any]):
    """The elements of a set, as written."""


def is_number(value: Any) -> bool:
    """Whether it is a number, or a truth value, which counts as one."""
    return isinstance(value, int | float)


def bounded(value: Any) -> Any:
    """The value, where it is no longer than any setting is.

    Raises:
        UnknownValueError: it is.
    """
    if isinstance(value, str | list | tuple) and len(value) > MAX_TEXT:
        raise UnknownValueError
    return value


def text_of(value: Any) -> str:
    """What ``str`` makes of a plain value.

    Raises:
        UnknownValueError: it is none.
    """
    if isinstance(value, Symbol) or not isinstance(value, str | int | float | None):
        raise UnknownValueError
    return str(value)


def operate(op: ast.operator, left: Any, right: Any) -> Any:
    """What Python makes of two known values.

    Raises:
        UnknownValueError: nothing, or nothing within bounds.
    """
    if isinstance(op, ast.Add) and type(left) is type(right) and type(left) in (str, list, tuple):
        return bounded(left + right)
    if not is_number(left) or not is_number(right) or max(abs(left), abs(right)) > MAX_NUMBER:
        raise UnknownValueError
    try:
        if isinstance(op, ast.Pow):
            if abs(right) > 64 or abs(left) > 1000:
                raise UnknownValueError
            result = left**right
        elif type(op) in _NUMERIC:
            result = _NUMERIC[type(op)](left, right)
        else:
            raise UnknownValueError
    except (ArithmeticError, ValueError):
        raise UnknownValueError from None
    if not is_number(result) or result != result or abs(result) > MAX_NUMBER:  # a complex one, or none
        raise UnknownValueError
    return result


def plain(data: Any) -> Any:
    """What a file says, as a program has it: dates and the like are no settings.

    Raises:
        UnknownValueError: it is none of the plain kinds.
    """
    if isinstance(data, str | bool | int | float | None):
        return data
    if isinstance(data, list):
        return [plain(each) for each in data]
    raise UnknownValueError


def collected(data: list[Any]) -> Collected:
    try:
        if len(set(data)) == len(data):
            return Collected(data)
    except TypeError:  # Python refuses lists and dictionaries in a set
        pass
    raise UnknownValueError


# What these say is known once the GPU is; of older GPUs newer versions of torch say yes too, so a no is not certain.
_ASKED = {"is_bfloat16_supported": NATIVE_BF16, "is_bf16_supported": NATIVE_BF16_IF_TRUE}
_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": text_of,
    "list": list,
    "tuple": tuple,
}
_TYPES = {each.__name__: each for each in (bool, int, float, str, list, tuple, dict)}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda one, other: _same(one, other),
    ast.IsNot: lambda one, other: not _same(one, other),
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


def _same(one: object, other: object) -> bool:
    """Whether two values are one object; of equal ones that are not None, True or False only the interpreter knows.

    Raises:
        UnknownValueError: they are equal, and may be one or two.
    """
    if one is not None and type(one) is type(other) and not isinstance(one, bool) and one == other:
        raise UnknownValueError
    return one is other


def compared(own: "Expressions", node: ast.Compare, at: Where, depth: int) -> Read:
    """``a == b``, ``a is not None``, ``a in (b, c)``, ``a > b``, of plain values."""
    if _asks_for_ampere(own, node, at):
        return Read(NATIVE_BF16, node)
    sides = [own.read(each, at, depth + 1).data for each in (node.left, *node.comparators)]
    asked = node.ops[0]
    compare = _COMPARISONS.get(type(asked))
    by_value = not isinstance(asked, ast.Is | ast.IsNot)
    if compare is None or len(sides) != 2 or any(_is_open(each, by_value=by_value) for each in sides):
        raise UnknownValueError
    try:
        if isinstance(asked, ast.In | ast.NotIn) and isinstance(sides[1], dict | Collected):
            hash(sides[0])
            sides[1] = list(sides[1])  # of a dictionary its keys are asked for
        if any(isinstance(each, Collected) for each in sides):  # sets compare otherwise than lists
            raise UnknownValueError
        return Read(bool(compare(*sides)), node, True)
    except TypeError:
        raise UnknownValueError from None


def _is_open(data: Any, *, by_value: bool) -> bool:
    """Whether only a run can tell what was read; ``by_value``: or a part of it."""
    if by_value and isinstance(data, dict | list | tuple):
        return any(_is_open(each, by_value=True) for each in (data.values() if isinstance(data, dict) else data))
    return isinstance(data, Unknown | Symbol)


def _asks_for_ampere(own: "Expressions", node: ast.Compare, at: Where) -> bool:
    """``torch.cuda.get_device_capability()[0] >= 8``, also of ``major, minor = …get_device_capability()``:
    these GPUs have bf16 themselves.
    """
    left, right = node.left, node.comparators[0]
    asked: ast.expr | None = None
    if isinstance(left, ast.Subscript) and isinstance(left.slice, ast.Constant) and left.slice.value == 0:
        asked = left.value
    elif isinstance(left, ast.Name):
        scope = own.names.scope_of(left.id, at)
        binding = own.names.unpacked.get((scope, left.id)) if scope is not None else None
        if scope is not None and binding is not None and own.names.unpacked_at[scope, left.id] == 0:
            asked = binding.value
    called = (dotted_name(asked.func) or "") if isinstance(asked, ast.Call) else ""
    eight = isinstance(right, ast.Constant) and right.value == 8 and type(node.ops[0]) is ast.GtE
    return eight and called.endswith("get_device_capability")


def called(own: "Expressions", node: ast.Call, at: Where, depth: int) -> Read:
    """``int(…)``, ``float(…)``, ``str(…)`` of something known; ``dict(a=1)``; ``getattr(torch, "bfloat16")``."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in own.names.all:
        name = ""  # the module's own function of that name
    if name == "dict" and not node.args and all(each.arg for each in node.keywords):
        return Read({str(each.arg): own.or_unknown(each.value, at, depth) for each in node.keywords}, node, at=at)
    if name == "getattr" and len(node.args) == 2:
        attribute = own.read(node.args[1], at, depth + 1).data
        if type(attribute) is not str:
            raise UnknownValueError
        meant = own.constants.get(f"{dotted_name(node.args[0])}.{attribute}")
        if meant is not None:
            return Read(Symbol(meant), node, True)
    asked = dotted_name(node.func) or ""
    last = asked.rpartition(".")[2]
    kind = _TYPES.get(getattr(node.args[1], "id", "")) if name == "isinstance" and len(node.args) == 2 else None
    if kind is not None:
        data = own.read(node.args[0], at, depth + 1).data
        if isinstance(data, Symbol | Collected):  # read as a text and as a list, which they are not
            raise UnknownValueError
        return Read(isinstance(data, kind), node, True)
    if last in _ASKED and not node.args and not node.keywords:
        return Read(_ASKED[last], node)
    if asked.endswith("cuda.is_available"):  # what is asked of kb is a run on a GPU
        return Read(True, node, True)
    if name not in _CONVERSIONS or len(node.args) != 1 or node.keywords:
        return own.referred(node, at, depth)
    inner = own.read(node.args[0], at, depth + 1)
    if name in ("list", "tuple") and not isinstance(inner.data, list | tuple):
        raise UnknownValueError
    if isinstance(inner.data, Symbol) or (isinstance(inner.data, Collected) and name != "bool"):
        raise UnknownValueError  # nobody knows the order of a set
    try:
        made = _CONVERSIONS[name](inner.data)
    except (TypeError, ValueError, OverflowError):
        raise UnknownValueError from None
    return Read(bounded(made), node, elsewhere(inner, node.args[0]), origin=inner.origin)
