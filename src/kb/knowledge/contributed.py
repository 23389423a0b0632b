"""A rule's and a measurement's entry, made of what a person fills in, for the site's forms.

What is not filled in is left out, or left empty where an entry must have it: the schema then asks for it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from kb.core.units import MIB
from kb.knowledge.drafts import Entry, head_of

MEASURED = "contributed-measurement"  # of rules/sources.yaml
TEXTS = ("title", "message", "why")
RUN = ("task", "method", "precision", "attention", "optimizer")
NUMBERS = ("batch", "source_length", "target_length", "lora_rank")
PEAKS = ("allocated", "reserved", "process")
ABOUT = {
    "ko": "잰 사람이 사이트의 양식에 적은 값입니다. 할당과 예약은 torch.cuda의 최댓값, "
    "프로세스는 nvidia-smi가 알린 값입니다.",
    "en": "As who measured it filled in the site's form: allocated and reserved are torch.cuda's peaks, the process is "
    "what nvidia-smi reports.",
}


def rule_entry(given: Mapping[str, Any]) -> Entry:
    """A rule: its condition, its sentences in both languages, an example that fires and one that does not.

    Args:
        given: ``id``, ``area``, ``severity``, ``confidence``, ``when``, ``title_ko`` and the like of ``TEXTS``,
            ``fires`` and ``silent`` (configs), ``gpu`` of both, ``set`` (a mapping in YAML) with ``safety``,
            ``fix_ko`` and ``fix_en``, ``source`` (an id, or an address of :func:`source_entry`).

    Raises:
        ValueError: ``set`` is no mapping in YAML.
    """
    data: Entry = {**_head(given), **{name: _text(given, name) for name in ("severity", "confidence", "area", "when")}}
    data |= {name: {language: _text(given, f"{name}_{language}") for language in ("ko", "en")} for name in TEXTS}
    around = {"gpu": _text(given, "gpu")} if _text(given, "gpu") else {}
    fires: Entry = {"expect": "fires", "config": _config(given, "fires"), **around}
    if _text(given, "set"):
        title = {language: _text(given, f"fix_{language}") for language in ("ko", "en")}
        data["fix"] = [{"safety": _text(given, "safety"), "set": _mapping(given), "title": title}]
        fires["fixed"] = ""  # what the fix gives, once it was made
    data["examples"] = [fires, {"expect": "silent", "config": _config(given, "silent"), **around}]
    source = _text(given, "source")
    return {**data, "sources": [data["id"] if _is_address(source) else source] if source else []}


def source_entry(given: Mapping[str, Any]) -> Entry | None:
    """The file of a source that a rule gives by its address; None where it names one that is there."""
    address = _text(given, "source")
    if not _is_address(address):
        return None
    row = {"title": _text(given, "source_title"), "url": address, "kind": _text(given, "source_kind")}
    return {"version": 1, "sources": {_text(given, "id"): row}}


def measurement_entry(given: Mapping[str, Any]) -> Entry:
    """A run that was measured on one GPU: the machine, versions, the model's dimensions, settings, peaks by phase.

    Args:
        given: ``id``, ``gpu_name``, ``gpu``, ``memory`` (MiB), ``date``, ``command``, ``stack`` (``torch==2.9 …``),
            ``model`` (hub name), ``config`` (its config.json), those of ``RUN`` and ``NUMBERS``,
            ``gradient_checkpointing``, ``lora_targets`` and the peaks of ``PEAKS`` in MiB.

    Raises:
        ValueError: the config is no JSON object.
    """
    config = json.loads(_text(given, "config") or "{}")
    if not isinstance(config, dict):
        raise ValueError("config.json: { … }")
    name, card, task = _text(given, "model"), _text(given, "gpu_name"), _text(given, "task")
    key = re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower()).strip("-") or "model"
    row: Entry = {"model": key, **{each: _text(given, each) for each in RUN if _text(given, each)}}
    row["gradient_checkpointing"] = _text(given, "gradient_checkpointing") == "true"
    row |= {each: number(given[each]) for each in NUMBERS if _text(given, each)}
    if _text(given, "lora_targets"):
        row["lora_targets"] = _text(given, "lora_targets").replace(",", " ").split()
    row["phases"] = {task: {f"{each}_bytes": _mib(given[each]) for each in PEAKS if _text(given, each)}}
    machine = {"gpu": _text(given, "gpu"), "gpu_name": card}
    plain = {each: value for each, value in config.items() if isinstance(value, str | int | float | bool)}
    return {
        **_head(given),
        "title": {"ko": f"{card}에서 잰 {name}의 메모리", "en": f"Memory of {name} measured on {card}"},
        "about": ABOUT,
        "kind": "gpu",
        "date": _text(given, "date"),
        "command": _text(given, "command"),
        "machine": {each: value for each, value in machine.items() if value}
        | ({"gpu_memory_bytes": _mib(given["memory"])} if _text(given, "memory") else {}),
        "stack": dict(part.split("==", 1) for part in _text(given, "stack").replace(",", " ").split() if "==" in part),
        "status": "measured",
        "source": MEASURED,
        "models": {key: {"name": name, "architecture": {"model_type": "", **plain}}},
        "rows": [row],
        "sources": [MEASURED],
    }


def number(written: Any) -> Any:
    """A number as one; what is none stays text, and the schema says so at its field."""
    text = str(written or "").replace(",", "").strip()
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _head(given: Mapping[str, Any]) -> Entry:
    head = head_of(_text(given, "id"), "", ())
    return {name: head[name] for name in ("id", "version", "since")}


def _text(given: Mapping[str, Any], name: str) -> str:
    return str(given.get(name) or "").strip()


def _config(given: Mapping[str, Any], name: str) -> str:
    """A config of several lines, as a file has it: lines end, and nothing hangs over at their ends."""
    return "".join(f"{line.rstrip()}\n" for line in str(given.get(name) or "").strip("\n").splitlines())


def _mib(written: Any) -> Any:
    size = number(written)
    return round(size * MIB) if isinstance(size, int | float) else size


def _mapping(given: Mapping[str, Any]) -> Entry:
    try:
        found = yaml.safe_load(_text(given, "set"))
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("set: name: value")
    return {str(name): value for name, value in found.items()}


def _is_address(source: str) -> bool:
    return source.startswith("https://")
