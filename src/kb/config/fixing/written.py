"""A value as text: the shortest YAML that YAML 1.1 and 1.2 read alike, JSON, or a shell word."""

import json
import re
from typing import Any

from kb.config.text.nodes import TEXT, plain_kind

_SAFE_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+@-]*\Z")
_SAFE_WORD = re.compile(r"[A-Za-z0-9_./+@:,=%-]+\Z")
# What YAML 1.2 or an older reader takes for something else than text, beyond what YAML 1.1 resolves.
_OTHERWISE = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"))


def as_yaml(value: Any, old: str = "") -> str:
    """``value`` in YAML's flow style. ``old`` is the text that it takes the place of: its quotes and its case are kept.

    Raises:
        TypeError: the value is no boolean, number, text, None or list of such.
    """
    if isinstance(value, bool):
        return _in_case_of(old, "true" if value else "false")
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _text(value, old)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_yaml(item, _quote_in(old)) for item in value) + "]"
    raise TypeError(type(value).__name__)


def as_json(value: Any) -> str:
    """``value`` as JSON.

    Raises:
        ValueError: a number that JSON has no text for.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def as_words(value: Any, old: str = "") -> str:
    """``value`` as one shell word, or several for a list; quoted where the shell would read it otherwise."""
    if isinstance(value, bool):
        return _in_case_of(old, "True" if value else "False")
    if isinstance(value, list | tuple):
        return " ".join(as_words(item) for item in value)
    text = repr(value) if isinstance(value, float) else str(value)
    if _SAFE_WORD.match(text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def _in_case_of(old: str, word: str) -> str:
    if old.lower() not in ("true", "false"):
        return word
    return word.lower() if old.islower() else word.upper() if old.isupper() else word.capitalize()


def _float(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    # YAML 1.1 wants the point, and PyYAML the sign of the exponent too.
    return mantissa if not e else f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"


def _text(value: str, old: str) -> str:
    if old[:1] == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    plain = _SAFE_PLAIN.match(value) and plain_kind(value) == TEXT and value.lower() not in _OTHERWISE
    return value if plain and old[:1] != '"' else json.dumps(value, ensure_ascii=False)


def _quote_in(old: str) -> str:
    """The quote that a flow list's first item has."""
    first = old[1:].lstrip() if old[:1] == "[" else ""
    return first[:1] if first[:1] in ("'", '"') else ""
