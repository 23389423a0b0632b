"""Every table of the guide as JSON and CSV with a schema, the pages as plain text for language models, and a feed."""

import csv
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from kb.core.text import LANGUAGES
from kb.guide.fits import Row
from kb.guide.library import Library, load_library
from kb.guide.site_words import say

_HELD = re.compile(r'^<div (?:class="kb-held|data-held=).*</div>$', re.MULTILINE)  # drawings and wide tables
_RELEASE = re.compile(r"^## \[?(?P<version>[^\]\s]+)\]?(?: [-–] (?P<date>\d{4}-\d{2}-\d{2}))?", re.MULTILINE)


class Table(NamedTuple):
    """One table: what its columns mean in both languages, and its rows."""

    name: str
    title: Mapping[str, str]
    columns: Mapping[str, Sequence[str]]  # name → JSON Schema's types of what stands in it
    rows: Sequence[Mapping[str, Any]]


def tables(library: Library, fits: Sequence[Row]) -> list[Table]:
    """Everything that pages show as a table, flat. Sizes in bytes, lengths in tokens, batches in samples."""
    catalog = library.catalog
    gpus = [
        {
            "id": gpu.id,
            "name": gpu.name,
            "memory_bytes": gpu.memory_total,
            "compute_capability": ".".join(map(str, gpu.compute_capability)),
            "native_bf16": gpu.native_bf16,
        }
        for gpu in catalog.gpus.values()
    ]
    models = [
        {
            "id": model.id,
            "name": model.name,
            "family": model.architecture.model_type,
            "parameters": model.parameters,
            "max_length": model.max_length,
        }
        for model in catalog.models.values()
    ]
    fit_rows = [
        {**{name: value for name, value in row._asdict().items() if name != "train"},
         **{f"train_{way}": batch for way, batch in row.train.items()}}
        for row in fits
    ]  # fmt: skip
    rules = [
        {
            "id": rule.id,
            "area": rule.area,
            "severity": rule.severity,
            "confidence": rule.confidence,
            "version": rule.version,
            "title_ko": rule.title.ko,
            "title_en": rule.title.en,
        }
        for rule in catalog.rules.values()
    ]
    errata = [
        {
            "id": entry["id"],
            "verdict": entry["verdict"],
            "source": entry["claim"]["source"],
            "lines": entry["claim"].get("lines"),
            "claim_ko": entry["claim"]["text"]["ko"],
            "claim_en": entry["claim"]["text"]["en"],
            "use_ko": entry["use"]["ko"],
            "use_en": entry["use"]["en"],
        }
        for entry in library.rows("errata").values()
    ]
    constants = [
        {"name": name, **{key: row.get(key) for key in ("value", "unit", "status", "source", "ko", "en")}}
        for name, row in library.rows("constants").items()
    ]
    presets = [
        {
            "id": name,
            "gpus": " ".join(entry["gpus"]),
            "model": entry["model"],
            "row": row["id"],
            "source": row["source"],
            "lines": row.get("lines"),
            "setting": setting,
            "value": value.get("value"),
            "unit": value.get("unit"),
        }
        for name, entry in library.rows("presets").items()
        for row in entry["rows"]
        for setting, value in row.get("settings", {}).items()
    ]
    found: dict[str, Sequence[Mapping[str, Any]]] = {
        "gpus": gpus,
        "models": models,
        "fits": fit_rows,
        "rules": rules,
        "errata": errata,
        "constants": constants,
        "presets": presets,
    }
    return [_table(name, rows) for name, rows in found.items()]


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for column, value in row.items():
            found = kinds.setdefault(column, set())
            if value is not None:
                found.add(_KINDS[type(value)])
    title = {language: say(language, f"data.{name}") for language in LANGUAGES}
    columns = {column: sorted(kinds[column]) or ["string"] for column in kinds}
    return Table(name, title, columns, rows)


# JSON Schema's names
_KINDS: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def write_data(site: str, found: Sequence[Table], version: str) -> None:
    """``data/<table>.json``, ``.csv`` and ``.schema.json``, and ``data/index.json`` naming them."""
    folder = os.path.join(site, "data")
    os.makedirs(folder, exist_ok=True)
    for table in found:
        whole = {"table": table.name, "rules": version, "title": table.title, "rows": list(table.rows)}
        _write(os.path.join(folder, f"{table.name}.json"), json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
        _write(os.path.join(folder, f"{table.name}.csv"), _csv(table))
        _write(os.path.join(folder, f"{table.name}.schema.json"), json.dumps(_schema(table), indent=1) + "\n")
    index = {"rules": version, "tables": [{"name": table.name, "title": table.title} for table in found]}
    _write(os.path.join(folder, "index.json"), json.dumps(index, ensure_ascii=False, indent=1) + "\n")


def _csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(table.columns), lineterminator="\n")
    writer.writeheader()
    for row in table.rows:  # a list is written as JSON there too
        cells = {name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()}
        writer.writerow(cells)
    return stream.getvalue()


def _schema(table: Table) -> dict[str, Any]:
    rows = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {name: {"type": [*kinds, "null"]} for name, kinds in table.columns.items()},
            "required": list(table.columns),
            "additionalProperties": False,
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": table.title["en"],
        "type": "object",
        "required": ["table", "rules", "rows"],
        "properties": {
            "table": {"const": table.name},
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
    from kb.guide.markup import table

    language = library.language
    up = "" if language == LANGUAGES[0] else "../../data/"  # the files lie below the first language
    head = [say(language, key) for key in ("data.table", "data.files")]
    names = ("gpus", "models", "fits", "rules", "errata", "constants", "presets")
    rows = []
    for name in names:
        files = " · ".join(f'<a href="{up}{name}.{kind}">{kind}</a>' for kind in ("json", "csv", "schema.json"))
        rows.append((say(language, f"data.{name}"), files))
    return table(head, rows)


def library_tables(fits: Sequence[Row]) -> list[Table]:
    """The tables, which are the same for both languages."""
    return tables(load_library(LANGUAGES[0]), fits)
