"""A warning as a sentence: what comes near, the rule that says so, the remedy and the command that explains it."""

from kb.advice.watch_records import Alert
from kb.report.monitor.reading import duration
from kb.report.words import Words

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
