"""From an offset in a text to its line and column, both from 1, in characters."""

from bisect import bisect_right

from kb.core.finding import Span


class Places:
    """The line starts of one text. A line ends at ``\\n``; a ``\\r`` before it belongs to the line."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        at = text.find("\n")
        while at >= 0:
            self._starts.append(at + 1)
            at = text.find("\n", at + 1)

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
