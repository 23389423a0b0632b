"""The figures of the chapters: one run with more of one thing, a bar for each; a worker's and a server's memory; a run
over time. Each is drawn again for what its reader chose (``kb-own.mjs``)."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kb.guide.library import Library
from kb.guide.markup import held
from kb.guide.memory_bars import marked
from kb.guide.site_words import say
from kb.integrations.over_time import chapter_timeline
from kb.report.lessons import DRAWN, case_of, figure_of

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
    library.entry("models", model)
    library.entry("hardware", gpu)
    asked = {**asked, "title": say(library.language, key)}
    case = case_of(library.catalog, model, gpu, asked.get("source_length"))
    draw = chapter_timeline if asked["figure"] == "over_time" else figure_of
    shown = marked(library, draw(case, library.words, asked))
    given = escape(json.dumps({**asked, "model": model, "gpu": gpu}, ensure_ascii=False), quote=True)
    return held(f'<div class="kb-own" data-given="{given}">{shown}</div>')


FIELDS = ("model", "gpu", "source_length", "target_length", "batch", "effective_batch", "beams", "workers", "prefetch",
          "host_memory")  # fmt: skip
WORDS = ("back", "close", "compute", "failed", "for", "loading", "no_wasm", "open", "usual", "whole")


def own_numbers(library: Library, *fields: str) -> str:
    """The form in which a reader gives the numbers that the page's tables and figures are computed again for.

    Args:
        fields: of ``FIELDS``, in their order on the page.

    Raises:
        ValueError: there is no such field.
    """
    if wrong := [name for name in fields if name not in FIELDS]:
        raise ValueError(f"no field {wrong[0]!r}; there are: {', '.join(FIELDS)}")
    language = library.language
    given = {
        "fields": [[name, say(language, f"own.field.{name}")] for name in fields],
        "words": {name: say(language, f"own.{name}") for name in WORDS},
    }
    shown = escape(json.dumps(given, ensure_ascii=False), quote=True)
    return held(f'<div class="kb-numbers" data-given="{shown}"></div>')
