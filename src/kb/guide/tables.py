"""Tables of what the rules hold: formats, GPUs, models, causes, errata, rules, trade-offs."""

import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kb.core.model import Model
from kb.guide.fits_table import by_family, kind_of
from kb.guide.library import Library
from kb.guide.markup import badge, code, fenced, filter_box, prose, quantity, sourced, table, text
from kb.guide.runbooks import shown_quantity
from kb.guide.site_words import say
from kb.knowledge.locations import shipped
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
    """For each resource what running short of it means, then symptom → what happened, each linked to its steps."""
    language, words = library.language, library.words
    head = [say(language, key) for key in ("list.symptom", "list.means")]
    entries = sorted(library.rows("remedies").values(), key=lambda entry: str(entry["id"]))
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


def tradeoff(library: Library, name: str) -> str:
    """The options of ``rules/tradeoffs/<name>.yaml`` with what they are compared by and their remarks."""
    language = library.language
    entry = library.entry("tradeoffs", name)
    aspects = entry.get("aspects", {})
    head = [say(language, "tradeoff.option"), *(text(about[language]) for about in aspects.values())]
    rows = []
    for option in entry["options"]:
        title = f"**{text(option['title'][language])}** {badge(library, option['status'], option)}"
        compared = option.get("aspects", {})
        cells = [prose(compared[key][language]) if key in compared else "–" for key in aspects]
        rows.append((title, *cells))
    parts = [prose(entry["text"][language])] if "text" in entry else []
    parts.append(table(head, rows))
    for option in entry["options"]:
        remarks = option.get("remarks", ())
        if not remarks:
            continue
        lines = []
        for remark in remarks:
            value = f" **{shown_quantity(library, remark)}**" if "value" in remark else ""
            erratum = f" ([{remark['erratum']}](errata/{remark['erratum']}.md))" if "erratum" in remark else ""
            mark = say(language, f"remark.{remark['kind']}")
            source = badge(library, remark.get("status", option["status"]), remark if "source" in remark else option)
            lines.append(f"    - {mark}: {prose(remark['text'][language])}{value} {source}{erratum}")
        title = option["title"][language].replace('"', "'")
        parts.append(f'??? note "{title}"\n\n' + "\n".join(lines))
    return "\n\n".join(parts)


def entry_file(library: Library, folder: str, name: str) -> str:
    """The file of one entry of the rules as it is, to be copied."""
    with open(os.path.join(shipped().rules, folder, f"{name}.yaml"), encoding="utf-8") as stream:
        return fenced(stream.read().rstrip())
