"""Every table of the guide, flat: what pages show, as rows that a program reads. Bytes, tokens and samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple
from kb.core.text import LANGUAGES
from kb.guide.accuracy import bench_results
from kb.guide.all_fits import Fits
from kb.guide.fits import BATCHES, LENGTHS
from kb.guide.library import Library
from kb.guide.measured_runs import measured_runs
from kb.guide.site_words import say

Row = Mapping[str, Any]
_KINDS: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}  # JSON Schema's names


class Table(NamedTuple):
    """One table: what it holds in both languages, its columns with JSON Schema's types, and its rows."""

    name: str
    title: Mapping[str, str]
    columns: Mapping[str, Sequence[str]]
    rows: Sequence[Row]


def tables(library: Library, fits: Fits) -> list[Table]:
    """All of them; they are the same whatever the library's language."""
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
            "id": gpu.id,
            "name": gpu.name,
            "memory_bytes": gpu.memory_total,
            "compute_capability": ".".join(map(str, gpu.compute_capability)),
            "native_bf16": gpu.native_bf16,
            "tensor_flops": gpu.tensor_flops,
            "memory_bandwidth": gpu.memory_bandwidth,
        }


def _models(library: Library, fits: Fits) -> Iterator[Row]:
    for model in library.catalog.models.values():
        yield {
            "id": model.id,
            "name": model.name,
            "family": model.architecture.model_type,
            "parameters": model.parameters,
            "max_length": model.max_length,
            "weights_dtype": model.weights_dtype,
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
        about = {name: getattr(rule, name) for name in ("id", "area", "severity", "confidence", "version", "since")}
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


ROWS: Mapping[str, Callable[[Library, Fits], Iterator[Row]]] = {
    "gpus": _gpus,
    "models": _models,
    "fits": _fits,
    "maps": _maps,
    "presets": _presets,
    "rules": _rules,
    "facts": _facts,
    "dialects": _dialects,
    "remedies": _remedies,
    "formulas": _formulas,
    "constants": _constants,
    "targets": _targets,
    "commands": _commands,
    "tradeoffs": _tradeoffs,
    "errata": _errata,
    "measurements": _measurements,
    "accuracy": _accuracy,
    "sources": _sources,
}
