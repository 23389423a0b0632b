"""Values as Python writes them, in the manner of the text that they come into."""

from collections.abc import Mapping
from typing import Any

from kb.config.fixing.entries import CannotEditError


def as_python(value: Any, old: str = "", constants: Mapping[str, str] = {}) -> str:
    """``value`` as a Python literal; ``torch.bfloat16`` where ``torch.float16`` stood.

    Raises:
        CannotEditError: the value has no literal.
    """
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int | float):
        if value != value or value in (float("inf"), float("-inf")):
            raise CannotEditError("config.fix.value")
        return repr(value)
    if isinstance(value, str):
        return _named(value, old, constants) or _quoted(value, _quote_in(old))
    if isinstance(value, list | tuple):
        items = [as_python(item, _quote_in(old)) for item in value]
        if old.startswith("("):
            return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"
        return "[" + ", ".join(items) + "]"
    if isinstance(value, dict):
        inner = (f"{_quoted(str(key), _quote_in(old))}: {as_python(item, old)}" for key, item in value.items())
        return "{" + ", ".join(inner) + "}"
    raise CannotEditError("config.fix.value")


def _named(value: str, old: str, constants: Mapping[str, str]) -> str | None:
    """The constant beside the old one that means the value."""
    holder, dot, _ = old.rpartition(".")
    if not dot or not holder.replace(".", "_").isidentifier():
        return None
    short = holder.rpartition(".")[2]
    for name, meant in constants.items():
        owner, _, last = name.rpartition(".")
        if owner == short and (meant == value or last == "*"):
            return f"{holder}.{value if last == '*' else last}"
    return None


def _quoted(value: str, quote: str) -> str:
    if not value.isprintable() or quote in value or "\\" in value:
        return repr(value)
    return f"{quote}{value}{quote}"


def _quote_in(old: str) -> str:
    """The first quote that the old text has; double ones where it has none."""
    return next((character for character in old if character in "'\""), '"')
