"""Arithmetic of literals, ``4 * 2``: bounded, so that no file keeps it busy."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

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


class UnknownValueError(Exception):
    """The expression has no value that can be told from the text."""


class FromOutsideError(UnknownValueError):
    """What starts the program gives the value, and nothing else does."""


class Symbol(str):
    """The text that a library's own name stands for, ``torch.bfloat16``: as a setting it is the text, in any other
    place it is an object of the library.
    """


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
