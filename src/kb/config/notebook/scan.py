"""A notebook's JSON → the source strings of its cells, each where it stands. Outputs are passed over, not read."""

import re
from collections.abc import Iterator

from kb.config.files import ConfigError
from kb.config.text.json_nodes import Place
from kb.core.record import NamedTuple

MAX_DEPTH = 1000
_STRING = re.compile(r'"([^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+)"')
_CLOSING = {"{": "}", "[": "]"}
_BLANK = re.compile(r"[ \t\n\r]*+")
_ATOM = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|true|false|null|NaN|-?Infinity")
# What stands between two brackets: texts in quotes, and lists and objects of at most two levels, are passed over whole.
_PLAIN = r"""[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+"""
_LEAVES = rf"{_PLAIN}(?:(?:\[{_PLAIN}\]|\{{{_PLAIN}\}}){_PLAIN})*+"
_TO_BRACKET = re.compile(rf"{_LEAVES}(?:(?:\[{_LEAVES}\]|\{{{_LEAVES}\}}){_LEAVES})*+", re.DOTALL)


class Cell(NamedTuple):
    """A code cell: its number among all cells, from 1, and its source as raw JSON strings, with their offsets."""

    number: int
    strings: tuple[tuple[int, int], ...]  # from after the opening quote to before the closing one
    listed: bool  # given as a list of strings, one for each line


def code_cells(text: str) -> list[Cell]:
    """The code cells of a notebook of nbformat 3 or 4.

    Raises:
        ConfigError: it is no JSON, or no notebook; with the place.
    """
    scan = _Scan(text)
    scan.blank()
    if text[scan.at : scan.at + 1] != "{":
        raise scan.fault("config.not-notebook")
    cells: list[Cell] = []
    seen = False
    for key in scan.members():
        if key == "cells":
            seen = True
            cells += scan.cells(0)
        elif key == "worksheets":  # nbformat 3
            seen = True
            for _ in scan.items():
                for inner in scan.members():
                    if inner == "cells":
                        cells += scan.cells(scan.counted)
                    else:
                        scan.skip()
        else:
            scan.skip()
    scan.blank()
    if scan.at < len(text):
        raise scan.fault("config.json-after-end", found=text[scan.at : scan.at + 40])
    if not seen:
        raise ConfigError("config.not-notebook", 1, 1)
    return cells


class _Scan:
    """A cursor in a JSON text."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.counted = text, 0, 0

    def blank(self) -> None:
        found = _BLANK.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def fault(self, key: str, **values: object) -> ConfigError:
        line = self.text.count("\n", 0, self.at)
        mark = Place(self.at, line, self.at - self.text.rfind("\n", 0, self.at) - 1)
        if self.at >= len(self.text):
            key, values = "config.json-ends-early", {}
        return ConfigError(key, mark.line + 1, mark.column + 1, **values)

    def members(self) -> Iterator[str]:
        """The keys of the object at the cursor; whoever asks reads or skips each value."""
        self._open("{")
        while not self._closed("}"):
            start, end = self.string()
            key = self.text[start:end]
            self.blank()
            if self.text[self.at : self.at + 1] != ":":
                raise self.fault("config.json-colon", found=self._found())
            self.at += 1
            self.blank()
            yield key
            self._comma("}")

    def items(self) -> Iterator[int]:
        """One turn for each item of the array at the cursor; whoever asks reads or skips it."""
        self._open("[")
        while not self._closed("]"):
            yield self.at
            self._comma("]")

    def cells(self, before: int) -> list[Cell]:
        """The code cells of the array at the cursor, counted on from ``before``."""
        found: list[Cell] = []
        self.counted = before
        for _ in self.items():
            self.counted += 1
            kind, listed = "", False
            source: tuple[tuple[int, int], ...] = ()
            for key in self.members():
                if key == "cell_type" and self._is('"'):
                    start, end = self.string()
                    kind = self.text[start:end]
                elif key in ("source", "input"):
                    listed = self._is("[")
                    source = self._strings()
                else:
                    self.skip()
            if kind == "code" and source:
                found.append(Cell(self.counted, source, listed))
        return found

    def string(self) -> tuple[int, int]:
        found = _STRING.match(self.text, self.at)
        if found is None:
            key = "config.json-string" if self._is('"') else "config.json-key"
            raise self.fault(key, found=self._found())
        self.at = found.end()
        return found.span(1)

    def skip(self) -> None:
        """Pass over the value at the cursor."""
        if self._is('"'):
            self.string()
            return
        if not self._is("{") and not self._is("["):
            found = _ATOM.match(self.text, self.at)
            if found is None:
                raise self.fault("config.json-value", found=self._found())
            self.at = found.end()
            return
        opened = [_CLOSING[self.text[self.at]]]
        self.at += 1
        while opened:
            found = _TO_BRACKET.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            bracket = self.text[self.at : self.at + 1]
            if bracket not in ("{", "[", "}", "]"):
                raise self.fault("config.json-string")
            if bracket in "{[":
                opened.append(_CLOSING[bracket])
                if len(opened) > MAX_DEPTH:
                    raise self.fault("config.too-deep", limit=MAX_DEPTH)
            elif bracket != opened.pop():
                raise self.fault("config.json-comma", found=bracket)
            self.at += 1

    def _strings(self) -> tuple[tuple[int, int], ...]:
        if self._is('"'):
            return (self.string(),)
        if not self._is("["):
            self.skip()
            return ()
        return tuple(self.string() for _ in self.items())

    def _is(self, character: str) -> bool:
        return self.text.startswith(character, self.at)

    def _open(self, bracket: str) -> None:
        if not self._is(bracket):
            raise self.fault("config.json-value", found=self._found())
        self.at += 1
        self.blank()

    def _closed(self, bracket: str) -> bool:
        if self._is(bracket):
            self.at += 1
            return True
        return False

    def _comma(self, closing: str) -> None:
        self.blank()
        if self._is(","):
            self.at += 1
            self.blank()
            if self._is(closing):
                raise self.fault("config.json-trailing-comma")
        elif not self._is(closing):
            raise self.fault("config.json-comma", found=self._found())

    def _found(self) -> str:
        return self.text[self.at : self.at + 40].split("\n")[0]
