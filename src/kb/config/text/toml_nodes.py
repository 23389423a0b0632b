"""TOML text → nodes with positions. ``tomllib`` says whether it is TOML and what a value means; here stands where."""

import re
from bisect import bisect_right
from typing import Any

from kb.config.files import ConfigError
from kb.config.text import guard
from kb.config.text.json_nodes import JsonPlace
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*+")
_KEY = re.compile(r"""[ \t]*+(?P<key>[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+""")
_QUOTED = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}(?!")|\'\'\'.*?'{3,5}(?!')|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+\'''', re.DOTALL
)
_BARE = re.compile(r"\d{4}-\d\d-\d\d [^\s,\]}#]++|[^\s,\]}#]++")  # a time may stand behind its date and a blank
_AT = re.compile(r"^(.*) \(at line (\d+), column (\d+)\)$", re.DOTALL)


class TomlPlace(JsonPlace):
    """A mark in a TOML text."""

    __slots__ = ()


def read_toml(text: str) -> Node | None:
    """The tables of a text; None where it holds nothing.

    Raises:
        ConfigError: it is not TOML, at its line and column, or over a bound.
    """
    import tomllib  # most configs are YAML

    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = _AT.match(str(error))
        reason = found[1] if found is not None else str(error)
        place = (int(found[2]), int(found[3])) if found is not None else ()
        raise ConfigError("config.toml-syntax", *place, reason=reason) from None
    node = _TomlReader(text, tomllib.loads).read()
    return node if node.value else None


class _TomlReader:
    """Walks over a text that is known to be TOML."""

    def __init__(self, text: str, loads: Any) -> None:
        self._text, self._loads = text, loads
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._at = 0
        self._left = guard.MAX_EVENTS

    def read(self) -> Node:
        root = table = self._node(MAPPING, 0, [])
        root.flow = False
        while True:
            self._skip()
            if self._at >= len(self._text):
                return root
            if self._text.startswith("[", self._at):
                table = self._header(root)
            else:
                self._entry(table)

    def _header(self, root: Node) -> Node:
        """The table of a header: ``[a.b]``, or a new one of a list of tables, ``[[a.b]]``."""
        start = self._at
        listed = self._text.startswith("[[", start)
        self._at += 2 if listed else 1
        keys = self._keys()
        self._at += 2 if listed else 1
        outer = root
        for key in keys[:-1]:
            outer = self._inner(outer, key)
        if not listed:
            return self._inner(outer, keys[-1])
        table = self._node(MAPPING, start, [])
        table.flow, table.end = False, self._place(self._at)
        found = outer.entries().get(keys[-1].value)
        several = found[1] if found is not None else self._node(SEQUENCE, start, [])
        if found is None:
            several.flow = False
            outer.value.append((keys[-1], several))
        several.value.append(table)
        several.end = table.end
        return table

    def _entry(self, table: Node) -> None:
        keys = self._keys()
        for key in keys[:-1]:
            table = self._inner(table, key)
        self._at += 1  # the sign =
        self._skip()
        value = self._value(len(keys))
        table.value.append((keys[-1], value))
        table.end = value.end

    def _inner(self, table: Node, key: Node) -> Node:
        """The table under a key, made where there is none; of a list of tables, the last."""
        found = table.entries().get(key.value)
        if found is not None:
            node = found[1]
            return node.value[-1] if node.kind == SEQUENCE else node
        made = self._node(MAPPING, key.start.index, [])
        made.flow, made.end = False, key.end
        table.value.append((key, made))
        return made

    def _keys(self) -> list[Node]:
        """The parts of a key, ``a."b c".d``; ``_at`` is then behind them."""
        keys: list[Node] = []
        while True:
            match = _KEY.match(self._text, self._at)
            assert match is not None
            written = match["key"]
            quote = written[0] if written[0] in "\"'" else ""
            name = next(iter(self._loads(f"{written}=0"))) if quote else written
            key = self._node(SCALAR, match.start("key"), name, style=quote)
            key.data, key.end = name, self._place(match.end("key"))
            keys.append(key)
            guard.check_depth(len(keys), key.start)
            self._at = match.end()
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _value(self, depth: int) -> Node:
        start = self._at
        sign = self._text[start]
        if sign in "[{":
            node = self._node(SEQUENCE if sign == "[" else MAPPING, start, [])
            guard.check_depth(depth, node.start)
            self._at += 1
            self._items(node, "]" if sign == "[" else "}", depth + 1)
        else:
            match = (_QUOTED if sign in "\"'" else _BARE).match(self._text, start)
            assert match is not None
            written = match[0]
            data = self._loads("v=" + written)["v"]
            node = self._node(SCALAR, start, data if sign in "\"'" else written, style='"' if sign in "\"'" else "json")
            node.data = data
            self._at = match.end()
        node.end = self._place(self._at)
        return node

    def _items(self, node: Node, closing: str, depth: int) -> None:
        """The items of a list, or the entries of a table that stands in one line."""
        self._skip()
        while not self._text.startswith(closing, self._at):
            if node.kind == SEQUENCE:
                node.value.append(self._value(depth))
            else:
                self._entry(node)
            self._skip()
            if self._text.startswith(",", self._at):
                self._at += 1
                self._skip()
        self._at += 1

    def _skip(self) -> None:
        match = _BLANK.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _node(self, kind: int, start: int, value: Any, style: str = "") -> Node:
        place = self._place(start)
        self._left -= 1
        if self._left < 0:
            raise guard.at(place, "config.too-many-values", limit=guard.MAX_EVENTS)
        return Node(kind, value, None, style, place, place)

    def _place(self, index: int) -> TomlPlace:
        line = bisect_right(self._starts, index) - 1
        return TomlPlace(index, line, index - self._starts[line])
