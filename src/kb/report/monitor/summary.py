"""A whole watch as a report: peaks against the targets, warnings, why the command ended; a warning as a sentence."""

from collections.abc import Sequence
from datetime import UTC, datetime

from kb.advice.diagnosis import ExitCause
from kb.advice.watching import Alert, GpuPeak, Judged, Summary
from kb.core.units import format_bytes
from kb.report.monitor.reading import duration, labelled, of_limit, server_lines, verdicts
from kb.report.terminal import INDENT, Style, wrap
from kb.report.values import printable, size
from kb.report.words import Words

MOST_ALERTS = 12


def summary_text(
    summary: Summary, words: Words, style: Style, notes: Sequence[str] = (), log: str | None = None
) -> str:
    """The report, with a line break at its end.

    Args:
        notes: sentences about the recording, such as that its last line was cut off.
        log: the run's log, where there is a file.
    """
    blocks = [wrap(_extent(summary, words), style.width)]
    blocks += [_gpu(peak, _of(summary, peak.state.key), summary, words, style) for peak in summary.gpus]
    blocks.append(_host(summary, words, style))
    blocks.append(_run(summary, words, style))
    blocks.append(server_lines(summary.server, words, style) if summary.server is not None else [])
    blocks.append(_alerts(summary, words, style, log))
    blocks.append([line for note in notes for line in wrap(note, style.width)])
    if any(row for row in summary.judged):
        blocks.append([style.paint(line, "dim") for line in wrap(words("monitor.targets_from"), style.width)])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _of(summary: Summary, key: str) -> list[Judged]:
    return [row for each, row in summary.judged if each == key]


def _extent(summary: Summary, words: Words) -> str:
    readings = words.count("monitor.readings", summary.readings)
    if summary.began is None or summary.ended is None:
        return readings
    lasted = duration(max(summary.ended - summary.began, 0), words)
    if summary.began < 10**8:  # a recording without times counts from zero
        return words("monitor.extent_untimed", readings=readings, lasted=lasted)
    return words("monitor.extent", readings=readings, lasted=lasted, began=clock(summary.began, date=True))


def clock(time: float, date: bool = False) -> str:
    """``06:31:07`` in UTC, with the date before it where asked for."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC" if date else "%H:%M:%S")


def _gpu(peak: GpuPeak, rows: Sequence[Judged], summary: Summary, words: Words, style: Style) -> list[str]:
    state = peak.state
    lines = [f"{style.paint(f'GPU {printable(state.key)}', 'heading')}  {printable(state.name)}".rstrip()]
    memory = [row for row in rows if row.metric in ("gpu_memory_share", "gpu_memory_used")]
    at = words("monitor.at", time=clock(peak.used_at)) if peak.used_at is not None and peak.used_at > 10**8 else ""
    parts = (of_limit(peak.used_bytes, state.total_bytes, "GiB", words), *verdicts(memory, words, style), at)
    lines += labelled(words("monitor.peak"), parts, style)
    if peak.watched_bytes is not None:
        lines += labelled(words("monitor.of_the_run"), (size(peak.watched_bytes),), style)
    if peak.utilisation is not None:
        used = [row for row in rows if row.metric == "gpu_utilisation"]
        mean = words("monitor.mean", share=f"{peak.utilisation * 100:.0f}%")
        lines += labelled(words("monitor.utilisation"), (mean, *verdicts(used, words, style)), style)
    card = [f"{peak.power_watts:.0f} W"] if peak.power_watts is not None else []
    card += [f"{peak.temperature_celsius:.0f} °C"] if peak.temperature_celsius is not None else []
    card += [
        words(
            "monitor.throttled_share",
            reason=words.named("monitor.throttle", reason),
            share=f"{count / peak.readings * 100:.0f}%",
        )
        for reason, count in sorted(peak.throttled.items())
    ]
    return lines + (labelled(words("monitor.most"), card, style) if card else [])


def _host(summary: Summary, words: Words, style: Style) -> list[str]:
    host = summary.host
    if host.used_bytes is None:
        return []
    lines = [style.paint(words("monitor.host"), "heading")]
    rows = [row for row in _of(summary, "") if row.metric == "host_memory_share"]
    source = words.named("monitor.source", host.source) if host.source != "unknown" else ""
    memory = of_limit(host.used_bytes, host.limit_bytes, "GB", words)
    lines += labelled(words("monitor.peak"), (memory, *verdicts(rows, words, style), source), style)
    if host.shm_used_bytes is not None:
        lines += labelled("/dev/shm", (of_limit(host.shm_used_bytes, host.shm_total_bytes, "GB", words),), style)
    if summary.oom_kills:
        lines += labelled("oom_kill", (words.count("monitor.killed", summary.oom_kills),), style)
    return lines


def _run(summary: Summary, words: Words, style: Style) -> list[str]:
    lines: list[str] = []
    if summary.tree_bytes is not None:
        lines += labelled(words("monitor.processes"), (format_bytes(summary.tree_bytes, "GB"),), style)
    if summary.workers:
        parts = [words.count("monitor.worker_count", summary.workers)]
        if summary.worker_bytes is not None:
            parts.append(words("monitor.largest", size=format_bytes(summary.worker_bytes, "GB")))
        rows = [row for row in _of(summary, "") if row.metric == "worker_memory"]
        lines += labelled(words("monitor.workers"), (*parts, *verdicts(rows, words, style)), style)
    if summary.speed is not None:
        parts = [words("monitor.per_step", seconds=f"{summary.speed.seconds_per_step:.3g}")]
        parts += [words("monitor.ratio", ratio=f"{summary.speed.ratio:.2f}")] if summary.speed.ratio else []
        rows = [row for row in _of(summary, "") if row.metric == "step_time_ratio"]
        lines += labelled(words("monitor.steps"), (*parts, *verdicts(rows, words, style)), style)
    return [style.paint(words("monitor.run"), "heading"), *lines] if lines else []


def _alerts(summary: Summary, words: Words, style: Style, log: str | None) -> list[str]:
    if not summary.alerts:
        return []
    lines = [style.paint(words("monitor.warnings"), "heading")]
    for alert in _first_of_each(summary.alerts):
        times = summary.alert_counts.get(alert.kind, 1)
        again = " " + words("monitor.times", n=times) if times > 1 else ""
        when = f"{clock(alert.time)} " if alert.time > 10**8 else ""
        lines += wrap(f"{when}{alert_text(alert, words, log)}{again}", style.width, INDENT, INDENT * 2)
    return lines


def _first_of_each(alerts: Sequence[Alert]) -> list[Alert]:
    """One of each kind and subject: a warning that was repeated says how often."""
    first: dict[tuple[str, str, str], Alert] = {}
    for alert in alerts:
        first.setdefault((alert.kind, alert.subject, alert.reason), alert)
    return list(first.values())[:MOST_ALERTS]


def exit_text(cause: ExitCause, words: Words, style: Style) -> str:
    """Why the command ended, with a line break at its end."""
    values = {"code": cause.code, "signal": _signal_name(cause.signal), "n": cause.oom_kills}
    lines = wrap(words(f"monitor.exit.{cause.kind}", **values), style.width)
    if cause.oom_kills and cause.kind != "oom_kill":
        lines += wrap(words.count("monitor.killed", cause.oom_kills), style.width)
    if cause.cause is not None:
        title = cause.cause.title.in_language(words.language)
        line, text = cause.cause.evidence[0]
        lines += wrap(words("monitor.output_says", title=title, line=line), style.width)
        lines += wrap(printable(text)[:300], style.width, INDENT)
        lines += wrap(words("monitor.remedy", remedy=cause.cause.id), style.width)
        steps = cause.cause.steps[:3]
        for number, step in enumerate(steps, 1):
            lines += wrap(step.text.in_language(words.language), style.width, f"{INDENT}{number}. ", INDENT * 2 + " ")
    return "\n".join(lines) + "\n"


def _signal_name(number: int | None) -> str:
    import signal

    if number is None:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


_LIMITED = ("gpu_above", "gpu_danger", "host_above", "worker_large", "steps_slow")


def alert_text(alert: Alert, words: Words, log: str | None = None) -> str:
    """The warning in one line, without a line break.

    Args:
        log: the log of the run, where there is a file that ``kb diagnose`` could read.
    """
    said = words(f"monitor.alert.{alert.kind}", subject=_subject(alert, words), **_values(alert, words))
    if not alert.remedy:
        return said
    shown = words("monitor.remedy", remedy=alert.remedy)
    read = words("monitor.or_diagnose", log=log) if log else ""
    return f"{said} {shown}{read}"


def _subject(alert: Alert, words: Words) -> str:
    return f"GPU {alert.subject}" if alert.subject else words("monitor.host")


def _values(alert: Alert, words: Words) -> dict[str, str | float]:
    values: dict[str, str | float] = {"rule": alert.rule}
    if alert.kind in _LIMITED and alert.value is not None:
        values |= {"value": f"{alert.value:.3g}", "limit": f"{alert.limit:g}" if alert.limit is not None else ""}
    if alert.kind in ("oom_kill", "server_preempts"):
        values["n"] = int(alert.value or 0)
    if alert.seconds_left is not None:
        values["time"] = duration(alert.seconds_left, words)
    if alert.kind == "throttled":
        values["reason"] = words.named("monitor.throttle", alert.reason)
    elif alert.reason:
        values["reason"] = words.named("machine", alert.reason)
    return values
