"""What the Contribute page calls: a GPU, a model, a rule or a measurement as its form has it, made a file of rules/ and
checked as one.

Runs in Pyodide beside ``browser.py``, with jsonschema and the schemas that the page loads for it.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.knowledge.catalog import rule_of, wording_of
from kb.knowledge.compile_checks import check_entry, closed_sets, fact_types
from kb.knowledge.compile_rules import RuleCompiler
from kb.knowledge.drafts import (
    Entry,
    as_yaml,
    gpu_entry,
    head_of,
    measurement_entry,
    model_entry,
    number,
    rule_entry,
    source_entry,
)
from kb.knowledge.locations import current, opened
from kb.knowledge.problems import KnowledgeError, Problem
from kb.knowledge.rows import check_measurement, check_settings, check_sources
from kb.knowledge.schema import KINDS, SchemaSet
from kb.knowledge.source import Located, read_source
from kb.session.cli import load_words_or_none, said, worded
from kb.session.rule_examples import ExampleRunner

SOLD = "vendor-specifications"  # of rules/sources.yaml
RATES = {"tensor_flops": "TFLOP/s", "memory_bandwidth": "GB/s", "tdp": "W"}


class File(NamedTuple):
    """A file of rules/: its kind, its path, its data and its text."""

    kind: str
    path: str
    data: Entry
    text: str


def entry_file(kind: str, form: str, language: str) -> str:
    """The file that a form makes, and what is wrong with it.

    Args:
        kind: ``hardware``, ``models``, ``checks`` or ``measurements``.
        form: JSON: of a GPU ``id``, ``name``, ``aliases``, ``reported`` (MiB), ``capability``, ``sold`` (GB) and the
            names of ``RATES``; of a model ``id``, ``name``, ``aliases`` and ``config`` (its config.json as text); of
            the others as of :mod:`kb.knowledge.drafts`.
        language: ``ko`` or ``en``.

    Returns:
        ``{"path": …, "text": …, "beside": [{"path": …, "text": …}], "problems": [{"field": …, "message": …}]}``; a
        field that no problem names is right.
    """
    given = json.loads(form)
    try:
        data = MAKES[kind](given)
    except ValueError as error:
        message = worded(error, language) if isinstance(error, UserError) else str(error)
        field = "set" if kind == "checks" else "config"
        return json.dumps({"path": "", "text": "", "beside": [], "problems": [{"field": field, "message": message}]})
    files, problems = _checked(_file(kind, data), source_entry(given) if kind == "checks" else None, language)
    shown = [{"path": file.path, "text": file.text} for file in files]
    told = [
        {
            "field": _field(file, problem),
            "message": problem.korean if language == "ko" and problem.korean else problem.message,
        }
        for file in files
        for problem in problems
        if problem.path == file.path
    ]
    return json.dumps({**shown[0], "beside": shown[1:], "problems": told}, ensure_ascii=False)


def _checked(own: File, source: Entry | None, language: str) -> tuple[list[File], list[Problem]]:
    """The file first, then that of the source which comes with it; and every fault of both."""
    sources: Entry = source["sources"] if source else {}
    beside = (
        [File("sources", f"rules/sources/{own.data['id']}.yaml", source, as_yaml("sources", source))] if source else []
    )
    problems = [problem for file in (own, *beside) for problem in _schema_problems(file)]
    if problems:
        return [own, *beside], problems
    located = read_source(own.path, own.text)
    if own.kind != "checks":
        return [own], _entry_problems(own.kind, located)
    if "fix" in own.data and (fixed := fixed_by(located, sources)) is not None:
        own.data["examples"][0]["fixed"] = fixed
        own = own._replace(text=as_yaml(own.kind, own.data))
        located = read_source(own.path, own.text)
    return [own, *beside], rule_problems(located, sources, language)


def _file(kind: str, data: Entry) -> File:
    name = f"{data['area']}/{data['id']}" if kind == "checks" else data["id"]
    return File(kind, f"rules/{kind}/{name}.yaml", data, as_yaml(kind, data))


def _gpu(given: dict[str, Any]) -> dict[str, Any]:
    """A GPU's entry; what is not filled in is left out, and the schema asks for what must not be."""
    more: dict[str, Any] = {
        name: {"value": number(given[name]), "unit": unit, "status": "claimed", "source": SOLD}
        for name, unit in RATES.items()
        if given.get(name)
    }
    if given.get("sold"):
        more["memory_total"] = [{"value": number(given["sold"]), "unit": "GB", "status": "claimed", "source": SOLD}]
    return gpu_entry(_head(given), number(given.get("reported")), str(given.get("capability") or ""), more=more)


def _model(given: dict[str, Any]) -> dict[str, Any]:
    """A model's entry.

    Raises:
        ValueError: the config is no JSON object, or its type is not predicted.
    """
    config = json.loads(given.get("config") or "{}")
    if not isinstance(config, dict):
        raise ValueError("config.json: { … }")
    return model_entry(_head(given), config, "config.json", current())


def _head(given: dict[str, Any]) -> dict[str, Any]:
    named = [part.strip() for part in re.split(r"[,\n]", str(given.get("aliases") or ""))]
    return head_of(str(given.get("id") or ""), str(given.get("name") or ""), [part for part in named if part])


MAKES: dict[str, Callable[[dict[str, Any]], Entry]] = {
    "hardware": _gpu,
    "models": _model,
    "checks": rule_entry,
    "measurements": measurement_entry,
}


def _schema_problems(file: File) -> list[Problem]:
    try:
        located = read_source(file.path, file.text)
    except KnowledgeError as error:
        return error.problems
    return SchemaSet(os.path.join(opened(current()).rules, "schema")).check(KINDS[file.kind], located)


def _entry_problems(kind: str, located: Located) -> list[Problem]:
    catalog = load_catalog(whole=True)
    if kind != "measurements":
        return check_entry(kind, located, _beside(kind), catalog.sources)
    problems = [*check_measurement(located, catalog.gpus), *check_sources([located], catalog.sources)]
    name = located.data["id"]
    if name in load_guide()["measurements"]:
        problems.append(located.problem(("id",), f"{name!r} is there already", f"{name!r} 항목이 이미 있습니다"))
    return problems


@lru_cache(maxsize=2)
def _beside(kind: str) -> list[Located]:
    return [Located(f"rules/{kind}/{name}.yaml", data, {}) for name, data in load_guide()[kind].items()]


# by kind, where a part of the file is filled in; its own name where nothing is said
_FIELDS = {
    "hardware": {"compute_capability": "capability", "native_bf16": "capability", "memory_total": "reported"},
    "models": {"architecture": "config", "parameters": "config", "weights_dtype": "config"},
    "checks": {"at": "when", "sources": "source", "fix/safety": "safety", "fix/set": "set", "examples/0": "fires",
               "examples/1": "silent", "examples": "fires"},
    "measurements": {"machine": "gpu_name", "machine/gpu": "gpu", "machine/gpu_memory_bytes": "memory",
                     "models": "config", "models/name": "model", "rows": "allocated"},
    "sources": {"title": "source_title", "kind": "source_kind", "url": "source"},
}  # fmt: skip


def _field(file: File, problem: Problem) -> str:
    """The form's field that a problem is of, by the place in the file that the form made."""
    places = read_source("", file.text).places
    before = [path for path, place in places.items() if path and place <= (problem.line, problem.column)]
    at = max(before, key=lambda path: (places[path], len(path)), default=())
    if at[:2] == ("memory_total", 1):
        return "sold"
    words = [str(part).partition("\0")[0] for part in at]
    if file.kind == "checks" and words[:1] == ["fix"] and "title" in words:
        return f"fix_{words[-1]}"
    if file.kind == "checks" and words[:1] in (["title"], ["message"], ["why"]):
        return "_".join(words)
    if file.kind == "measurements" and words[:1] == ["rows"] and len(words) > 2:
        if "phases" in words:
            return words[-1].removesuffix("_bytes") if words[-1].endswith("_bytes") else "allocated"
        return words[2]
    if file.kind == "sources":
        return _FIELDS["sources"].get(words[-1] if words else "", "source")
    known, plain = _FIELDS[file.kind], [word for word in words if not (word.isdigit() and words[0] != "examples")]
    if file.kind == "measurements" and words[:1] == ["models"]:
        plain = ["models", *words[2:]]
    for length in (2, 1):
        if found := known.get("/".join(plain[:length])):
            return found
    return plain[0] if plain else "id"


VOCABULARY = "vocabulary.json"  # in a page, beside its schemas; elsewhere the vocabulary is YAML


def rule_problems(located: Located, sources: Mapping[str, Any], language: str) -> list[Problem]:
    """What is wrong with a rule that answers to its schema: its names and types, then its examples, which are run.

    Args:
        sources: those of a file that comes with it.
    """
    catalog, vocabulary = load_catalog(whole=True), vocabulary_of()
    data, name = located.data, located.data["id"]
    compiler = RuleCompiler(
        types=fact_types(vocabulary.data),
        facts=vocabulary.data["facts"],
        events=vocabulary.data["events"],
        sources={**catalog.sources, **sources},
        values=closed_sets(
            vocabulary, {"hardware": catalog.gpus, "models": catalog.models, "dialects": catalog.dialects}
        ),
    )
    made = compiler.compile(located)
    problems = [*compiler.problems, *check_settings(located, vocabulary.data["facts"])]
    if name in catalog.rules:
        problems.append(located.problem(("id",), f"{name!r} is a rule already", f"{name!r} 규칙은 이미 있습니다"))
    if problems:
        return problems
    rule = rule_of(made["hot"], lambda: wording_of(made["wording"]), made["cold"])
    runner = ExampleRunner(catalog._replace(rules={**catalog.rules, name: rule}))
    for at, example in enumerate(data["examples"]):
        if fault := runner.run(rule, example):
            message = said(load_words_or_none(language), fault.key, **fault.values)
            problems.append(located.problem(("examples", at), message, message))
    return problems


def fixed_by(located: Located, sources: Mapping[str, Any]) -> str | None:
    """What the rule's fix makes of its first example; None where it does not come so far."""
    data = {**located.data, "examples": [{**located.data["examples"][0], "fixed": ""}]}
    catalog, vocabulary = load_catalog(whole=True), vocabulary_of()
    facts = vocabulary.data["facts"]
    compiler = RuleCompiler(
        types=fact_types(vocabulary.data), facts=facts, events={}, sources={**catalog.sources, **sources}
    )
    made = compiler.compile(located._replace(data=data))
    if compiler.problems:
        return None
    rule = rule_of(made["hot"], lambda: wording_of(made["wording"]), made["cold"])
    fault = ExampleRunner(catalog._replace(rules={**catalog.rules, rule.id: rule})).run(rule, data["examples"][0])
    return str(fault.values["found"]) if fault and fault.key == "rules.example_fixed" else None


@lru_cache(maxsize=1)
def vocabulary_of() -> Located:
    """The vocabulary as it is written."""
    folder = opened(current()).rules
    if os.path.exists(path := os.path.join(folder, VOCABULARY)):
        with open(path, encoding="utf-8") as stream:
            return Located(path, json.load(stream), {})
    with open(path := os.path.join(folder, "vocabulary.yaml"), encoding="utf-8") as stream:
        return read_source(path, stream.read())
