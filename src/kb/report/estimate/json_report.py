"""``kb.estimate --format json``, schema 1: ``rules/schema/output/estimate.json`` says it in full. Sizes in bytes."""

import json
from collections.abc import Sequence
from typing import Any

from kb.advice.estimate import Estimated
from kb.memory.timeline import ROLES
from kb.report.estimate.text import throughput_object
from kb.report.json_parts import SCHEMA, Object, head, machine_object, plain, prediction_object, to_json
from kb.report.words import Words

_REPORTED = ("model_name", "assumed", "unmodelled", "unresolved")  # elsewhere in the object


def estimate_json(estimated: Sequence[Estimated], words: Words, version: str, rules_version: str) -> str:
    """One run's prediction with what it is of; of a file with several runs, a list of them under ``runs``."""
    begin: Object = {**head(version, rules_version), "machine": machine_object(estimated[0].machine)}
    runs = [_run(one, words) for one in estimated]
    return to_json(begin | runs[0] if len(runs) == 1 else begin | {"runs": runs})


def _run(one: Estimated, words: Words) -> Object:
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
            {
                "gpu": fit.gpu.id,
                "status": fit.verdict.status,
                "process_used_bytes": fit.process_used_bytes,
                "limit_bytes": fit.limit_bytes,
            }
            for fit in one.gpu_fits
        ]
    made["throughput"] = throughput_object(one.throughput)
    made["notes"] = [words(key, **values) for key, values in one.notes]
    if one.followed is not None:
        made["tops"] = _tops(one.followed.tops)
    made["simulation"] = _simulation(one.simulated) if one.simulated is not None else None
    return made


def _simulation(found: Any) -> Object:
    return {
        "seconds": round(found.seconds, 3),
        "host_peak_bytes": found.subprocess_peak_bytes,
        "software": dict(found.software),
        "tops": _tops(found.tops),
    }


def _tops(found: Any) -> Object:
    return {phase: [_top(top) for top in tops] for phase, tops in found.items()}


def _top(top: Any) -> Object:
    return {"bytes": top.size_bytes, "number": top.number, "term": top.term, "module": top.module, "op": top.op}


def timeline_json(found: Any) -> str:
    """Bytes after each event that changed them, in all and by role; the phases, and what is alive at their peaks."""
    line = found.timeline
    whole = {
        "schema": SCHEMA,
        "events": line.events,
        "phases": [{"name": span.phase, "start": span.start, "end": span.end} for span in line.spans],
        "columns": ["event", "allocated_bytes", "reserved_bytes", *(f"{role}_bytes" for role in ROLES)],
        "points": [[*point[:3], *point.roles] for point in line.points],
        "tops": _tops(found.tops),
    }
    return json.dumps(whole, separators=(",", ":")) + "\n"
