"""The figures of the chapters: one run with more of one thing, a bar for each; a worker's and a server's memory."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kb.advice.estimator import Estimator, on_gpu
from kb.core.memory_report import Phase
from kb.core.setup import TrainingSetup
from kb.core.units import GIB
from kb.guide.drawings import Bar, Segment, bars_svg
from kb.guide.library import Library
from kb.guide.markup import badge, held
from kb.guide.memory_bars import term_bars
from kb.guide.serving_tables import served_on
from kb.guide.site_words import say
from kb.machine.arguments import read_host_memory
from kb.report.lesson_rows import Case, case_of
from kb.report.svg import HUES, UNUSED
from kb.report.values import short_name

GB = 10**9
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"fp16": False, "bf16": False},
    "fp16": {"fp16": True, "bf16": False},
    "bf16": {"fp16": False, "bf16": True},
}
TRAINED = ("batch", "precision")
DRAWN = (*TRAINED, "beams", "generation")
SERVER_HUES = {"weights": HUES["parameters"], "activations": HUES["activations_encoder"]}


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
    library.entry("models", model)
    library.entry("hardware", gpu)
    case = case_of(library.catalog, model, gpu)
    title = say(library.language, f"drawn.{what}", **case.named(), batch=batch)
    phases = [
        (say(library.language, f"drawn.{what}.label", n=count), _phase(case, what, count, batch)) for count in counts
    ]
    return term_bars(library, phases, case.estimator.limit_bytes, title)[0]


def _phase(case: Case, what: str, count: Any, batch: int) -> Phase:
    base = case.setup._replace(per_device_train_batch_size=batch)
    generating = _generating(case.setup, batch)
    setup = {
        "batch": lambda: base._replace(per_device_train_batch_size=count),
        "precision": lambda: base._replace(**PRECISIONS[count]),
        "beams": lambda: generating._replace(inference_num_beams=count),
        "generation": lambda: generating._replace(inference_batch_size=count),
    }[what]()
    phase = case.estimator.predict(setup).phase("train" if what in TRAINED else "generate")
    assert phase is not None  # the setup has it
    return phase


def _generating(setup: TrainingSetup, batch: int) -> TrainingSetup:
    length = setup.max_target_length
    return setup._replace(do_train=False, do_predict=True, inference_batch_size=batch, inference_max_length=length)


def drawn_workers(library: Library, model: str, gpu: str, host_memory: str, counts: Sequence[int]) -> str:
    """Host memory by the number of workers: a bar to the low end, a whisker to the high one. In GB."""
    library.entry("models", model)
    limit = read_host_memory(host_memory) or 0
    machine = on_gpu(library.catalog.gpus[gpu])._replace(host_memory_bytes=limit)
    estimator = Estimator(library.catalog.models[model], machine, library.catalog.constants)
    base, bars = case_of(library.catalog, model, gpu).setup, []
    for count in counts:
        host = estimator.predict(base._replace(dataloader_num_workers=count)).host
        label = say(library.language, "drawn.workers.label", n=count)
        bars.append(
            Bar(label, [Segment(label, host.low_bytes, HUES["kv_cache_self"])], host.low_bytes, host.peak_bytes)
        )
    title = say(library.language, "drawn.workers", model=estimator.model.name, limit=f"{limit / GB:.0f} GB")
    return _figure(library, title, bars_svg(title, bars, limit, f"{limit / GB:.0f} GB", GB, "GB"))


def drawn_server(library: Library, model: str, gpus: Sequence[str], length: int) -> str:
    """What vLLM puts on each GPU: weights, activations, what is outside PyTorch, and the KV cache that is left."""
    bars, named = [], {}
    for gpu in gpus:
        found = served_on(library, model, gpu, "vllm", length)
        if found.budget is None:
            continue
        parts = []
        for term in found.budget.terms:
            title = library.words(f"serving_term.{term.name}")
            hue = SERVER_HUES.get(term.name, UNUSED)
            named[title] = hue
            parts.append(Segment(title, term.bytes, hue))
        left = say(library.language, "drawn.server.cache")
        named[left] = HUES["kv_cache_self"]
        parts.append(Segment(left, max(found.budget.kv, 0), named[left]))
        used = sum(part.size_bytes for part in parts)
        card = short_name(library.catalog.gpus[gpu])
        bars.append(Bar(card, parts, used - found.budget.kv + found.budget.kv_low, used))
    title = say(library.language, "drawn.server", model=library.catalog.models[model].name)
    items = "".join(
        f'<li><span class="kb-swatch kb-term--{hue}"></span>{escape(name)}</li>' for name, hue in named.items()
    )
    legend = f'<ul class="kb-legend" aria-hidden="true">{items}</ul>'
    return _figure(library, title, bars_svg(title, bars, None, "", GIB) + legend)


def _figure(library: Library, title: str, drawing: str) -> str:
    caption = f"<figcaption><b>{escape(title)}</b> {badge(library, 'computed')}</figcaption>"
    return held(f'<figure class="kb-figure" tabindex="0">{caption}{drawing}</figure>')
