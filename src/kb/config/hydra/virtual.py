"""One text made of several files, so that a place in it says which file it is in."""

import re
from bisect import bisect_right
from collections.abc import Callable

from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Mark, Node
from kb.config.text.source import Source
from kb.core.document import Event
from kb.core.finding import Edit, Span

Move = Callable[[Span], Span]


_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+\Z")


def is_omegaconf_float(node: Node) -> bool:
    """Whether this is ``5e-5``: text to YAML 1.1, a number to OmegaConf, whose loader has a pattern of its own."""
    return not node.style and node.tag is None and _EXPONENT.match(node.value) is not None


class _Mark:
    __slots__ = ("column", "index", "line")

    def __init__(self, index: int, line: int, column: int) -> None:
        self.index, self.line, self.column = index, line, column


class VirtualText:
    """Texts one after the other, and the way back from a place in the whole to the text it is in."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._lines: list[int] = []
        self._length = self._line_count = 0

    def add(self, text: str) -> int:
        """Append a text; its number."""
        self._starts.append(self._length)
        self._lines.append(self._line_count)
        whole = text if text.endswith("\n") else text + "\n"
        self._texts.append(whole)
        self._length += len(whole)
        self._line_count += whole.count("\n")
        return len(self._texts) - 1

    def whole(self) -> str:
        return "".join(self._texts)

    def number_of(self, span: Span) -> int:
        """Which text a place is in."""
        return max(bisect_right(self._starts, span.start) - 1, 0)

    def span(self, span: Span, number: int) -> Span:
        """A place of one text as a place of the whole."""
        line, start = self._lines[number], self._starts[number]
        return Span(
            span.line + line, span.column, span.end_line + line, span.end_column, span.start + start, span.end + start
        )

    def local(self, span: Span, number: int) -> Span:
        """A place of the whole as a place of one text."""
        line, start = self._lines[number], self._starts[number]
        return Span(
            span.line - line, span.column, span.end_line - line, span.end_column, span.start - start, span.end - start
        )

    def event(self, event: Event, number: int) -> Event:
        """An event in one text as one in the whole."""
        return moved_event(event, lambda span: self.span(span, number))

    def node(self, node: Node, source: Source, number: int) -> Node:
        """A copy of a value, merge keys followed, whose marks are places of the whole."""
        return _Mover(self, source, number).copy(node)


class _Mover:
    def __init__(self, virtual: VirtualText, source: Source, number: int) -> None:
        self._virtual, self._source, self._number = virtual, source, number

    def copy(self, node: Node) -> Node:
        value = node.value
        if node.kind == MAPPING:
            value = [(self.copy(key), self.copy(inner)) for key, inner in node.pairs()]
        elif node.kind == SEQUENCE:
            value = [self.copy(item) for item in node.value]
        end = None if node.end is None else self._mark(node.end)
        made = Node(node.kind, value, node.tag, node.style, self._mark(node.start), end)
        made.flow, made.size, made.alias = node.flow, node.size, node.alias
        if node.kind == SCALAR:
            made.data = float(node.value) if is_omegaconf_float(node) else node.data
        return made

    def _mark(self, mark: Mark) -> Mark:
        # what stands between two marks is of no matter here, only where they are in the file as it is on disk
        span = self._virtual.span(self._source.between(mark, mark), self._number)
        return _Mark(span.start, span.line - 1, span.column - 1)


def moved_event(event: Event, move: Move) -> Event:
    return event._replace(
        span=move(event.span),
        edits=tuple(moved_edit(edit, move) for edit in event.edits),
        related=tuple((name, move(span)) for name, span in event.related),
    )


def moved_edit(edit: Edit, move: Move) -> Edit:
    return edit if edit.span is None else edit._replace(span=move(edit.span))
