"""The errata: each recomputed value comes from its recipe, each claim has its place, both languages say the same."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog_sample import load_catalog, load_guide
from every_row import for_every
from kb.advice.formulas import Basis, RecipeError, recompute
from kb.knowledge.compile_rules import compile_entry
from kb.knowledge.source import read_source

ROOT = Path(__file__).parents[2]
CATALOG = load_catalog(whole=True)
BASIS = Basis(models=CATALOG.models, gpus=CATALOG.gpus, constants=CATALOG.constants)
ERRATA: list[dict[str, Any]] = load_guide()["errata"]["errata"]
BY_ID = {entry["id"]: entry for entry in ERRATA}
each_erratum = for_every(BY_ID)

NOTE_LINES = {"guide-batch-by-gpu": 169, "guide-memory": 194, "guide-batch-inference": 462, "history-mt5-qlora": 151}
# What is known to be wrong in each note. An entry that goes missing here was settled in silence.
EXPECTED = json.loads((ROOT / "tests" / "data" / "errata_ids.json").read_text("utf-8"))
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def texts(data: Any) -> Iterator[dict[str, str]]:
    """Every ``{ko, en}`` of an entry."""
    if isinstance(data, dict):
        if data.keys() == {"ko", "en"}:
            yield data
        for value in data.values():
            yield from texts(value)
    elif isinstance(data, list):
        for value in data:
            yield from texts(value)


def places(data: Any, source: str) -> Iterator[tuple[str, str]]:
    """(source, lines) of everything that names lines; an input without a source has the claim's."""
    if isinstance(data, dict):
        if "lines" in data:
            yield data.get("source", source), data["lines"]
        for value in data.values():
            yield from places(value, source)
    elif isinstance(data, list):
        for value in data:
            yield from places(value, source)


def compiled(text: str) -> tuple[Any, list[str]]:
    """A file's data with its trees, and the faults found."""
    problems: list[Any] = []
    data = compile_entry(read_source("errata.yaml", text), {"gpu.count": "integer"}, problems)
    return data, [str(problem) for problem in problems]


def test_every_known_error_of_the_notes_has_one_entry() -> None:
    assert len(BY_ID) == len(ERRATA), "an id stands twice"
    by_note = {note: {entry["id"] for entry in ERRATA if entry["claim"]["source"] == note} for note in NOTE_LINES}
    assert by_note == {note: set(ids) for note, ids in EXPECTED.items()}


@each_erratum
def test_a_recomputed_value_is_what_the_erratum_prints(entry: dict[str, Any]) -> None:
    finding = entry["finding"]
    rows = recompute(finding, BASIS)
    if finding["status"] == "computed":
        assert rows, "a computed finding has no value"
    for row in rows:
        assert row.agrees, f"{entry['id']} prints {row.stored:g} {row.unit}; it comes out as {row.computed:.6g}"


@each_erratum
def test_both_languages_give_the_same_numbers(entry: dict[str, Any]) -> None:
    for text in texts(entry):
        numbers = [sorted(number.replace(",", "") for number in NUMBER.findall(text[name])) for name in ("ko", "en")]
        assert numbers[0] == numbers[1], text
        assert re.search(r"[가-힣]|^[^a-z]*$", text["ko"]) or text["ko"] == text["en"]
        assert not re.search(r"[가-힣]", re.sub(r"'[^']*'", "", text["en"])), text["en"]


@each_erratum
def test_sources_are_listed_and_lines_lie_inside_the_note(entry: dict[str, Any]) -> None:
    finding = entry["finding"]
    named = {entry["claim"]["source"], *finding.get("sources", ()), finding.get("source", "kb")}
    for source, lines in places(entry, entry["claim"]["source"]):
        named.add(source)
        first, _, last = lines.partition("-")
        assert 1 <= int(first) <= int(last or first) <= NOTE_LINES[source], (source, lines)
    named |= {row["source"] for row in finding.get("inputs", {}).values() if "source" in row}
    assert named <= CATALOG.sources.keys()


def test_every_erratum_that_the_rules_name_exists() -> None:
    named = {
        (path.name, name)
        for path in (ROOT / "rules").rglob("*.yaml")
        if path.name != "errata.yaml"
        for name in re.findall(r"\berratum: ([a-z0-9.-]+)", path.read_text("utf-8"))
    }
    assert named, "presets and formulas name errata"
    assert {(file, name) for file, name in named if name not in BY_ID} == set()


def test_the_effective_batch_of_the_first_config_is_traced_to_its_line() -> None:
    claim, finding = (BY_ID["effective-batch-comment-80"][part] for part in ("claim", "finding"))
    assert (claim["source"], claim["lines"], claim["value"]) == ("history-mt5-qlora", "14", 80)
    assert recompute(finding, BASIS)[0].computed == 40


def test_five_folds_together_explain_what_the_note_measured() -> None:
    entry = BY_ID["kobart-five-folds-in-memory"]
    rows = recompute(entry["finding"], BASIS)
    together = [row.computed for row in rows[:3]]
    for reported, computed in zip(entry["claim"]["values"], together, strict=True):
        assert computed == pytest.approx(reported, rel=0.1)
    card = CATALOG.gpus["rtx-4090"].memory_total / 1e9
    at_64, in_turn_at_64 = rows[4].computed, rows[8].computed
    assert in_turn_at_64 < card < at_64


def test_the_mt5_measurement_lies_between_training_and_long_generation() -> None:
    entry = BY_ID["measured-18.3-gb-of-the-mt5-run"]
    train, _, _, short, long, larger = (row.computed for row in recompute(entry["finding"], BASIS))
    assert max(train, short) < entry["claim"]["value"] < long
    assert larger > CATALOG.gpus["rtx-3090"].memory_total / 1e9


def test_an_inferred_mechanism_is_marked() -> None:
    marked = {entry["id"] for entry in ERRATA if entry["finding"].get("mechanism") == "inferred"}
    assert {"kobart-five-folds-in-memory", "measured-18.3-gb-of-the-mt5-run"} <= marked


def test_arrows_in_yaml_are_text() -> None:
    assert yaml.safe_load("batch_size: 16 → 12 → 8 → 6\n") == {"batch_size": "16 → 12 → 8 → 6"}


@pytest.mark.skipif(shutil.which("bash") is None and "CI" not in os.environ, reason="bash is missing")
def test_a_comment_after_a_backslash_ends_the_command() -> None:
    script = "printf '[%s]' --batch_size 16 \\   # best\n  --max_new_tokens 120\n"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (127, "[--batch_size][16][ ]")


def test_inputs_are_names_for_the_expressions_below_them_only() -> None:
    data, faults = compiled(
        "a:\n  inputs: {batch: {value: 3}, twice: {expression: batch * 2}}\n  values: [{expression: batch + twice}]\n"
        "b: {expression: batch}\n"
    )
    assert data["a"]["values"][0]["expression_tree"] == ["+", ["fact", "batch"], ["fact", "twice"]]
    assert len(faults) == 1 and "errata.yaml:4:" in faults[0] and "unknown fact 'batch'" in faults[0]


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        ("{value: 1, unit: GB, memory: {model: t6-base, phase: train, setup: {}}}", "t6-base"),
        ("{value: 1, unit: GB, memory: {model: t5-base, gpu: rtx-4909, phase: train, setup: {}}}", "rtx-4909"),
        ("{value: 1, unit: GB, memory: {model: t5-base, phase: generate, setup: {}}}", "generate"),
        ("{value: 1, unit: GB, memory: {model: t5-base, phase: train, terms: [kv], setup: {}}}", "kv"),
        ("{value: 1, unit: GB, memory: {model: kobart, folds: 5, together: true, setup: {}}}", "generates"),
        ("{value: 1, unit: ratio, inputs: {a: {value: 0, unit: ratio}}, expression: 1 / a}", "division by zero"),
        ("{value: 1, unit: ratio, inputs: {a: {expression: b}, b: {value: 1}}, expression: a}", "b: no value: b"),
        ("{value: 1, unit: GB, inputs: {a: {constant: contexts, unit: GB}}, expression: a}", "contexts"),
        ("{value: 1, unit: GB, memory: {model: t5-base, phase: train, setup: {batch: 3}}}", "batch"),
        ("{value: 1, unit: GB}", "no recipe"),
    ],
)
def test_a_recipe_without_a_number_says_why(finding: str, said: str) -> None:
    data, faults = compiled(finding)
    assert not faults
    with pytest.raises(RecipeError, match=said):
        recompute(data, BASIS)


def test_a_constant_is_an_input_in_its_own_unit() -> None:
    data, _ = compiled("{value: 1, unit: MB, inputs: {a: {constant: context_bytes, unit: MB}}, expression: a}")
    assert recompute(data, BASIS)[0].computed == CATALOG.constants["context_bytes"] / 1e6


def test_a_value_that_moved_does_not_agree() -> None:
    data, _ = compiled("{value: 100, unit: GB, tolerance: 0.01, expression: 100 + 2}")
    row = recompute(data, BASIS)[0]
    assert (row.computed, row.agrees) == (102, False)
