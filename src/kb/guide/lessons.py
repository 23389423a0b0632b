"""The tables of the chapters: what a batch, beams, workers, a length, a precision change, by the memory model."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kb.advice.fit.attempts import WAYS
from kb.advice.fit.estimator import on_gpu, precision_for
from kb.core.setup import TrainingSetup
from kb.guide.figures import example
from kb.guide.library import Library, say
from kb.guide.markup import cells, code, computed, own_table, prose, sourced, table, text, told, wide_table
from kb.report.lessons import (
    PRECISIONS,
    Case,
    changes_of,
    generating,
    length_rows,
    option_rows,
    serving_rows,
    table_rows,
    values_of,
    ways_of,
)
from kb.report.values import short_name

BATCH, EVAL_BATCH = "per_device_train_batch_size", "per_device_eval_batch_size"
ACCUMULATION = "gradient_accumulation_steps"


def effective_batches(library: Library, model: str, gpu: str, effective: int, batches: Sequence[int]) -> str:
    """Ways to one effective batch: per device × accumulation, with what training takes on the GPU in each."""
    head = ("batch", "accumulation", "effective", "memory", "verdict")
    asked = {"table": "effective", "effective_batch": effective}
    return _own(library, example(library, model, gpu), asked, head, counts=batches)


def beam_counts(library: Library, model: str, gpu: str, batch: int, counts: Sequence[int]) -> str:
    """Generating with a batch, by the number of beams."""
    head = ("beams", "sequences", "memory", "verdict", "largest")
    asked = {"table": "beams", "batch": batch, "counts": [*counts]}
    return _own(library, example(library, model, gpu), asked, head)


def worker_counts(library: Library, model: str, gpu: str, host_memory: str, counts: Sequence[int]) -> str:
    """Host memory of training by the number of DataLoader workers: what was measured, up to what was published."""
    case = example(library, model, gpu)
    asked = {
        "table": "workers",
        "counts": [*counts],
        "host_memory": host_memory,
        "prefetch": case.setup.dataloader_prefetch_factor,
        "batch": case.setup.per_device_train_batch_size,
    }
    return _own(library, case, asked, ("workers", "ahead", "host", "verdict", "guide"))


def precision_bytes(library: Library, model: str, gpu: str, names: Sequence[str], batch: int) -> str:
    """By precision: bytes a parameter, model states, a step's memory with a batch."""
    head = ("precision", "bytes_each", "states", "memory", "verdict")
    asked = {"table": "precisions", "names": [*names], "batch": batch}
    firsts = [say(library.language, f"lesson.precision.{name}") for name in names]
    return _own(library, example(library, model, gpu), asked, head, firsts=firsts)


def cache_sizes(library: Library, model: str, gpu: str, batches: Sequence[int], lengths: Sequence[int]) -> str:
    """Generating, the KV cache by batch and by the answer's length."""
    asked = {"table": "caches", "counts": [*batches], "lengths": [*lengths]}
    return _own(library, example(library, model, gpu), asked, ("generating_batch",), columns=lengths)


def serving_lengths(library: Library, model: str, gpu: str, lengths: Sequence[int]) -> str:
    """What vLLM holds of a model on a GPU, by the length of a request."""
    asked = {"table": "serving", "lengths": [*lengths]}
    head = ("request", "request_cache", "cache_tokens", "at_once")
    return _own(library, example(library, model, gpu), asked, head)


def input_lengths(library: Library, model: str, gpus: Sequence[str], way: str, lengths: Sequence[int]) -> str:
    """The largest batch that trains in a way, by input length, and what a batch of 1 takes; a row for each GPU."""
    rows, first = [], example(library, model, gpus[0])
    for gpu in gpus:
        card = short_name(library.catalog.gpus[gpu])
        found = length_rows(example(library, model, gpu), way, lengths)
        rows.append((f'<a href="../../gpus/{gpu}/">{escape(card)}</a>', *cells(found)))
    head = [escape(say(library.language, "lesson.gpu")), *(f"{length:,}" for length in lengths)]
    values = {"model": library.catalog.models[model].name, "way": say(library.language, f"way.{way}")}
    title = say(library.language, "lesson.lengths.title", **values)
    about = own_table(
        library,
        "lesson.lengths.title",
        values,
        {"table": "lengths", "way": way, "lengths": [*lengths], "way_named": values["way"], **_ids(first)},
    )
    return f"{about}\n\n{wide_table(title, head, [('', rows)], told(library, 'computed', alone=False))}"


def precisions(library: Library, gpus: Sequence[str], models: Sequence[str]) -> str:
    """By GPU, whether it computes bf16 itself, and the precision that kb takes for each model."""
    catalog, rows = library.catalog, []
    for name in gpus:
        library.entry("hardware", name)
        gpu = catalog.gpus[name]
        device = on_gpu(gpu).smallest_gpu
        answer = say(library.language, "lesson.yes" if gpu.native_bf16 else "lesson.no")
        chosen = [precision_for(device, catalog.models[model].architecture).of(TrainingSetup()) for model in models]
        named = ["bf16" if setup.bf16 else "fp16" if setup.fp16 else "fp32" for setup in chosen]
        datum = library.entry("hardware", name)["compute_capability"]
        capability = sourced(library, ".".join(map(str, gpu.compute_capability)), datum["status"], datum)
        rows.append((f"[{text(short_name(gpu))}](../gpus/{name}.md)", capability, f"**{answer}**", *map(code, named)))
    head = [say(library.language, f"lesson.{key}") for key in ("gpu", "capability", "native_bf16")]
    return table([*head, *(f"[{model}](../models/{model}.md)" for model in models)], rows)


def saving_options(library: Library, model: str, gpu: str, batch: int) -> str:
    """Ways to save memory: what the run takes with each and saves, what it costs, when to take it."""
    case, language = example(library, model, gpu), library.language
    rows = option_rows(case, library.words, batch)
    head = [escape(say(language, f"saving.{column}")) for column in ("way", "memory", "saves", "costs", "when")]
    told_of = [
        [say(language, f"option.{part}{name}") for part in ("", "costs.", "when.")] for name in changes_of(case.setup)
    ]
    shown = [
        (prose(name), *cells(row), *(f'<span class="kb-prose">{prose(said)}</span>' for said in (costs, when)))
        for (name, costs, when), row in zip(told_of, rows, strict=True)
    ]
    values = {**case.named(), "batch": batch}
    about = own_table(library, "saving.title", values, {"table": "options", "batch": batch, **_ids(case)})
    body = wide_table(
        say(language, "saving.title", **values), head, [("", shown)], told(library, "computed", alone=False)
    )
    return f"{about}\n\n{body}"


def largest_batch(library: Library, model: str, gpu: str, way: str = "full") -> str:
    """The largest batch that fits with its whole error band, at the model's usual length.

    Args:
        way: of training one of ``WAYS``, or of what a chapter compares (``precision.fp32``, ``gpus.fsdp``,
            ``post.dpo_lora``); ``generate`` is of generating.

    Raises:
        ValueError: there is no such comparison.
    """
    case = example(library, model, gpu)
    if way == "generate":
        largest = case.estimator.largest(generating(case, 1), "inference_batch_size")
    else:
        what, _, name = way.rpartition(".")
        compared = PRECISIONS if what == "precision" else ways_of(what, case.estimator.constants) if what else WAYS
        setup = case.setup._replace(per_device_train_batch_size=1, **compared[name])  # as recommend asks it
        largest = case.estimator.largest(setup, "per_device_train_batch_size")
    return computed(library, f"**{largest}**")


def requests_held(library: Library, model: str, gpu: str, length: int) -> str:
    """How many requests of ``length`` tokens vLLM holds at once of a model on a GPU."""
    (_, _, _, ((held, _),)), *_ = serving_rows(example(library, model, gpu), gpu, "vllm", [length])
    return computed(library, f"**{held}**")


def mt5_hypotheses(library: Library) -> str:
    """What the mT5 run of the original guide may have been, each by the memory model, beside what was read."""
    history = library.entry("histories", "mt5-qlora")
    # what the code does wins over what the config file says
    said = {**history["unsaid"]["settings"], **history["code"]["settings"]}
    unsaid = {name.rpartition(".")[2]: value for name, value in said.items()}
    stages = [stage["settings"] for stage in history["stages"]]
    batches = [stage[f"training.{BATCH}"]["value"] for stage in stages if f"training.{BATCH}" in stage]
    base = {name: value for name, value in unsaid.items() if name in TrainingSetup._fields}
    for name in (EVAL_BATCH, ACCUMULATION):
        key = f"training.{name}"
        base[name] = next(stage[key]["value"] for stage in reversed(stages) if key in stage)
    adapter = {
        "lora_r": unsaid["r"],
        "lora_target_modules": unsaid["target_modules"],
        "prepare_for_kbit": unsaid["prepared"],
    }
    setups, names = [], []
    for key, changes, tried in (
        ("as_written", {**WAYS["qlora"], **base, **adapter}, batches[-1:]),
        ("full_fp32", base, sorted(set(batches))),
    ):
        for batch in tried:
            setups.append({**changes, BATCH: batch})
            names.append(say(library.language, f"lesson.mt5.{key}", batch=batch))
    case = example(library, history["model"], "rtx-3090")
    heads = [library.words.named("phase", name) for name in ("train", "evaluate", "generate")]
    asked = {"table": "setups", "setups": setups}
    return _own(library, case, asked, ("mt5.what",), name="mt5", firsts=names, columns=heads)


def _ids(case: Case) -> dict[str, str]:
    """The model and the GPU of an example, which a reader who gives neither keeps."""
    gpu = case.estimator.gpu
    assert gpu is not None and gpu.gpu is not None  # it is a catalogued one
    return {"model": case.estimator.model.id, "gpu": gpu.gpu.id}


def _own(
    library: Library,
    case: Case,
    asked: Mapping[str, Any],
    head: Sequence[str],
    *,
    name: str = "",
    counts: Sequence[int] = (),
    firsts: Sequence[str] = (),
    columns: Sequence[object] = (),
) -> str:
    """A table that is computed again for what the reader chose.

    Args:
        name: of its texts, where it is not the table's.
        counts: what is varied, where what is asked again works it out.
        firsts: the first cells of its rows, which are words.
        columns: heads that need none.
    """
    key, ids = f"lesson.{name or asked['table']}.title", _ids(case)
    values, whole = values_of(case, asked), {**asked, **ids}
    rows = table_rows(case, library.words, {**whole, "counts": counts} if counts else whole)
    rows = [[((first, ""),), *row] for first, row in zip(firsts, rows, strict=True)] if firsts else rows
    about = own_table(library, key, values, whole)
    heads = [escape(say(library.language, f"lesson.{column}")) for column in head]
    heads += [escape(f"{column:,}" if isinstance(column, int) else str(column)) for column in columns]
    below = told(library, "computed", alone=False)
    shown = wide_table(say(library.language, key, **values), heads, [("", map(cells, rows))], below)
    return f"{about}\n\n{shown}"
