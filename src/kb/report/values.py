"""Values as a reader sees them: sizes, ratios, lists, unknowns. Every placeholder of every text is formatted here."""

import re
from collections.abc import Mapping
from typing import Any

from kb.core.expression import is_unknown
from kb.core.units import BYTES_PER_UNIT, GIB, MIB, format_bytes

UNKNOWN = "?"
MAX_SHOWN = 200  # characters of one value; a config may hold anything

# What a terminal would obey or reorder: control characters, bidirectional overrides, line separators, lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def printable(text: str) -> str:
    """``text`` with what a terminal would obey, instead of show, replaced by U+FFFD; one line."""
    return _UNPRINTABLE.sub("\ufffd", text)


def format_value(value: Any, form: str = "", kind: str | None = None, words: Mapping[str, str] | None = None) -> str:
    """One value in a placeholder's format.

    Args:
        value: a fact's value; None and :class:`~kb.core.expression.Unknown` are shown as ``?``.
        form: ``GiB``, ``GB``, ``MiB`` … (of bytes), ``%`` (of a ratio), ``.1f``, ``.1%``, ``,``, or empty.
        kind: the fact's type in vocabulary.yaml, which decides what an empty format means.
        words: texts by key, for ``value.true``, ``value.false`` and ``value.none`` (of an empty list).
    """
    if value is None or is_unknown(value):
        return UNKNOWN
    if isinstance(value, bool):
        default = "true" if value else "false"
        return words.get(f"value.{default}", default) if words else default
    if isinstance(value, int | float):
        return _number(value, form, kind)
    if isinstance(value, list | tuple):
        if kind == "version" or (kind is None and isinstance(value, tuple) and _all_whole(value)):
            return ".".join(str(part) for part in value)
        if not value:
            return words.get("value.none", "") if words else ""
        return _shorten(", ".join(format_value(item) for item in value))
    return _shorten(printable(str(value)))


def size(count: int) -> str:
    """A byte count in the unit that suits it: ``21.3 GiB``, ``512 MiB``; MiB under one GiB."""
    if abs(count) >= GIB:
        return format_bytes(count, "GiB")
    return format_bytes(count, "MiB") if abs(count) >= MIB or count == 0 else f"{count:,} B"


def _number(value: float, form: str, kind: str | None) -> str:
    if form.upper() in BYTES_PER_UNIT:
        return format_bytes(value, form)
    if form == "%":
        return f"{value * 100:.0f}%"
    if len(form) == 3 and form[0] == "." and form[1].isdecimal() and form[2] in "f%":
        scaled = value * 100 if form[2] == "%" else value
        return f"{scaled:,.{form[1]}f}{form[2] if form[2] == '%' else ''}"
    if kind == "bytes":
        return size(round(value))
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.6g}"
    whole = int(value)
    return f"{whole:,}" if form == "," or abs(whole) >= 10_000 else str(whole)


def _all_whole(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
