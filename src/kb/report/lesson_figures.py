"""The figures of the chapters: of a page's example, and of the model and GPU that its reader chose.

Both are made here, from the same request, so that a page that is built and a script show the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kb.core.memory_report import Phase
from kb.core.setup import TrainingSetup
from kb.core.text import fill
from kb.core.units import GIB
from kb.machine.arguments import read_host_memory
from kb.report.bars import Bar, Segment, bars_svg, figure_html, legend, term_figure
from kb.report.lesson_rows import GB, PRECISIONS, Case, generating, way_rows, worker_hosts
from kb.report.lesson_serving import served_on
from kb.report.svg import HUES, UNUSED
from kb.report.values import short_name
from kb.report.words import Words

TRAINED = ("batch", "precision")
DRAWN = (*TRAINED, "beams", "generation")
SERVER_HUES = {
    "weights": HUES["parameters"],
    "activations": HUES["activations_encoder"],
    "cuda_graphs": HUES["activations_decoder"],
}


def figure_of(case: Case, words: Words, asked: Mapping[str, Any]) -> str:
    """A figure of a chapter, with its title and legend.

    Args:
        asked: ``figure`` (one of ``DRAWN``, ``ways``, ``workers`` or ``server``), what it varies (``counts``, ``gpus``
            or ``what``), ``batch``, ``host_memory``, ``length``; ``title`` and ``label`` as texts with placeholders, of
            ways ``labels`` by name.
    """
    kind = asked["figure"]
    if kind == "workers":
        return _workers(case, words, asked)
    if kind == "server":
        return _server(case, words, asked)
    if kind == "ways":
        rows = way_rows(case, words, asked["what"], asked["batch"])
        phases = [(asked["labels"][name], phase) for name, phase, _ in rows]
    else:
        phases = [(_filled(asked["label"], n=n), _phase(case, kind, n, asked.get("batch", 1))) for n in asked["counts"]]
    return term_figure(words, phases, case.estimator.limit_bytes, title_of(case, asked))[0]


def title_of(case: Case, asked: Mapping[str, Any]) -> str:
    """The title of a figure, with what it is of."""
    return _filled(asked["title"], **case.named(), batch=asked.get("batch", 1), limit=asked.get("host_memory", ""))


def _filled(template: str, **values: object) -> str:
    return fill(template, lambda name, _: str(values.get(name, f"{{{name}}}")))


def _phase(case: Case, what: str, count: Any, batch: int) -> Phase:
    base = case.setup._replace(per_device_train_batch_size=batch)
    made: Mapping[str, Callable[[], TrainingSetup]] = {
        "batch": lambda: base._replace(per_device_train_batch_size=count),
        "precision": lambda: base._replace(**PRECISIONS[count]),
        "beams": lambda: generating(case, batch)._replace(inference_num_beams=count),
        "generation": lambda: generating(case, count),
    }
    phase = case.estimator.predict(made[what]()).phase("train" if what in TRAINED else "generate")
    assert phase is not None  # the setup has it
    return phase


def _workers(case: Case, words: Words, asked: Mapping[str, Any]) -> str:
    """Host memory by the number of workers: a bar to the low end, a whisker to the high one. In GB."""
    limit, bars = read_host_memory(asked["host_memory"]), []
    for count, host in worker_hosts(case, asked):
        label = _filled(asked["label"], n=count)
        bars.append(
            Bar(label, [Segment(label, host.low_bytes, HUES["kv_cache_self"])], host.low_bytes, host.peak_bytes)
        )
    title = title_of(case, asked)
    return figure_html(title, bars_svg(title, bars, limit, f"{limit / GB:.0f} GB", GB, "GB"))


def _server(case: Case, words: Words, asked: Mapping[str, Any]) -> str:
    """What vLLM puts on each GPU: weights, activations, what is outside PyTorch, and the KV cache that is left."""
    bars, named = [], {}
    for gpu, found in served_on(case, asked["gpus"], "vllm", asked["length"]):
        if found.budget is None:
            continue
        parts = []
        for term in found.budget.terms:
            title = words(f"serving_term.{term.name}")
            named[title] = SERVER_HUES.get(term.name, UNUSED)
            parts.append(Segment(title, term.bytes, named[title]))
        left = words("bars.server_cache")
        named[left] = HUES["kv_cache_self"]
        parts.append(Segment(left, max(found.budget.kv, 0), named[left]))
        used = sum(part.size_bytes for part in parts)
        bars.append(Bar(short_name(gpu), parts, used - found.budget.kv + found.budget.kv_low, used))
    title = title_of(case, asked)
    marks = [(f"kb-term--{hue}", name) for name, hue in named.items()]
    return figure_html(title, bars_svg(title, bars, None, "", GIB) + legend([*marks, _band(words)]))


def _band(words: Words) -> tuple[str, str]:
    """The whisker in a legend."""
    return "kb-swatch--band", words("bars.band")
