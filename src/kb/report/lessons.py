"""The figures and tables of the chapters: of a page's example, and of the model and GPU that its reader chose.

Both are made here, from the same request, so that a page that is built and a script show the same. A cell of a table
is its parts, each a text and its mark (``b``, ``br``, ``small``, a verdict's status, or none).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kb.advice.fit.attempts import WAYS
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.fit.recommend import base_of, weight_types
from kb.advice.run.named_model import unknown_model
from kb.core.catalog import Catalog
from kb.core.hardware import Gpu
from kb.core.memory_report import HostLedger, Phase
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.setup import Colocated, Method, PostTraining, TrainingSetup
from kb.core.setup_json import setup_from
from kb.core.text import fill
from kb.core.units import GIB
from kb.machine.detect import find_gpu, read_host_memory
from kb.memory.search import BatchField
from kb.memory.serving.answer import Served, serve
from kb.memory.serving.setup import Engine, ServingSetup, served_model
from kb.memory.states import states_of
from kb.report.bars import HUES, UNUSED, Bar, Segment, bars_svg, figure_html, legend, term_figure
from kb.report.values import short_name
from kb.report.words import Words

Cell = tuple[tuple[str, str], ...]
GB, MB = 10**9, 10**6
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"fp16": False, "bf16": False},
    "fp16": {"fp16": True, "bf16": False},
    "bf16": {"fp16": False, "bf16": True},
    "bf16_weights": {"fp16": False, "bf16": False, "weights": "bf16"},
}
# the one that takes most comes first
SHOWN_WAYS = ("full", "full_checkpointing", "lora", "qlora", "qlora_checkpointing")
STATES = (
    "parameters", "gradients", "gradients_held", "optimizer", "adapters", "buckets", "gathered_parameters",
    "reference_model",
)  # fmt: skip
# what is compared → the ways of it, as changes to the setup
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
        "fsdp": {"world_size": 4, "fsdp": True},
        "zero3_offload": {"world_size": 4, "zero_stage": 3, "offload_optimizer": True},
    },
    "checkpointing": {
        "full": {},
        "full_on": {"gradient_checkpointing": True},
        "lora": {"method": "lora"},
        "lora_on": {"method": "lora", "gradient_checkpointing": True},
    },
}


class Case(NamedTuple):
    """Who predicts, and full training at the lengths that are asked for, without evaluation. ``quick``: the largest
    batches, each of which takes several predictions, are answered roughly, for a reader who waits in a browser."""

    estimator: Estimator
    setup: TrainingSetup
    catalog: Catalog
    quick: bool = False

    def largest(self, setup: TrainingSetup, field: BatchField) -> str:
        """The largest batch; a rough one is marked so."""
        most = (self.estimator.roughly() if self.quick else self.estimator).largest(setup, field)
        return f"{'~' * self.quick}{most}" if most else "–"

    def named(self) -> dict[str, Any]:
        """What a title says of it."""
        gpu, setup = self.estimator.gpu, self.setup
        return {
            "model": self.estimator.model.name,
            "gpu": short_name(gpu.gpu) if gpu and gpu.gpu else "",
            "length": f"{setup.max_source_length:,}",
            "target": f"{setup.max_target_length:,}",
            "precision": "bf16" if setup.bf16 else "fp16" if setup.fp16 else "fp32",
        }


def case_of(catalog: Catalog, model: str, gpu: str, source: int | None = None, target: int | None = None) -> Case:
    """A model on a GPU, by their ids; lengths in tokens, else the model's usual ones.

    Raises:
        UserError: no such model or GPU.
    """
    if model not in catalog.models:
        raise unknown_model(model, catalog)
    estimator = Estimator(catalog.models[model], on_gpu(find_gpu(gpu, catalog.gpus)), catalog.constants)
    setup = base_of(estimator.model, estimator)[0]._replace(do_eval=False)
    setup = setup if source is None else setup._replace(max_source_length=source)
    setup = setup if target is None else setup._replace(max_target_length=target)
    return Case(estimator, setup, catalog)


def values_of(case: Case, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the caption of a table names."""
    told = {name: asked.get(name) for name in ("batch", "prefetch")}
    return {**case.named(), **told, "limit": asked.get("host_memory")}


def table_rows(case: Case, words: Words, asked: Mapping[str, Any]) -> Sequence[Sequence[Cell]]:
    """The rows of a chapter's table, as :func:`kb.integrations.own_tables.own_table` says what is asked."""
    made: Mapping[str, Callable[[], Sequence[Sequence[Cell]]]] = {
        "effective": lambda: effective_rows(case, words, asked["effective_batch"], asked["counts"]),
        "beams": lambda: beam_rows(case, words, asked["batch"], asked["counts"]),
        "lengths": lambda: [[plain(case.named()["gpu"]), *length_rows(case, asked["way"], asked["lengths"])]],
        "options": lambda: option_rows(case, words, asked["batch"]),
        "ways": lambda: [cells for _, _, cells in way_rows(case, words, asked["what"], asked["batch"])],
        "workers": lambda: worker_rows(case, words, asked),
        "precisions": lambda: precision_rows(case, words, asked["names"], asked["batch"]),
        "caches": lambda: cache_rows(case, words, asked["counts"], asked["lengths"]),
        "serving": lambda: serving_rows(case, asked["gpu"], "vllm", asked["lengths"]),
        "setups": lambda: setup_rows(case, words, asked["setups"]),
    }
    return made[asked["table"]]()


def effective_rows(case: Case, words: Words, effective: int, batches: Sequence[int]) -> list[list[Cell]]:
    """Ways to one effective batch: per device, accumulation, the product, memory, verdict."""
    rows = []
    for batch in batches:
        phase = _phase(case.estimator, case.setup._replace(per_device_train_batch_size=batch), "train")
        steps = effective // batch
        product = ((str(batch * steps), "b"),)
        rows.append([plain(batch), plain(steps), product, band(phase), verdict(words, phase.status)])
    return rows


def beam_rows(case: Case, words: Words, batch: int, counts: Sequence[int]) -> list[list[Cell]]:
    """Generating with a batch, by the number of beams: sequences, memory, verdict, the largest batch."""
    rows = []
    for beams in counts:
        setup = generating(case, batch)._replace(inference_num_beams=beams)
        phase = _phase(case.estimator, setup, "generate")
        most = plain(case.largest(setup, "inference_batch_size"))
        rows.append([plain(beams), plain(batch * beams), band(phase), verdict(words, phase.status), most])
    return rows


def generating(case: Case, batch: int, length: int | None = None) -> TrainingSetup:
    """Generating alone, up to ``length`` tokens or to the target length, in the type that kb recommends."""
    return case.setup._replace(
        do_train=False,
        do_predict=True,
        inference_batch_size=batch,
        inference_max_length=case.setup.max_target_length if length is None else length,
        weights=weight_types(case.estimator)[0],
    )


def cache_rows(case: Case, words: Words, batches: Sequence[int], lengths: Sequence[int]) -> list[list[Cell]]:
    """Generating, the KV cache of whole answers by batch and by their length; in brackets what the process uses."""
    sizes = [_cache_of_one(case, length) for length in lengths]
    rows = []
    for batch in batches:
        phases = [_phase(case.estimator, generating(case, batch, length), "generate") for length in lengths]
        rows.append([plain(batch), *(_cache(words, batch * size, p) for size, p in zip(sizes, phases, strict=True))])
    return rows


def _cache_of_one(case: Case, length: int) -> int:
    """Bytes of the KV cache of one prompt and its whole answer: keys and values of each layer of the decoder, for each
    token that it sees, and in an encoder-decoder for each token of the prompt besides."""
    architecture, source = case.estimator.model.architecture, case.setup.max_source_length
    heads = architecture.kv_heads or architecture.num_heads
    of_both = 2 * (4 if generating(case, 1).weights == "fp32" else 2)
    tokens = length + (source if architecture.family == "decoder" else 0)
    seen = min(tokens, architecture.window or tokens)
    layers, sliding = architecture.caching
    cross = 0 if architecture.family == "decoder" else architecture.decoder_layers * source
    wide = (architecture.wide_kv_heads or heads) * (architecture.wide_d_kv or architecture.d_kv)
    return of_both * (layers * tokens * wide + (sliding * seen + cross) * heads * architecture.d_kv)


def _cache(words: Words, size: int, phase: Phase) -> Cell:
    over = () if phase.status == "fits" else ((" ", ""), *verdict(words, phase.status))
    return ((f"{size / GIB:.2f}", "b"), (f" ({phase.process_used_bytes / GIB:.1f}) GiB", "small"), *over)


def worker_hosts(case: Case, asked: Mapping[str, Any]) -> list[tuple[int, HostLedger]]:
    """Each of ``counts`` workers with host memory of training; ``batch`` and ``prefetch`` as asked, else as they are.

    Raises:
        UserError: ``host_memory`` is no size.
    """
    machine = case.estimator.machine._replace(host_memory_bytes=read_host_memory(asked["host_memory"]))
    estimator = Estimator(case.estimator.model, machine, case.estimator.constants)
    setup = case.setup._replace(
        per_device_train_batch_size=asked.get("batch") or case.setup.per_device_train_batch_size,
        dataloader_prefetch_factor=asked.get("prefetch") or case.setup.dataloader_prefetch_factor,
    )
    return [(n, estimator.predict(setup._replace(dataloader_num_workers=n)).host) for n in asked["counts"]]


def worker_rows(case: Case, words: Words, asked: Mapping[str, Any]) -> list[list[Cell]]:
    """By the number of workers: batches on their way, host memory from the low end to the high one, verdict, and what
    the original guide would count."""
    rows = []
    for count, host in worker_hosts(case, asked):
        ahead = sum(term.bytes for term in host.measured if term.name in ("batches_in_flight", "pinned"))
        sizes = ((host.low_bytes, host.peak_bytes), (host.claimed_low_bytes, host.claimed_high_bytes))
        size, claimed = (plain(f"{low / GB:.0f}–{high / GB:.0f} GB") for low, high in sizes)
        rows.append([plain(count), plain(f"{ahead / MB:.1f} MB"), size, verdict(words, host.status), claimed])
    return rows


def precision_rows(case: Case, words: Words, names: Sequence[str], batch: int) -> list[list[Cell]]:
    """By precision: bytes a parameter of weights, gradients and optimizer; these together; the step; verdict."""
    rows = []
    for name in names:
        setup = case.setup._replace(per_device_train_batch_size=batch, **PRECISIONS[name])
        states, phase = states_of(setup, case.estimator.model.architecture), _phase(case.estimator, setup, "train")
        parts = (states.parameters, states.gradients, states.optimizer)
        each = " + ".join(f"{part / states.trainable:.0f}" for part in parts)
        whole = f"{sum(parts) / states.trainable:.0f} B"
        rows.append(
            [
                ((f"{each} = ", ""), (whole, "b")),
                plain(f"{sum(parts) / GIB:.1f} GiB"),
                band(phase),
                verdict(words, phase.status),
            ]
        )
    return rows


def setup_rows(case: Case, words: Words, setups: Sequence[Mapping[str, Any]]) -> list[list[Cell]]:
    """Of whole setups: what PyTorch holds in training, evaluation and generation, with its band and the verdict."""
    rows = []
    for setup in setups:
        report = case.estimator.predict(setup_from(setup))
        phases = [phase for name in ("train", "evaluate", "generate") if (phase := report.phase(name))]
        rows.append([(*_reserved(phase), ("", "br"), *verdict(words, phase.status)) for phase in phases])
    return rows


def _reserved(phase: Phase) -> Cell:
    """What PyTorch holds, with the band of the process's memory moved to it."""
    context = phase.process_used_bytes - phase.peak_reserved_bytes
    low, high = phase.low_bytes - context, phase.high_bytes - context
    return ((f"{phase.peak_reserved_bytes / GIB:.1f}", "b"), (f" ({low / GIB:.1f}–\u2060{high / GIB:.1f}) GiB", ""))


def length_rows(case: Case, way: str, lengths: Sequence[int]) -> list[Cell]:
    """The largest batch that trains in a way, by input length, and what a batch of 1 takes; without the GPU's name."""
    cells: list[Cell] = []
    for length in lengths:
        setup = case.setup._replace(**WAYS[way], max_source_length=length, per_device_train_batch_size=1)
        most = case.largest(setup, "per_device_train_batch_size")
        least = _phase(case.estimator, setup, "train").process_used_bytes / GIB
        cells.append(((most, "b"), (f" ({least:.1f}\u00a0GiB)", "small")))
    return cells


def ways_of(what: str, constants: Mapping[str, float]) -> Mapping[str, Mapping[str, Any]]:
    """What is compared, as changes to a setup.

    Raises:
        ValueError: there is no such comparison.
    """
    if what == "method":
        return {way: WAYS[way] for way in SHOWN_WAYS}
    if what == "post":
        return _post_training(constants)
    if what not in KINDS:
        raise ValueError(f"nothing to compare by {what!r}; there are: method, post, {', '.join(KINDS)}")
    return KINDS[what]


def _post_training(constants: Mapping[str, float]) -> Mapping[str, Mapping[str, Any]]:
    """Full runs and LoRA as TRL has them from the release that makes no whole logits; ORPO makes them still."""
    answers = PostTraining("grpo", completion=int(constants["trl_completion_length"]))
    ways: Mapping[str, tuple[Method, PostTraining]] = {
        "sft": ("full", PostTraining("sft")),
        "orpo": ("full", PostTraining("orpo", head="rows")),
        "dpo": ("full", PostTraining("dpo", reference="model")),
        "dpo_ahead": ("full", PostTraining("dpo")),
        "dpo_lora": ("lora", PostTraining("dpo", reference="adapter_off")),
        "grpo_lora": ("lora", answers),
        "grpo_beside": ("lora", answers._replace(colocated=Colocated(constants["trl_vllm_share"]))),
    }
    return {
        name: {"gradient_checkpointing": True, "method": method, "post": post} for name, (method, post) in ways.items()
    }


def way_rows(case: Case, words: Words, what: str, batch: int) -> list[tuple[str, Phase, list[Cell]]]:
    """Each way's name, its training, and its cells: verdict, process, states, activations and the rest."""
    rows = []
    for name, changes in ways_of(what, case.estimator.constants).items():
        report = case.estimator.predict(case.setup._replace(per_device_train_batch_size=batch, **changes))
        phase = report.phase("train")
        assert phase is not None  # it trains
        states = sum(term.bytes for term in phase.terms if term.name in STATES)
        sizes = (phase.process_used_bytes, states, phase.peak_allocated_bytes - states)
        cells = [verdict(words, report.verdict.status), *(plain(f"{size / GIB:.1f} GiB") for size in sizes)]
        rows.append((name, phase, cells))
    return rows


def band(phase: Phase) -> Cell:
    """What the process uses, with its error band."""
    low, used, high = (size / GIB for size in (phase.low_bytes, phase.process_used_bytes, phase.high_bytes))
    return ((f"{used:.1f}", "b"), (f" ({low:.1f}–\u2060{high:.1f}) GiB", ""))  # a range is not parted


def verdict(words: Words, status: str) -> Cell:
    """A verdict, marked with its status."""
    return ((words.named("verdict", status), status),)


def plain(value: object) -> Cell:
    """A value without a mark."""
    return ((str(value), ""),)


def _phase(estimator: Estimator, setup: TrainingSetup, name: str) -> Phase:
    phase = estimator.predict(setup).phase(name)
    assert phase is not None  # the setup has it
    return phase


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
        phases = [
            (_filled(asked["label"], n=n), _drawn_phase(case, kind, n, asked.get("batch", 1))) for n in asked["counts"]
        ]
    return term_figure(words, phases, case.estimator.limit_bytes, title_of(case, asked))[0]


def title_of(case: Case, asked: Mapping[str, Any]) -> str:
    """The title of a figure, with what it is of."""
    return _filled(asked["title"], **case.named(), batch=asked.get("batch", 1), limit=asked.get("host_memory", ""))


def _filled(template: str, **values: object) -> str:
    return fill(template, lambda name, _: str(values.get(name, f"{{{name}}}")))


def _drawn_phase(case: Case, what: str, count: Any, batch: int) -> Phase:
    base = case.setup._replace(per_device_train_batch_size=batch)
    made: Mapping[str, Callable[[], TrainingSetup]] = {
        "batch": lambda: base._replace(per_device_train_batch_size=count),
        "precision": lambda: base._replace(**PRECISIONS[count]),
        "beams": lambda: generating(case, batch)._replace(inference_num_beams=count),
        "generation": lambda: generating(case, count),
    }
    return _phase(case.estimator, made[what](), "train" if what in TRAINED else "generate")


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
    return figure_html(
        title, bars_svg(title, bars, None, "", GIB) + legend([*marks, ("kb-swatch--band", words("bars.band"))])
    )


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
        seen = gpu.visible_bytes(constants["usable_memory_ratio"])
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
