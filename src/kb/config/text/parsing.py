"""A text as nodes: YAML, JSON or TOML, keys that are repeated, and how far a broken one can be read."""

import re
from collections.abc import Callable, Iterable, Iterator

import yaml
from yaml import events as ev

from kb.config.files import ConfigError
from kb.config.text import guard
from kb.config.text.encoding import stops_at_mark
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Duplicate, Mark, Node, Place, is_merge_key
from kb.config.text.source import BYTE_ORDER_MARK, Source
from kb.core.document import Event
from kb.core.finding import Edit, Span
from kb.core.typed import Any

_TAB_INDENT = r"^ *\t[ \t]*(?=\S)"
TAB_WIDTHS = (2, 4, 8)


class Parsed:
    """``documents`` in their order, None for an empty one; ``events`` about the text itself."""

    __slots__ = ("documents", "duplicates", "events", "source")

    def __init__(self, source: Source, documents: list[Node | None], duplicates: list[Duplicate]) -> None:
        self.source, self.documents, self.duplicates = source, documents, duplicates
        self.events: list[Event] = []


def parse(text: str, path: str) -> Parsed:
    """Read ``text`` as JSON, TOML or YAML, by the name of its file; where that does not tell, by its looks.

    Raises:
        ConfigError: it is neither, over a bound, or empty; with line and column where there is a place.
    """
    guard.check_size(text)
    body = text[1:] if text.startswith(BYTE_ORDER_MARK) else text
    parsed = _parse_body(body, text, path.lower())
    if body is not text and stops_at_mark(body, path):
        span = Span(1, 1, 1, 1, 0, 1)
        parsed.events.append(Event(kind="byte-order-mark", span=span, edits=(Edit("replace", "", "", span),)))
    if not any(document is not None and document.value for document in parsed.documents):
        if any(document is not None and document.kind == MAPPING for document in parsed.documents):
            raise ConfigError("config.no-settings")
        raise ConfigError("config.only-comments" if body.strip() else "config.empty")
    return parsed


def _parse_body(body: str, text: str, path: str) -> Parsed:
    shifts = None if body is text else [(0, 1)]
    if path.endswith(".json"):
        return _parse_json(body, text, shifts)
    if path.endswith(".toml"):
        from kb.config.text.toml_nodes import read_toml  # few configs are TOML

        return Parsed(Source(text, shifts), [read_toml(body)], [])
    if path.endswith((".yaml", ".yml")) or not body.lstrip().startswith("{"):
        return _parse_yaml(body, text, shifts)
    try:
        return _parse_json(body, text, shifts)
    except ConfigError:
        # JSON has its keys in quotes; without them it was YAML that someone meant.
        if body.lstrip()[1:].lstrip().startswith('"'):
            raise
        return _parse_yaml(body, text, shifts)


def _parse_json(body: str, text: str, shifts: list[tuple[int, int]] | None) -> Parsed:
    from kb.config.text.json_nodes import JsonReader  # most configs are YAML

    reader = JsonReader(body)
    document = reader.read()
    return Parsed(Source(text, shifts), [document], reader.duplicates)


def _parse_yaml(body: str, text: str, shifts: list[tuple[int, int]] | None) -> Parsed:
    composer = Composer()
    try:
        composer.compose(body)
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        fault = explain(error, body) if isinstance(error, yaml.YAMLError) else explain(yaml.YAMLError(), body)
        if fault.line is None or not re.search(_TAB_INDENT, body, re.MULTILINE):
            raise fault from None
        return _parse_tabbed(body, text, fault)
    return Parsed(Source(text, shifts), composer.documents, composer.duplicates)


def _parse_tabbed(body: str, text: str, fault: ConfigError) -> Parsed:
    """YAML allows no tab in indentation. Where each width of a tab gives the same data, that is what was meant."""
    readings = []
    for width in TAB_WIDTHS:
        spaced, shifts, tabs = _with_spaces(body, width, len(text) - len(body))
        composer = Composer()
        try:
            composer.compose(spaced)
        except (yaml.YAMLError, UnicodeEncodeError):
            continue
        data = [None if document is None else document.plain() for document in composer.documents]
        readings.append((data, composer, shifts, tabs))
    if not readings or any(repr(reading[0]) != repr(readings[0][0]) for reading in readings):
        raise fault
    _, composer, shifts, tabs = readings[0]
    parsed = Parsed(Source(text, shifts), composer.documents, composer.duplicates)
    places = parsed.source.places()
    edits = tuple(Edit("replace", "", spaces, places.span(start, end)) for start, end, spaces in tabs)
    first = edits[0].span
    assert first is not None
    parsed.events.append(Event(kind="tab-indent", span=first, edits=edits))
    return parsed


def _with_spaces(body: str, width: int, offset: int) -> tuple[str, list[tuple[int, int]], list[tuple[int, int, str]]]:
    """``body`` with spaces for the tabs of its indentation, the offsets where the two part, and what was replaced.

    ``offset`` is added to every place in the text as it is on disk.
    """
    pieces, shifts, tabs = [], [(0, offset)], []
    done, length = 0, 0
    for match in re.finditer(_TAB_INDENT, body, re.MULTILINE):
        spaces = match[0].expandtabs(width)
        pieces += [body[done : match.start()], spaces]
        length += match.start() - done + len(spaces)
        done = match.end()
        shifts.append((length, done + offset))
        tabs.append((match.start() + offset, match.end() + offset, spaces))
    return "".join((*pieces, body[done:])), shifts, tabs


_REST_OF_LINE = r"[ \t]*,?[ \t]*(?:(?<=[ \t,])#[^\n]*)?\r?(?:\n|\Z)"


def duplicate_events(duplicates: Iterable[Duplicate], source: Source) -> Iterator[Event]:
    """An event for each, at the key whose value is used, pointing to the earlier one.

    In YAML the same value written twice changes nothing; JSON with a repeated key is refused by some that read it.
    """
    known: dict[int, dict[int, Node]] = {}
    is_json = source.text.lstrip(BYTE_ORDER_MARK + " \t\r\n").startswith("{")
    for mapping, first, again in duplicates:
        values = known.get(id(mapping))
        if values is None:
            values = known[id(mapping)] = {id(key): value for key, value in mapping.value}
        first_span = source.between(first.start, first.end or first.start)
        used, dropped = _shown(values[id(again)], source), _shown(values[id(first)], source)
        if used == dropped and values[id(again)].kind == SCALAR and not is_json:
            continue
        yield Event(
            kind="duplicate-key",
            span=source.between(again.start, again.end or again.start),
            values={"key": again.value, "first_line": first_span.line, "used": used, "dropped": dropped},
            edits=_without(first, values[id(first)], source),
            related=(("first", first_span),),
        )


def _shown(node: Node, source: Source) -> str:
    if node.kind != SCALAR and not node.flow:
        return "{…}" if node.kind == MAPPING else "[…]"
    return source.excerpt(source.span(node))


def _without(key: Node, value: Node, source: Source) -> tuple[Edit, ...]:
    """The edit that takes an entry's lines away; none unless the entry has those lines to itself."""
    written, given = source.between(key.start, key.end or key.start), source.span(value)
    text = source.text
    between = text[written.end : given.start]
    # Behind an alias the value lies elsewhere; an anchor may be needed further on.
    if given.start < written.end or "&" in between or not value.flow or value.style in ("|", ">"):
        return ()
    start = text.rfind("\n", 0, written.start) + 1
    rest = re.compile(_REST_OF_LINE).match(text, given.end)
    if text[start : written.start].strip(" \t") or rest is None:
        return ()
    line, end_line = written.line, given.end_line + (1 if rest[0].endswith("\n") else 0)
    end_column = 1 if rest[0].endswith("\n") else given.end_column + len(rest[0])
    return (Edit("replace", "", "", Span(line, 1, end_line, end_column, start, rest.end())),)


# Without libyaml (the browser) the same events come from pure Python, about ten times slower.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Anchor and tag in either order, with the space after them, comments too where the value begins on a later line.
_PROPERTIES = r"(?:[&!][^\s,\[\]{}]*+[ \t]*+(?:(?:#[^\n]*+)?\r?\n[ \t]*+)*+)*+"


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
        return Place(found.end(), mark.line + lines, column)

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
