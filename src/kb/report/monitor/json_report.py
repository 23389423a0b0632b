"""A watch as JSON; its schema is ``rules/schema/output/monitor.json``."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.watching import GpuPeak, Judged, Summary
from kb.core.snapshot import Snapshot
from kb.report.json_parts import SCHEMA, to_json


def summary_json(summary: Summary, kind: str, notes: list[str], versions: Mapping[str, str]) -> str:
    """The whole watch: peaks with their verdicts, warnings, notes. ``versions``: of ``kb`` and of the ``rules``."""
    host, speed = summary.host, summary.speed
    return to_json(
        {
            "schema": SCHEMA,
            **versions,
            "kind": "watch",
            "recording": kind,
            "readings": summary.readings,
            "seconds": None
            if summary.began is None or summary.ended is None
            else round(summary.ended - summary.began, 3),
            "gpus": [_gpu(peak) for peak in summary.gpus],
            "host": {
                "peak_bytes": host.used_bytes,
                "limit_bytes": host.limit_bytes,
                "source": host.source,
                "oom_kills": summary.oom_kills,
                "shm_peak_bytes": host.shm_used_bytes,
                "shm_total_bytes": host.shm_total_bytes,
            },
            "processes": {
                "peak_pss_bytes": summary.tree_bytes,
                "workers": summary.workers,
                "worker_peak_pss_bytes": summary.worker_bytes,
            },
            "seconds_per_step": speed.seconds_per_step if speed else None,
            "step_time_ratio": speed.ratio if speed else None,
            "server": _plain(summary.server),
            "verdicts": _verdicts(summary.judged),
            "warnings": [
                {
                    "kind": alert.kind,
                    "gpu": alert.subject or None,
                    "time": alert.time,
                    "rule": alert.rule or None,
                    "remedy": alert.remedy or None,
                    "seconds_left": alert.seconds_left,
                    "times": summary.alert_counts.get(alert.kind, 1),
                }
                for alert in summary.alerts
            ],
            "notes": notes,
        }
    )


def snapshot_json(snapshot: Snapshot, judged: Sequence[tuple[str, Judged]], versions: Mapping[str, str]) -> str:
    """One reading with its verdicts."""
    data: dict[str, Any] = _plain(snapshot)
    return to_json({"schema": SCHEMA, **versions, "kind": "reading", **data, "verdicts": _verdicts(judged)})


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _gpu(peak: GpuPeak) -> dict[str, Any]:
    return {
        "gpu": peak.state.key,
        "name": peak.state.name,
        "uuid": peak.state.uuid,
        "peak_used_bytes": peak.used_bytes,
        "total_bytes": peak.state.total_bytes,
        "peak_watched_bytes": peak.watched_bytes,
        "mean_utilisation": peak.utilisation,
        "peak_power_watts": peak.power_watts,
        "peak_temperature_celsius": peak.temperature_celsius,
        "throttled_readings": dict(peak.throttled),
        "readings": peak.readings,
    }


def _verdicts(judged: Sequence[tuple[str, Judged]]) -> list[dict[str, Any]]:
    return [
        {
            "gpu": key or None,
            "rule": row.threshold,
            "metric": row.metric,
            "value": round(row.value, 4),
            "unit": row.unit,
            "label": row.label,
            "low": row.row.get("low"),
            "high": row.row.get("high"),
        }
        for key, row in judged
    ]
