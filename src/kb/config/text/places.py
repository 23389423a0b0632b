"""From an offset in a text to its line and column, both from 1, in characters."""

import re
from bisect import bisect_right

from kb.core.finding import Span

_LINE_FEED = re.compile("\n")


class Places:
    """The line starts of one text. A line ends at ``\\n``; a ``\\r`` before it belongs to the line."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(found.end() for found in _LINE_FEED.finditer(text))]

    def at(self, offset: int) -> tuple[int, int]:
        """Line and column of the character at ``offset``."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        """The offset of the character at a line and column."""
        return self._starts[line - 1] + column - 1

    def span(self, start: int, end: int) -> Span:
        """The span from ``start`` to ``end``, exclusive."""
        return Span(*self.at(start), *self.at(end), start, end)
