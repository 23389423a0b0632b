"""A watched run in words. One reading: GPUs, host, /dev/shm, the watched processes, the speed, each with what the
targets say. The whole watch: peaks against the targets, warnings, why the command ended. A warning as a sentence.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from kb.advice.diagnosis import ExitCause
from kb.advice.watching import Alert, GpuPeak, Judged, Summary
from kb.core.record import NamedTuple
from kb.core.snapshot import GpuState, HostState, ServerState, Snapshot, SpeedState, TreeState
from kb.core.units import format_bytes
from kb.report.terminal import INDENT, Style, cut, in_blocks, joined, pad, wrap
from kb.report.values import here, host_size, printable, size
from kb.report.words import Words

_BAR = 20
_LABEL = 13
_MOST_PROCESSES = 4


class Reading(NamedTuple):
    """A snapshot with what is said of it: (GPU's key or nothing, verdict), and each GPU's utilisation of late."""

    snapshot: Snapshot
    judged: Sequence[tuple[str, Judged]]
    utilisation: dict[str, float | None]


def reading_lines(reading: Reading, words: Words, style: Style) -> list[str]:
    """The reading, for a terminal of the style's width; long lines are wrapped."""
    snapshot = reading.snapshot
    lines: list[str] = []
    for state in snapshot.gpus:
        rows = [row for key, row in reading.judged if key == state.key]
        lines += _gpu(state, rows, reading.utilisation.get(state.key), words, style)
    if snapshot.gpu_note:
        lines += wrap(
            f"GPU  {words('monitor.no_gpu', reason=_note(snapshot.gpu_note, words))}", style.width, "", INDENT
        )
    lines += [
        row for note in snapshot.notes for row in wrap(words("monitor.note", note=_note(note, words)), style.width)
    ]
    rows = [row for key, row in reading.judged if not key]
    lines += _host(snapshot.host, rows, words, style)
    if snapshot.tree is not None:
        lines += _tree(snapshot.tree, rows, words, style)
    if snapshot.speed is not None:
        lines += _speed(snapshot.speed, rows, words, style)
    if snapshot.server is not None:
        lines += server_lines(snapshot.server, words, style)
    return lines


def server_lines(server: ServerState, words: Words, style: Style) -> list[str]:
    """What a server's own metrics show: the share of its KV cache in use, its requests, what it put back."""
    lines = [style.paint(words("monitor.server"), "heading") + (f"  {server.engine}" if server.engine else "")]
    if server.reason:
        return [*lines, *wrap(words(f"monitor.server_{server.reason}"), style.width, INDENT)]
    if server.kv_usage is not None:
        shown = f"{bar(server.kv_usage, style)} {server.kv_usage * 100:.0f}%"
        lines += labelled(words("monitor.kv_cache"), (shown,), style)
    counts = (("running", server.running), ("waiting", server.waiting), ("preempted", server.preemptions))
    parts = [words(f"monitor.{name}", n=number) for name, number in counts if number is not None]
    return lines + (labelled(words("monitor.requests"), parts, style) if parts else [])


def _note(note: str, words: Words) -> str:
    return words.named("machine", here(note))


def labelled(label: str, parts: Sequence[str], style: Style) -> list[str]:
    """``label`` in a column of its own, then what is known."""
    known = joined((part for part in parts if part), style.dot)
    return wrap(known, style.width, INDENT + pad(label, _LABEL), INDENT + " " * _LABEL)


def bar(share: float, style: Style) -> str:
    """A share as a bar of 20 cells."""
    full = round(min(max(share, 0.0), 1.0) * _BAR)
    marks = ("█", "░") if style.unicode else ("#", ".")
    return marks[0] * full + marks[1] * (_BAR - full)


def of_limit(used: int | None, limit: int | None, unit: str, words: Words) -> str:
    """``18.3 of 24.0 GiB, 76%``; what is not known is left out."""
    if used is None:
        return words("monitor.unknown")
    if not limit:
        return format_bytes(used, unit)
    shown = words("monitor.of", used=format_bytes(used, unit).rpartition(" ")[0], limit=format_bytes(limit, unit))
    return f"{shown}, {used / limit * 100:.0f}%"


def _gpu(state: GpuState, rows: Sequence[Judged], mean: float | None, words: Words, style: Style) -> list[str]:
    lines = [f"{style.paint(f'GPU {printable(state.key)}', 'heading')}  {printable(state.name)}".rstrip()]
    used, total = state.used_bytes, state.total_bytes
    memory = of_limit(used, total, "GiB", words)
    drawn = f"{bar(used / total, style)} " if used is not None and total else ""
    said = verdicts(speaking(rows, "gpu_memory_share", "gpu_memory_used"), words, style)
    lines += labelled(words("monitor.memory"), (f"{drawn}{memory}", *said), style)
    if state.utilisation is not None:
        parts = [f"{state.utilisation * 100:.0f}%"]
        parts += [words("monitor.of_late", share=f"{mean * 100:.0f}%")] if mean is not None else []
        said = verdicts(speaking(rows, "gpu_utilisation"), words, style)
        lines += labelled(words("monitor.utilisation"), (*parts, *said), style)
    about = _power_and_heat(state, words)
    if state.throttle:
        reasons = ", ".join(words.named("monitor.throttle", reason) for reason in state.throttle)
        about.append(words("monitor.throttled", reasons=reasons))
    lines += labelled(words("monitor.card"), about, style) if about else []
    return lines + (labelled(words("monitor.processes"), _processes(state, words), style) if state.processes else [])


def _power_and_heat(state: GpuState, words: Words) -> list[str]:
    """Each beside its limit, where the driver tells one."""
    said = []
    watts, most = state.power_watts, state.power_limit_watts
    if watts is not None:
        limited = words("monitor.of", used=f"{watts:.0f}", limit=f"{most:.0f} W") if most is not None else ""
        said.append(limited or f"{watts:.0f} W")
    heat, slows = state.temperature_celsius, state.slowdown_celsius
    if heat is not None:
        now = f"{heat:.0f} °C"
        said.append(words("monitor.heat", now=now, slows=f"{slows:.0f} °C") if slows is not None else now)
    return said


def _processes(state: GpuState, words: Words) -> list[str]:
    ordered = sorted(state.processes, key=lambda each: (not each.watched, -(each.used_bytes or 0)))
    shown = []
    for each in ordered[:_MOST_PROCESSES]:
        name = f"{each.pid or ''} {printable(each.name)}".strip()
        text = f"{name} {words('monitor.unknown') if each.used_bytes is None else size(each.used_bytes)}".strip()
        shown.append(words("monitor.watched", process=text) if each.watched else text)
    more = len(ordered) - _MOST_PROCESSES
    return [*shown, *([words("monitor.more", n=more)] if more > 0 else [])]


def _host(host: HostState, rows: Sequence[Judged], words: Words, style: Style) -> list[str]:
    if host.used_bytes is None and host.limit_bytes is None:
        return []
    lines = [style.paint(words("monitor.host"), "heading")]
    share = f"{bar(host.used_bytes / host.limit_bytes, style)} " if host.used_bytes and host.limit_bytes else ""
    memory = f"{share}{of_limit(host.used_bytes, host.limit_bytes, 'GB', words)}"
    said = verdicts(speaking(rows, "host_memory_share"), words, style)
    source = words.named("monitor.source", host.source) if host.source != "unknown" else ""
    kills = words("monitor.kills", n=host.oom_kills) if host.oom_kills else ""
    lines += labelled(words("monitor.memory"), (memory, *said, source, kills), style)
    if host.shm_used_bytes is not None:
        shared = of_limit(host.shm_used_bytes, host.shm_total_bytes, "GB", words)
        lines += labelled("/dev/shm", (shared,), style)
    return lines


def _tree(tree: TreeState, rows: Sequence[Judged], words: Words, style: Style) -> list[str]:
    if not tree.count_all and not tree.workers:
        return []
    lines = [style.paint(words("monitor.run"), "heading")]
    parts = [words.count("monitor.process_count", tree.count_all)] if tree.count_all else []
    if tree.pss_bytes is not None:
        parts.append(words("monitor.pss", size=format_bytes(tree.pss_bytes, "GB")))
    lines += labelled(words("monitor.processes"), parts, style)
    if tree.workers:
        lines += _workers(tree.workers, tree.worker_pss_bytes, speaking(rows, "worker_memory"), words, style)
    largest = [
        f"{each.pid} {cut(printable(each.name), 16)} {host_size(each.pss_bytes or each.rss_bytes or 0)}"
        for each in tree.processes[:_MOST_PROCESSES]
    ]
    return lines + (labelled(words("monitor.largest_few"), largest, style) if len(tree.processes) > 1 else [])


def _workers(count: int, largest: int | None, rows: Sequence[Judged], words: Words, style: Style) -> list[str]:
    """How many data loader workers there are, and the memory of the largest, in bytes."""
    parts = [words.count("monitor.worker_count", count)]
    if largest is not None:
        parts.append(words("monitor.largest", size=format_bytes(largest, "GB")))
    return labelled(words("monitor.workers"), (*parts, *verdicts(rows, words, style)), style)


def _speed(speed: SpeedState, rows: Sequence[Judged], words: Words, style: Style) -> list[str]:
    parts = [words("monitor.per_step", seconds=f"{speed.seconds_per_step:.3g}")]
    if speed.ratio is not None:
        parts.append(words("monitor.ratio", ratio=f"{speed.ratio:.2f}"))
        parts.extend(verdicts(speaking(rows, "step_time_ratio"), words, style))
    if speed.done is not None and speed.of is not None:
        parts.append(f"{speed.done:,}/{speed.of:,}")
    if speed.remaining_seconds is not None:
        parts.append(words("monitor.left", time=duration(speed.remaining_seconds, words)))
    return labelled(words("monitor.steps"), parts, style)


def duration(seconds: float, words: Words) -> str:
    """``45 s``, ``21 min``, ``3.5 h``."""
    if seconds < 90:
        return words("monitor.seconds", n=f"{seconds:.0f}")
    if seconds < 5400:
        return words("monitor.minutes", n=f"{seconds / 60:.0f}")
    return words("monitor.hours", n=f"{seconds / 3600:.1f}")


_ROLES = {"ok": "fits", "above": "tight", "danger": "oom", "below": "info", "safe": "fits"}
_WORST_FIRST = ("danger", "above", "below", "ok", "safe")


def speaking(judged: Iterable[Judged], *metrics: str) -> list[Judged]:
    """Of the verdicts on these metrics, those that a line has room for: a danger line, and the first target."""
    rows = [row for row in judged if row.metric in metrics]
    danger = [row for row in rows if row.label == "danger"]
    targets = [row for row in rows if row.label not in ("danger", "safe")]
    return danger + targets[:1]


def verdict(row: Judged, words: Words, style: Style) -> str:
    """``inside 70–85% (gpu-memory-training)``."""
    said = words(f"monitor.label.{row.label}", range=_crossed(row, style) or bounds(row.row, style))
    return f"{style.paint(said, _ROLES[row.label])} ({row.threshold})"


def _crossed(row: Judged, style: Style) -> str:
    """The one bound that was crossed, where the target has only that: ``above 80%``, not ``above ≤ 80%``."""
    one_sided = (row.row.get("low") is None) != (row.row.get("high") is None)
    if not one_sided or row.label not in ("above", "below"):
        return ""
    return bounds(row.row, style).partition(" ")[2]


def verdicts(rows: Iterable[Judged], words: Words, style: Style) -> list[str]:
    """Each that is given, worst first."""
    ordered = sorted(rows, key=lambda row: _WORST_FIRST.index(row.label))
    return [verdict(row, words, style) for row in ordered]


def bounds(row: Any, style: Style) -> str:
    """``70–85%``, ``≤ 80%``, ``≥ 22 GB``, ``≤ 1.5×``."""
    low, high, unit = row.get("low"), row.get("high"), row["unit"]
    if row["metric"] == "gpu_memory_used":
        unit = "GiB"  # what the notes call GB of a card, see :mod:`kb.advice.watching`
    tail = "%" if unit == "%" else "×" if unit == "ratio" else f" {unit}"
    if low is not None and high is not None:
        return f"{low:g}{style.dash}{high:g}{tail}"
    least, most = ("≥", "≤") if style.unicode else (">=", "<=")
    return f"{least} {low:g}{tail}" if low is not None else f"{most} {high:g}{tail}"


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
    blocks += [_gpu_peak(peak, summary, words, style) for peak in summary.gpus]
    blocks.append(_host_peak(summary, words, style))
    blocks.append(_run(summary, words, style))
    blocks.append(server_lines(summary.server, words, style) if summary.server is not None else [])
    blocks.append(_alerts(summary, words, style, log))
    blocks.append([line for note in notes for line in wrap(note, style.width)])
    if any(row for row in summary.judged):
        blocks.append(style.lines(words("monitor.targets_from"), "dim"))
    return in_blocks(blocks)


def _judged(summary: Summary, key: str, *metrics: str) -> list[Judged]:
    """The verdicts on these metrics, of the GPU of this key, or of the host where it is empty."""
    return [row for each, row in summary.judged if each == key and row.metric in metrics]


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


def _gpu_peak(peak: GpuPeak, summary: Summary, words: Words, style: Style) -> list[str]:
    state = peak.state
    lines = [f"{style.paint(f'GPU {printable(state.key)}', 'heading')}  {printable(state.name)}".rstrip()]
    memory = _judged(summary, state.key, "gpu_memory_share", "gpu_memory_used")
    at = words("monitor.at", time=clock(peak.used_at)) if peak.used_at is not None and peak.used_at > 10**8 else ""
    parts = (of_limit(peak.used_bytes, state.total_bytes, "GiB", words), *verdicts(memory, words, style), at)
    lines += labelled(words("monitor.peak"), parts, style)
    if peak.watched_bytes is not None:
        lines += labelled(words("monitor.of_the_run"), (size(peak.watched_bytes),), style)
    if peak.utilisation is not None:
        used = _judged(summary, state.key, "gpu_utilisation")
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


def _host_peak(summary: Summary, words: Words, style: Style) -> list[str]:
    host = summary.host
    if host.used_bytes is None:
        return []
    lines = [style.paint(words("monitor.host"), "heading")]
    rows = _judged(summary, "", "host_memory_share")
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
        rows = _judged(summary, "", "worker_memory")
        lines += _workers(summary.workers, summary.worker_bytes, rows, words, style)
    if summary.speed is not None:
        parts = [words("monitor.per_step", seconds=f"{summary.speed.seconds_per_step:.3g}")]
        parts += [words("monitor.ratio", ratio=f"{summary.speed.ratio:.2f}")] if summary.speed.ratio else []
        rows = _judged(summary, "", "step_time_ratio")
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
    subject = f"GPU {alert.subject}" if alert.subject else words("monitor.host")
    said = words(f"monitor.alert.{alert.kind}", subject=subject, **_values(alert, words))
    if not alert.remedy:
        return said
    shown = words("monitor.remedy", remedy=alert.remedy)
    read = words("monitor.or_diagnose", log=log) if log else ""
    return f"{said} {shown}{read}"


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
