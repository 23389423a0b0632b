"""A row of ``rules/histories`` as versions to compare, and its figures for the same versions read elsewhere. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.history import Measured, Version, unit_of
from kb.core.text import UserError

BYTES = {"GB": 10**9, "MB": 10**6}
SHORTEST_COMMIT = 7
# What a config says to be of a method; the row names the method alone.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "lora": {"lora.enabled": True},
    "qlora": {"lora.enabled": True, "quantization.load_in_4bit": True},
}


def noted_versions(row: Mapping[str, Any], language: str) -> list[Version]:
    """Every stage of a note's history, in its order, with the note's own estimates and measurements.

    Args:
        language: of the labels.
    """
    shared = {**METHODS.get(row.get("method", ""), {}), **({"model.name": row["model"]} if "model" in row else {})}
    for told in ("unsaid", "code"):  # what the config says beside the note, then what the code does whatever it says
        shared |= {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in row.get(told, {}).get("settings", {}).items()
        }
    versions = []
    for stage in row["stages"]:
        settings = {name: entry["value"] for name, entry in stage["settings"].items()}
        event = stage["event"]
        versions.append(
            Version(
                label=event.get("commit") or stage["title"][language],
                path=row["config"]["path"],
                unit=unit_of(row["id"], {**shared, **settings}),
                commit=event.get("commit"),
                when=event["time"],
                subject=stage["title"][language],
                measured=_measured(stage, row),
                claimed=_claimed(stage, row),
            )
        )
    return versions


def with_notes(versions: Sequence[Version], rows: Mapping[str, Any]) -> list[Version]:
    """The versions, those whose commit a note tells of with that note's estimates and measurements."""
    noted = [(stage, row) for row in rows.values() for stage in row["stages"] if "commit" in stage["event"]]
    return [_noted(version, noted) for version in versions]


def _noted(version: Version, noted: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Version:
    name = version.commit or version.label
    for stage, row in noted:
        commit = stage["event"]["commit"]
        if len(name) >= SHORTEST_COMMIT and (name.startswith(commit) or commit.startswith(name)):
            measured = version.measured or _measured(stage, row)
            return version._replace(measured=measured, claimed=_claimed(stage, row))
    return version


def _measured(stage: Mapping[str, Any], row: Mapping[str, Any]) -> Measured | None:
    found = stage.get("measured", {})
    gpu, host = found.get("gpu_memory"), found.get("host_memory")
    if gpu is None and host is None:
        return None
    return Measured(_bytes(gpu), _bytes(host), _said(gpu), _said(host), (gpu or host or {}).get("source", ""))


def _claimed(stage: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    claimed = {}
    for name, ledger in row["ledgers"].items():
        total = next((term for term in ledger["terms"] if term["id"] == "total"), None)
        if total is not None and stage["id"] in total["values"]:
            claimed[name] = _said({**total, "value": total["values"][stage["id"]]})
    if "memory" in stage.get("predicted", {}):
        claimed["mixed"] = _said(stage["predicted"]["memory"])
    return claimed


def _bytes(quantity: Mapping[str, Any] | None) -> int | None:
    return None if quantity is None else round(quantity["value"] * BYTES[quantity["unit"]])


def _said(quantity: Mapping[str, Any] | None) -> str:
    """The figure as the note writes it: ``~40 GB``."""
    if quantity is None:
        return ""
    return f"{'~' if quantity.get('approximate') else ''}{quantity['value']:g} {quantity['unit']}"


def with_measured(versions: Sequence[Version], found: Mapping[str, Measured]) -> list[Version]:
    """The versions with the user's own measurements, which win over a note's.

    Raises:
        UserError: a name is that of no version.
    """
    left = dict(found)
    made = []
    for version in versions:
        name = next((name for name in left if _names(version, name)), None)
        made.append(version if name is None else version._replace(measured=left.pop(name)))
    if left:
        labels = ", ".join(version.label for version in versions)
        raise UserError("history.measured_unknown", name=next(iter(left)), known=labels)
    return made


def _names(version: Version, name: str) -> bool:
    if name in (version.label, version.path, version.path.replace("\\", "/").rpartition("/")[2]):
        return True
    return bool(version.commit and len(name) >= 4 and version.commit.startswith(name))
