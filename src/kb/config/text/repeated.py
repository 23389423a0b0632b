"""Keys written again in one mapping: loaders keep the last without a word, so the earlier value is lost."""

import re
from collections.abc import Iterable, Iterator
from functools import cache

from kb.config.text.nodes import MAPPING, SCALAR, Node
from kb.config.text.source import Source
from kb.config.text.yaml_nodes import Duplicate
from kb.core.document import Event
from kb.core.finding import Edit, Span


@cache  # compiled when a key is first repeated: it takes a millisecond
def _rest_of_line() -> re.Pattern[str]:
    return re.compile(r"[ \t]*,?[ \t]*(?:(?<=[ \t,])#[^\n]*)?\r?(?:\n|\Z)")


def duplicate_events(duplicates: Iterable[Duplicate], source: Source) -> Iterator[Event]:
    """An event for each, at the key whose value is used, pointing to the earlier one."""
    known: dict[int, dict[int, Node]] = {}
    for mapping, first, again in duplicates:
        values = known.get(id(mapping))
        if values is None:
            values = known[id(mapping)] = {id(key): value for key, value in mapping.value}
        first_span = source.between(first.start, first.end or first.start)
        yield Event(
            kind="duplicate-key",
            span=source.between(again.start, again.end or again.start),
            values={
                "key": again.value,
                "first_line": first_span.line,
                "used": _shown(values[id(again)], source),
                "dropped": _shown(values[id(first)], source),
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
