"""What the Contribute page calls: a GPU or a model as its form has it, made a file of rules/ and checked as one.

Runs in Pyodide beside ``browser.py``, with jsonschema and the schemas that the page loads for it.
"""

import json
import os
import re
from functools import lru_cache
from typing import Any

import yaml

from kb import __version__
from kb.knowledge import load_catalog, load_guide
from kb.knowledge.compile_checks import check_entry
from kb.knowledge.locations import current, opened
from kb.knowledge.problems import KnowledgeError, Problem
from kb.knowledge.rows import cited
from kb.knowledge.schema import KINDS, SchemaSet
from kb.knowledge.source import Located, read_source
from kb.memory import architecture_from_config, parameter_count

READ_OFF, CONFIG = "contributed-nvidia-smi", "contributed-config"  # of rules/sources.yaml
SOLD, BF16, COUNTED = "vendor-specifications", "cuda-guide", "parameter-count"
BF16_FROM = 8  # the compute capability from which bf16 is computed in hardware
RATES = {"tensor_flops": "TFLOP/s", "memory_bandwidth": "GB/s", "tdp": "W"}


def entry_file(kind: str, form: str, language: str) -> str:
    """The file that a form makes, and what is wrong with it.

    Args:
        kind: ``hardware`` or ``models``.
        form: JSON: of a GPU ``id``, ``name``, ``aliases``, ``reported`` (MiB), ``capability``, ``sold`` (GB) and the
            names of ``RATES``; of a model ``id``, ``name``, ``aliases`` and ``config`` (its config.json as text).
        language: ``ko`` or ``en``.

    Returns:
        ``{"path": …, "text": …, "problems": [{"field": …, "message": …}]}``; a field that no problem names is right.
    """
    given = json.loads(form)
    try:
        data = _gpu(given) if kind == "hardware" else _model(given)
    except ValueError as error:
        return json.dumps({"path": "", "text": "", "problems": [{"field": "config", "message": str(error)}]})
    path, text = f"rules/{kind}/{data['id']}.yaml", _written(kind, data)
    problems = [
        {
            "field": _field(text, problem),
            "message": problem.korean if language == "ko" and problem.korean else problem.message,
        }
        for problem in _problems(kind, path, text)
    ]
    return json.dumps({"path": path, "text": text, "problems": problems}, ensure_ascii=False)


def _gpu(given: dict[str, Any]) -> dict[str, Any]:
    """A GPU's entry; what is not filled in is left out, and the schema asks for what must not be."""
    capability = str(given.get("capability") or "")
    memory = [{"value": _number(given.get("reported")), "unit": "MiB", "status": "measured", "source": READ_OFF}]
    if given.get("sold"):
        memory.append({"value": _number(given["sold"]), "unit": "GB", "status": "claimed", "source": SOLD})
    data: dict[str, Any] = {
        **_head(given),
        "memory_total": memory,
        "compute_capability": {"value": capability, "status": "measured", "source": READ_OFF},
    }
    if capability.partition(".")[0].isdigit():
        native = int(capability.partition(".")[0]) >= BF16_FROM
        data["native_bf16"] = {"value": native, "status": "claimed", "source": BF16}
    for name, unit in RATES.items():
        if given.get(name):
            data[name] = {"value": _number(given[name]), "unit": unit, "status": "claimed", "source": SOLD}
    return {**data, "sources": list(dict.fromkeys(name for _, name in cited(data)))}


def _model(given: dict[str, Any]) -> dict[str, Any]:
    """A model's entry, its dimensions those of its config.json that the schema knows.

    Raises:
        ValueError: the config is no JSON object, or its type is not predicted by a closed form.
    """
    config = json.loads(given.get("config") or "{}")
    if not isinstance(config, dict):
        raise ValueError("config.json: { … }")
    found = parameter_count(architecture_from_config(config))
    known = _dimensions(str(config.get("model_type")))
    data = {
        **_head(given),
        "architecture": {name: value for name, value in config.items() if name in known and value is not None},
        "architecture_source": CONFIG,
        "parameters": [{"value": found, "unit": "parameters", "status": "computed", "source": COUNTED}],
    }
    return {**data, "sources": [CONFIG, COUNTED]}


def _dimensions(model_type: str) -> set[str]:
    """The names of config.json that the schema takes for a type."""
    schema = _schema("model")
    for row in schema["properties"]["architecture"]["allOf"]:
        named = row["if"]["properties"].get("model_type", {})
        if model_type in named.get("enum", [named.get("const")]) and "$ref" in row["then"]:
            return set(schema["$defs"][row["then"]["$ref"].rpartition("/")[2]]["properties"])
    return set()


def _head(given: dict[str, Any]) -> dict[str, Any]:
    named = [part.strip() for part in re.split(r"[,\n]", str(given.get("aliases") or ""))]
    release = re.match(r"\d+\.\d+\.\d+", __version__)
    return {
        "id": str(given.get("id") or ""),
        "version": 1,
        "since": release[0] if release else "0.1.0",
        "name": str(given.get("name") or ""),
        "aliases": [part for part in named if part],
    }


def _number(written: Any) -> Any:
    """A number as one; what is none stays text, and the schema says so at its field."""
    text = str(written or "").replace(",", "").strip()
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _written(kind: str, data: dict[str, Any]) -> str:
    """The entry as YAML, as the files of rules/ are written."""
    first = f"# yaml-language-server: $schema=../schema/{KINDS[kind]}.json\n"
    return first + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)


def _problems(kind: str, path: str, text: str) -> list[Problem]:
    try:
        located = read_source(path, text)
    except KnowledgeError as error:
        return error.problems
    faults = SchemaSet(os.path.join(opened(current()).rules, "schema")).check(KINDS[kind], located)
    return faults or check_entry(kind, located, _beside(kind), _sources())


@lru_cache(maxsize=2)
def _beside(kind: str) -> list[Located]:
    return [Located(f"rules/{kind}/{name}.yaml", data, {}) for name, data in load_guide()[kind].items()]


@lru_cache(maxsize=1)
def _sources() -> Any:
    return load_catalog(whole=True).sources


@lru_cache(maxsize=2)
def _schema(name: str) -> Any:
    with open(os.path.join(opened(current()).rules, "schema", f"{name}.json"), encoding="utf-8") as stream:
        return json.load(stream)


_FIELDS = {
    "compute_capability": "capability",
    "native_bf16": "capability",
    "architecture": "config",
    "parameters": "config",
    "weights_dtype": "config",
}


def _field(text: str, problem: Problem) -> str:
    """The form's field that a problem is of, by the place in the file that the form made."""
    places = read_source("", text).places
    before = [path for path, place in places.items() if path and place <= (problem.line, problem.column)]
    at = max(before, key=lambda path: (places[path], len(path)), default=())
    if at[:2] == ("memory_total", 1):
        return "sold"
    top = str(at[0]) if at else "id"
    return {"memory_total": "reported"}.get(top) or _FIELDS.get(top, top)
