"""YAML text → nodes, in one pass over the parser's events, bounded as it goes; libyaml where there is one."""

import re
from collections.abc import Callable
from typing import Any

import yaml
from yaml import events as ev

from kb.config.files import ConfigError
from kb.config.text import guard
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Mark, Node, is_merge_key

# Without libyaml (the browser) the same events come from pure Python, about ten times slower.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Anchor and tag in either order, with the space after them, comments too where the value begins on a later line.
_PROPERTIES = r"(?:[&!][^\s,\[\]{}]*+[ \t]*+(?:(?:#[^\n]*+)?\r?\n[ \t]*+)*+)*+"

Duplicate = tuple[Node, Node, Node]  # the mapping, the key as first written, the key as written again


class _Begin:
    """A mark where the parser gives none."""

    __slots__ = ("column", "index", "line")

    def __init__(self, index: int, line: int, column: int) -> None:
        self.index, self.line, self.column = index, line, column


class Composer:
    """Builds the documents of one YAML text; ``duplicates`` then holds the keys that were written again."""

    def __init__(self) -> None:
        self.documents: list[Node | None] = []
        self.duplicates: list[Duplicate] = []
        self._open: list[Node] = []
        self._keys: list[tuple[Node | None, dict[str, Node]]] = []
        self._anchors: dict[str, Node] = {}
        self._aliases = 0
        self._text = ""
        self._reached: Any = None  # where the last thing that has text of its own ends

    def compose(self, text: str, loader: Any = None) -> None:
        """Read every document of ``text``.

        Raises:
            ConfigError: it is over a bound, holds a tag that is not YAML's own, a cycle or an unknown alias.
            yaml.YAMLError: it is not YAML.
        """
        self._text = text
        parser = (loader or LOADER)(text)
        try:
            self._follow(parser.get_event)
        finally:
            parser.dispose()

    def _follow(self, next_event: Callable[[], Any]) -> None:
        left = guard.MAX_EVENTS
        while (kind := (event := next_event()).__class__) is not ev.StreamEndEvent:
            left -= 1
            if left < 0:
                raise guard.at(event.start_mark, "config.too-many-values", limit=guard.MAX_EVENTS)
            if kind is ev.ScalarEvent:
                self._scalar(event)
            elif kind is ev.MappingStartEvent:
                self._begin(MAPPING, event)
            elif kind is ev.SequenceStartEvent:
                self._begin(SEQUENCE, event)
            elif kind is ev.MappingEndEvent or kind is ev.SequenceEndEvent:
                self._finish(event)
            elif kind is ev.AliasEvent:
                self._alias(event)
            elif kind is ev.DocumentStartEvent:
                self._anchors = {}
                self.documents.append(None)

    def _scalar(self, event: Any) -> None:
        tag, style = event.tag, event.style or ""
        if tag == "!":
            tag, style = None, ""  # PyYAML resolves what stands behind a bare "!" as if it were plain, quoted or not
        elif tag is not None:
            guard.check_scalar_tag(tag, event.start_mark)
        start = (
            event.start_mark
            if event.tag is None and event.anchor is None
            else self._past_properties(event, scalar=True)
        )
        node = Node(SCALAR, event.value, tag, style, start, event.end_mark)
        self._reached = node.end
        if event.anchor:
            self._anchors[event.anchor] = node
        self._add(node, node.start)

    def _begin(self, kind: int, event: Any) -> None:
        guard.check_collection_tag(event.tag, kind == MAPPING, event.start_mark)
        guard.check_depth(len(self._open) + 1, event.start_mark)
        start = (
            event.start_mark
            if event.tag is None and event.anchor is None
            else self._past_properties(event, scalar=False)
        )
        node = Node(kind, [], None, "", start, None)
        node.flow = event.flow_style
        if event.anchor:
            self._anchors[event.anchor] = node
        self._open.append(node)
        self._keys.append((None, {}))

    def _past_properties(self, event: Any, *, scalar: bool) -> Mark:
        """Where the value itself begins: an anchor and a tag stand before it and are not to be replaced with it."""
        mark: Mark = event.start_mark
        found = re.compile(_PROPERTIES).match(self._text, mark.index)
        assert found is not None
        end: Mark = event.end_mark
        if scalar and found.end() > end.index:
            return end  # nothing but properties: an empty value
        lines = found[0].count("\n")
        column = mark.column + len(found[0]) if not lines else len(found[0]) - found[0].rfind("\n") - 1
        return _Begin(found.end(), mark.line + lines, column)

    def _finish(self, event: Any) -> None:
        node = self._open.pop()
        self._keys.pop()
        if node.flow or not node.value:
            self._reached = event.end_mark
        # A block's own end mark is where the next token begins, past blank lines and comments.
        node.end = self._reached
        self._add(node, node.start)

    def _alias(self, event: Any) -> None:
        self._aliases += 1
        if self._aliases > guard.MAX_ALIASES:
            raise guard.at(event.start_mark, "config.too-many-aliases", limit=guard.MAX_ALIASES)
        node = self._anchors.get(event.anchor)
        if node is None:
            raise guard.at(event.start_mark, "config.unknown-alias", name=event.anchor)
        if node.end is None:
            raise guard.at(event.start_mark, "config.cycle", name=event.anchor)
        self._reached = event.end_mark
        self._add(node.aliased(event.start_mark, event.end_mark), event.start_mark)

    def _add(self, node: Node, mark: Any) -> None:
        if not self._open:
            self.documents[-1] = node
            return
        parent = self._open[-1]
        parent.size += node.size
        guard.check_expanded(parent, mark)
        if parent.kind == SEQUENCE:
            parent.value.append(node)
            return
        key, seen = self._keys[-1]
        if key is None:
            self._keys[-1] = (node, seen)
            self._see_key(parent, node, seen, mark)
        else:
            parent.value.append((key, node))
            self._keys[-1] = (None, seen)

    def _see_key(self, parent: Node, key: Node, seen: dict[str, Node], mark: Any) -> None:
        if key.kind != SCALAR:
            doubled = key.kind == MAPPING and key.start.index == parent.start.index + 1  # `{{ name }}`
            raise guard.at(mark, "config.template" if doubled else "config.complex-key")
        if key.value == "<<" and is_merge_key(key):
            parent.merges = True
            return
        first = seen.setdefault(key.value, key)
        if first is not key:
            # "1" in quotes and a bare 1 are two keys to YAML.
            if first.scalar() == key.scalar():
                self.duplicates.append((parent, first, key))
            seen[key.value] = key


def explain(error: yaml.YAMLError, text: str) -> ConfigError:
    """What the parser stumbled over, in words of ours where the fault is a common one."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return _unprintable(text)
    problem, context = error.problem or "", error.context or ""
    mark = error.problem_mark
    opening = error.context_mark or mark
    if "quoted scalar" in context and ("end of stream" in problem or "document separator" in problem):
        return guard.at(opening, "config.unclosed-quote")
    if "flow" in context and "," in problem:
        return guard.at(mark, "config.unclosed-bracket", line_opened=opening.line + 1)
    if "mapping values are not allowed" in problem:
        return guard.at(mark, "config.colon")
    if _character(text, mark) == "\t" and ("cannot start any token" in problem or "tab character" in problem):
        return guard.at(mark, "config.tab")
    if "cannot start any token" in problem and _character(text, mark) in "%@`":
        return guard.at(mark, "config.reserved-character", character=_character(text, mark))
    if "could not find expected ':'" in problem:
        return guard.at(opening, "config.no-colon")
    if "block" in context and ("expected key" in problem or "expected '-'" in problem or "<block end>" in problem):
        return guard.at(mark, "config.indentation", line_opened=opening.line + 1)
    return guard.at(mark, "config.yaml-syntax", problem=problem)


def _character(text: str, mark: Any) -> str:
    return text[mark.index : mark.index + 1]


def _unprintable(text: str) -> ConfigError:
    """The first character that YAML does not allow in a text."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    offset = found.start() if found else 0
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return ConfigError("config.control-character", line, column, code=f"U+{ord(text[offset : offset + 1] or ' '):04X}")
