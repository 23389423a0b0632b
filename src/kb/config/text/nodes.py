"""The tree of a config text: scalars, mappings and sequences, each with the marks where it begins and ends."""

from collections.abc import Iterator
from typing import Any, Protocol

from kb.config.files import ConfigError
from kb.config.text.scalars import MERGE, UNSET, construct_scalar, plain_kind

SCALAR, SEQUENCE, MAPPING = 0, 1, 2


class Mark(Protocol):
    """A place as a parser counts it: line, column and index from 0, in characters."""

    @property
    def index(self) -> int: ...
    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


class Node:
    """One value. Mutable only while it is composed.

    ``value`` is the text of a scalar, the items of a sequence or the pairs of a mapping, as written: duplicates are
    all there and merge keys are not yet merged. ``style`` is the quote of a scalar, ``|``, ``>``, ``json`` for a scalar
    of JSON, or empty for a plain one. ``size`` counts the nodes below, those behind an alias at every use.
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
