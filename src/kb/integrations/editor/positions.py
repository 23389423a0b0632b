"""Between kb's places (lines and columns from 1, in characters) and an editor's (from 0, in units of its encoding)."""

import re

from lsprotocol import types

from kb.core.finding import Span

_LINE_BREAK = re.compile("\n")  # a \r before it belongs to the line, as in kb's own places


class Positions:
    """The places of one text. ``encoding`` is the one that the client agreed to; UTF-16 where it said nothing."""

    def __init__(self, text: str, encoding: types.PositionEncodingKind | str) -> None:
        self._lines = _LINE_BREAK.split(text)
        self._encoding = types.PositionEncodingKind(encoding)

    def range(self, span: Span) -> types.Range:
        """The editor's range of a span; one that reaches over the text's end stops there."""
        return types.Range(
            start=self._position(span.line, span.column),
            end=self._position(span.end_line, span.end_column),
        )

    def at(self, line: int | None, column: int | None) -> types.Range:
        """The range of the one character at a place; without a place, the text's beginning."""
        line, column = line or 1, column or 1
        return self.range(Span(line, column, line, column + 1))

    def place(self, position: types.Position) -> tuple[int, int]:
        """kb's line and column of an editor's position."""
        text = self._lines[position.line] if position.line < len(self._lines) else ""
        units = 0
        for index, character in enumerate(text):
            if units >= position.character:
                return position.line + 1, index + 1
            units += self._width(character)
        return position.line + 1, len(text) + 1

    def _position(self, line: int, column: int) -> types.Position:
        line = min(max(line, 1), len(self._lines))
        before = self._lines[line - 1][: max(column - 1, 0)]
        return types.Position(line=line - 1, character=sum(map(self._width, before)))

    def _width(self, character: str) -> int:
        if self._encoding == types.PositionEncodingKind.Utf32:
            return 1
        if self._encoding == types.PositionEncodingKind.Utf8:
            return len(character.encode("utf-8", "surrogatepass"))
        return 2 if ord(character) > 0xFFFF else 1


def covers(span: Span, line: int, column: int) -> bool:
    """Whether a place lies in a span, or at its end, where a cursor rests after a word."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)
