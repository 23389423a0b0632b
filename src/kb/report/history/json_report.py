"""A config's history as JSON, schema 1: ``rules/schema/output/history.json`` says it in full. Sizes in whole bytes."""

from typing import Any

from kb.advice.history import Entry, History, Measured, Row, held_against, host_status
from kb.core.hardware import Machine
from kb.report.check.json_report import machine_object, plain, prediction_object
from kb.report.history.text import fault_text
from kb.report.words import Words

Object = dict[str, Any]


def history_object(history: History, machine: Machine, words: Words, *, unchanged: int, shallow: bool) -> Object:
    """Everything that the matrix shows, and each version's whole prediction."""
    return {
        "machine": machine_object(machine),
        "gpu_limit_bytes": history.gpu_limit_bytes,
        "host_limit_bytes": history.host_limit_bytes,
        "versions": [_entry(entry, history, words) for entry in history.entries],
        "matrix": [_row(row) for row in history.rows],
        "unchanged_settings": {
            row.name: plain(next((v for v in row.values if v is not None), None)) for row in history.same
        },
        "versions_left_out": unchanged,
        "shallow": shallow,
    }


def _entry(entry: Entry, history: History, words: Words) -> Object:
    version, setup, report = entry.version, entry.setup, entry.report
    note = None
    if version.fault:
        note = fault_text(version.path, version.fault, words)
    elif entry.note:
        note = words(f"note.{entry.note[0]}", **entry.note[1])
    return {
        "label": version.label,
        "path": version.path,
        "section": version.unit.section if version.unit else None,
        "commit": version.commit,
        "when": version.when,
        "subject": version.subject,
        "model": entry.model,
        "settings": {name: plain(each.value) for name, each in version.unit.settings.items()} if version.unit else None,
        "effective_batch_size": setup.effective_batch_size if setup and setup.do_train else None,
        "prediction": prediction_object(report) if report else None,
        "verdicts": {
            "gpu": report.verdict.status if report else "unknown",
            "host": host_status(report.host) if report else "unknown",
        },
        "measured": _measured(version.measured, entry) if version.measured else None,
        "claimed": dict(version.claimed),
        "note": note,
    }


def _measured(measured: Measured, entry: Entry) -> Object:
    peak, report = entry.gpu_peak(), entry.report
    gpu, host = measured.gpu_bytes, measured.host_bytes
    return {
        "gpu_bytes": gpu,
        "gpu_said": measured.gpu_said or None,
        "gpu_against_prediction": held_against(gpu, peak.low_bytes, peak.high_bytes) if gpu and peak else None,
        "host_bytes": host,
        "host_said": measured.host_said or None,
        "host_against_prediction": (
            held_against(host, report.host.low_bytes, report.host.peak_bytes) if host and report else None
        ),
        "source": measured.source,
    }


def _row(row: Row) -> Object:
    return {
        "setting": row.name,
        "values": [plain(value) for value in row.values],
        "defaults": list(row.defaults),
        "changes": [None if change is None else round(change, 6) for change in row.changes],
        "change": None if row.change is None else round(row.change, 6),
    }
