"""An entry made of what is known of it: for `kb rules new-gpu|new-model` and for the site's forms, which make rules and
measurements too.

What is not known is left out. Entries cite sources that all such entries share, so that two of them, added side by
side, change no file in common.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kb import __version__
from kb.core.text import UserError
from kb.core.units import MIB
from kb.knowledge.locations import Location, opened
from kb.knowledge.rows import NATIVE_BF16_FROM, cited
from kb.knowledge.schema import KINDS
from kb.memory import architecture_from_config, parameter_count

READ_OFF, CONFIG = "contributed-nvidia-smi", "contributed-config"  # of rules/sources.yaml
BF16, COUNTED = "cuda-guide", "parameter-count"
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
LENGTHS = ("max_position_embeddings", "n_positions")
WIDTH = 120

Entry = dict[str, Any]


def head_of(entry: str, name: str, aliases: Sequence[str]) -> Entry:
    """What every entry begins with."""
    release = re.match(r"\d+\.\d+\.\d+", __version__)
    return {
        "id": entry,
        "version": 1,
        "since": release[0] if release else "0.1.0",
        "name": name,
        "aliases": list(aliases),
    }


def gpu_entry(
    head: Entry, memory_mib: Any, capability: str, *, status: str = "measured", more: Entry, note: str = ""
) -> Entry:
    """A GPU's entry; values that are none stay as they are given, for the schema to refuse.

    Args:
        memory_mib: as the driver reports it.
        capability: the compute capability, ``8.9``.
        status: of both.
        more: what else is known; ``memory_total`` in it is added to the row of the driver.
        note: how the memory was read.
    """
    reported = {"value": memory_mib, "unit": "MiB", "status": status, "source": READ_OFF}
    data = {
        **head,
        "memory_total": [reported | ({"note": note} if note else {}), *more.get("memory_total", ())],
        "compute_capability": {"value": capability, "status": status, "source": READ_OFF},
    }
    major, _, minor = capability.partition(".")
    if major.isdigit():
        native = (int(major), int(minor) if minor.isdigit() else 0) >= NATIVE_BF16_FROM
        data["native_bf16"] = {"value": native, "status": "claimed", "source": BF16}
    return with_cited({**data, **{name: value for name, value in more.items() if name != "memory_total"}})


def model_entry(head: Entry, config: Mapping[str, Any], path: str, location: Location) -> Entry:
    """A model's entry from its ``config.json``.

    Args:
        path: of the config, for what is said of it.

    Raises:
        ValueError: its type is not predicted, or a field is neither there nor told by the type.
    """
    made = _dimensions(location, config, path)
    counted = parameter_count(architecture_from_config(config))
    data = {
        **head,
        "architecture": made,
        "architecture_source": CONFIG,
        "parameters": [{"value": counted, "unit": "parameters", "status": "computed", "source": COUNTED}],
    }
    length = next((made[key] for key in LENGTHS if key in made), None)
    if length is not None:
        data["max_length"] = {"value": length, "unit": "tokens", "status": "claimed", "source": CONFIG}
    stored = TYPES.get(str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch."))
    if stored is not None:
        data["weights_dtype"] = [{"value": stored, "status": "claimed", "source": CONFIG}]
    return with_cited(data)


def with_cited(data: Entry) -> Entry:
    """The entry with the list of its sources."""
    return {**data, "sources": list(dict.fromkeys(name for _, name in cited(data)))}


def as_yaml(kind: str, data: Entry, *, overlay: bool = False) -> str:
    """The entry as the files of rules/ are written; one of an overlay has no schema beside it."""
    up = "../../" if kind == "checks" else "../"
    first = "" if overlay else f"# yaml-language-server: $schema={up}schema/{KINDS[kind]}.json\n"
    return first + yaml.dump(
        data, Dumper=_Blocks, sort_keys=False, allow_unicode=True, width=WIDTH, default_flow_style=None
    )


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as such."""


def _lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _lines)


def _dimensions(location: Location, data: Mapping[str, Any], path: str) -> Entry:
    """The fields of the config that an entry of its type has; one that is left out is the type's default.

    Raises:
        UserError: a field is neither there nor told by its type, or kb keeps no entries of the type.
    """
    with open(os.path.join(opened(location).rules, "schema", "model.json"), encoding="utf-8") as stream:
        schema = json.load(stream)
    kind = str(data.get("model_type"))
    part = schema["properties"]["architecture"]
    if kind not in part["properties"]["model_type"]["enum"]:
        raise UserError("rules.new_model_type", type=kind)
    wanted: list[str] = []
    known: dict[str, Any] = {}
    for row in part["allOf"]:
        asked = row["if"]["properties"]["model_type"]
        if kind in asked.get("enum", [asked.get("const")]):
            then = row["then"]
            shape = schema["$defs"][then["$ref"].rpartition("/")[2]] if "$ref" in then else then
            known |= {name: rule for name, rule in shape.get("properties", {}).items() if name not in known}
            wanted += [name for name in shape.get("required", ()) if name not in wanted]
            known |= {name: False for name, rule in shape.get("properties", {}).items() if rule is False}
    made = {"model_type": kind} | {
        name: data[name] for name, rule in known.items() if rule is not False and data.get(name) is not None
    }
    for name in wanted:
        if name not in made:
            made[name] = _left_out(data, name, path)
    return {name: made[name] for name in dict.fromkeys([*wanted, *made])}


def _left_out(data: Mapping[str, Any], name: str, path: str) -> Any:
    """What a config means by leaving a field out: the one value that gives the same architecture when it is written."""
    meant, beside = architecture_from_config(data), [value for value in data.values() if isinstance(value, int)]
    alike = []
    for value in dict.fromkeys(map(json.dumps, (True, False, *beside, 2, 32, 512, 2048))):
        try:
            if architecture_from_config({**data, name: json.loads(value)}) == meant:
                alike.append(json.loads(value))
        except ValueError:
            continue
    if len(alike) != 1:
        raise UserError("model_config.missing", path=path, name=name)
    return alike[0]


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
