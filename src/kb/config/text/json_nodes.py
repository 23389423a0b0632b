"""JSON text → nodes with positions, under JSON's own rules: ``5e-5`` is a number here, and ``no`` is a mistake."""

import re
from typing import Any

from kb.config.files import ConfigError
from kb.config.text import guard
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Duplicate, Mark, Node, Place

_TOKEN = re.compile(
    r"""[ \t\n\r]*+(?:"""
    r"""(?P<string>"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+")"""
    r"""|(?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+(?![0-9A-Za-z_.]))"""
    r"""|(?P<word>-?[A-Za-z_][A-Za-z_0-9]*+)|(?P<mark>[\[\]{},:])|(?P<end>\Z)|(?P<bad>["/#]|[^\s,:"\[\]{}]++|.))""",
    re.DOTALL,
)
# Python's json reads and writes the last three, and so do the libraries that take these files.
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


class JsonPlace(Place):
    """A mark in a JSON text."""

    __slots__ = ()


class JsonReader:
    """Reads one JSON text; ``duplicates`` then holds the keys that were written again."""

    def __init__(self, text: str) -> None:
        self.duplicates: list[Duplicate] = []
        self._text = text
        self._at = 0
        self._line, self._line_start = 0, 0
        self._left = guard.MAX_EVENTS
        self._depth = 0

    def read(self) -> Node | None:
        """The value of the text; None where it is empty.

        Raises:
            ConfigError: it is not JSON, or over a bound.
        """
        kind, token, mark = self._next()
        if kind == "end":
            return None
        node = self._value(kind, token, mark)
        kind, token, mark = self._next()
        if kind != "end":
            raise self._fault(kind, token, mark, "config.json-after-end")
        return node

    def _next(self) -> tuple[str, str, JsonPlace]:
        """The next token: its kind, its text and where it starts. ``_at`` is then where it ends."""
        match = _TOKEN.match(self._text, self._at)
        assert match is not None and match.lastgroup is not None
        kind = match.lastgroup
        start = match.start(kind)
        newlines = self._text.count("\n", self._at, start)
        if newlines:
            self._line += newlines
            self._line_start = self._text.rfind("\n", self._at, start) + 1
        self._at = match.end()
        place = JsonPlace(start, self._line, start - self._line_start)
        self._left -= kind != "mark"
        if self._left < 0:
            raise guard.at(place, "config.too-many-values", limit=guard.MAX_EVENTS)
        return kind, match[kind], place

    def _here(self) -> JsonPlace:
        return JsonPlace(self._at, self._line, self._at - self._line_start)

    def _value(self, kind: str, token: str, mark: JsonPlace) -> Node:
        if kind == "mark" and token in "[{":
            self._depth += 1
            guard.check_depth(self._depth, mark)
            node = self._object(mark) if token == "{" else self._array(mark)
            self._depth -= 1
            return node
        node = Node(SCALAR, token, None, "json", mark, self._here())
        if kind == "string":
            node.value = node.data = _unquoted(token)
            node.style = '"'
        elif kind == "number":
            node.data = _number(token)
        elif kind == "word" and token in _WORDS:
            node.data = _WORDS[token]
        else:
            raise self._fault(kind, token, mark, "config.json-value")
        return node

    def _object(self, mark: JsonPlace) -> Node:
        node = Node(MAPPING, [], None, "", mark, None)
        seen: dict[str, Node] = {}
        kind, token, place = self._next()
        while token != "}" or kind != "mark":
            if kind != "string":
                raise self._fault(kind, token, place, "config.json-key")
            key = self._value(kind, token, place)
            first = seen.setdefault(key.value, key)
            if first is not key:
                self.duplicates.append((node, first, key))
                seen[key.value] = key
            kind, token, place = self._next()
            if (kind, token) != ("mark", ":"):
                raise self._fault(kind, token, place, "config.json-colon")
            value = self._value(*self._next())
            node.value.append((key, value))
            kind, token, place = self._after_item("}", mark)
        node.end = self._here()
        return node

    def _array(self, mark: JsonPlace) -> Node:
        node = Node(SEQUENCE, [], None, "", mark, None)
        kind, token, place = self._next()
        while token != "]" or kind != "mark":
            node.value.append(self._value(kind, token, place))
            kind, token, place = self._after_item("]", mark)
        node.end = self._here()
        return node

    def _after_item(self, closing: str, opened: JsonPlace) -> tuple[str, str, JsonPlace]:
        """The token after an item: the closing bracket, or what follows the comma."""
        kind, token, place = self._next()
        if kind == "end":
            raise guard.at(place, "config.unclosed-bracket", line_opened=opened.line + 1)
        if kind == "mark" and token == closing:
            return kind, token, place
        if kind != "mark" or token != ",":
            raise self._fault(kind, token, place, "config.json-comma")
        comma = place
        kind, token, place = self._next()
        if kind == "mark" and token == closing:
            raise guard.at(comma, "config.json-trailing-comma")
        return kind, token, place

    def _fault(self, kind: str, token: str, mark: Mark, key: str) -> ConfigError:
        if kind == "end":
            return guard.at(mark, "config.json-ends-early")
        if kind == "bad" and token == '"':
            return guard.at(mark, "config.json-string")
        if kind == "bad" and token in "/#":
            return guard.at(mark, "config.json-comment")
        return guard.at(mark, key, found=token if len(token) <= 40 else token[:39] + "…")


def _unquoted(token: str) -> str:
    if "\\" not in token:
        return token[1:-1]
    import json

    text: str = json.loads(token)
    return text


def _number(token: str) -> Any:
    if len(token) > 400:
        return token
    return float(token) if any(sign in token for sign in ".eE") else int(token)
