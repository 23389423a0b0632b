"""Against PyYAML and json as oracles: our values are theirs, our places are exact, and no text breaks the reader."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples

sys.path.insert(0, str(Path(__file__).parent.parent))
from config_sample import DIALECTS, FACTS, read
from kb.config.dialect.dialects import slips
from kb.config.files import ConfigError
from kb.config.text.json_nodes import JsonReader
from kb.config.text.nodes import MAPPING, SCALAR, Node, construct_scalar, number_meant
from kb.config.text.parsing import Composer, parse

WORDS = st.text(st.sampled_from("abz019_-+.:eEx#'\"{}[], \t\n&*!|>%@`~<=?가🔥é\u2028"), max_size=12)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False),
    st.dates(),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=10),
    st.sampled_from(
        ["yes", "no", "on", "012", "12:30", "5e-5", "1_0", "0x1f", "<<", "=", "~", "null", "2024-01-01", ""]
    ),
)
KEYS = st.text("abcdefg_가🔥0123456789", min_size=1, max_size=6).map(lambda key: "k" + key)
DATA = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
    ),
    min_size=1,
    max_size=5,
)
JSON_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


def scalars_of(node: Node) -> list[Node]:
    if node.kind == SCALAR:
        return [node]
    below = [part for pair in node.pairs() for part in pair] if node.kind == MAPPING else node.value
    return [scalar for part in below for scalar in scalars_of(part)]


@pytest.mark.long
@given(DATA, st.booleans(), st.sampled_from([None, True, False]), st.sampled_from([2, 4]))
@settings(max_examples=examples(40, 100), deadline=None)
def test_values_are_those_of_pyyaml(data, unicode, flow, indent):
    text = yaml.safe_dump(data, allow_unicode=unicode, default_flow_style=flow, indent=indent)
    (document,) = parse(text, "a.yaml").documents
    assert same(document.plain(), yaml.safe_load(text))


@given(DATA, st.sampled_from([yaml.SafeLoader, yaml.CSafeLoader]))
@settings(max_examples=examples(30, 70), deadline=None)
def test_both_parsers_give_the_same_tree_and_places(data, loader):
    text = yaml.safe_dump(data, allow_unicode=True)
    composer = Composer()
    composer.compose(text, loader)
    other = Composer()
    other.compose(text)
    mine, theirs = (scalars_of(one.documents[0]) for one in (composer, other))
    places = [
        [(node.value, node.start.index, node.end.index, node.start.line, node.start.column) for node in nodes]
        for nodes in (mine, theirs)
    ]
    assert places[0] == places[1]


@given(DATA)
@settings(max_examples=examples(30, 70), deadline=None)
def test_the_text_of_a_places_span_is_the_value(data):
    text = "# 🔥 한글\n" + yaml.safe_dump(data, allow_unicode=True)
    parsed = parse(text, "a.yaml")
    for node in scalars_of(parsed.documents[0]):
        span = parsed.source.span(node)
        written = text[span.start : span.end]
        line = text.split("\n")[span.line - 1]
        assert line[span.column - 1 :].startswith(written.split("\n")[0])
        if "\n" not in written and not written.startswith(("|", ">")):
            assert yaml.safe_load("- " + written) in ([node.scalar()], [None] if written == "" else [node.scalar()])


@given(WORDS)
@settings(max_examples=examples(200, 500), deadline=None)
@example("a:\n\tb: 1\n")
@example("? [a]\n: b")
@example("<<: 1")
@example("&a [*a]")
@example("a: !!int x")
@example("a: !!timestamp 1")
@example("--- a\n--- b")
@example("! '0'")
@example("!\u20280")
def test_any_text_is_read_as_pyyaml_reads_it_or_refused_in_our_own_words(text):
    try:
        documents = parse(text, "a.yaml").documents
        data = [None if document is None else document.plain() for document in documents]
    except ConfigError as error:
        assert error.key.startswith("config.")
        return
    try:
        expected = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError):
        return  # a tab we could see through, or a number or date that PyYAML stumbles on
    assert same(data, expected)


@given(
    st.text(max_size=60) | WORDS.map(lambda word: '{"training": {"fp16": ' + word),
    st.sampled_from(["a.json", "a.yaml", "-"]),
)
@settings(max_examples=examples(108, 270), deadline=None)
def test_nothing_but_a_config_error_ever_leaves_the_reader(text, path):
    try:
        units = read(text, path)
    except ConfigError as error:
        assert error.line is None or (error.line >= 1 and error.column >= 1)
        return
    for unit in units:
        for setting in unit.settings.values():
            assert 0 <= setting.span.start <= setting.span.end <= len(text)
        for event in unit.events:
            for edit in event.edits:
                assert 0 <= edit.span.start <= edit.span.end <= len(text)


@given(JSON_DATA, st.sampled_from([None, 2, "\t"]), st.booleans())
@settings(max_examples=examples(40, 100), deadline=None)
def test_json_is_read_as_json_reads_it(data, indent, ascii_only):
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)
    node = JsonReader(text).read()
    assert same(node.plain(), data)
    for scalar in scalars_of(node):
        assert json.loads(text[scalar.start.index : scalar.end.index]) == scalar.scalar()
        assert text.split("\n")[scalar.start.line][scalar.start.column :].startswith(
            text[scalar.start.index : scalar.end.index]
        )


@given(st.text('{}[]",:0123456789.eE+-truefalsn \n\t\\/u', max_size=20))
@settings(max_examples=examples(132, 330), deadline=None)
@example('{"a": 1e5}')
@example('{"a": -0.0}')
@example('"\\ud83d\\ude00"')
@example('"\\ud83d"')
def test_json_is_refused_just_where_json_refuses_it(text):
    try:
        expected = json.loads(text)
    except ValueError:
        expected = ConfigError
    try:
        node = JsonReader(text).read()
        found = ConfigError if node is None else node.plain()
    except ConfigError:
        found = ConfigError
    assert found is expected if expected is ConfigError else same(found, expected)


NUMBERS = st.from_regex(r"[-+]?[0-9]{0,4}\.?[0-9]{0,3}([eE][-+]?[0-9]{1,3})?", fullmatch=True)


@given(NUMBERS)
@settings(max_examples=examples(68, 170))
def test_a_number_as_it_is_to_be_written_means_the_same_to_yaml(text):
    meant = number_meant(text)
    if meant is None:
        return
    value, written = meant
    assert same(construct_scalar(written, None, False), value)
    assert float(value) == float(text)


@given(
    st.sampled_from(
        [name for name in FACTS if FACTS[name].type in ("number", "integer") and name.startswith("training.")]
    ),
    NUMBERS,
)
@settings(max_examples=examples(30, 70), deadline=None)
def test_a_mended_number_is_a_number_to_pyyaml(name, written):
    key = name.removeprefix("training.")
    text = f"training: {{do_train: true, {key}: {written or 0}}}\n"
    (unit,) = read(text)
    for event in unit.events:
        for edit in event.edits:
            again = text[: edit.span.start] + edit.value + text[edit.span.end :]
            assert isinstance(yaml.safe_load(again)["training"][key], int | float)
            assert read(again)[0].events == ()


@given(st.text("abc", max_size=8), st.text("abc", max_size=8), st.integers(0, 4))
def test_slips_within_the_limit_are_exact(left, right, limit):
    full = slips(left, right, 20)
    assert slips(left, right, limit) == min(full, limit + 1)
    assert full == slips(right, left, 20)


def test_the_oracle_reads_the_dialects_too():
    assert {"team", "hf", "deepspeed"} <= set(DIALECTS)
