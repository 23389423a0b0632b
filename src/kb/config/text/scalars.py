"""What YAML 1.1 makes of a scalar, as PyYAML reads it: the program that runs the config sees these values."""

import re
from collections.abc import Callable
from typing import Any

import yaml

CORE = "tag:yaml.org,2002:"
TEXT, MERGE, NULL = CORE + "str", CORE + "merge", CORE + "null"
SCALAR_TAGS = frozenset(CORE + name for name in ("str", "int", "float", "bool", "null"))
UNSET: Any = object()
MAX_DIGITS = 400  # longer numbers stay text: int() of thousands of digits is slow, and no setting has them

BOOLEANS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}
_RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = yaml.SafeLoader.yaml_implicit_resolvers
# YAML 1.2 and Python read these as numbers, YAML 1.1 as text: no point, an unsigned exponent, an 8 or 9 after a 0.
_EXPONENT = r"(?:[eE]([-+]?)([0-9]{1,3}))?"
_MEANT_NUMBER = re.compile(rf"([-+]?)([0-9]+)(\.[0-9]*)?{_EXPONENT}|([-+]?)(\.[0-9]+){_EXPONENT}")


def plain_kind(text: str) -> str:
    """The YAML 1.1 tag of an unquoted scalar."""
    for tag, pattern in _RESOLVERS.get(text[:1], ()):
        if pattern.match(text):
            return tag
    return TEXT


def construct_scalar(text: str, tag: str | None, quoted: bool) -> Any:
    """The value of a scalar; text where the tag's own form is not met or the number is beyond all use."""
    if tag is None:
        tag = TEXT if quoted else plain_kind(text)
    construct = _CONSTRUCT.get(tag)
    if construct is None or len(text) > MAX_DIGITS:
        return text
    try:
        return construct(text)
    except (ValueError, KeyError, OverflowError):
        return text


def _integer(text: str) -> int:
    text = text.replace("_", "")
    sign = -1 if text[0] == "-" else 1
    text = text[1:] if text[0] in "+-" else text
    if text == "0":
        return 0
    if text.startswith("0b"):
        return sign * int(text[2:], 2)
    if text.startswith("0x"):
        return sign * int(text[2:], 16)
    if text[0] == "0":
        return sign * int(text, 8)
    if ":" in text:
        return sign * int(_sixtieths(text, int))
    return sign * int(text)


def _float(text: str) -> float:
    text = text.replace("_", "").lower()
    sign = -1.0 if text[0] == "-" else 1.0
    text = text[1:] if text[0] in "+-" else text
    if text == ".inf":
        return sign * float("inf")
    if text == ".nan":
        return float("nan")
    if ":" in text:
        return sign * float(_sixtieths(text, float))
    return sign * float(text)


def _sixtieths(text: str, number: Callable[[str], float]) -> float:
    total: float = number("0")
    base = 1
    for part in reversed(text.split(":")):
        total += number(part) * base
        base *= 60
    return total


def _date(text: str) -> Any:
    node = yaml.ScalarNode(CORE + "timestamp", text)
    return yaml.constructor.SafeConstructor().construct_yaml_timestamp(node)


_CONSTRUCT: dict[str, Callable[[str], Any]] = {
    NULL: lambda text: None,
    CORE + "bool": lambda text: BOOLEANS[text.lower()],
    CORE + "int": _integer,
    CORE + "float": _float,
    CORE + "timestamp": _date,
}


def number_meant(text: str) -> tuple[float, str] | None:
    """The number that ``text`` looks like to a reader, and how YAML 1.1 writes it: ``5e-5`` is ``5.0e-5``.

    None where it is no decimal number. A whole number comes as an int.
    """
    match = _MEANT_NUMBER.fullmatch(text.strip())
    if match is None or len(text) > MAX_DIGITS:
        return None
    sign, whole, fraction, exponent_sign, exponent, *other = match.groups()
    if whole is None:
        sign, fraction, exponent_sign, exponent = other
        whole = "0"
    sign = "-" if sign == "-" else ""
    whole = whole.lstrip("0") or "0"
    if fraction is None and exponent is None:
        return int(sign + whole), sign + whole
    mantissa = f"{sign}{whole}.{(fraction or '.')[1:] or '0'}"
    written = mantissa if exponent is None else f"{mantissa}e{exponent_sign or '+'}{exponent}"
    return float(written), written
