"""The generated pages, of each GPU, model, remedy, erratum and rule: written into docs/ before the build, only where
they changed, and never committed. What a rule's page shows is in ``rule_page.py``.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cache, lru_cache, partial
from html import escape
from typing import Any

from kb.advice.diagnosis import Diagnosis, diagnose
from kb.advice.question import Question
from kb.core.catalog import Rule
from kb.core.document import Unit
from kb.core.expression import Tree
from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.guide.fits import TYPICAL_MODELS, USUAL_GPUS, Fits, all_fits
from kb.guide.fits_tables import fits_by_gpu, fits_by_model, heat_maps
from kb.guide.library import Library, load_library, say
from kb.guide.markup import PLAIN, badge, cited, cited_source, code, fenced, held, prose, quantity, table, text
from kb.guide.original_guide import noted_settings
from kb.guide.rule_page import rule_page, rules_that_open
from kb.guide.search_words import importance, other_names
from kb.guide.tables import named_sources
from kb.report.condition import computes, named, sentence
from kb.report.diagnosis_report import diagnosis_text
from kb.report.rules.entry import figure
from kb.report.terminal import Style
from kb.report.words import Words
from kb.session.prepare import file_checker
from kb.session.project import Project

FIGURES = (
    "memory_total",
    "cuda_memory",
    "compute_capability",
    "native_bf16",
    "tensor_flops",
    "memory_bandwidth",
    "tdp",
)


def gpu_page(library: Library, gpu: Gpu, fits: Fits) -> str:
    """The page as Markdown, its heading first."""
    language = library.language
    data = library.entry("hardware", gpu.id)
    rows = []
    for name in FIGURES:
        values = data.get(name)
        for row in values if isinstance(values, list) else [values] if values else []:
            release, _, side = row.get("drivers", "").partition(" and ")
            drivers = say(language, f"gpu.drivers.{side or 'one'}", release=release) if release else ""
            rows.append((say(language, f"gpu.figure.{name}"), quantity(library, row), text(row.get("note") or drivers)))
    models, noted = library.catalog.models, noted_settings(library, fits.models, gpu=gpu.id)
    head = [say(language, key) for key in ("gpu.figure", "gpu.value", "gpu.note")]
    parts = [
        f"# {text(gpu.name)}",
        say(language, "gpu.names", names=", ".join(f"`{name}`" for name in (gpu.id, *gpu.aliases))),
        f"## {say(language, 'fits.heading')} {{ #fits }}",
        say(language, "fits.about"),
        fits_by_model(library, [row for row in fits.rows if row.gpu == gpu.id]),
        f"## {say(language, 'heat.heading')} {{ #lengths }}",
        say(language, "heat.about"),
        heat_maps(library, [(models[name], gpu) for name in TYPICAL_MODELS if name in fits.models], fits.maps),
        *_notes(language, noted),
        f"## {say(language, 'gpu.figures')} {{ #figures }}",
        table(head, rows),
        *_claims(library, data),
        *_sources(library, data["sources"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _notes(language: str, noted: str) -> list[str]:
    """The settings that the original guide notes, under their heading; nothing where there are none."""
    return [f"## {say(language, 'preset.heading')} {{ #notes }}", say(language, "preset.about"), noted] if noted else []


def _claims(library: Library, data: Mapping[str, Any]) -> list[str]:
    """What the original guide says of the card or the model, as it says it."""
    lines = [f"- {prose(row['text'][library.language])} {cited(library, row)}" for row in data.get("claims", [])]
    return [f"## {say(library.language, 'claims.heading')} {{ #claims }}", "\n".join(lines)] if lines else []


def _sources(library: Library, names: Iterable[str]) -> list[str]:
    rows = "\n".join(f"- {cited_source(library, name)}" for name in names)
    return [f"## {say(library.language, 'rule.sources')} {{ #sources }}", rows]


def model_page(library: Library, model: Model, fits: Fits) -> str:
    """The page as Markdown, its heading first."""
    language = library.language
    data = library.entry("models", model.id)
    gpus = library.catalog.gpus
    mine = sorted((row for row in fits.rows if row.model == model.id), key=lambda row: gpus[row.gpu].memory_total)
    fields = [  # as config.json writes them
        (code(name), code(value if isinstance(value, str) else json.dumps(value)))
        for name, value in data["architecture"].items()
    ]
    parts = [
        f"# {text(model.name)}",
        say(language, "model.names", names=", ".join(f"`{name}`" for name in (model.id, *model.aliases))),
        _errata(library, data),
    ]
    if mine:
        parts += [
            f"## {say(language, 'fits.where')} {{ #fits }}",
            say(language, "fits.about"),
            fits_by_gpu(library, model, mine),
            f"## {say(language, 'heat.heading')} {{ #lengths }}",
            say(language, "heat.about"),
            heat_maps(library, [(model, gpus[name]) for name in USUAL_GPUS if name in gpus], fits.maps),
        ]
    else:
        asked = (
            f"recommend --model {model.id}" if model.packed is None else f"estimate --engine vllm --model {model.name}"
        )
        command = f"kb {asked} --gpu {USUAL_GPUS[-1]}"
        parts += [f"## {say(language, 'fits.where')} {{ #fits }}", say(language, "fits.asked", command=command)]
    parts += [
        *_notes(language, noted_settings(library, fits.models, model=model.id)),
        *_claims(library, data),
        f"## {say(language, 'model.parameters')} {{ #parameters }}",
        "\n".join(f"- {quantity(library, row)}{_note(row)}" for row in data["parameters"]),
        f"## {say(language, 'model.stored')} {{ #stored }}",
        _stored(library, data),
        f"## {say(language, 'model.architecture')} {{ #architecture }}",
        table([say(language, "model.field"), say(language, "gpu.value")], fields),
        say(language, "model.from", source=cited_source(library, data["architecture_source"])),
        *_sources(library, data["sources"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _note(row: dict[str, str]) -> str:
    return f": {text(row['note'])}" if row.get("note") else ""


def _stored(library: Library, data: dict[str, Any]) -> str:
    """The types that the checkpoint, and those of aliases that differ, are stored in; or that none is known."""
    rows = data.get("weights_dtype", [])
    named = [f"{code(row['of'])}: " if "of" in row else "" for row in rows]
    lines = [f"- {name}{quantity(library, row)}{_note(row)}" for name, row in zip(named, rows, strict=True)]
    return "\n".join(lines) or say(library.language, "model.stored_unknown")


def _errata(library: Library, data: Mapping[str, Any]) -> str:
    """Links to the errata that contradict what the notes say of it."""
    names = dict.fromkeys(claim["erratum"] for claim in data.get("claims", ()) if claim.get("erratum"))
    if not names:
        return ""
    links = ", ".join(f"[{name}](../errata/{name}.md)" for name in names)
    return f'!!! warning "{say(library.language, "errata.about_this")}"\n\n    {links}'


def erratum_page(library: Library, entry: Mapping[str, Any]) -> str:
    """The page as Markdown, its heading first."""
    language, words = library.language, library.words
    claim, finding = entry["claim"], entry["finding"]
    parts = [
        f"# {prose(erratum_title(entry, language))}",
        f"**{text(words.named('erratum_verdict', entry['verdict']))}** · {code(entry['id'])}",
        f"## {say(language, 'erratum.claim')} {{ #claim }}",
        f"{prose(claim['text'][language])} {cited(library, claim)}",
        f"## {say(language, 'erratum.finding')} {{ #finding }}",
        f"{prose(finding['text'][language]) if 'text' in finding else ''} {badge(library, finding['status'])}",
    ]
    rows = [
        (text(value["label"][language]), figure(value["value"], value.get("unit"), words, PLAIN), _how(value))
        for value in finding.get("values", [])
    ]
    if rows:
        head = [say(language, key) for key in ("erratum.quantity", "gpu.value", "erratum.how")]
        parts.append(table(head, rows, numbers=(1,)))
    parts += [
        f"## {say(language, 'erratum.use')} {{ #use }}",
        f"{prose(entry['use'][language])} {badge(library, finding['status'])}",
    ]
    return "\n\n".join(parts) + "\n"


def erratum_title(entry: Mapping[str, Any], language: str) -> str:
    """The claim itself, without its full stop."""
    return str(entry["claim"]["text"][language]).rstrip(".")


def _how(value: Mapping[str, Any]) -> str:
    """The recipe by which a test computes the value again."""
    if "expression" in value:
        return f"`{value['expression']}`"
    for kind in ("memory", "formula", "host", "generation"):
        if isinstance(value.get(kind), Mapping):
            shown = ", ".join(f"{name} {part}" for name, part in value[kind].items() if not isinstance(part, Mapping))
            return text(f"{kind}: {shown}")
    return ""


CONFIG = "examples/mt5-summary-team.yaml"
GPU = "RTX 3090"
ASKED = Question.of(gpu="rtx-3090", host_memory="60GB", cpus="16")
STYLE = Style(width=88)
LONGEST_LOG = 1500  # characters of a log that is shown whole


def diagnosed(library: Library, entry: Mapping[str, Any]) -> str:
    """The log of a remedy's first example, and the answer to it; empty where no example is short enough to show."""
    logs = [str(one["log"]) for one in entry.get("examples", ()) if one["expect"] == "found"]
    log = next((log for log in logs if len(log) <= LONGEST_LOG), None)
    if log is None:
        return ""
    result = _told_by(log)
    if not result.causes:
        return ""
    answer = diagnosis_text(result, "train.log", library.words, STYLE, _example()[1])
    command = (
        f"kb diagnose train.log --config {CONFIG} --gpu {ASKED.machine.gpu} --host-memory {ASKED.machine.host_memory}"
    )
    label = say(library.language, "remedy.answer")
    shown = escape(answer.rstrip()).replace("\n", "&#10;")
    box = held(f'<pre class="kb-console"><code>{shown}</code></pre>', "kb-answer", label)
    return "\n\n".join([fenced(log, "text"), fenced(command, "bash"), box])


@cache
def _told_by(log: str) -> Diagnosis:
    """What a log shows beside the example's config, whatever language says it."""
    return diagnose(enumerate(log.splitlines(), 1), load_library("ko").rows("remedies"), _example()[0].get)


@lru_cache(maxsize=1)
def _example() -> tuple[Any, Unit]:
    """Facts of the example's config on the machine named."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    with open(os.path.join(root, CONFIG), "rb") as stream:
        raw = stream.read()
    checker = file_checker(load_library("ko").catalog, Project(), ASKED)
    unit = next(result.unit for result in checker.check(raw, CONFIG).results if result.unit.dialect is not None)
    return checker.facts(unit), unit


SHORTEST = 6  # characters of a sign that is shown


def remedy_page(library: Library, entry: Mapping[str, Any]) -> str:
    """The page as Markdown, its heading first."""
    language, words = library.language, library.words
    seen = _signs(entry)
    parts = [
        f"# {text(entry['title'][language])}",
        f"{say(language, 'remedy.resource')}: **{text(words.named('resource', entry['resource']))}** · `{entry['id']}`",
        prose(entry["means"][language]),
    ]
    if seen:
        parts += [
            f"## {say(language, 'remedy.signs')} {{ #signs }}",
            " · ".join(code(sign) for sign in seen),
            say(language, "remedy.diagnose", command=code("kb diagnose train.log --config train.yaml")),
        ]
    parts += [f"## {say(language, 'remedy.steps')} {{ #steps }}", "\n".join(_steps(library, entry))]
    if kin := _kin(library, entry["id"]):
        shown = [f"- [{text(row['title'][language])}]({row['id']}.md): {prose(row['means'][language])}" for row in kin]
        parts += [f"## {say(language, 'remedy.kin')} {{ #kin }}", "\n".join(shown)]
    if example := diagnosed(library, entry):
        about = say(language, "remedy.example_about", config=code(CONFIG), gpu=GPU)
        parts += [f"## {say(language, 'remedy.example')} {{ #example }}", about, example]
    if sources := list(dict.fromkeys(named_sources(entry))):
        parts += _sources(library, sources)
    return "\n\n".join(parts) + "\n"


def _kin(library: Library, own: str) -> list[Mapping[str, Any]]:
    """Other causes of the same words in a log: entries whose names begin alike (``gpu-oom``, ``gpu-oom-mps``)."""
    rows = library.rows("remedies")
    stem = next((name for name in rows if own.startswith(f"{name}-")), own)
    return [row for name, row in rows.items() if name != own and (name == stem or name.startswith(f"{stem}-"))]


def _signs(entry: Mapping[str, Any]) -> list[str]:
    """The words of a log that tell it, each once; pieces that say nothing to a reader are left out."""
    held = [line for pattern in entry.get("patterns", ()) for line in pattern.get("holds", ())]
    seen = {" ".join(line.lower().replace("_", " ").replace("-", " ").split()): line for line in reversed(held)}
    return [line for line in reversed(seen.values()) if len(line) >= SHORTEST]


def _steps(library: Library, entry: Mapping[str, Any]) -> Iterator[str]:
    words = library.words
    own = {f"condition.noun.{name}": row[library.language] for name, row in entry.get("variables", {}).items()}
    words = Words(words.language, {**words.messages, **own}, words.facts)
    for number, step in enumerate(entry["steps"], 1):
        noted = f" {badge(library, 'claimed', step['claims'][0])}" if step.get("claims") else ""
        when = _when(step, words)
        said = [f'<span class="kb-when">{when}</span>'] if when else []
        said.append(prose(step["text"][library.language]) + noted)
        changes = ", ".join(_change(name, value, words) for name, value in step.get("set", {}).items())
        if changes:
            said.append(changes)
        if "run" in step:
            said.append(code(step["run"]))
        yield f"{number}. {'<br>'.join(said)}"


def _when(step: Mapping[str, Any], words: Words) -> str:
    """A step's condition as a sentence; nothing where it has none, or where it is a sum: its own words tell that.

    Args:
        words: with what the remedy calls what it reads in a log.
    """
    if "when" not in step or computes(step["when_tree"]):
        return ""
    return say(words.language, "remedy.when", condition=prose(sentence(step["when_tree"], words)))


def _change(name: str, value: Any, words: Words) -> str:
    """A setting and its new value; one that is worked out is told in words, and with numbers by the example below."""
    key = name.rpartition(".")[2]
    if not isinstance(value, Mapping):
        return code(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")
    return f"{code(key)}: {text(_worked_out(name, value['compute_tree'], words))}"


def _worked_out(name: str, tree: Tree, words: Words) -> str:
    """How a value follows: from what the setting was, or as a fact that has a name."""
    language, own = words.language, ["fact", name]
    least = None
    if tree[:2] == ["call", "max"] and tree[2][0] == "lit":
        least, tree = tree[2][1], tree[3]
    if tree[1:] == [own, ["lit", 2]] and tree[0] in ("//", "/", "*"):
        if tree[0] == "*":
            return say(language, "remedy.change.twice")
        said = "remedy.change.half" if least is None else "remedy.change.half_least"
        return say(language, said, **({} if least is None else {"least": least}))
    if tree[0] == "-" and tree[1] == own and tree[2][0] == "lit":
        return say(language, "remedy.change.lower", by=tree[2][1])
    if tree[0] in ("fact", "lit"):
        return sentence(tree, words) if tree[0] == "lit" else named(tree[1], words)
    return say(language, "remedy.change.computed")


FRONT = (
    "---\ntitle: {title}\ngenerated: {made_from}\nrender_macros: false\nhide: [navigation]\n"
    "search: {{boost: {boost}}}\nalso: {also}\n---\n\n"
)


class Page(NamedTuple):
    """``also`` are other names by which the search finds it; ``area`` is that of a rule; ``markdown`` makes it."""

    title: str
    made_from: str
    markdown: Callable[[], str]
    also: list[str]
    area: str | None = None


def generated_pages(library: Library, fits: Fits, opening: Set[str]) -> Iterator[tuple[str, Page]]:
    """Each generated page with its path below docs/<language>/."""
    language, catalog = library.language, library.catalog

    def names(kind: str, name: str, folder: str) -> list[str]:
        return other_names(folder, library.entry(kind, name), language)

    for gpu in catalog.gpus.values():
        made_from, also = f"rules/hardware/{gpu.id}.yaml", names("hardware", gpu.id, "gpus")
        yield f"gpus/{gpu.id}.md", Page(gpu.name, made_from, partial(gpu_page, library, gpu, fits), also)
    for model in catalog.models.values():
        made_from, also = f"rules/models/{model.id}.yaml", names("models", model.id, "models")
        yield f"models/{model.id}.md", Page(model.name, made_from, partial(model_page, library, model, fits), also)
    for name, entry in library.rows("remedies").items():
        made_from, title = f"rules/remedies/{name}.yaml", entry["title"][language]
        also = other_names("trouble", entry, language)
        yield f"trouble/{name}.md", Page(title, made_from, partial(remedy_page, library, entry), also)
    for name, entry in library.rows("errata").items():
        title = erratum_title(entry, language).replace("`", "")
        yield f"errata/{name}.md", Page(title, "rules/errata.yaml", partial(erratum_page, library, entry), [name])
    for rule in library.catalog.rules.values():
        made_from, title = f"rules/checks/{rule.area}/{rule.id}.yaml", library.words.described(rule.title)
        also = other_names("rules", {"id": rule.id, "title": rule.title, "aliases": _settings(rule)}, language)
        yield f"rules/{rule.id}.md", Page(title, made_from, partial(rule_page, library, rule, opening), also, rule.area)


def _settings(rule: Rule) -> list[str]:
    """The settings at which a rule's findings stand, as configs write them."""
    return [place.rpartition(".")[2] for place in rule.at]


def write_pages(
    docs: str, language: str, say: Callable[[str], None] = lambda line: None, *, preview: bool = False
) -> int:
    """Write every generated page of a language below ``docs``/``language``; pages of entries that are gone are removed.
    One that the build leaves out (``KB_SITE_LEFT_OUT``) stays as it is; where there is none, the head alone is written:
    links may lead to it.

    Returns:
        How many files changed.
    """
    folder, library = os.path.join(os.path.dirname(docs), "build"), load_library(language)
    opening = rules_that_open(folder, library.catalog, preview)
    pages = dict(generated_pages(library, all_fits(folder, preview), opening))
    left_out = frozenset(os.environ.get("KB_SITE_LEFT_OUT", "").splitlines())
    changed = 0
    for path, page in pages.items():
        file, leaves_out = os.path.join(docs, language, path), f"/{path}" in left_out
        if leaves_out and os.path.exists(file):
            continue
        front = FRONT.format(
            title="'" + page.title.replace("'", "''") + "'",
            made_from=page.made_from,
            boost=importance(path.removesuffix(".md"), page.area),
            also=json.dumps(page.also, ensure_ascii=False),
        )
        changed += write_if_changed(file, front if leaves_out else front + page.markdown())
    changed += _remove_stale(os.path.join(docs, language), pages)
    say(f"{language}: {changed} generated pages changed")
    return changed


def write_if_changed(path: str, content: str) -> bool:
    """An unchanged page keeps its time, so that a served site does not rebuild for nothing."""
    try:
        with open(path, encoding="utf-8") as stream:
            if stream.read() == content:
                return False
    except OSError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(content)
    return True


def _remove_stale(folder: str, pages: Mapping[str, Page]) -> int:
    removed = 0
    for kind in sorted({path.split("/")[0] for path in pages}):
        for name in os.listdir(os.path.join(folder, kind)):
            path = os.path.join(folder, kind, name)
            if f"{kind}/{name}" not in pages and name.endswith(".md") and _is_generated(path):
                os.remove(path)
                removed += 1
    return removed


def _is_generated(path: str) -> bool:
    with open(path, encoding="utf-8") as stream:
        return "\ngenerated: " in stream.read(400)
