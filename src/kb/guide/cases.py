"""A config's history and a pipeline's run time: what a field note recorded, beside what kb predicts."""

from kb.advice.check import Checker
from kb.advice.fit import Fit
from kb.advice.history import History, history_of
from kb.advice.noted_history import noted_versions
from kb.advice.pipelines import pipeline_of
from kb.advice.room import on_gpu
from kb.advice.runtime import compare, run_time
from kb.core.document import Unit
from kb.core.setup import TrainingSetup
from kb.guide.library import Library
from kb.guide.markup import PLAIN, held, prose, table, text
from kb.guide.site_words import say
from kb.machine.arguments import find_gpu, read_host_memory
from kb.report.history.memory import memory_rows
from kb.report.history.plot import history_svg
from kb.report.history.text import setting_rows
from kb.report.runtime.text import bottleneck_lines, stage_rows
from kb.report.words import Words


def case_history(library: Library, name: str, gpu: str, host_memory: str) -> str:
    """The stages of ``rules/histories/<name>.yaml``: settings, the note's figures, predictions, verdicts, outcomes."""
    words, row = library.words, library.entry("histories", name)
    machine = on_gpu(find_gpu(gpu, library.catalog.gpus))._replace(host_memory_bytes=read_host_memory(host_memory))
    checker = Checker(library.catalog, machine)

    def prepare(unit: Unit) -> tuple[TrainingSetup, str | None, Fit]:
        facts = checker.prepare(unit)
        return facts.setup, facts.model.id if facts.model else None, facts.fit

    versions = noted_versions(row, library.language)
    history = history_of(versions, prepare, library.catalog.facts)
    head = [say(library.language, "case.what"), *(text(version.label) for version in versions)]
    body = [*setting_rows(history.rows, words, PLAIN), *memory_rows(history, words, PLAIN)]
    cells = [[text(cell) for cell in line[: len(head)]] for line in body]
    parts = [_plot(history, words), table(head, cells, numbers=range(1, len(head)))]
    for stage in row["stages"]:
        outcome = stage["outcome"]["text"][library.language]
        parts.append(f"**{text(stage['title'][library.language])}** ({text(stage['event']['time'])}): {prose(outcome)}")
    return "\n\n".join(parts)


def _plot(history: History, words: Words) -> str:
    """The drawing of ``kb history --plot`` in the page; its ids are its own."""
    drawing = history_svg(history, words)
    for name in ("title", "desc"):
        drawing = drawing.replace(f'id="{name}"', f'id="kb-history-{name}"')
    drawing = drawing.replace('aria-labelledby="title desc"', 'aria-labelledby="kb-history-title kb-history-desc"')
    return held(f'<figure class="kb-figure kb-paper">{drawing}</figure>')


def run_times(library: Library, name: str, batch: int, baseline: int, pipeline: str | None = None) -> str:
    """The stages of ``rules/runtimes/<name>.yaml`` with two batches, each one's share, and what the batch buys."""
    words = library.words
    errata = list(library.rows("errata").values())
    chosen = pipeline_of(library.entry("runtimes", name), pipeline, errata)
    run = run_time(chosen.stages, batch)
    comparison = compare(run_time(chosen.stages, baseline), run)
    head, *rows = stage_rows(run, comparison, words, PLAIN)
    said = " ".join(line.strip() for line in bottleneck_lines(run, words, PLAIN))
    cells = [[text(cell) for cell in row] for row in rows]
    return table([text(cell) for cell in head], cells, numbers=range(1, len(head))) + "\n\n" + prose(said)
