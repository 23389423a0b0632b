"""The figures of the chapters: bars of a run's memory by phase; one run with more of one thing, or in several ways side
by side; a worker's and a server's memory; a run over time. Each is drawn again for what its reader chose
(``kb-own.mjs``).
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kb.core.memory_report import MemoryReport
from kb.core.units import GIB
from kb.guide.library import Library, say
from kb.guide.markup import attribute, badge, cells, folded, held, own_table, table, text, told, wide_table
from kb.integrations.over_time import chapter_timeline
from kb.report.bars import Bar, term_figure
from kb.report.lessons import DRAWN, Case, case_of, figure_of, way_rows


def memory_bars(library: Library, report: MemoryReport, limit_bytes: int | None, title: str) -> str:
    """The drawing of each phase with its legend, then its figures folded away."""
    phases = [(library.words.phase(phase), phase) for phase in report.phases if phase.name != "load"]
    drawing, bars = term_figure(library.words, phases, limit_bytes, title)
    figures = folded(say(library.language, "memory.figures"), _figures(library, bars))
    return f"{held(_marked(library, drawing))}\n\n{figures}"


def _marked(library: Library, figure: str) -> str:
    """A figure with the mark of what kb computed, after its title."""
    return figure.replace("</figcaption>", f" {badge(library, 'computed')}</figcaption>", 1)


def _figures(library: Library, bars: Sequence[Bar]) -> str:
    head = [say(library.language, "memory.phase"), say(library.language, "memory.term")]
    head.append(f"GiB {badge(library, 'computed')}")
    rows = [
        (text(bar.label), text(segment.label), f"{segment.size_bytes / GIB:.2f}")
        for bar in bars
        for segment in sorted(bar.segments, key=lambda segment: -segment.size_bytes)
        if segment.size_bytes >= GIB // 200
    ]
    return table(head, rows, numbers=(2,))


BY_BATCH = ("batch", "generation")  # what these vary is the batch


def drawn(library: Library, what: str, model: str, gpu: str, counts: Sequence[Any], batch: int = 1) -> str:
    """One run with more and more of ``what``, a bar for each of ``counts``.

    Args:
        what: ``batch`` (of training), ``beams`` and ``generation`` (a batch that generates), or ``precision``, whose
            counts are names.
        batch: per device, where ``what`` is none.

    Raises:
        ValueError: there is no such figure.
    """
    if what not in DRAWN:
        raise ValueError(f"nothing to draw by {what!r}; there are: {', '.join(DRAWN)}")
    asked: dict[str, Any] = {"figure": what, "counts": [*counts], "label": say(library.language, f"drawn.{what}.label")}
    if what not in BY_BATCH:
        asked["batch"] = batch
    return own_figure(library, f"drawn.{what}", model, gpu, asked)


def drawn_workers(library: Library, model: str, gpu: str, host_memory: str, counts: Sequence[int]) -> str:
    """Host memory by the number of workers: a bar to the low end, a whisker to the high one. In GB."""
    label = say(library.language, "drawn.workers.label")
    asked = {"figure": "workers", "counts": [*counts], "host_memory": host_memory, "label": label}
    return own_figure(library, "drawn.workers", model, gpu, asked)


def drawn_server(library: Library, model: str, gpus: Sequence[str], length: int) -> str:
    """What vLLM puts on each GPU: weights, activations, what is outside PyTorch, and the KV cache that is left."""
    asked = {"figure": "server", "gpus": [*gpus], "length": length}
    return own_figure(library, "drawn.server", model, gpus[0], asked)


def over_time(library: Library, model: str, gpu: str, batch: int) -> str:
    """Two steps of full training over time, as the memory engine follows them: where the peak is, and what makes it."""
    return own_figure(library, "lesson.over_time.title", model, gpu, {"figure": "over_time", "batch": batch})


def own_figure(library: Library, key: str, model: str, gpu: str, asked: Mapping[str, Any]) -> str:
    """A figure of a model on a GPU, with what its script asks for to draw it for another.

    Args:
        key: the text of its title, whose placeholders the figure fills.
        asked: as of :func:`kb.report.lessons.figure_of`, without the title.
    """
    asked = {**asked, "title": say(library.language, key)}
    case = example(library, model, gpu, asked.get("source_length"))
    draw = chapter_timeline if asked["figure"] == "over_time" else figure_of
    shown = _marked(library, draw(case, library.words, asked))
    given = attribute({**asked, "model": model, "gpu": gpu})
    return held(f'<div class="kb-own" data-given="{given}">{shown}</div>')


def compare(
    library: Library, what: str, model: str, gpu: str, batch: int, length: int | None = None, drawn: bool = False
) -> str:
    """Training with a per-device ``batch`` in each way: states, activations and the rest, process memory, verdict.

    Args:
        what: ``attention``, ``checkpointing``, ``gpus``, ``method`` or ``post``.
        length: input tokens; None is the model's usual length.
        drawn: with a bar for each way above.

    Raises:
        ValueError: there is no such comparison.
    """
    language = library.language
    case = example(library, model, gpu, length)
    found = way_rows(case, library.words, what, batch)
    labels = {
        name: say(language, f"way.{name}" if what == "method" else f"compare.{what}.{name}") for name, _, _ in found
    }
    rows = [(escape(labels[name]), *cells(row)) for name, _, row in found]
    head = [say(language, f"compare.{key}") for key in ("way", "verdict", "process", "states", "rest")]
    title = say(language, "compare.title", **case.named(), batch=batch)
    asked = {"what": what, "batch": batch, "source_length": length, "model": model, "gpu": gpu}
    about = own_table(library, "compare.title", {**case.named(), "batch": batch}, {"table": "ways", **asked})
    below = told(library, "computed", alone=False)
    shown = wide_table(title, [escape(cell) for cell in head], [("", rows)], below)
    parts = [about, shown]
    if drawn:
        figure = {"figure": "ways", **asked, "labels": labels}
        parts.insert(0, own_figure(library, f"compare.found.{what}", model, gpu, figure))
    return "\n\n".join(parts)


def example(library: Library, model: str, gpu: str, length: int | None = None) -> Case:
    """A chapter's example: a model on a GPU with ``length`` tokens of input; None is the model's usual length.

    Raises:
        UnknownIdError: the rules have no such model or GPU.
    """
    library.entry("models", model)
    library.entry("hardware", gpu)
    return case_of(library.catalog, model, gpu, length)
