"""``kb.probe --format json``, schema 1: ``rules/schema/output/probe.json`` says it in full."""

from typing import TYPE_CHECKING, Any

from kb.report.json_parts import head, to_json
from kb.report.probe.advice_text import config_yaml
from kb.report.recommend.config import settings_of

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Pair, Probed

Object = dict[str, Any]


def probe_json(probed: "Probed", version: str, rules_version: str) -> str:
    return to_json(probe_object(probed, version, rules_version))


def probe_object(probed: "Probed", version: str, rules_version: str) -> Object:
    """Everything a probe found; ``measured`` is false of a scripted GPU."""
    sought, card = probed.sought, probed.card
    return {
        **head(version, rules_version),
        "kind": probed.kind,
        "backend": probed.backend,
        "measured": probed.backend != "fake",
        "name": probed.name,
        "command": list(probed.command) or None,
        "gpu": {"name": card.name, "memory_bytes": card.total_bytes, "usable_bytes": card.usable_bytes}
        if card.total_bytes
        else None,
        "host_limit_bytes": probed.host_limit_bytes,
        "notes": list(probed.notes),
        "trials": [trial_object(pair) for pair in probed.pairs],
        "largest": {"batch": sought.largest, "next_one": sought.next_one} if sought else None,
        "recommended": _recommended(probed),
        "auto_find_batch_size": {"batches": list(probed.auto_find), "trials": len(probed.auto_find)}
        if probed.auto_find
        else None,
    }


def trial_object(pair: "Pair") -> Object:
    """One trial, with what was predicted of it and what came of it."""
    trial, outcome = pair
    return {
        "batch": trial.batch if trial.kind != "host" else None,
        "workers": trial.workers,
        "steps": trial.steps,
        "command": list(trial.command) or None,
        "predicted": {phase: dict(sizes) for phase, sizes in trial.predicted.items()},
        "outcome": {
            **outcome._asdict(),
            "phases": {phase: dict(sizes) for phase, sizes in outcome.phases.items()},
            "peak_bytes": outcome.peak_bytes,
        },
    }


def _recommended(probed: "Probed") -> Object | None:
    found = probed.recommended
    if found is None:
        return None
    settings = None
    if probed.setup is not None:
        settings = settings_of(probed.setup, workers_known=False, one_sequence=probed.one_sequence)
    return {
        "batch": found.number if probed.kind != "host" else None,
        "workers": found.number if probed.kind == "host" else None,
        "reason": found.reason,
        "used_bytes": found.used_bytes,
        "share": found.share,
        "tried": found.tried,
        "config": settings,
        "yaml": config_yaml(probed),
    }
