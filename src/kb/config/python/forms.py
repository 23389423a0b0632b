"""Forms of Python expressions that a reference passes through: annotations, fields, dictionaries, defaults."""

import ast
from typing import Any

from kb.config.python.arithmetic import UnknownValueError
from kb.config.python.syntax import dotted_name

_FIELDS = ("field", "Field")  # of dataclasses, of pydantic


def is_called(node: ast.Call, names: tuple[str, ...]) -> bool:
    """Whether this is called, by whatever holds it."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in names


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def class_named(annotation: ast.expr | None) -> str:
    """The class of ``Config``, ``"Config"``, ``Optional[Config]`` and ``Config | None``; empty of any other."""
    if isinstance(annotation, ast.Name):
        return annotation.id
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    if isinstance(annotation, ast.Subscript) and (dotted_name(annotation.value) or "").endswith("Optional"):
        return class_named(annotation.slice)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr) and is_none(annotation.right):
        return class_named(annotation.left)
    return ""


def field_default(value: ast.expr) -> ast.expr:
    """The default of ``field(default=…)``, ``field(default_factory=lambda: …)`` and pydantic's ``Field(…)``."""
    if not isinstance(value, ast.Call) or not is_called(value, _FIELDS):
        return value
    given = {each.arg: each.value for each in value.keywords}
    factory = given.get("default_factory")
    found = given.get("default") or (factory.body if isinstance(factory, ast.Lambda) else None)
    found = found or (value.args[0] if value.args and not factory else None)
    if found is None or (isinstance(found, ast.Constant) and found.value is ...):
        raise UnknownValueError
    return found


def pairs_of(node: ast.expr) -> list[tuple[Any, ast.expr]]:
    """The entries of a dictionary that is written out, the last first.

    Raises:
        UnknownValueError: one of its keys, or all it holds, cannot be told.
    """
    if isinstance(node, ast.Dict):
        if not all(isinstance(key, ast.Constant) for key in node.keys):
            raise UnknownValueError
        rows = [
            (key.value, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
        return rows[::-1]
    is_dict = isinstance(node, ast.Call) and dotted_name(node.func) == "dict" and not node.args
    if is_dict and isinstance(node, ast.Call) and all(each.arg for each in node.keywords):
        return [(each.arg, each.value) for each in node.keywords]
    raise UnknownValueError


def flag_value(text: str | None) -> Any:
    """A flag's default as the program has it."""
    if text is None:
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text
