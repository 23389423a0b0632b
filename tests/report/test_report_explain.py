"""A rule explained, offline: with names alone, and with a config's own numbers in the formula."""

from collections.abc import Mapping
from typing import Any

import pytest

import report_sample as sample
from kb.core.expression import Unknown
from kb.core.grammar import parse
from kb.report.condition import fact_order, unparse
from kb.report.rules.explain import explain
from kb.report.terminal import Style

TYPES = {
    "a": "bool",
    "b": "bool",
    "x": "number",
    "y": "number",
    "name": "text",
    "targets": "list",
    "v": "version",
}
KNOWN = {
    "model.family": "mt5",
    "model.name": "google/mt5-base",
    "training.fp16": True,
    "gpu.compute_capability": (8, 6),
}


def lookup(values: Mapping[str, Any]) -> Any:
    return lambda name: values.get(name, Unknown(frozenset((name,))))


def explained(language: str, values: Mapping[str, Any] | None = None, rule: Any = sample.T5_RULE) -> str:
    return explain(
        rule,
        sample.words(language),
        Style(),
        sources=sample.SOURCES,
        lookup=None if values is None else lookup(values),
        where="a.yaml [t5]",
    )


@pytest.mark.parametrize("language", ["ko", "en"])
@pytest.mark.parametrize("rule", sample.RULES.values(), ids=sample.RULES)
def test_every_rule_has_something_to_say_without_a_config(language: str, rule: Any) -> None:
    text = explained(language, rule=rule)
    assert rule.id in text
    assert "?" not in text, "what is not known is named, not questioned"


@pytest.mark.parametrize("language", ["ko", "en"])
def test_a_full_rule_is_explained_at_length(language: str) -> None:
    text = explained(language)
    assert len(text) >= 200
    for part in ("model.family in", "general: {model_name: google/mt5-base}", "github.com/huggingface"):
        assert part in text


def test_the_readers_numbers_stand_in_the_formula() -> None:
    text = explained("en", KNOWN)
    assert '= "mt5" in ["t5", "mt5"] and true' in text
    assert "= true: fires for a.yaml [t5]" in text
    assert "google/mt5-base: activations can exceed" in text


def test_a_rule_that_does_not_fire_says_so() -> None:
    text = explained("en", {**KNOWN, "training.fp16": False})
    assert '= "mt5" in ["t5", "mt5"] and false' in text
    assert "= false: does not fire for a.yaml [t5]" in text


def test_unknown_facts_are_named_with_what_would_settle_them() -> None:
    text = explained("en", {"training.fp16": True})
    assert '= ? in ["t5", "mt5"] and true' in text
    assert "not evaluated for a.yaml [t5]; needed: a known model (--model-config FILE)" in " ".join(text.split())
    assert "‹the model's hub name›" in text


def test_a_fix_shows_its_formula_and_its_value() -> None:
    values = {"batch.effective": 40, "batch.said": 48, "fit.accumulation_as_said": 3}
    text = " ".join(explained("en", values, rule=sample.BATCH_RULE).split())
    assert "= 40 != 48" in text
    assert "gradient_accumulation_steps: fit.accumulation_as_said = 3" in text
    assert "The effective batch is 40, not the 48 of the comment." in text


@pytest.mark.parametrize(
    "text",
    [
        "a and (b or not a)",
        "(a or b) and a",
        "not (a and b)",
        "not a and b",
        "x * (y + 2) - x / 3 > 1.5",
        "x - (y - 2) == -x ** 2",
        "(x + y) ** 0.5 < 10",
        "(x if a else y) + 1 >= 2",
        "(x if a else y if b else 3) > 0",
        'name in ["t5", "mt5"]',
        "x not in [1, 2]",
        'v >= "4.51"',
        '"lm_head" in targets',
        "min(x, y, 3) < ceil(x / 2) <= 4",
        "a == b",
    ],
)
def test_an_unparsed_expression_parses_to_the_same_tree(text: str) -> None:
    tree = parse(text, TYPES)
    again = unparse(tree).replace("true", "a == a").replace("false", "a != a")
    assert parse(again, TYPES) == tree
    assert unparse(tree) == text


def test_facts_come_in_the_order_of_the_formula() -> None:
    assert fact_order(parse("x > y and a or (b and x in [1, 2])", TYPES)) == ["x", "y", "a", "b"]


def test_an_example_says_which_versions_it_is_for() -> None:
    examples = ({**sample.T5_RULE.examples[0], "versions": {"transformers": "4.57.6"}},)
    text = explained("en", rule=sample.T5_RULE._replace(examples=examples))
    assert "Fires on (gpu: rtx-3090, transformers 4.57.6)" in text
