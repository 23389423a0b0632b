"""The tables of the chapters: what a batch, beams, workers, a length, a precision change, by the memory model."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from kb.advice.attempts import WAYS
from kb.advice.estimator import Estimator, on_gpu
from kb.advice.usual import precision_for
from kb.core.memory_report import Phase
from kb.core.setup import TrainingSetup
from kb.core.units import GIB
from kb.guide.library import Library
from kb.guide.markup import badge, cells, code, computed, held, own_table, sourced, table, text, told, wide_table
from kb.guide.site_words import say
from kb.machine.arguments import read_host_memory
from kb.memory.engine.trace import trace
from kb.report.estimate.timeline_page import MOMENTS, timeline_html
from kb.report.lesson_rows import Case, Cell, beam_rows, case_of, effective_rows, length_rows
from kb.report.values import short_name

GB = 10**9
BATCH, EVAL_BATCH = "per_device_train_batch_size", "per_device_eval_batch_size"


def effective_batches(library: Library, model: str, gpu: str, effective: int, batches: Sequence[int]) -> str:
    """Ways to one effective batch: per device × accumulation, with what training takes on the GPU in each."""
    case = _case(library, model, gpu)
    rows = effective_rows(case, library.words, effective, batches)
    head = ("batch", "accumulation", "effective", "memory", "verdict")
    return _own(library, "effective", head, rows, case.named(), {"effective_batch": effective})


def over_time(library: Library, model: str, gpu: str, batch: int) -> str:
    """Two steps of full training over time, as the memory engine follows them: where the peak is, and what makes it."""
    case = _case(library, model, gpu)
    estimator, setup = case.estimator, case.setup._replace(per_device_train_batch_size=batch)
    device = estimator.gpu
    assert device is not None and device.compute_capability is not None  # it is on a catalogued GPU
    found = trace(setup, estimator.model.architecture, device.compute_capability, estimator.limit_bytes, MOMENTS)
    values = {**case.named(), "batch": batch}
    title = say(library.language, "lesson.over_time.title", **values)
    drawn = timeline_html(found, library.words, title, estimator.limit_bytes)
    return held(drawn.replace("</figcaption>", f" {badge(library, 'computed')}</figcaption>", 1))


def beam_counts(library: Library, model: str, gpu: str, batch: int, counts: Sequence[int]) -> str:
    """Generating with a batch, by the number of beams."""
    case = _case(library, model, gpu)
    rows = beam_rows(case, library.words, batch, counts)
    head = ("beams", "sequences", "memory", "verdict", "largest")
    return _own(library, "beams", head, rows, {**case.named(), "batch": batch}, {"batch": batch, "counts": [*counts]})


def worker_counts(library: Library, model: str, gpu: str, host_memory: str, counts: Sequence[int]) -> str:
    """Host memory of training by the number of DataLoader workers: what was measured, up to what was published."""
    library.entry("models", model)
    limit = read_host_memory(host_memory)
    catalog = library.catalog
    machine = on_gpu(catalog.gpus[gpu])._replace(host_memory_bytes=limit)
    estimator = Estimator(catalog.models[model], machine, catalog.constants)
    base = _case(library, model, gpu).setup
    rows = []
    for workers in counts:
        host = estimator.predict(base._replace(dataloader_num_workers=workers)).host
        size = f"{host.low_bytes / GB:.0f}–{host.peak_bytes / GB:.0f} GB"
        claimed = f"{host.claimed_low_bytes / GB:.0f}–{host.claimed_high_bytes / GB:.0f} GB"
        rows.append((str(workers), size, _verdict(library, host.status), claimed))
    values = {"model": estimator.model.name, "limit": f"{(limit or 0) / GB:.0f} GB"}
    return _shown(library, "workers", ("workers", "host", "verdict", "guide"), rows, values)


def input_lengths(library: Library, model: str, gpus: Sequence[str], way: str, lengths: Sequence[int]) -> str:
    """The largest batch that trains in a way, by input length, and what a batch of 1 takes; a row for each GPU."""
    rows = []
    for gpu in gpus:
        card = short_name(library.catalog.gpus[gpu])
        found = length_rows(_case(library, model, gpu), way, lengths)
        rows.append((f'<a href="../../gpus/{gpu}/">{escape(card)}</a>', *cells(found)))
    head = [escape(say(library.language, "lesson.gpu")), *(f"{length:,}" for length in lengths)]
    values = {"model": library.catalog.models[model].name, "way": say(library.language, f"way.{way}")}
    title = say(library.language, "lesson.lengths.title", **values)
    about = own_table(library, "lesson.lengths.title", values, {"table": "lengths", "way": way, "lengths": [*lengths]})
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


def largest_batch(library: Library, model: str, gpu: str, way: str = "full") -> str:
    """The largest training batch that fits with its whole error band, at the model's usual length."""
    estimator, base = _case(library, model, gpu)
    largest = estimator.largest(base._replace(**WAYS[way]), "per_device_train_batch_size")
    return computed(library, f"**{largest}**")


def mt5_hypotheses(library: Library) -> str:
    """What the mT5 run of the original guide may have been, each by the memory model, beside what was read."""
    catalog, history = library.catalog, library.entry("histories", "mt5-qlora")
    # what the code does wins over what the config file says
    said = {**history["unsaid"]["settings"], **history["code"]["settings"]}
    unsaid = {name.rpartition(".")[2]: value for name, value in said.items()}
    estimator = Estimator(catalog.models[history["model"]], on_gpu(catalog.gpus["rtx-3090"]), catalog.constants)
    stages = [stage["settings"] for stage in history["stages"]]
    batches = [stage[f"training.{BATCH}"]["value"] for stage in stages if f"training.{BATCH}" in stage]
    last = {
        name: next(s[f"training.{name}"]["value"] for s in reversed(stages) if f"training.{name}" in s)
        for name in (EVAL_BATCH,)
    }
    kept = {name: value for name, value in unsaid.items() if name in TrainingSetup._fields}
    base = TrainingSetup(**kept, **last)
    targets = tuple(unsaid["target_modules"])
    adapter = {"lora_r": unsaid["r"], "lora_target_modules": targets, "prepare_for_kbit": unsaid["prepared"]}
    adapted = base._replace(**{**WAYS["qlora"], **kept, **adapter})
    rows = []
    for key, setup, tried in (("as_written", adapted, batches[-1:]), ("full_fp32", base, sorted(set(batches)))):
        for batch in tried:
            report = estimator.predict(setup._replace(per_device_train_batch_size=batch))
            phases = [phase for name in ("train", "evaluate", "generate") if (phase := report.phase(name))]
            named = say(library.language, f"lesson.mt5.{key}", batch=batch)
            rows.append((escape(named), *(f"{_reserved(phase)}<br>{_mark(library, phase)}" for phase in phases)))
    head = [escape(say(library.language, "lesson.mt5.what"))]
    head += [escape(library.words.named("phase", name)) for name in ("train", "evaluate", "generate")]
    return _captioned(library, say(library.language, "lesson.mt5.title"), head, rows)


def _reserved(phase: Phase) -> str:
    """What PyTorch holds, in GiB, with the band of the process's memory moved to it."""
    context = phase.process_used_bytes - phase.peak_reserved_bytes
    low, high = phase.low_bytes - context, phase.high_bytes - context
    return f"<b>{phase.peak_reserved_bytes / GIB:.1f}</b> ({low / GIB:.1f}–{high / GIB:.1f}) GiB"


def _case(library: Library, model: str, gpu: str) -> Case:
    library.entry("models", model)
    library.entry("hardware", gpu)
    return case_of(library.catalog, model, gpu)


def _own(
    library: Library,
    name: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    values: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> str:
    """A table that is computed again for what the reader chose."""
    key = f"lesson.{name}.title"
    about, below = own_table(library, key, values, {"table": name, **asked}), told(library, "computed", alone=False)
    shown = wide_table(
        say(library.language, key, **values), list(_heads(library, head)), [("", map(cells, rows))], below
    )
    return f"{about}\n\n{shown}"


def _mark(library: Library, phase: Phase) -> str:
    return _verdict(library, phase.status)


def _verdict(library: Library, status: str) -> str:
    named = escape(library.words.named("verdict", status))
    return f'<span class="kb-verdict kb-verdict--{escape(status)}">{named}</span>'


def _shown(
    library: Library, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], values: Mapping[str, object]
) -> str:
    head = list(_heads(library, columns))
    return _captioned(library, say(library.language, f"lesson.{name}.title", **values), head, rows)


def _heads(library: Library, columns: Sequence[str]) -> Iterator[str]:
    for column in columns:
        yield escape(say(library.language, f"lesson.{column}"))


def _captioned(library: Library, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    about = held(f'<p class="kb-caption">{escape(title)} {badge(library, "computed")}</p>')
    return f"{about}\n\n{wide_table(title, head, [('', rows)], told(library, 'computed', alone=False))}"
