"""The page of sources: what each status means, and every source by its kind, with what it is cited for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from kb.guide.library import Library
from kb.guide.markup import filter_box, source_anchor, table, text
from kb.guide.site_words import say

STATUSES = ("claimed", "computed", "measured")
SHOWN = 3  # pages of a source that has no note


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
    citing = _citing(library)
    kinds: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, about in library.catalog.sources.items():
        kinds.setdefault(about["kind"], []).append((name, about))
    for kind in sorted(kinds, key=lambda kind: -len(kinds[kind])):
        title = say(language, f"source.of.{kind.replace(' ', '_').replace('-', '_')}")
        rows = [
            (_title(name, about), _said(library, about) or _pages(library, citing.get(name, [])))
            for name, about in kinds[kind]
        ]
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


def _citing(library: Library) -> dict[str, list[tuple[str, str]]]:
    """By source the pages of rules, causes, errata and models that cite it, as path and title."""
    language, catalog = library.language, library.catalog
    found: dict[str, list[tuple[str, str]]] = {}
    pages: list[tuple[str, str, Iterable[str]]] = [
        (f"rules/{name}.md", library.words.described(rule.title), rule.sources) for name, rule in catalog.rules.items()
    ]
    for name, cause in library.rows("remedies").items():
        pages.append((f"trouble/{name}.md", cause["title"][language], named_sources(cause)))
    for name, erratum in library.rows("errata").items():
        pages.append((f"errata/{name}.md", erratum["claim"]["text"][language], named_sources(erratum)))
    for name, model in catalog.models.items():
        pages.append((f"models/{name}.md", model.name, named_sources(library.entry("models", name))))
    for path, title, sources in pages:
        for source in dict.fromkeys(sources):
            found.setdefault(source, []).append((path, title))
    return found


def named_sources(data: Any) -> Iterator[str]:
    """Every source named anywhere in an entry."""
    if isinstance(data, Mapping):
        if isinstance(data.get("source"), str):
            yield data["source"]
        yield from (name for name in data.get("sources", ()) if isinstance(name, str))
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from named_sources(item)


def _pages(library: Library, pages: Sequence[tuple[str, str]]) -> str:
    """The first pages that cite a source, and how many more do."""
    if not pages:
        return "–"
    links = [f"[{text(title)}]({path})" for path, title in pages[:SHOWN]]
    more = len(pages) - SHOWN
    return "<br>".join([*links, *([say(library.language, "source.more", count=more)] if more > 0 else [])])
