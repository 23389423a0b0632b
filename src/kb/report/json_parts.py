"""What every JSON report is made of: the one serializer, the head, a machine, a prediction. Sizes are whole bytes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.expression import is_unknown
from kb.core.hardware import Machine
from kb.core.memory_report import MemoryReport, Term
from kb.core.setup import Assumption
from kb.report.values import is_hidden, printable
from kb.report.words import Words

SCHEMA = 1

Object = dict[str, Any]


def head(version: str, rules_version: str) -> Object:
    """What each report begins with: the contract's number, and which kb and rules say it."""
    return {"schema": SCHEMA, "kb": version, "rules": rules_version}


def to_json(data: Any) -> str:
    """Indented JSON with Korean as it is; what a screen obeys or hides, and what is no UTF-8, is escaped."""
    return escaped(json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)) + "\n"


def encode(data: Any) -> str:
    """JSON on one line, with Korean as it is; not yet escaped."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def escaped(text: str) -> str:
    """JSON in which no hidden character stands as such: each is its own escape, in halves beyond U+FFFF."""
    if text.isascii():
        return text
    return "\n".join(line if line == printable(line) else _escaped_line(line) for line in text.split("\n"))


def _escaped_line(line: str) -> str:
    return "".join(json.dumps(character)[1:-1] if is_hidden(character) else character for character in line)


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: tuples as lists, what is unknown or not finite as null, a date as its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if is_unknown(value):
        return None
    if isinstance(value, float):
        return value if value - value == 0 else None  # inf and nan have no JSON
    if hasattr(value, "_asdict"):  # a record within a record
        value = value._asdict()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)


def fields(record: Any, *names: str) -> Object:
    """These fields of a record under their own names, as JSON can hold them."""
    return {name: plain(getattr(record, name)) for name in names}


def assumption_object(each: Assumption) -> Object:
    return each._asdict() | {"value": plain(each.value)}


def release_text(version: Sequence[int] | None) -> str | None:
    """A release, or a GPU's compute capability, as people write it: ``8.6``; null where it is not known."""
    return ".".join(map(str, version)) if version else None


HOST_FIELDS = ("host_memory_bytes", "host_memory_used_bytes", "host_memory_source", "cpus", "cpu_source", "shm_bytes")


def machine_object(machine: Machine) -> Object:
    gpus = [
        {
            "index": gpu.number,
            "id": gpu.gpu.id if gpu.gpu else None,
            "name": gpu.name,
            "memory_total_bytes": gpu.memory_total,
            "memory_free_bytes": gpu.memory_free,
            "compute_capability": release_text(gpu.compute_capability),
            "driver": gpu.driver,
            "mig": gpu.mig,
            "processes": [{"pid": pid, "used_bytes": used} for pid, used in gpu.processes],
        }
        for gpu in machine.gpus
    ]
    host = fields(machine, *HOST_FIELDS)
    return {"gpus": gpus, "gpu_source": machine.gpu_source, "notes": list(machine.sayings), **host}


def prediction_object(report: MemoryReport) -> Object:
    """The ``prediction`` of the contract, which ``kb.estimate`` prints on its own."""
    host = report.host
    made: Object = {
        "level": report.level,
        "assumed": [assumption_object(each) for each in report.assumed],
        "phases": {
            phase.name: {
                "terms": _terms(phase.terms),
                **fields(phase, "peak_allocated_bytes", "peak_reserved_bytes", "process_used_bytes"),
                **fields(phase, "low_bytes", "high_bytes", "moment", *(("use", "batch") if phase.use else ())),
            }
            for phase in report.phases
        },
        "host": {
            "terms": _terms(host.terms),
            **fields(host, "low_bytes", "peak_bytes", "limit_bytes"),
            "measured": {"terms": _terms(host.measured), "bytes": host.low_bytes},
            "claimed": {"low_bytes": host.claimed_low_bytes, "high_bytes": host.claimed_high_bytes},
        },
        "verdict": report.verdict._asdict(),
    }
    if report.lengths:
        made["lengths"] = {f"{name}_bytes": value for name, value in report.lengths._asdict().items()}
    return made


def _terms(terms: tuple[Term, ...]) -> list[Object]:
    return [{"name": term.name, "bytes": term.bytes} for term in terms]


def name_terms(ledgers: Mapping[str, Object], words: Words) -> None:
    """Put each phase's and term's name in the reader's language beside it, for a chart."""
    for name, ledger in ledgers.items():
        ledger["title"] = words.named("phase", "inference" if ledger.get("use") == "inference" else name)
        for term in ledger["terms"]:
            term["title"] = words.named("term", term["name"])
