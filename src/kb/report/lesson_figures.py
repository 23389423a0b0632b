"""The figures and tables of the chapters: of a page's example, and of the model and GPU that its reader chose.

Both are made here, from the same request, so that a page that is built and a script show the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kb.advice.attempts import WAYS
from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.release import parse_version
from kb.core.setup import TrainingSetup
from kb.core.text import fill
from kb.core.units import GIB
from kb.machine.arguments import find_gpu, read_host_memory
from kb.memory.serving.answer import Served, serve
from kb.memory.serving.setup import Engine, ServingSetup, served_model
from kb.report.bars import HUES, UNUSED, Bar, Segment, bars_svg, figure_html, legend, term_figure
from kb.report.lesson_rows import GB, PRECISIONS, Case, Cell, band, generating, plain, verdict, way_rows, worker_hosts
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


def served_on(case: Case, gpus: Iterable[str], engine: Engine, length: int) -> Iterator[tuple[Gpu, Served]]:
    """Each GPU, and what the model's server holds on it: 16-bit weights, the newest release's defaults.

    Args:
        gpus: by id or name; a server on one of each.
        length: of the longest request, in tokens; the model's own where that is shorter.

    Raises:
        UnsupportedArchitectureError: the model is no decoder.
    """
    row, constants, data = case.estimator.model, case.estimator.constants, case.catalog.serving()[engine]
    model = served_model(row.name, row.architecture, row.max_length)
    longest = min(length, model.positions or length)
    for name in gpus:
        gpu = find_gpu(name, case.catalog.gpus)
        seen = round(gpu.memory_total * constants["usable_memory_ratio"])
        setup = ServingSetup(engine, parse_version(data["newest"]), seen, max_model_len=longest, gpu_id=gpu.id)
        yield gpu, serve(model, setup, data, constants)


def serving_rows(case: Case, gpu: str, engine: Engine, lengths: Sequence[int]) -> list[list[Cell]]:
    """By the length of a request: the cache of one, the cache's tokens, and how many are held at once."""
    rows = []
    for length in lengths:
        (_, found), *_ = served_on(case, [gpu], engine, length)
        if found.setup.max_model_len != length:  # longer than the model reads
            break
        one = f"{found.request_bytes / GIB:.2f} GiB" if found.request_bytes else "–"
        held = f"{found.kv_tokens:,}" if found.starts else "–"
        many = ((f"{found.concurrency:.1f}", "b"),) if found.starts and found.concurrency else plain("–")
        rows.append([plain(f"{length:,}"), plain(one), plain(held), many])
    return rows


def changes_of(setup: TrainingSetup) -> Mapping[str, Mapping[str, Any]]:
    """Each way by its name, as changes to a run; a run of batch 1 has no half of it.

    Those come first that train the same: a half batch with twice the accumulation, and checkpointing.
    """
    batch, steps, length = (
        setup.per_device_train_batch_size,
        setup.gradient_accumulation_steps,
        setup.max_source_length,
    )
    return {
        "as_it_is": {},
        "half_batch": {"per_device_train_batch_size": max(1, batch // 2), "gradient_accumulation_steps": steps * 2},
        "checkpointing": {"gradient_checkpointing": True},
        "half_length": {"max_source_length": max(1, length // 2)},
        "adam_8bit": {"optim": "adamw_bnb_8bit"},
        "adafactor": {"optim": "adafactor"},
        "lora": WAYS["lora"],
        "qlora": WAYS["qlora"],
        "qlora_checkpointing": WAYS["qlora_checkpointing"],
    }


def option_rows(case: Case, words: Words, batch: int) -> list[list[Cell]]:
    """Of each of :func:`changes_of` the memory of the process in training with its band and verdict, and what it
    saves beside the run as it is, in GiB."""
    rows: list[list[Cell]] = []
    start = case.setup._replace(per_device_train_batch_size=batch)
    whole = 0
    for changes in changes_of(start).values():
        report = case.estimator.predict(start._replace(**changes))
        phase = report.phase("train")
        assert phase is not None  # it trains
        whole = whole or phase.process_used_bytes
        saved = (whole - phase.process_used_bytes) / GIB
        shown = f"{saved:.1f} GiB" if saved >= 0.05 else "–" if not changes else "0 GiB"
        rows.append([(*band(phase), ("", "br"), *verdict(words, report.verdict.status)), ((shown, "b"),)])
    return rows
