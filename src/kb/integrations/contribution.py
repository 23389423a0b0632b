"""What the Contribute page calls: a GPU or a model as its form has it, made a file of rules/ and checked as one.

Runs in Pyodide beside ``browser.py``, with jsonschema and the schemas that the page loads for it.
"""

import json
import os
import re
from functools import lru_cache
from typing import Any

from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.knowledge.compile_checks import check_entry
from kb.knowledge.drafts import as_yaml, gpu_entry, head_of, model_entry
from kb.knowledge.locations import current, opened
from kb.knowledge.problems import KnowledgeError, Problem
from kb.knowledge.schema import KINDS, SchemaSet
from kb.knowledge.source import Located, read_source
from kb.session.cli import worded

SOLD = "vendor-specifications"  # of rules/sources.yaml
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
        message = worded(error, language) if isinstance(error, UserError) else str(error)
        return json.dumps({"path": "", "text": "", "problems": [{"field": "config", "message": message}]})
    path, text = f"rules/{kind}/{data['id']}.yaml", as_yaml(kind, data)
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
    more: dict[str, Any] = {
        name: {"value": _number(given[name]), "unit": unit, "status": "claimed", "source": SOLD}
        for name, unit in RATES.items()
        if given.get(name)
    }
    if given.get("sold"):
        more["memory_total"] = [{"value": _number(given["sold"]), "unit": "GB", "status": "claimed", "source": SOLD}]
    return gpu_entry(_head(given), _number(given.get("reported")), str(given.get("capability") or ""), more=more)


def _model(given: dict[str, Any]) -> dict[str, Any]:
    """A model's entry.

    Raises:
        ValueError: the config is no JSON object, or its type is not predicted by a closed form.
    """
    config = json.loads(given.get("config") or "{}")
    if not isinstance(config, dict):
        raise ValueError("config.json: { … }")
    return model_entry(_head(given), config, "config.json", current())


def _head(given: dict[str, Any]) -> dict[str, Any]:
    named = [part.strip() for part in re.split(r"[,\n]", str(given.get("aliases") or ""))]
    return head_of(str(given.get("id") or ""), str(given.get("name") or ""), [part for part in named if part])


def _number(written: Any) -> Any:
    """A number as one; what is none stays text, and the schema says so at its field."""
    text = str(written or "").replace(",", "").strip()
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


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
