"""A text and the places in it: lines, columns, offsets."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

from kb.config.text.nodes import Mark, Node
from kb.core.document import Event
from kb.core.finding import Edit, Span

_LINE_FEED = "\n"


class Places:
    """The line starts of one text. A line ends at ``\\n``; a ``\\r`` before it belongs to the line."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(found.end() for found in re.finditer(_LINE_FEED, text))]

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


BYTE_ORDER_MARK = "\ufeff"
# YAML ends lines here too; editors and the rest of kb do not.
_ODD_LINE_ENDS = ("\x85", "\u2028", "\u2029")


class Source:
    """A text as it is on disk, and the text that was parsed in its stead.

    Args:
        text: the whole text; offsets count in it.
        shifts: pairs of offsets, in the parsed text and in ``text``: from the first on, both run alike until the next
            pair. None where both texts are the same.
    """

    def __init__(self, text: str, shifts: Sequence[tuple[int, int]] | None = None) -> None:
        self.text = text
        self._places: Places | None = None
        self._shifts = shifts
        odd = any(end in text for end in _ODD_LINE_ENDS) or text.count("\r") > text.count("\r\n")
        self._direct = shifts is None and not odd

    def places(self) -> Places:
        if self._places is None:
            self._places = Places(self.text)
        return self._places

    def span(self, node: Node) -> Span:
        """Where a node's own text stands; a block scalar's without the line end that closes it."""
        assert node.end is not None
        if node.style in ("|", ">"):
            start, end = self._offset(node.start.index), self._offset(node.end.index)
            return self.places().span(start, start + len(self.text[start:end].rstrip()))
        return self.between(node.start, node.end)

    def between(self, start: Mark, end: Mark) -> Span:
        if self._direct:
            return Span(start.line + 1, start.column + 1, end.line + 1, end.column + 1, start.index, end.index)
        return self.places().span(self._offset(start.index), self._offset(end.index))

    def place(self, mark: Mark) -> tuple[int, int]:
        """Line and column, from 1."""
        if self._direct:
            return mark.line + 1, mark.column + 1
        return self.places().at(self._offset(mark.index))

    def comment_after(self, offset: int) -> str:
        """The comment on the rest of the line, without ``#``; empty where there is none."""
        end = self.text.find("\n", offset)
        rest = self.text[offset : end if end >= 0 else None]
        if "#" not in rest:
            return ""
        before, _, comment = rest.partition("#")
        # Inside a flow collection other entries may stand between the value and the comment.
        if before.strip(" \t,]}") or (before and not before[-1].isspace()) or not before:
            return ""
        return comment.strip()

    def excerpt(self, span: Span, limit: int = 60) -> str:
        """The text of a span on one line, shortened."""
        text = " ".join(self.text[span.start : span.end].split())
        return text if len(text) <= limit else text[: limit - 1] + "…"

    def _offset(self, index: int) -> int:
        if self._shifts is None:
            return index
        parsed, original = self._shifts[max(bisect_right(self._shifts, (index, len(self.text) + 1)) - 1, 0)]
        return original + index - parsed


Move = Callable[[Span], Span]


def moved_event(event: Event, move: Move) -> Event:
    """An event of one text as one of another that holds it."""
    return event._replace(
        span=move(event.span),
        edits=tuple(moved_edit(edit, move) for edit in event.edits),
        related=tuple((name, move(span)) for name, span in event.related),
    )


def moved_edit(edit: Edit, move: Move) -> Edit:
    return edit if edit.span is None else edit._replace(span=move(edit.span))
