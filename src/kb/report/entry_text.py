"""Any entry of the knowledge: each datum with its value, its status and the lines it comes from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kb.advice.notes_errata import erratum_of, overlap
from kb.report.provenance import INDENT, blocks_text, errata_lines, figure, heading, place, section, source_lines
from kb.report.style import Style
from kb.report.width import wrap
from kb.report.words import Words

_TEXTS = ("text", "title", "label", "question", "purpose", "does", "comment")


class Datum(NamedTuple):
    """One mapping with a source, and the way to it through the file: keys, and the ids of list items."""

    path: tuple[str, ...]
    row: Mapping[str, Any]


def entry_text(
    kind: str,
    data: Mapping[str, Any],
    words: Words,
    style: Style,
    *,
    errata: Sequence[Mapping[str, Any]],
    sources: Mapping[str, Any],
) -> str:
    """The entry's text and its data.

    Args:
        kind: the folder of rules/ that it stands in.
        data: the file's.
        errata: every entry of the errata; those that the file names, or whose claim stands in it, are shown.
        sources: the catalogue's sources, by id.
    """
    title = data.get("title") or {language: data.get("name", data["id"]) for language in ("ko", "en")}
    about = next((data[key] for key in ("about", "text", "means") if key in data), None)
    rows = list(_data(data, ()))
    lines = [line for datum in rows for line in _line(datum, words, style)]
    blocks = [
        heading(data["id"], [words.named("explain.kind", kind)], words, style, title),
        wrap(about[words.language], style.width, INDENT) if about else [],
        section(words("explain.data"), lines, style),
        errata_lines(_standing(data, rows, errata), words, style),
        source_lines((*data.get("sources", ()), *(d.row["source"] for d in rows)), sources, words, style),
    ]
    return blocks_text(blocks)


def _data(data: Any, path: tuple[str, ...]) -> Iterator[Datum]:
    if isinstance(data, list):
        for number, item in enumerate(data, 1):
            name = item.get("id", item.get("name", number)) if isinstance(item, dict) else number
            yield from _data(item, (*path, str(name)))
    elif isinstance(data, dict):
        if path and isinstance(data.get("source"), str):
            yield Datum(path, data)
        for key, value in data.items():
            yield from _data(value, (*path, key))


def _line(datum: Datum, words: Words, style: Style) -> list[str]:
    row = datum.row
    value = row.get("value")
    if value is None and "low" in row and "high" in row:
        value = [row["low"], row["high"]]
    shown = "" if value is None or isinstance(value, dict) else f" = {figure(value, row.get('unit'), words, style)}"
    text = next((row[key] for key in _TEXTS if isinstance(row.get(key), dict) and "ko" in row[key]), None)
    status = f"{words.named('status', row['status'])}, " if "status" in row else ""
    said = f"{'.'.join(datum.path)}{shown} ({status}{place(row)})"
    return wrap(f"{said} {text[words.language]}" if text else said, style.width, INDENT, INDENT * 2)


def _standing(
    data: Mapping[str, Any], rows: Sequence[Datum], errata: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The errata that the file names, then those whose claim stands in lines that it cites."""
    named = set(_named(data))
    places = [(datum.row["source"], str(datum.row["lines"])) for datum in rows if "lines" in datum.row]
    first = [entry for entry in errata if entry["id"] in named]
    rest = [entry for entry in errata if any(overlap(erratum_of(entry).places[0], one) for one in places)]
    return first + [entry for entry in rest if entry not in first]


def _named(data: Any) -> Iterator[str]:
    if isinstance(data, list):
        for item in data:
            yield from _named(item)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key == "erratum" and isinstance(value, str):
                yield value
            else:
                yield from _named(value)
