"""A text as nodes: YAML, JSON or TOML, keys that are repeated, and how far a broken one can be read."""

import re
from collections.abc import Iterable, Iterator
from functools import cache

import yaml

from kb.config.files import ConfigError
from kb.config.text import guard
from kb.config.text.encoding import stops_at_mark
from kb.config.text.nodes import MAPPING, SCALAR, Node
from kb.config.text.source import BYTE_ORDER_MARK, Source
from kb.config.text.yaml_nodes import Composer, Duplicate, explain
from kb.core.document import Event
from kb.core.finding import Edit, Span


@cache  # compiled when a key is first repeated: it takes a millisecond
def _rest_of_line() -> re.Pattern[str]:
    return re.compile(r"[ \t]*,?[ \t]*(?:(?<=[ \t,])#[^\n]*)?\r?(?:\n|\Z)")


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
            values={
                "key": again.value,
                "first_line": first_span.line,
                "used": used,
                "dropped": dropped,
            },
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
    rest = _rest_of_line().match(text, given.end)
    if text[start : written.start].strip(" \t") or rest is None:
        return ()
    line, end_line = written.line, given.end_line + (1 if rest[0].endswith("\n") else 0)
    end_column = 1 if rest[0].endswith("\n") else given.end_column + len(rest[0])
    return (Edit("replace", "", "", Span(line, 1, end_line, end_column, start, rest.end())),)


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
