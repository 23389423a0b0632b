"""Nodes of a config with their places, and how YAML reads a scalar."""

import re
from collections.abc import Callable, Iterator

import yaml

from kb.config.files import ConfigError
from kb.core.typed import Any, Protocol

CORE = "tag:yaml.org,2002:"
TEXT, MERGE, NULL = CORE + "str", CORE + "merge", CORE + "null"
SCALAR_TAGS = frozenset(CORE + name for name in ("str", "int", "float", "bool", "null"))
UNSET: Any = object()
MAX_DIGITS = 400  # longer numbers stay text: int() of thousands of digits is slow, and no setting has them

BOOLEANS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}
_RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = yaml.SafeLoader.yaml_implicit_resolvers
# What OmegaConf's loader reads as a number beside these (omegaconf 2.3.1, _utils.py, ``get_yaml_loader``).
_NUMBER_OF_OMEGACONF = (  # compiled where a program loads a file by it
    r"[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+"
    r"|\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?"
)
# YAML 1.2 and Python read these as numbers, YAML 1.1 as text: no point, an unsigned exponent, an 8 or 9 after a 0.
MOST_OF_EXPONENT = 3  # digits


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
    plain = text.strip()
    if len(text) > MAX_DIGITS or not plain.isascii():
        return None
    sign = "-" if plain[:1] == "-" else ""
    mantissa, raised, exponent = plain[plain[:1] in ("-", "+") :].replace("E", "e").partition("e")
    whole, point, fraction = mantissa.partition(".")
    exponent_sign = exponent[:1] if exponent[:1] in ("-", "+") else ""
    digits = exponent[len(exponent_sign) :]
    if not (whole + fraction).isdigit() or (raised and not (digits.isdigit() and len(digits) <= MOST_OF_EXPONENT)):
        return None
    whole = whole.lstrip("0") or "0"
    if not point and not raised:
        return int(sign + whole), sign + whole
    written = f"{sign}{whole}.{fraction or '0'}" + (f"e{exponent_sign or '+'}{digits}" if raised else "")
    return float(written), written


SCALAR, SEQUENCE, MAPPING = 0, 1, 2


class Mark(Protocol):
    """A place as a parser counts it: line, column and index from 0, in characters."""

    @property
    def index(self) -> int: ...
    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


class Place:
    """A mark of ours: index, line and column from 0."""

    __slots__ = ("column", "index", "line")

    def __init__(self, index: int, line: int, column: int) -> None:
        self.index, self.line, self.column = index, line, column


START = Place(0, 0, 0)


COMPOSED = "${"  # the style of a text that is put together of others: ``${model}_${size}``


class Node:
    """One value. Mutable only while it is composed.

    ``value`` is the text of a scalar, the items of a sequence or the pairs of a mapping, as written: duplicates are
    all there and merge keys are not yet merged. ``style`` is the quote of a scalar, ``|``, ``>``, ``json`` for a scalar
    of JSON, :data:`COMPOSED`, or empty for a plain one. ``size`` counts the nodes below, those behind an alias at
    every use.
    ``alias`` is true of ``*name``: its marks are the alias's own, its value that of the anchor.
    """

    __slots__ = ("_pairs", "alias", "data", "end", "flow", "kind", "merges", "size", "start", "style", "tag", "value")

    def __init__(self, kind: int, value: Any, tag: str | None, style: str, start: Mark, end: Mark | None) -> None:
        self.kind, self.value, self.tag, self.style = kind, value, tag, style
        self.start, self.end = start, end
        self.flow = True
        self.size = 1
        self.merges = False
        self.alias = False
        self.data: Any = UNSET
        self._pairs: list[tuple[Node, Node]] | None = None

    def aliased(self, start: Mark, end: Mark) -> "Node":
        """This value as an alias that stands elsewhere gives it."""
        node = Node(self.kind, self.value, self.tag, self.style, start, end)
        node.size, node.merges, node.data, node.alias = self.size, self.merges, self.data, True
        return node

    def pairs(self) -> list[tuple["Node", "Node"]]:
        """Key and value of each entry of a mapping, with merge keys (``<<``) followed as YAML 1.1 has it.

        Raises:
            ConfigError: a merge key names something other than a mapping.
        """
        if not self.merges:
            written: list[tuple[Node, Node]] = self.value
            return written
        if self._pairs is None:
            self._pairs = _merged(self)
        return self._pairs

    def entries(self) -> dict[str, tuple["Node", "Node"]]:
        """The entries that count, by the text of their key: of a repeated key, the last."""
        return {key.value: (key, value) for key, value in self.pairs()}

    def scalar(self) -> Any:
        """The value of a scalar as PyYAML's safe loader, or a JSON parser, gives it."""
        if self.data is UNSET:
            self.data = construct_scalar(self.value, self.tag, bool(self.style))
        return self.data

    def plain(self) -> Any:
        """The whole value as plain Python data: what a program that loads this text sees.

        Raises:
            ConfigError: a merge key names something other than a mapping.
        """
        if self.kind == SCALAR:
            return self.scalar()
        if self.kind == SEQUENCE:
            return [item.plain() for item in self.value]
        return {key.scalar(): value.plain() for key, value in self.pairs()}


def by_omegaconf(node: Node) -> Any:
    """The whole value as OmegaConf loads it: to its loader a plain ``2e-5`` or ``1.5e5`` is a number, a day is text."""
    if node.kind == SEQUENCE:
        return [by_omegaconf(item) for item in node.value]
    if node.kind == MAPPING:
        return {key.scalar(): by_omegaconf(value) for key, value in node.pairs()}
    number = number_of_omegaconf(node)
    if number is not None:
        return number
    day = not node.style and node.tag is None and plain_kind(node.value) == CORE + "timestamp"
    return node.value if day else node.scalar()


def number_of_omegaconf(node: Node) -> float | None:
    """The number that a scalar is to OmegaConf alone: ``2e-5`` and ``1.5e5`` are text to YAML 1.1."""
    if node.style or node.tag is not None or plain_kind(node.value) != TEXT or len(node.value) > MAX_DIGITS:
        return None
    return float(node.value.replace("_", "")) if re.fullmatch(_NUMBER_OF_OMEGACONF, node.value) else None


Duplicate = tuple[Node, Node, Node]  # the mapping, the key as first written, the key as written again


def is_merge_key(node: Node) -> bool:
    """Whether this key is YAML's ``<<``, unquoted."""
    return node.value == "<<" and not node.style and node.tag is None and plain_kind("<<") == MERGE


def _merged(node: Node) -> list[tuple[Node, Node]]:
    """As PyYAML flattens: what is merged comes first, so that what is written here wins."""
    merged: list[tuple[Node, Node]] = []
    own: list[tuple[Node, Node]] = []
    for key, value in node.value:
        if not is_merge_key(key):
            own.append((key, value))
            continue
        for source in reversed(list(_merge_sources(key, value))):
            merged += source.pairs()
    return merged + own


def _merge_sources(key: Node, value: Node) -> Iterator[Node]:
    for source in value.value if value.kind == SEQUENCE else (value,):
        if source.kind != MAPPING:
            raise ConfigError("config.merge", key.start.line + 1, key.start.column + 1)
        yield source
