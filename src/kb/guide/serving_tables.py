"""Inference servers on pages: tokens and requests by model and GPU, defaults by release, what a log's message means."""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.guide.library import Library
from kb.guide.markup import badge, code, computed, prose, table, text
from kb.guide.site_words import say
from kb.memory.serving.budget import bytes_of_token
from kb.memory.serving.setup import Engine
from kb.report.lessons import case_of, served_on
from kb.report.values import short_name


def serving_table(library: Library, models: list[str], gpus: list[str], engine: Engine, length: int) -> str:
    """For each model and GPU the tokens that the KV cache holds, and how many requests of ``length`` at once.

    One GPU, 16-bit weights, the newest release's defaults. A dash where the server does not start.
    """
    language, catalog = library.language, library.catalog
    head = [say(language, "fits.model"), say(language, "serving.token")]
    for gpu in gpus:
        library.entry("hardware", gpu)
        head.append(f"[{text(short_name(catalog.gpus[gpu]))}](gpus/{gpu}.md)")
    rows = []
    for name in models:
        library.entry("models", name)
        cells = [f"[{name}](models/{name}.md)"]
        for _, found in served_on(case_of(catalog, name, gpus[0]), gpus, engine, length):
            if len(cells) == 1:
                cells.append(computed(library, f"{round(bytes_of_token(found.model, found.setup)):,} B"))
            tokens = f"{found.kv_tokens:,} · **{found.concurrency:.1f}×**"
            cells.append(computed(library, tokens) if found.starts else "–")
        rows.append(cells)
    return table(head, rows, numbers=range(1, len(head)))


def serving_defaults(library: Library, engine: Engine) -> str:
    """An engine's options: what each means, and its default by release, GPU and entry point, with where it was read."""
    data, language = library.entry("serving", engine), library.language
    head = [say(language, f"serving.{name}") for name in ("option", "meaning", "default", "holds", "read_in")]
    rows = []
    for name, option in data["options"].items():
        shown = code(option.get("flag", name))
        defaults = option.get("defaults", ())
        if not defaults:
            rows.append([shown, text(option[language]), say(language, "serving.none"), "", ""])
        for number, row in enumerate(defaults):
            first = [shown, text(option[language])] if not number else ["", ""]
            source = library.catalog.sources[row["source"]]
            name_of = f"[{text(source['title'])}]({source['url']})"
            value = f"{_value(row, language)} {badge(library, row['status'], row)}"
            rows.append([*first, value, ", ".join(_conditions(row, language)), name_of])
    return table(head, rows)


def serving_messages(library: Library) -> str:
    """What servers' logs say: the cause, what it means, and the first thing to do."""
    language = library.language
    head = [say(language, f"serving.{name}") for name in ("message", "means", "first_step")]
    rows = []
    for name, entry in library.rows("remedies").items():
        if name.startswith(("serving-", "llama-")):
            title = f"[{text(entry['title'][language])}](trouble/{name}.md)"
            rows.append([title, prose(entry["means"][language]), prose(entry["steps"][0]["text"][language])])
    return table(head, rows)


def _value(row: Mapping[str, Any], language: str) -> str:
    value = row["value"]
    if isinstance(value, bool):
        return say(language, f"serving.{'on' if value else 'off'}")
    shown = f"{value:,}" if isinstance(value, int) else str(value)
    return f"{shown} {row['unit']}" if row["unit"] in ("tokens", "MiB", "requests") else shown


def _conditions(row: Mapping[str, Any], language: str) -> Iterator[str]:
    for name in ("from", "below", "memory_from", "memory_below", "called"):
        if name in row:
            yield say(language, f"serving.{name}", value=row[name])
    if "except_gpus" in row:
        yield say(language, "serving.except_gpus", value=", ".join(row["except_gpus"]))
