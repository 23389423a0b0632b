"""A rule that is not in rules/ yet, held against the vocabulary, the sources and its own examples."""

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kb.knowledge import load_catalog
from kb.knowledge.catalog import rule_of, wording_of
from kb.knowledge.compile_checks import closed_sets, fact_types
from kb.knowledge.compile_rules import RuleCompiler
from kb.knowledge.locations import current, opened
from kb.knowledge.problems import Problem
from kb.knowledge.rows import check_settings
from kb.knowledge.source import Located, read_source
from kb.session.cli import load_words_or_none, said
from kb.session.rule_examples import ExampleRunner

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
    problems = compiler.problems + check_settings(located, vocabulary.data["facts"])
    if name in catalog.rules:
        problems.append(located.problem(("id",), f"{name!r} is a rule already", f"{name!r} 규칙은 이미 있습니다"))
    if problems:
        return problems
    rule = rule_of(name, made["hot"], lambda: wording_of(made["wording"]), made["cold"])
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
    rule = rule_of(data["id"], made["hot"], lambda: wording_of(made["wording"]), made["cold"])
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
