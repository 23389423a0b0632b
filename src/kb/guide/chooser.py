"""The small chooser of the first page: its place and its words; the script holds none of its own."""

import json
from html import escape

from kb.advice.lengths import reads_target
from kb.core.memory_report import STATUSES
from kb.guide.fits_table import by_family
from kb.guide.library import Library
from kb.guide.site_words import say
from kb.report.gpu_names import short_name

WORDS = (
    "accumulation", "auto", "batch", "compute", "config", "done", "effective", "evaluation", "failed", "full", "gpu",
    "inference", "largest", "loading", "lora", "method", "model", "no_wasm", "qlora", "small", "source", "stuck",
    "target", "unused", "usual", "way", "chart",
)  # fmt: skip
SHARED = {"chart", "done", "failed", "loading", "small", "stuck", "unused"}  # said by the playground too


def chooser(library: Library, model: str, gpu: str) -> str:
    """The chooser's place, with ``model`` on ``gpu`` picked; without a script the tables below it serve."""
    library.entry("models", model)
    library.entry("hardware", gpu)
    language, catalog = library.language, library.catalog
    words: dict[str, object] = {
        name: say(language, f"{'playground' if name in SHARED else 'chooser'}.{name}") for name in WORDS
    }
    words["verdict"] = {name: library.words.named("verdict", name) for name in (*STATUSES, "unknown")}
    models = [
        [family, [[one.id, one.name, reads_target(one.architecture)] for one in found]]
        for family, found in by_family(list(catalog.models.values()))
    ]
    gpus = sorted(catalog.gpus.values(), key=lambda one: (one.memory_total, one.name))
    held = {"words": words, "model": model, "gpu": gpu, "models": models}
    held["gpus"] = [[one.id, f"{short_name(one)} ({one.memory_total / 2**30:.0f} GiB)"] for one in gpus]
    shown = escape(json.dumps(held, ensure_ascii=False), quote=True)
    needs = escape(say(language, "chooser.no_script"))
    place = f'<div id="kb-choose" class="kb-choose" data-given="{shown}"></div>'
    return f'{place}\n<noscript><p class="kb-notice">{needs}</p></noscript>'
