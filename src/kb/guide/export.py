"""Every table of the guide as JSON and CSV with a schema, the pages as plain text for language models, and a feed."""

import csv
import io
import json
import os
import re
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from kb.core.text import LANGUAGES
from kb.guide.all_fits import Fits
from kb.guide.data_tables import ROWS, Table, tables
from kb.guide.library import Library, load_library
from kb.guide.markup import table
from kb.guide.site_words import say

_HELD = re.compile(r'^<div (?:class="kb-held|data-held=).*</div>$', re.MULTILINE)  # drawings and wide tables
_RELEASE = re.compile(r"^## \[?(?P<version>[^\]\s]+)\]?(?: [-–] (?P<date>\d{4}-\d{2}-\d{2}))?", re.MULTILINE)


def write_data(site: str, found: Sequence[Table], version: str) -> None:
    """``data/<table>.json``, ``.csv`` and ``.schema.json``, and ``data/index.json`` naming them."""
    folder = os.path.join(site, "data")
    os.makedirs(folder, exist_ok=True)
    for one in found:
        whole = {"table": one.name, "rules": version, "title": one.title, "rows": _whole_rows(one)}
        _write(os.path.join(folder, f"{one.name}.json"), json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
        _write(os.path.join(folder, f"{one.name}.csv"), _csv(one))
        _write(os.path.join(folder, f"{one.name}.schema.json"), json.dumps(_schema(one), indent=1) + "\n")
    index = {"rules": version, "tables": [{"name": one.name, "title": one.title} for one in found]}
    _write(os.path.join(folder, "index.json"), json.dumps(index, ensure_ascii=False, indent=1) + "\n")


def _whole_rows(one: Table) -> list[dict[str, Any]]:
    """Every column in every row; null where a row says nothing."""
    return [{name: row.get(name) for name in one.columns} for row in one.rows]


def _csv(one: Table) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(one.columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_whole_rows(one))
    return stream.getvalue()


def _schema(one: Table) -> dict[str, Any]:
    rows = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {name: {"type": [*kinds, "null"]} for name, kinds in one.columns.items()},
            "required": list(one.columns),
            "additionalProperties": False,
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": one.title["en"],
        "type": "object",
        "required": ["table", "rules", "rows"],
        "properties": {
            "table": {"const": one.name},
            "rules": {"type": "string"},
            "title": {"type": "object"},
            "rows": rows,
        },
    }


def write_llms(site: str, language: str, pages: Sequence[tuple[str, str, str]]) -> None:
    """``llms.txt`` (what there is, a line a page) and ``llms-full.txt`` (the pages themselves) of one language.

    Args:
        pages: each page's address, its title, and its Markdown with macros shown.
    """
    head = f"# {say(language, 'llms.title')}\n\n> {say(language, 'llms.about')}\n"
    lines = [f"- [{title}]({address})" for address, title, _ in pages]
    _write(os.path.join(site, "llms.txt"), head + "\n" + "\n".join(lines) + "\n")
    bodies = (_HELD.sub("", text).strip() for _, _, text in pages)
    _write(os.path.join(site, "llms-full.txt"), head + "\n" + "\n\n".join(bodies) + "\n")


def atom_feed(changelog: str, address: str) -> str:
    """The changelog's releases as an Atom feed; a release without a date is not one yet and is left out."""
    found = list(_RELEASE.finditer(changelog))
    entries = []
    for number, match in enumerate(found):
        if match["date"] is None:
            continue
        end = found[number + 1].start() if number + 1 < len(found) else len(changelog)
        body = changelog[match.end() : end].strip()
        entries.append(
            f"<entry><title>kb {escape(match['version'])}</title><id>{escape(address)}#{escape(match['version'])}</id>"
            f'<updated>{match["date"]}T00:00:00Z</updated><content type="text">{escape(body)}</content></entry>'
        )
    latest = max((match["date"] for match in found if match["date"]), default="1970-01-01")
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">'
        f"<title>kb</title><id>{escape(address)}</id><author><name>kb</name></author>"
        f"<updated>{latest}T00:00:00Z</updated>{''.join(entries)}</feed>\n"
    )


def _write(path: str, content: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(content)


def data_files(library: Library) -> str:
    """The tables that can be fetched, with what they hold."""
    language = library.language
    up = "" if language == LANGUAGES[0] else "../../data/"  # the files lie below the first language
    head = [say(language, key) for key in ("data.table", "data.files")]
    rows = []
    for name in ROWS:
        files = " · ".join(f'<a href="{up}{name}.{kind}">{kind}</a>' for kind in ("json", "csv", "schema.json"))
        rows.append((say(language, f"data.{name}"), files))
    return table(head, rows)


def library_tables(fits: Fits) -> list[Table]:
    """The tables, which are the same for both languages."""
    return tables(load_library(LANGUAGES[0]), fits)
