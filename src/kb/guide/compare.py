"""One run in several ways, side by side: attention, method, several GPUs. What each takes, by the memory model."""

from collections.abc import Mapping
from html import escape
from typing import Any

from kb.advice.attempts import WAYS
from kb.advice.estimator import Estimator, on_gpu
from kb.core.units import GIB
from kb.guide.fits import SHOWN_WAYS, base_of
from kb.guide.library import Library
from kb.guide.markup import badge, held, wide_table
from kb.guide.site_words import say

STATES = ("parameters", "gradients", "gradients_held", "optimizer", "adapters", "buckets", "gathered_parameters")
# what is compared → the ways of it, as changes to the setup; their names are texts ``compare.<what>.<way>``
KINDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "attention": {
        "eager": {"attn_implementation": "eager"},
        "sdpa": {"attn_implementation": "sdpa"},
    },
    "gpus": {
        "one": {},
        "ddp": {"world_size": 4},
        "zero2": {"world_size": 4, "zero_stage": 2},
        "zero3": {"world_size": 4, "zero_stage": 3},
    },
}


def compare(library: Library, what: str, model: str, gpu: str, batch: int, length: int | None = None) -> str:
    """Training with a per-device ``batch`` in each way: states, activations and the rest, process memory, verdict.

    Args:
        what: ``attention``, ``gpus`` or ``method``.
        length: input tokens; None is the model's usual length.

    Raises:
        ValueError: there is no such comparison.
    """
    if what != "method" and what not in KINDS:
        raise ValueError(f"nothing to compare by {what!r}; there are: method, {', '.join(KINDS)}")
    library.entry("models", model)
    library.entry("hardware", gpu)
    language, catalog = library.language, library.catalog
    estimator = Estimator(catalog.models[model], on_gpu(catalog.gpus[gpu]), catalog.constants)
    base, precision = base_of(estimator.model, estimator)
    base = base._replace(do_eval=False, per_device_train_batch_size=batch)
    if length is not None:
        base = base._replace(max_source_length=length)
    ways = {way: WAYS[way] for way in SHOWN_WAYS} if what == "method" else KINDS[what]
    rows = []
    for name, changes in ways.items():
        report = estimator.predict(base._replace(**changes))
        phase = report.phase("train")
        assert phase is not None  # it trains
        states = sum(term.bytes for term in phase.terms if term.name in STATES)
        sizes = (states, phase.peak_allocated_bytes - states, phase.process_used_bytes)
        status = report.verdict.status
        verdict = escape(library.words.named("verdict", status))
        mark = f'<span class="kb-verdict kb-verdict--{escape(status)}">{verdict}</span>'
        named = say(language, f"way.{name}" if what == "method" else f"compare.{what}.{name}")
        rows.append((escape(named), *(f"{size / GIB:.1f} GiB" for size in sizes), mark))
    head = [say(language, f"compare.{key}") for key in ("way", "states", "rest", "process", "verdict")]
    values = {"model": estimator.model.name, "gpu": catalog.gpus[gpu].name, "batch": batch, "precision": precision}
    title = say(language, "compare.title", length=base.max_source_length, **values)
    about = held(f'<p class="kb-caption">{escape(title)} {badge(library, "computed")}</p>')
    return f"{about}\n\n{wide_table(title, [escape(cell) for cell in head], [('', rows)])}"
