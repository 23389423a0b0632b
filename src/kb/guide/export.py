"""Every table of the guide, flat, as JSON and CSV with a schema: bytes, tokens and samples; the pages as plain text for
language models, and a feed.
"""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from kb.core.record import NamedTuple
from kb.core.text import LANGUAGES
from kb.guide.accuracy import bench_results, measured_runs
from kb.guide.fits import BATCHES, LENGTHS, Fits
from kb.guide.library import Library, load_library, say
from kb.guide.markup import table
from kb.report.json_parts import fields, release_text

Row = Mapping[str, Any]
_KINDS: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}  # JSON Schema's names


class Table(NamedTuple):
    """One table: what it holds in both languages, its columns with JSON Schema's types, and its rows."""

    name: str
    title: Mapping[str, str]
    columns: Mapping[str, Sequence[str]]
    rows: Sequence[Row]


def tables(fits: Fits) -> list[Table]:
    """All of them; they are the same in both languages."""
    library = load_library(LANGUAGES[0])
    return [_table(name, list(rows_of(library, fits))) for name, rows_of in ROWS.items()]


def _table(name: str, rows: Sequence[Row]) -> Table:
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for column, value in row.items():
            found = kinds.setdefault(column, set())
            if value is not None:
                found.add(_KINDS[type(value)])
    title = {language: say(language, f"data.{name}") for language in LANGUAGES}
    return Table(name, title, {column: sorted(found) for column, found in kinds.items() if found}, rows)


def _both(name: str, text: Any) -> dict[str, str]:
    """A text's two columns."""
    return {f"{name}_{language}": text[language] for language in LANGUAGES}


def _quantity(row: Row) -> dict[str, Any]:
    """A value or a range, with what makes it a number: unit, status, source and lines."""
    value, low, high = row.get("value"), row.get("low"), row.get("high")
    if isinstance(value, list) and len(value) == 2:
        (low, high), value = value, None
    about = {name: row.get(name) for name in ("unit", "status", "source", "lines")}
    return {"value": _plain(value), "low": low, "high": high, **about}


def _plain(value: Any) -> bool | int | float | str | None:
    """A value as one cell: a list's items apart by spaces."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return " ".join(map(str, value))


def _gpus(library: Library, fits: Fits) -> Iterator[Row]:
    for gpu in library.catalog.gpus.values():
        yield {
            **fields(gpu, "id", "name"),
            "memory_bytes": gpu.memory_total,
            "compute_capability": release_text(gpu.compute_capability),
            **fields(gpu, "native_bf16", "tensor_flops", "memory_bandwidth"),
        }


def _models(library: Library, fits: Fits) -> Iterator[Row]:
    for model in library.catalog.models.values():
        yield {
            **fields(model, "id", "name"),
            "family": model.architecture.model_type,
            **fields(model, "parameters", "max_length", "weights_dtype"),
            "aliases": " ".join(model.aliases),
        }


def _fits(library: Library, fits: Fits) -> Iterator[Row]:
    for row in fits.rows:
        plain = {name: value for name, value in row._asdict().items() if name != "train"}
        yield {**plain, **{f"train_{way}": batch for way, batch in row.train.items()}}


def _maps(library: Library, fits: Fits) -> Iterator[Row]:
    for (model, gpu), found in fits.maps.items():
        for length, cells in zip(LENGTHS, found.cells if found else (), strict=False):
            for batch, verdict in zip(BATCHES, cells, strict=True):
                way = found.way if found else None
                yield {"model": model, "gpu": gpu, "way": way, "length": length, "batch": batch, "verdict": verdict}


def _rules(library: Library, fits: Fits) -> Iterator[Row]:
    for rule in library.catalog.rules.values():
        titles = {f"title_{language}": rule.title.in_language(language) for language in LANGUAGES}
        about = fields(rule, "id", "area", "severity", "confidence", "version", "since")
        yield {**about, **titles, "sources": " ".join(rule.sources)}


def _facts(library: Library, fits: Fits) -> Iterator[Row]:
    for fact in library.catalog.facts.values():
        meaning = {f"meaning_{language}": fact.meaning.in_language(language) for language in LANGUAGES}
        yield {"name": fact.name, "type": fact.type, "unit": fact.unit, **meaning}


def _dialects(library: Library, fits: Fits) -> Iterator[Row]:
    for name, dialect in library.catalog.dialects.items():
        for key, meant in sorted(dialect.keys.items()):
            fact = meant if isinstance(meant, str) else None
            yield {"dialect": name, "layout": dialect.layout, "key": key, "fact": fact}


def _remedies(library: Library, fits: Fits) -> Iterator[Row]:
    for name, entry in library.rows("remedies").items():
        for number, step in enumerate(entry["steps"], 1):
            about = {"remedy": name, "resource": entry["resource"], **_both("title", entry["title"])}
            yield {**about, "step": number, **_both("text", step["text"]), "when": step.get("when")}


def _errata(library: Library, fits: Fits) -> Iterator[Row]:
    for entry in library.rows("errata").values():
        claim = entry["claim"]
        about = {"id": entry["id"], "verdict": entry["verdict"], "source": claim["source"], "lines": claim.get("lines")}
        yield {**about, **_both("claim", claim["text"]), **_both("use", entry["use"])}


def _constants(library: Library, fits: Fits) -> Iterator[Row]:
    for name, row in library.rows("constants").items():
        yield {"name": name, **_quantity(row), **_both("meaning", row)}


def _formulas(library: Library, fits: Fits) -> Iterator[Row]:
    for name, entry in library.rows("formulas").items():
        for variable, row in entry.get("variables", {}).items():
            yield {"formula": name, **_both("title", entry["title"]), "variable": variable, **_both("meaning", row),
                   **_quantity(row)}  # fmt: skip


def _presets(library: Library, fits: Fits) -> Iterator[Row]:
    for name, entry in library.rows("presets").items():
        for row in entry["rows"]:
            about = {"id": name, "gpus": " ".join(entry["gpus"]), "model": entry["model"], "row": row["id"]}
            for setting, value in row.get("settings", {}).items():
                yield {**about, "setting": setting, **_quantity({**row, **value})}


def _targets(library: Library, fits: Fits) -> Iterator[Row]:
    for row in library.entry("formulas", "targets")["thresholds"]:
        about = {name: row.get(name) for name in ("id", "metric", "state", "scope")}
        yield {**about, **_both("meaning", row["text"]), **_quantity(row)}


def _commands(library: Library, fits: Fits) -> Iterator[Row]:
    for row in library.entry("runbooks", "commands")["commands"]:
        about = {name: row.get(name) for name in ("id", "command", "status", "source", "lines")}
        yield {**about, **_both("purpose", row["purpose"])}


def _tradeoffs(library: Library, fits: Fits) -> Iterator[Row]:
    for name, entry in library.rows("tradeoffs").items():
        for option in entry["options"]:
            about = {"tradeoff": name, "option": option["id"], **_both("title", option["title"])}
            for remark in option.get("remarks", ()):
                yield {**about, "kind": remark["kind"], **_both("text", remark["text"]), **_quantity(remark)}


def _measurements(library: Library, fits: Fits) -> Iterator[Row]:
    for name, campaign in library.rows("measurements").items():
        for run in measured_runs(campaign, library.catalog):
            setup = run.setup
            yield {
                "campaign": name,
                "model": run.model,
                "method": setup.method,
                "batch": setup.per_device_train_batch_size,
                "source_length": setup.max_source_length,
                "allocated_bytes": run.allocated_bytes,
                "predicted_allocated_bytes": run.predicted_allocated_bytes,
                "process_bytes": run.process_bytes,
                "predicted_process_bytes": run.predicted_process_bytes,
            }


def _accuracy(library: Library, fits: Fits) -> Iterator[Row]:
    results = bench_results()
    for against in ("measured", "traces"):
        for line in results[against]:
            for program, score in line["scores"].items():
                about = {"against": against, "group": line["group"], "quantity": line["quantity"], "program": program}
                yield {**about, "rows": score["rows"], "mean_error": score["mean"], "worst_error": score["worst"]}


def _sources(library: Library, fits: Fits) -> Iterator[Row]:
    for name, row in library.catalog.sources.items():
        yield {"id": name, "kind": row.get("kind"), "title": str(row.get("title", name)), "url": row.get("url")}


# a table has the name of the function that makes its rows
ROWS: Mapping[str, Callable[[Library, Fits], Iterator[Row]]] = {
    rows_of.__name__.removeprefix("_"): rows_of
    for rows_of in (
        _gpus, _models, _fits, _maps, _presets, _rules, _facts, _dialects, _remedies, _formulas, _constants, _targets,
        _commands, _tradeoffs, _errata, _measurements, _accuracy, _sources,
    )
}  # fmt: skip

_HELD = re.compile(r'^<div (?:class="kb-held|data-held=).*</div>$', re.MULTILINE)  # drawings and wide tables
_RELEASE = re.compile(r"^## \[?(?P<version>[^\]\s]+)\]?(?: [-–] (?P<date>\d{4}-\d{2}-\d{2}))?", re.MULTILINE)


def write_data(site: str, found: Sequence[Table], version: str) -> None:
    """``data/<table>.json``, ``.csv`` and ``.schema.json``, and ``data/index.json`` naming them."""
    folder = os.path.join(site, "data")
    os.makedirs(folder, exist_ok=True)
    for one in found:
        whole = {"table": one.name, "rules": version, "title": one.title, "rows": _whole_rows(one)}
        _write(os.path.join(folder, f"{one.name}.json"), json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
        stream = io.StringIO()
        writer = csv.DictWriter(stream, list(one.columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(_whole_rows(one))
        _write(os.path.join(folder, f"{one.name}.csv"), stream.getvalue())
        _write(os.path.join(folder, f"{one.name}.schema.json"), json.dumps(_schema(one), indent=1) + "\n")
    index = {"rules": version, "tables": [{"name": one.name, "title": one.title} for one in found]}
    _write(os.path.join(folder, "index.json"), json.dumps(index, ensure_ascii=False, indent=1) + "\n")


def _whole_rows(one: Table) -> list[dict[str, Any]]:
    """Every column in every row; null where a row says nothing."""
    return [{name: row.get(name) for name in one.columns} for row in one.rows]


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
