"""What `kb estimate` says: the ledger of each phase, its speed, and what to do next; and the same as JSON.

JSON is schema 1, which ``rules/schema/output/estimate.json`` says in full; sizes are in bytes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.estimate import Estimated
from kb.core.memory_report import OVER, WORKING, MemoryReport, Phase
from kb.core.result import UnitResult
from kb.core.setup import TrainingSetup
from kb.core.units import MIB
from kb.memory.releases import coarsely_compared
from kb.memory.throughput import Throughput
from kb.memory.timeline import ROLES
from kb.report.check.panel import assumed_lines, prediction_lines
from kb.report.json_parts import SCHEMA, Object, fields, head, machine_object, plain, prediction_object, to_json
from kb.report.terminal import INDENT, Style, columns, cut, joined, section, table, wrap
from kb.report.values import plan_command, unit_name
from kb.report.words import Words


def throughput_lines(found: Throughput | None, gpu: str | None, words: Words, style: Style) -> list[str]:
    """The band, and where it comes from; nothing where it is not known.

    Args:
        gpu: the id of the GPU it is for.
    """
    if found is None:
        return []
    dash = style.dash
    values = {
        "seconds": f"{_short(found.step_seconds_low)}{dash}{_short(found.step_seconds_high)}",
        "rate": f"{_short(found.samples_per_second_low)}{dash}{_short(found.samples_per_second_high)}",
    }
    basis = "throughput.basis" if gpu == found.measured_on else "throughput.basis_other"
    return [
        style.paint(words("throughput.title"), "heading"),
        *wrap(words("throughput.band", **values), style.width, INDENT),
        *wrap(words(basis), style.width, INDENT),
    ]


def throughput_object(found: Throughput | None) -> dict[str, Any] | None:
    if found is None:
        return None

    def rounded(value: float) -> float:
        """Four digits: more would feign a precision that the band does not have."""
        return float(f"{value:.4g}")

    return {
        "status": found.status,
        "measured_on": found.measured_on,
        "step_seconds": {"low": rounded(found.step_seconds_low), "high": rounded(found.step_seconds_high)},
        "samples_per_second": {
            "low": rounded(found.samples_per_second_low),
            "high": rounded(found.samples_per_second_high),
        },
        "roofline_seconds": rounded(found.roofline_seconds),
        "operations": round(found.operations),
        "bytes": round(found.bytes),
        "bound": found.bound,
    }


def _short(value: float) -> str:
    """Two digits, never as a power of ten: ``0.031``, ``4.2``, ``130``."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.6f}".rstrip("0").rstrip(".")


def next_steps(one: Estimated, words: Words) -> list[str]:
    """The next step or two, the most useful first."""
    report = one.report
    assert report is not None  # a run without one has been refused
    steps: list[str] = []
    gpu = one.machine.smallest_gpu
    if gpu is None:
        steps.append(words("estimate.name_a_gpu"))
    elif one.model is not None:  # without a memory formula kb can neither plan nor recommend
        if report.verdict.status in (*OVER, "tight"):
            key = "oom" if report.verdict.status in OVER else "tight"
            in_file = one.unit.path and one.unit.path != "-"
            command = plan_command(one.unit, one.machine) if in_file else _recommend(one)
            steps.append(words(f"estimate.next_{key}", command=command))
        elif one.setup.do_train or one.setup.do_predict:
            steps.append(words("estimate.next_fits", command=_recommend(one)))
    if report.host.status in (*OVER, "tight"):
        steps.append(words("estimate.next_host"))
    if report.level == "rough" and all(key != "estimate.level_0_instead" for key, _ in one.notes):  # it was not tried
        steps.append(words("estimate.next_simulate"))
    return steps


def _recommend(one: Estimated) -> str:
    model, gpu = one.model, one.machine.smallest_gpu
    named = f"--model {model.id}" if model is not None and one.files is None else "--model-config FILE"
    on_gpu = f" --gpu {gpu.gpu.id}" if gpu is not None and gpu.gpu is not None else ""
    task = "" if one.setup.do_train else " --task inference"
    return f"kb recommend {named}{on_gpu}{task}"


MOST_ASSUMED_LINES = 12
MOST_TOPS = 10
# Below the terms of a phase: what the allocator and the process add, by the field of the phase.
_TOTALS = ("peak_allocated_bytes", "peak_reserved_bytes", "process_used_bytes")


def estimate_text(estimated: Sequence[Estimated], constants: Mapping[str, float], words: Words, style: Style) -> str:
    """The whole report, with a line break at its end."""
    return "\n\n".join("\n\n".join(_run(one, constants, words, style)) for one in estimated) + "\n"


def _run(one: Estimated, constants: Mapping[str, float], words: Words, style: Style) -> list[str]:
    report = one.report
    assert report is not None  # a run without one has been refused
    unit = UnitResult(
        unit=one.unit,
        setup=one.setup,
        model=one.model,
        gpu_limit_bytes=one.machine.gpu_limit_bytes,
        gpu_fits=one.gpu_fits,
    )
    gpu = one.machine.smallest_gpu
    blocks = [
        _heading(one, words, style),
        prediction_lines(unit, report, one.machine, words, style),
        _ledger(report, words, style),
        _tops(one, words, style),
        throughput_lines(one.throughput, gpu and gpu.gpu and gpu.gpu.id, words, style),
        [
            *assumed_lines(report.assumed, words, style, MOST_ASSUMED_LINES),
            *_level(one, report, constants, words, style),
        ],
        [line for key, values in one.notes for line in wrap(words(key, **values), style.width, INDENT, INDENT * 2)],
        section(words("estimate.next"), style.listed(next_steps(one, words)), style),
    ]
    return ["\n".join(lines) for lines in blocks if lines]


def _heading(one: Estimated, words: Words, style: Style) -> list[str]:
    name = one.model.name if one.model is not None else str((one.files and one.files.config.get("model_type")) or "")
    title = joined([part for part in (unit_name(one.unit), words.value(name)) if part], style.dot)
    if one.model is not None:
        whole = one.model.architecture.family in ("decoder", "encoder")
    else:
        whole = one.files is not None and not one.files.config.get("is_encoder_decoder")
    about = joined(run_parts(one.setup, words, one_sequence=whole), style.dot)
    return [*style.lines(title, "heading"), *style.lines(about, "dim", INDENT)]


def run_parts(setup: TrainingSetup, words: Words, *, one_sequence: bool = False) -> list[str]:
    """What the run is: method, precision, optimizer, batches and lengths, attention, parallelism.

    ``one_sequence``: input and target are one row of tokens, of the source's length.
    """
    autocast = "fp16" if setup.fp16 else "bf16" if setup.bf16 else None
    parts = [words.named("method", setup.method)] if setup.do_train or setup.method != "full" else []
    parts.append(words("estimate.autocast", type=autocast) if autocast else setup.weights)
    parts.append(setup.attn_implementation)
    lengths = {"source": setup.max_source_length, "target": setup.max_target_length}
    if setup.do_train:
        steps = setup.gradient_accumulation_steps
        name = "training_one" if one_sequence else "training"
        key = f"estimate.{name}" if steps == 1 else f"estimate.{name}_accumulated"
        parts += [setup.optim, words(key, batch=setup.per_device_train_batch_size, steps=steps, **lengths)]
        if setup.gradient_checkpointing:
            parts.append(words("estimate.checkpointing"))
    if setup.do_eval:
        generates = setup.predict_with_generate
        values = {"beams": setup.generation_num_beams, "length": setup.generation_max_length, **lengths}
        key = "estimate.evaluation_generating" if generates else "estimate.evaluation"
        parts.append(words(key, batch=setup.per_device_eval_batch_size, **values))
    if setup.do_predict:
        values = {"beams": setup.inference_num_beams, "length": setup.inference_max_length, **lengths}
        batch = setup.inference_batch_size or setup.per_device_eval_batch_size
        parts.append(words("estimate.generation", batch=batch, **values))
    if setup.world_size > 1:
        parts.append(words("estimate.gpus", n=setup.world_size))
    if setup.zero_stage:
        parts.append(f"ZeRO-{setup.zero_stage}")
    return parts + (["FSDP"] if setup.fsdp else [])


def _ledger(report: MemoryReport, words: Words, style: Style) -> list[str]:
    """One row for each term, one column for each phase, in MiB; the deciding term is starred."""
    names = list(dict.fromkeys(term.name for phase in report.phases for term in phase.terms if term.bytes))
    phases = report.phases
    rows = [["", *(words.phase(phase) for phase in phases)]]
    rows += [[words.named("term", name), *(_cell(phase, name, report, style) for phase in phases)] for name in names]
    for field in _TOTALS:
        rows.append([words(f"estimate.{field}"), *(_mib(getattr(phase, field)) for phase in phases)])
    ends = [f"{_mib(phase.low_bytes)}{style.dash}{_mib(phase.high_bytes)}" for phase in phases]
    room = style.width - max(columns(row[0]) for row in rows) - len(INDENT)
    if room >= sum(max(columns(end), *(columns(row[at + 1]) for row in rows)) + 2 for at, end in enumerate(ends)):
        rows.append([words("estimate.band"), *ends])
    lines = table(rows)
    lines.insert(1 + len(names), INDENT + style.rule * (max(columns(line) for line in lines) - len(INDENT)))
    return [
        style.paint(words("estimate.ledger"), "heading"),
        *(cut(line, style.width, style.ellipsis) for line in lines),
    ]


def _cell(phase: Phase, name: str, report: MemoryReport, style: Style) -> str:
    size = sum(term.bytes for term in phase.terms if term.name == name)
    deciding = report.verdict.phase == phase.name and report.verdict.term == name
    return ("*" if deciding else "") + _mib(size) if size else style.dash


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f}" if size >= MIB or not size else f"{size / MIB:.2f}"


def _tops(one: Estimated, words: Words, style: Style) -> list[str]:
    """The largest tensors at the deciding phase's peak, with what made them; a rough answer does not know them."""
    phase = one.report.verdict.phase if one.report is not None else None
    tops = one.drawn.tops.get(phase, ()) if one.drawn is not None and phase else ()
    if not tops:
        return []
    rows = [
        [_mib(top.number * top.size_bytes), f"= {top.number} × {_mib(top.size_bytes)}", words.named("term", top.term),
         " ".join(part for part in (top.module, top.op) if part)]
        for top in tops[:MOST_TOPS]
    ]  # fmt: skip
    title = words("estimate.tops", phase=words.named("phase", phase or ""))
    lines = (cut(line, style.width, style.ellipsis) for line in table(rows, left=(1, 2, 3)))
    return [style.paint(title, "heading"), *lines]


def _level(
    one: Estimated, report: MemoryReport, constants: Mapping[str, float], words: Words, style: Style
) -> list[str]:
    """Which level answered, and its error."""
    if report.level == "rough":
        bands = [
            words("estimate.band_of", phase=words.named("phase", phase.name), band=constants[f"band_{phase.name}"])
            for phase in report.phases
            if phase.name in WORKING
        ]
        text = words("estimate.level.rough", bands=", ".join(bands))
    elif report.level == "engine" and any(each.reason == "deepspeed_source" for each in report.assumed):
        text = words("estimate.level.engine_read", band=constants["band_train"])
    elif report.level == "engine" and coarsely_compared(one.setup.earlier):
        text = words("estimate.level.engine_earlier", band=constants["band_earlier_release"])
    elif report.level == "engine":
        text = words("estimate.level.engine", band=constants["band_simulated"])
    else:
        seconds = one.simulated.seconds if one.simulated is not None else None
        software = one.simulated.software if one.simulated is not None else {}
        libraries = ", ".join(f"{name} {version}" for name, version in software.items())
        text = words("estimate.level.simulated", software=libraries, seconds=seconds)
    return style.lines(text, "dim", INDENT, INDENT * 2)


_REPORTED = ("model_name", "assumed", "unmodelled", "unresolved")  # elsewhere in the object


def estimate_json(estimated: Sequence[Estimated], words: Words, version: str, rules_version: str) -> str:
    """One run's prediction with what it is of; of a file with several runs, a list of them under ``runs``."""
    begin: Object = {**head(version, rules_version), "machine": machine_object(estimated[0].machine)}
    runs = [_run_object(one, words) for one in estimated]
    return to_json(begin | runs[0] if len(runs) == 1 else begin | {"runs": runs})


def _run_object(one: Estimated, words: Words) -> Object:
    assert one.report is not None  # a run without one has been refused
    model = one.model
    made: Object = {
        "path": one.unit.path or None,
        "section": one.unit.section,
        "model": {"id": model.id, "name": model.name, "parameters": model.parameters} if model else None,
        "setup": {name: plain(value) for name, value in one.setup._asdict().items() if name not in _REPORTED},
        **prediction_object(one.report),
    }
    if one.gpu_fits:
        made["gpu_fits"] = [
            {"gpu": fit.gpu.id, "status": fit.verdict.status, **fields(fit, "process_used_bytes", "limit_bytes")}
            for fit in one.gpu_fits
        ]
    made["throughput"] = throughput_object(one.throughput)
    made["notes"] = [words(key, **values) for key, values in one.notes]
    if one.followed is not None:
        made["tops"] = _tops_object(one.followed.tops)
    found = one.simulated
    made["simulation"] = found and {
        "seconds": round(found.seconds, 3),
        "host_peak_bytes": found.subprocess_peak_bytes,
        "software": dict(found.software),
        "tops": _tops_object(found.tops),
    }
    return made


def _tops_object(found: Any) -> Object:
    return {
        phase: [{"bytes": top.size_bytes, **fields(top, "number", "term", "module", "op")} for top in tops]
        for phase, tops in found.items()
    }


def timeline_json(found: Any) -> str:
    """Bytes after each event that changed them, in all and by role; the phases, and what is alive at their peaks."""
    line = found.timeline
    whole = {
        "schema": SCHEMA,
        "events": line.events,
        "phases": [{"name": span.phase, "start": span.start, "end": span.end} for span in line.spans],
        "columns": ["event", "allocated_bytes", "reserved_bytes", *(f"{role}_bytes" for role in ROLES)],
        "points": [[*point[:3], *point.roles] for point in line.points],
        "tops": _tops_object(found.tops),
    }
    return json.dumps(whole, separators=(",", ":")) + "\n"
