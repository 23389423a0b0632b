"""The page of sources: what each status means, and every source by its kind, with what it is cited for."""

from collections.abc import Mapping
from html import escape
from typing import Any

from kb.guide.library import Library
from kb.guide.markup import filter_box, source_anchor, table, text
from kb.guide.site_words import say

STATUSES = ("claimed", "computed", "measured")


def source_tables(library: Library) -> str:
    """A heading for each status, then one for each kind of source with a row a source, where the badges lead."""
    language = library.language
    parts = []
    for status in STATUSES:
        name = library.words.named("status", status)
        parts += [f"### {text(name)} {{ #{status} }}", say(language, f"source.status.{status}")]
    parts += [
        f"## {say(language, 'source.all')} {{ #all }}",
        filter_box(library, sections=say(language, "source.kind")),
    ]
    head = [say(language, "source.title"), say(language, "source.cited_for")]
    kinds: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, about in library.catalog.sources.items():
        kinds.setdefault(about["kind"], []).append((name, about))
    for kind in sorted(kinds, key=lambda kind: -len(kinds[kind])):
        title = say(language, f"source.of.{kind.replace(' ', '_').replace('-', '_')}")
        rows = [(_title(name, about), _said(library, about)) for name, about in kinds[kind]]
        parts += [f"### {title} {{ #{kind.replace(' ', '-')} }}", table(head, rows)]
    return "\n\n".join(parts)


def _title(name: str, about: Mapping[str, Any]) -> str:
    title = text(about["title"])
    linked = f"[{title}](<{about['url']}>)" if about.get("url") else title
    return f'<span id="{source_anchor(name)}"></span>{linked}<br><small><code>{escape(name)}</code></small>'


def _said(library: Library, about: Mapping[str, Any]) -> str:
    """What it is cited for; of a field note what it says of itself as well."""
    note = about.get("note", "")
    if isinstance(note, Mapping):
        note = text(note[library.language])
    elif note:
        note = f'<span lang="en">{text(note)}</span>'
    own = [
        text(row["text"][library.language])
        + (f": {text(row['value'])}" if "value" in row else "")
        + f" ({row['lines']})"
        for row in about.get("about", ())
    ]
    return "<br>".join(part for part in (note, *own) if part)
