"""The original guide: everything that kb took from it, line by line, with the page that uses it; and its cases, their
stages and settings beside what kb predicts.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from kb.advice.check import Checker
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.fit.recommend_answer import Answer, NotesRow, answer
from kb.advice.history import History, history_of, noted_versions, preparing
from kb.advice.question import Question
from kb.advice.runtime import compare, pipeline_of, run_time
from kb.core.record import NamedTuple
from kb.core.units import GIB
from kb.guide.library import Library, load_library, say
from kb.guide.markup import PLAIN, badge, code, computed, filter_box, folded, held, prose, table, text, told, wide_table
from kb.knowledge import load_guide
from kb.machine.detect import find_gpu, read_host_memory
from kb.report.history_plot import history_svg
from kb.report.history_report import memory_rows, setting_rows
from kb.report.recommend.reasons import COLUMNS, shown_rows, why_lines
from kb.report.recommend.text import own_row
from kb.report.runtime_report import bottleneck_lines, stage_rows
from kb.report.values import short_name


def case_history(library: Library, name: str, gpu: str, host_memory: str) -> str:
    """The stages of ``rules/histories/<name>.yaml``: settings, the note's figures, predictions, verdicts, outcomes."""
    words, row = library.words, library.entry("histories", name)
    machine = on_gpu(find_gpu(gpu, library.catalog.gpus))._replace(host_memory_bytes=read_host_memory(host_memory))
    checker = Checker(library.catalog, machine)

    # a reader knows a stage by its name; who reads a repository knows it by its commit
    versions = [
        version._replace(label=version.subject or version.label) for version in noted_versions(row, library.language)
    ]
    history = history_of(versions, preparing(checker.prepare), library.catalog.facts)
    head = [say(library.language, "case.what"), *(text(version.label) for version in versions)]
    noted = badge(library, "claimed", {"source": f"history-{name}"})
    marked = [(noted, line) for line in setting_rows(history.rows, words, PLAIN)]
    said = ("gpu_claimed", "host_claimed", "mixed_claimed", "gpu_measured", "host_measured")  # by the document
    claimed = {words(f"history.{key}") for key in said}
    marked += [
        (noted if line[0] in claimed else badge(library, "computed"), line)
        for line in memory_rows(history, words, PLAIN)
    ]
    # a setting's name may part behind its underscores
    cells = [
        [f"{text(line[0])} {mark}".replace("\\_", "\\_<wbr>"), *map(text, line[1 : len(head)])] for mark, line in marked
    ]
    parts = [_plot(library, history), table(head, cells, numbers=range(1, len(head)))]
    if code := row.get("code"):
        parts.append(prose(code["text"][library.language]))
    for stage in row["stages"]:
        outcome = stage["outcome"]["text"][library.language]
        parts.append(f"**{text(stage['title'][library.language])}** ({text(stage['event']['time'])}): {prose(outcome)}")
    return "\n\n".join(parts)


def _plot(library: Library, history: History) -> str:
    """The drawing of ``kb history --plot`` in the page, and one that a phone has room for; ids are their own."""
    about = f"{say(library.language, 'source.of_figure')} {badge(library, 'computed')}"
    drawings = "".join(
        f'<div class="kb-paper kb-paper--{kind}">{_named(drawing, kind)}</div>'
        for kind, drawing in (
            ("wide", history_svg(history, library.words)),
            ("narrow", history_svg(history, library.words, narrow=True)),
        )
    )
    return held(f'<figure class="kb-figure" tabindex="0"><figcaption>{about}</figcaption>{drawings}</figure>')


def _named(drawing: str, kind: str) -> str:
    for name in ("title", "desc"):
        drawing = drawing.replace(f'id="{name}"', f'id="kb-history-{kind}-{name}"')
    labelled = f'aria-labelledby="kb-history-{kind}-title kb-history-{kind}-desc"'
    return drawing.replace('aria-labelledby="title desc"', labelled)


def run_times(library: Library, name: str, batch: int, baseline: int, pipeline: str | None = None) -> str:
    """The stages of ``rules/runtimes/<name>.yaml`` with two batches, each one's share, and what the batch buys."""
    words = library.words
    errata = list(library.rows("errata").values())
    chosen = pipeline_of(library.entry("runtimes", name), pipeline, errata)
    run = run_time(chosen.stages, batch)
    comparison = compare(run_time(chosen.stages, baseline), run)
    head, *rows = stage_rows(run, comparison, words, PLAIN)
    computed = badge(library, "computed")
    said = "\n".join(f"- {prose(line.strip())} {computed}" for line in bottleneck_lines(run, words, PLAIN))
    cells = [[text(cell) if cell.strip() else "–" for cell in row] for row in rows]
    shown = table([text(cell) for cell in head], cells, numbers=range(1, len(head)))
    # the note's minutes, and what follows from them by arithmetic
    noted = badge(library, "claimed", library.entry("runtimes", name)["baseline"])
    about = say(library.language, "runtime.numbers", claimed=noted, computed=computed)
    return f"{shown}\n\n{about}\n\n{said}"


_ID = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)+")


def noted_settings(
    library: Library, models: Collection[str], *, model: str | None = None, gpu: str | None = None
) -> str:
    """A table and its reasons for each pair that ``rules/presets`` has of a model, or of a GPU; empty where none.

    Args:
        models: those that are shown; a preview has few.
    """
    pairs = [
        (preset["model"], card)
        for preset in library.rows("presets").values()
        for card in preset["gpus"]
        if not preset.get("deprecated") and model in (None, preset["model"]) and gpu in (None, card)
        if preset["model"] in models
    ]
    return "\n\n".join(_pair(library, *pair, by_model=gpu is not None) for pair in dict.fromkeys(pairs))


def _pair(library: Library, model: str, gpu: str, *, by_model: bool) -> str:
    words, catalog = library.words, library.catalog
    found = _answer(model, gpu)
    own, rows = own_row(found), shown_rows(found.notes, "train") or list(found.notes.own)
    columns = [name for name in COLUMNS if own is None or name in own.values or any(name in row.values for row in rows)]
    shown = code(model) if by_model else escape(short_name(catalog.gpus[gpu]))
    path = f"models/{model}" if by_model else f"gpus/{gpu}"
    head = [say(library.language, "preset.who")]
    head += [escape(words.named("recommend.column", name.rpartition(".")[2])) for name in columns]
    head.append(escape(words("recommend.column.predicted")))
    lines = []
    if own is not None:
        need = _need(library, own.phase.process_used_bytes, own.status)
        lines.append((f"<b>kb</b> {badge(library, 'computed')}", *(_cell(own.values.get(c)) for c in columns), need))
    for number, row in enumerate(rows, 1):
        values = {**row.values, "effective": row.effective}
        need = _need(library, row.phase.process_used_bytes, row.status) if row.phase else "–"
        lines.append((_who(library, row, number), *(_cell(values.get(c)) for c in columns), need))
    why = [line.strip() for line in _why(library, found)]
    title = f'### <a href="../../{path}/">{shown}</a> {{ #notes-{model if by_model else gpu} }}'
    label = say(library.language, "preset.heading")
    return "\n\n".join([title, wide_table(label, head, [("", lines)]), "\n".join(why)])


def _why(library: Library, found: Answer) -> list[str]:
    lines = why_lines(own_row(found), found.notes, "train", library.words, PLAIN)
    said = [f"- {prose(line.strip().removeprefix('- '))}{_mark(library, line)}" for line in lines]
    errata = {one.id for row in found.notes.own + found.notes.others for one in row.errata}
    return [_ID.sub(lambda m: f"[{m[0]}](../errata/{m[0]}.md)" if m[0] in errata else m[0], line) for line in said]


def _mark(library: Library, line: str) -> str:
    """The badge of a prediction; a line of an erratum leads to it."""
    return f" {badge(library, 'computed')}" if " GiB" in line else ""


def _who(library: Library, row: NotesRow, number: int) -> str:
    said = f"{row.model_said} · {row.gpu_said}" + ("" if row.method == "full" else f" · {row.method}")
    return f"[{number}] {escape(said)} {badge(library, 'claimed', {'source': row.source, 'lines': row.lines})}"


def _need(library: Library, size_bytes: int, status: str) -> str:
    verdict = escape(library.words.named("verdict", status))
    size = computed(library, f"{size_bytes / GIB:.1f} GiB")
    return f'{size} <span class="kb-verdict kb-verdict--{escape(status)}">{verdict}</span>'


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return escape("–".join(map(str, value)))
    return escape(str(value))


@lru_cache(maxsize=256)  # both languages, and the pages of the model and of the GPU, show the same
def _answer(model: str, gpu: str) -> Answer:
    library = load_library("ko")  # figures are the same in both
    catalog = library.catalog
    estimator = Estimator(catalog.models[model], on_gpu(catalog.gpus[gpu]), catalog.constants, rough=True)
    return answer("train", Question(), estimator, catalog, library.guide, all_ways=False)


SOURCES = ("guide-memory", "guide-batch-by-gpu", "guide-batch-inference", "history-mt5-qlora")
# the page that shows an entry of a kind, below the site; {} is the entry's id
PAGES = {
    "constants": "memory/",
    "decisions": "inference/",
    "errata": "errata/{}/",
    "formulas": "memory/",
    "hardware": "gpus/{}/",
    "histories": "case/",
    "models": "models/{}/",
    "remedies": "trouble/{}/",
    "runbooks": "trouble/checklists/",
    "runtimes": "inference/",
    "serving": "serving/",
    "tradeoffs": "memory/",
}
_PLAIN = ("time", "command", "value", "before", "after", "saving", "percent")
_CITED = ("also", "cites")  # further places of the fact that they stand in


class Fact(NamedTuple):
    source: str
    lines: str
    says: str
    kind: str
    entry: str


def noted_facts(library: Library) -> str:
    """A table for each document, in the order of its lines."""
    language, facts = library.language, sorted(_facts(library), key=lambda fact: (*_first(fact.lines), fact.says))
    head = [escape(say(language, f"noted.{name}")) for name in ("lines", "says", "used")]
    parts = [filter_box(library)]
    for source in SOURCES:
        rows = [
            (escape(fact.lines), fact.says, _link(library, fact))
            for fact in dict.fromkeys(fact for fact in facts if fact.source == source)
        ]
        title = say(language, f"noted.{source}")
        parts += [
            f"## {title} {{ #{source} }}",
            wide_table(title, head, [("", rows)], told(library, "claimed", {"source": source})),
        ]
    return "\n\n".join(parts)


def guide_said(library: Library, *names: str, up: str = "../") -> str:
    """What the original guide said of a page's matter, folded: its claim, what holds instead, and the erratum.

    Args:
        names: ids of errata, in the order in which they are shown.
        up: the way from the page to the site's root.
    """
    language, head = library.language, ("erratum.claim", "erratum.use", "erratum.reason")
    rows = []
    for name in names:
        entry = library.entry("errata", name)
        link = f"[{library.words.named('erratum_verdict', entry['verdict'])}]({up}errata/{name}.md)"
        claim = f"{prose(entry['claim']['text'][language])} {badge(library, 'claimed', entry['claim'])}"
        rows.append((claim, prose(entry["use"][language]), link))
    return folded(say(language, "noted.said"), table([say(language, key) for key in head], rows))


def _facts(library: Library) -> Iterator[Fact]:
    for kind, entries in load_guide().items():
        if kind == "errata":
            entries = library.rows("errata")
        for name, entry in entries.items():
            for place, data in _noted(entry, ()):
                says = _says(data, place, library.language)
                for cited in (data, *data.get("cites", ()), *data.get("also", ())):
                    if says and cited.get("source") in SOURCES and "lines" in cited:
                        yield Fact(cited["source"], str(cited["lines"]), says, kind, name)


def _noted(data: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every mapping that cites lines of a document, with its place in the entry."""
    if isinstance(data, Mapping):
        if "lines" in data and data.get("source") in SOURCES:
            yield place, data
        for name, value in data.items():
            if name not in _CITED:
                yield from _noted(value, (*place, str(name)))
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _noted(value, place)


def _says(data: Mapping[str, Any], place: tuple[str, ...], language: str) -> str:
    """The fact in the page's language: its words, else the name of what is given; then its values."""
    said = [str(text[language]) for text in data.values() if isinstance(text, Mapping) and {"ko", "en"} <= text.keys()]
    said += [str(data[language])] if isinstance(data.get(language), str) else []
    values = [_shown(data[name]) for name in _PLAIN if data.get(name) is not None]
    if not said and not values:
        return ""
    if not said and place:
        said = [f"`{place[-1]}`"]
    unit = str(data.get("unit", ""))
    shown = " → ".join(values) + (f" {unit}" if values and unit else "")
    return f"{prose(': '.join(said))} <b>{escape(shown)}</b>" if shown else prose(": ".join(said))


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first(lines: str) -> tuple[int, int]:
    numbers = [int(number) for number in re.findall(r"\d+", lines)]
    return (numbers[0], numbers[-1]) if numbers else (0, 0)


def _link(library: Library, fact: Fact) -> str:
    """The page that uses the fact; of a preset that of its model."""
    if fact.kind == "presets":
        preset = library.entry("presets", fact.entry)
        page = f"models/{preset['model']}/"
    elif fact.kind in PAGES:
        page = PAGES[fact.kind].format(fact.entry)
    else:
        return escape(fact.entry)
    return f'<a href="../{page}">{escape(fact.entry)}</a>'
