"""What the watcher says, as log levels and lines in the user's language."""

import logging

from kb.core.finding import Finding
from kb.core.memory_report import OVER, WORKING, Phase
from kb.core.units import GIB, MIB
from kb.integrations.trainer.forecast import Forecast
from kb.integrations.trainer.lengths import Seen
from kb.integrations.trainer.meter import Comparison
from kb.report.check.changes import SourceLines, describe_fix
from kb.report.terminal import Style
from kb.report.values import short_name
from kb.report.words import Words

Lines = list[tuple[int, str]]
LEVELS = {"error": logging.WARNING, "warning": logging.WARNING, "info": logging.INFO}
_STYLE = Style(width=100)


def findings(forecast: Forecast, words: Words) -> Lines:
    """What the run is, and what is wrong with its arguments."""
    setup, found = forecast.setup, forecast.result.counted()
    factors = [setup.per_device_train_batch_size, setup.gradient_accumulation_steps, setup.world_size]
    about = words(
        "callback.run",
        model=setup.model_name,
        method=words.named("method", setup.method),
        effective=setup.effective_batch_size,
        product=" × ".join(str(factor) for factor in factors),
    )
    lines: Lines = [(logging.INFO, f"kb: {about}")]
    lines.append(
        (logging.INFO, f"kb: {words.count('callback.findings', len(found)) if found else words('callback.clean')}")
    )
    for finding in found:
        lines += [(LEVELS[finding.severity], text) for text in finding_lines(finding, forecast, words)]
    return lines


def finding_lines(finding: Finding, forecast: Forecast, words: Words) -> list[str]:
    """Severity, rule and message; then what to change."""
    severity = words.named("severity", finding.severity)
    lines = [f"  {severity} {finding.rule}: {words.message(finding)}"]
    sources = SourceLines({forecast.result.unit.path: forecast.run.text()})
    for fix in finding.fixes:
        if not fix.certain:
            continue
        changes = describe_fix(fix, forecast.result.unit, words, _STYLE, sources).replace("\u00a0", " ")
        label = words("report.fix", safety=words.named("safety", fix.safety))
        lines.append(f"    {label} {words.fix_title(fix, finding)}" + (f" ({changes})" if changes else ""))
    return lines


def prediction(forecast: Forecast, words: Words, kind: str) -> Lines:
    """Each phase's peak, the GPU and the verdict; or why nothing is predicted."""
    report = forecast.report
    if report is None:
        return [(logging.INFO, f"kb: {_why_none(forecast, words)}")]
    lines = [(logging.INFO, f"kb: {_phase(phase, words)}") for phase in report.phases if phase.name in WORKING]
    setup = forecast.setup
    key = "callback.lengths" if forecast.reads_target else "callback.length"
    lengths = words(key, source=setup.max_source_length, target=setup.max_target_length)
    lines.append((logging.INFO, f"kb: {lengths}"))
    if forecast.run.frozen:
        lines.append((logging.INFO, f"kb: {words('callback.frozen', parameters=forecast.run.frozen)}"))
    limit = forecast.limit_bytes
    if kind == "cuda" and limit is not None:
        gpu = min(forecast.machine.gpus, key=lambda each: each.memory_total)
        status = report.verdict.status
        text = words(
            "callback.verdict",
            gpu=short_name(gpu.gpu) if gpu.gpu else gpu.name,
            free=size(limit),
            verdict=words.named("verdict", status),
        )
        lines.append((logging.WARNING if status in ("tight", *OVER) else logging.INFO, f"kb: {text}"))
    elif kind != "cuda":
        lines.append((logging.INFO, f"kb: {words('callback.on_host' if kind == 'host' else 'callback.unmeasured')}"))
    return lines


def _phase(phase: Phase, words: Words) -> str:
    return words(
        "callback.predicted",
        phase=words.named("phase", phase.name),
        allocated=size(phase.peak_allocated_bytes),
        reserved=size(phase.peak_reserved_bytes),
        used=size(phase.process_used_bytes),
    )


def _why_none(forecast: Forecast, words: Words) -> str:
    if forecast.run.unknown_adapter is not None:
        return words("callback.unknown_adapter", name=forecast.run.unknown_adapter)
    if forecast.setup.unresolved:
        return words("note.unresolved_values", settings=", ".join(forecast.setup.unresolved))
    return words("callback.unknown_model", model=forecast.setup.model_name)


def comparison(found: Comparison, seen: Seen | None, words: Words) -> Lines:
    """Predicted beside measured, in one line."""
    phase = words.named("phase", found.phase)
    predicted, measured = found.pair
    if measured is None:
        return []
    unit = "host" if found.kind == "host" else "allocated"
    about = words(f"callback.compared.{unit}", phase=phase, measured=size(measured))
    if predicted is None:
        return [(logging.INFO, f"kb: {about}")]
    text = words(f"callback.both.{unit}", phase=phase, predicted=size(predicted), measured=size(measured))
    parts = [text]
    if found.error is not None:
        parts = [f"{text} ({found.error:+.1%})"]
    if found.predicted_reserved is not None and found.measured_reserved is not None:
        reserved = size(found.predicted_reserved), size(found.measured_reserved)
        parts.append(words("callback.reserved", predicted=reserved[0], measured=reserved[1]))
    if found.phase == "train" and seen is not None:
        shape = {"batch": seen.batch, "source": seen.source, "target": seen.target}
        parts.append(words("callback.seen_pair" if seen.target else "callback.seen", **shape))
    return [(logging.INFO, "kb: " + "; ".join(parts))]


def size(count: int) -> str:
    """``1.24 GiB``; below a tenth of a GiB in MiB: two decimals, since the point is how little they differ."""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 10 else f"{count / MIB:,.1f} MiB"
