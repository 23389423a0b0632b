"""What YAML 1.1 makes of a value that someone meant otherwise: the event, the value meant, the text that mends it."""

import pytest
import yaml

from config_sample import EVENTS, READER, mended, only_event, read_one
from kb.config.text.nodes import number_meant

# text of the value under a group of the team format → kind of event, value read on, text that mends it
TRAPS = [
    ("learning_rate", "5e-5", "number-as-text", 5e-5, "5.0e-5"),
    ("learning_rate", "1E-4", "number-as-text", 1e-4, "1.0e-4"),
    ("learning_rate", "1.5e3", "number-as-text", 1500.0, "1.5e+3"),
    ("learning_rate", "2e4", "number-as-text", 20000.0, "2.0e+4"),
    ("max_steps", "1e3", "number-as-text", 1000, "1000"),
    ("max_steps", "08", "number-as-text", 8, "8"),
    ("max_steps", "1e-3", "wrong-type", "1e-3", None),
    ("eval_strategy", "no", "word-as-boolean", "no", '"no"'),
    ("save_strategy", "No", "word-as-boolean", "No", '"No"'),
    ("optim", "off", "word-as-boolean", "off", '"off"'),
    ("max_steps", "012", "octal-number", 10, "12"),
    ("max_steps", "-012", "octal-number", -10, "-12"),
    ("run_name", "012", "octal-number", "012", '"012"'),
    ("max_steps", "12:30", "sexagesimal-number", 750, None),
    ("run_name", "12:30", "sexagesimal-number", "12:30", '"12:30"'),
    ("learning_rate", "1:30.5", "sexagesimal-number", 90.5, None),
    ("fp16", '"off"', "quoted-boolean", False, "false"),
    ("fp16", "'False'", "quoted-boolean", False, "false"),
    ("fp16", '"no"', "quoted-boolean", False, "false"),
    ("max_steps", '"16"', "quoted-number", 16, "16"),
    ("learning_rate", "'5e-5'", "quoted-number", 5e-5, "5.0e-5"),
    ("learning_rate", '"0.1"', "quoted-number", 0.1, "0.1"),
    ("max_steps", "abc", "wrong-type", "abc", None),
    ("max_steps", "[1, 2]", "wrong-type", (1, 2), None),
    ("max_steps", "{a: 1}", "wrong-type", {"a": 1}, None),
    ("max_steps", "2.5", "wrong-type", 2.5, None),
    ("max_steps", "yes", "wrong-type", True, None),
    ("max_steps", "1,000", "wrong-type", "1,000", None),
    ("fp16", "maybe", "wrong-type", "maybe", None),
    ("fp16", "y", "wrong-type", "y", None),
    ("fp16", "2", "wrong-type", 2, None),
]
NO_TRAPS = [
    ("learning_rate", "5.0e-5", 5e-5),
    ("learning_rate", "1", 1),
    ("learning_rate", ".inf", float("inf")),
    ("max_steps", "1_000", 1000),
    ("max_steps", "0x10", 16),
    ("max_steps", "20.0", 20),
    ("max_steps", "0", 0),
    ("max_steps", "-1", -1),
    ("fp16", "no", False),
    ("fp16", "On", True),
    ("fp16", "1", True),
    ("eval_strategy", '"no"', "no"),
    ("eval_strategy", "!!str no", "no"),
    ("run_name", "true", True),
    ("run_name", "2024-01-01", "2024-01-01"),
    ("run_name", '"012"', "012"),
    ("report_to", "[wandb, tensorboard]", "wandb tensorboard"),
    ("label_names", "[labels, starts]", ("labels", "starts")),
    ("label_names", "[]", ()),
    ("label_names", "[[1, 2], [3]]", ([1, 2], [3])),
    ("label_names", "labels", "labels"),
]


@pytest.mark.parametrize(("key", "written", "kind", "value", "mend"), TRAPS)
def test_a_trap_is_told_and_its_meaning_read_on(key, written, kind, value, mend):
    text = f"training:\n  do_train: true\n  {key}: {written}  # 🔥 주석\n  seed: 1\n"
    unit = read_one(text)
    event = only_event(unit)
    assert event.kind == kind
    assert (event.span.line, event.span.column) == (3, len(key) + 5)
    assert text[event.span.start : event.span.end] == written == event.values["raw"]
    assert event.values["key"] == key
    assert unit.settings[f"training.{key}"].value == value
    assert type(unit.settings[f"training.{key}"].value) is type(value)
    assert [edit.value for edit in event.edits] == ([] if mend is None else [mend])


@pytest.mark.parametrize(("key", "written", "value"), NO_TRAPS)
def test_a_value_of_the_right_type_is_no_trap(key, written, value):
    unit = read_one(f"training:\n  do_train: true\n  {key}: {written}\n")
    assert unit.events == ()
    assert unit.settings[f"training.{key}"].value == value


@pytest.mark.parametrize(("key", "written", "kind", "value", "mend"), [row for row in TRAPS if row[4]])
def test_the_mended_text_says_what_was_meant(key, written, kind, value, mend):
    text = f"training:\n  do_train: true\n  {key}: {written}\n"
    again = mended(text, read_one(text))
    unit = read_one(again)
    assert unit.events == ()
    meant = 12 * (1 if value > 0 else -1) if kind == "octal-number" and isinstance(value, int) else value
    assert unit.settings[f"training.{key}"].value == meant
    assert yaml.safe_load(again)["training"][key] == meant


def test_every_event_has_the_values_that_the_vocabulary_promises():
    seen = set()
    for key, written, *_ in TRAPS:
        event = only_event(read_one(f"training:\n  do_train: true\n  {key}: {written}\n"))
        assert set(event.values) == set(EVENTS[event.kind]["values"]), event.kind
        seen.add(event.kind)
    assert len(seen) == 7


@pytest.mark.parametrize("written", ['"true"', "'Yes'", '"on"'])
def test_text_that_means_true_counts_as_true_and_is_no_trap(written):
    unit = read_one(f"training:\n  do_train: true\n  fp16: {written}\n")
    assert unit.events == () and unit.settings["training.fp16"].value is True


def test_traps_outside_known_settings_are_left_alone():
    assert read_one("training: {fp16: true}\nwandb: {name: no, at: 12:30, lr: 5e-5}\n").events == ()


def test_null_leaves_a_setting_to_the_librarys_default():
    unit = read_one("training: {fp16: true, bf16: null, tf32: ~, seed: }\n")
    assert set(unit.settings) == {"training.fp16"}


def test_in_json_numbers_follow_json():
    unit = read_one('{"training": {"learning_rate": 5e-5, "max_steps": 1e3, "eval_strategy": "no"}}', "a.json")
    assert unit.events == ()
    assert unit.settings["training.learning_rate"].value == 5e-5
    assert unit.settings["training.max_steps"].value == 1000
    assert unit.settings["training.eval_strategy"].value == "no"


def test_json_in_a_yaml_file_is_read_as_yaml():
    # PyYAML will read this file, whatever it looks like.
    unit = read_one('{"training": {"learning_rate": 5e-5, "fp16": true}}', "a.yaml")
    assert only_event(unit).kind == "number-as-text"


def test_quoted_values_in_json_are_traps_too():
    text = '{"training": {"fp16": "false", "max_steps": "16"}}'
    unit = read_one(text, "a.json")
    assert [event.kind for event in unit.events] == ["quoted-boolean", "quoted-number"]
    assert mended(text, unit) == '{"training": {"fp16": false, "max_steps": 16}}'


@pytest.mark.parametrize("text", ["", "e5", "1e", "0x1F", "1.2.3", "５", "1e-5f", "nan", "--1", "1_000", "1 000"])
def test_what_looks_like_no_decimal_number_is_none(text):
    assert number_meant(text) is None


def test_the_reader_can_be_used_again_and_again():
    first = READER.read("training: {fp16: true, bf16: no}\n", "a.yaml")
    assert first == READER.read("training: {fp16: true, bf16: no}\n", "a.yaml")
