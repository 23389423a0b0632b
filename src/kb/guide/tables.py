"""Tables of what the rules hold: formats, GPUs, models, causes, errata, rules, sources; and inference servers."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from kb.core.model import Model
from kb.guide.fits_tables import by_family, kind_of
from kb.guide.library import Library, say
from kb.guide.markup import (
    badge,
    code,
    computed,
    fenced,
    filter_box,
    prose,
    quantity,
    source_anchor,
    sourced,
    table,
    text,
)
from kb.guide.search_words import importance
from kb.knowledge.locations import shipped
from kb.memory.serving.budget import bytes_of_token
from kb.memory.serving.setup import Engine
from kb.report.lessons import case_of, served_on
from kb.report.values import short_name

# the commonest first; a new one without a place here fails the build for want of a text
RESOURCES = ("gpu", "host", "shm", "driver", "config", "numerics", "threads", "filesystem", "network", "none")


def model_table(library: Library) -> str:
    """A row for each model, below its family's heading, by size."""
    language = library.language
    head = [say(language, key) for key in ("fits.model", "model.parameters", "list.aliases")]
    parts = [filter_box(library, sections=say(language, "model.family"))]
    for family, models in by_family(list(library.catalog.models.values())):
        rows = [
            (
                f"[{text(model.name)}]({model.id}.md)",
                _parameters(library, model),
                ", ".join(code(name) for name in model.aliases[:3]),
            )
            for model in models
        ]
        kind = say(language, f"kind.{kind_of(models[0])}")
        parts.append(f"## {family} · {kind} {{ #{family} }}\n\n{table(head, rows, numbers=(1,))}")
    return "\n\n".join(parts)


def _parameters(library: Library, model: Model) -> str:
    """In millions, leading to the source of the count."""
    rows = library.entry("models", model.id)["parameters"]
    datum = next((row for row in rows if row["value"] == model.parameters), rows[0])
    return sourced(library, f"{model.parameters / 1e6:,.0f}M", datum["status"], datum)


def remedy_table(library: Library) -> str:
    """For each resource what running short of it means, then symptom → what happened, each linked to its steps.

    What many look for comes first, as in a search: the general cause before those of single programs.
    """
    language, words = library.language, library.words
    head = [say(language, key) for key in ("list.symptom", "list.means")]
    entries = sorted(
        library.rows("remedies").values(), key=lambda entry: (-importance(f"trouble/{entry['id']}"), str(entry["id"]))
    )
    parts = [filter_box(library, sections=say(language, "remedy.resource"))]
    for resource in RESOURCES:
        rows = [
            (f"[{text(entry['title'][language])}]({entry['id']}.md)", _means(library, entry))
            for entry in entries
            if entry["resource"] == resource
        ]
        if rows:
            title = text(
                words.named("resource", resource) if resource != "none" else say(language, "trouble.none_title")
            )
            parts += [f"### {title} {{ #{resource} }}", prose(say(language, f"trouble.{resource}")), table(head, rows)]
    return "\n\n".join(parts)


def _means(library: Library, entry: Mapping[str, Any]) -> str:
    """What a symptom means; a figure in it has the badge of the first source of the page."""
    said, sources = prose(entry["means"][library.language]), entry.get("sources", ())
    if not sources or not re.search(r"\d ?(?:%|[KMG]i?B)", entry["means"]["en"]):
        return said
    return f"{said} {badge(library, 'claimed', {'source': sources[0]})}"


def errata_table(library: Library) -> str:
    """What the original guide says that is not so, and what to use."""
    language, words = library.language, library.words
    head = [say(language, key) for key in ("erratum.claim", "list.verdict", "erratum.use")]
    rows = [
        (
            f"[{prose(entry['claim']['text'][language])}]({entry['id']}.md) "
            + badge(library, "claimed", entry["claim"]),
            escape(words.named("erratum_verdict", entry["verdict"])),
            f"{prose(entry['use'][language])} {badge(library, entry['finding']['status'])}",
        )
        for entry in library.rows("errata").values()
    ]
    return f"{filter_box(library)}\n\n{table(head, rows)}"


def dialect_table(library: Library) -> str:
    """The config formats that are read, the marks that most tell each, and how many of its keys have a meaning."""
    head = [say(library.language, key) for key in ("dialect.format", "dialect.name", "dialect.marks", "dialect.keys")]
    head[-1] += f" {badge(library, 'computed')}"  # counted in the format's file
    rows = []
    for name, entry in library.rows("dialects").items():
        marks = entry.get("recognise", {}).get("marks", {})
        telling = sorted(marks, key=lambda mark: -marks[mark])[:4]
        shown = ", ".join(code(mark) for mark in telling)
        rows.append((text(entry["title"][library.language]), code(name), shown, str(len(entry.get("keys", {})))))
    return table(head, rows, numbers=(3,))


def gpu_table(library: Library) -> str:
    """A row for each GPU, the smallest memory first."""
    language, catalog = library.language, library.catalog
    columns = ("gpu.name", "gpu.memory", "gpu.bf16", "gpu.bandwidth", "gpu.flops", "gpu.capability")
    rows = []
    for gpu in sorted(catalog.gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.name)):
        data = library.entry("hardware", gpu.id)
        rows.append(
            (
                f"[{text(short_name(gpu))}]({gpu.id}.md)",
                _first(library, data.get("memory_total")),
                say(language, f"bf16.{'yes' if gpu.native_bf16 else 'no'}"),
                *(_first(library, data.get(name)) for name in ("memory_bandwidth", "tensor_flops")),
                quantity(library, data["compute_capability"]),
            )
        )
    head = [say(language, column) for column in columns]
    return (
        f"{filter_box(library, columns={head[2]: 'td:nth-child(3)'})}\n\n{table(head, rows, numbers=(1, 2, 3, 4, 5))}"
    )


def _first(library: Library, rows: object) -> str:
    """The quantity, or the first of several: the one that the engine uses."""
    row = rows[0] if isinstance(rows, list) else rows
    return quantity(library, row) if isinstance(row, dict) else "–"


def rule_table(library: Library) -> str:
    """A heading and a table for each area, with a filter by area, library and severity."""
    rules = library.catalog.rules.values()
    head = [say(library.language, key) for key in ("rule.title", "rule.what", "rule.severity")]
    columns = {say(library.language, "rule.library"): ".kb-libraries", head[2]: ".kb-severity"}
    parts = [filter_box(library, sections=say(library.language, "rule.area"), columns=columns)]
    for area in sorted({rule.area for rule in rules}):
        rows = [
            (
                f"[{rule.id}]({rule.id}.md)",
                text(library.words.described(rule.title)) + _libraries_line(library, rule.sources),
                f'<span class="kb-severity kb-severity--{rule.severity}">'
                f"{escape(library.words.named('severity', rule.severity))}</span>",
            )
            for rule in rules
            if rule.area == area
        ]
        parts.append(f"## {say(library.language, f'area.{area}')} {{ #{area} }}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


_PROJECT = re.compile(
    r"https://(?:pypi\.org/project/|huggingface\.co/docs/|docs\.(?=vllm)|github\.com/[^/]+/)(?P<name>[\w.-]+?)(?:[/#]|\.ai/|$)"
)
_ONE_NAME = {
    "pytorch": "torch", "llama-cpp-python": "llama.cpp", "text-generation-inference": "tgi", "hydra-core": "hydra",
    "flash-attention": "flash_attn",
}  # fmt: skip


def _libraries_line(library: Library, sources: Sequence[str]) -> str:
    named = escape(", ".join(_libraries(library, sources)))
    return f'<small class="kb-libraries">{named}</small>' if named else ""


def _libraries(library: Library, sources: Sequence[str]) -> list[str]:
    """The libraries that a rule rests on: those whose packages, code or documentation its sources are.

    A project that kb reads neither a config nor a version of is only an example, and no library to choose by.
    """
    facts = {name.partition(".")[2] for name in library.catalog.facts if name.startswith(("versions.", "installed."))}
    known = {*facts, *library.rows("dialects"), *_ONE_NAME.values()}
    found = set()
    for name in sources:
        match = _PROJECT.match(str((library.catalog.sources.get(name) or {}).get("url", "")))
        if match:
            project = match["name"].lower()
            found.add(_ONE_NAME.get(project, project))
    return sorted(found & known)


def entry_file(library: Library, folder: str, name: str) -> str:
    """The file of one entry of the rules as it is, to be copied."""
    with open(os.path.join(shipped().rules, folder, f"{name}.yaml"), encoding="utf-8") as stream:
        return fenced(stream.read().rstrip())


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
    rest = [say(language, f"serving.{name}") for name in ("meaning", "default", "holds", "read_in")]
    given: list[list[str]] = []
    own: list[list[str]] = []  # what no flag sets
    for name, option in data["options"].items():
        rows = given if "flag" in option else own
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
    parts = (("option", given), ("own", own))
    return "\n\n".join(table([say(language, f"serving.{head}"), *rest], rows) for head, rows in parts if rows)


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
    return f"{shown} {row['unit']}" if row["unit"] in ("tokens", "B", "MiB", "requests") else shown


def _conditions(row: Mapping[str, Any], language: str) -> Iterator[str]:
    for name in ("from", "below", "memory_from", "memory_below", "called", "models"):
        if name in row:
            yield say(language, f"serving.{name}", value=row[name])
    for name in ("uses", "model_types", "except_gpus"):
        if name in row:
            yield say(language, f"serving.{name}", value=", ".join(row[name]))
    if row.get("packed") is False:
        yield say(language, "serving.not_packed")
    if "with" in row:
        yield say(language, "serving.with", value=f"`{row['with']}`")
