"""Which unknown key is a slip for a known one, and which is a name of its own."""

import pytest

from config_sample import EVENTS, mended, only_event, read_one
from kb.config.dialect.dialects import Neighbours, slips

TRAINING = [
    ("per_device_train_batchsize", "per_device_train_batch_size"),
    ("per_device_train_batch_sizes", "per_device_train_batch_size"),
    ("per-device-train-batch-size", "per_device_train_batch_size"),
    ("perDeviceTrainBatchSize", "per_device_train_batch_size"),
    ("per_devise_train_batch_size", "per_device_train_batch_size"),
    ("gradient_acumulation_steps", "gradient_accumulation_steps"),
    ("gradient_checkpoiting", "gradient_checkpointing"),
    ("gradient_checkpointing_kwarg", "gradient_checkpointing_kwargs"),
    ("dataloader_num_worker", "dataloader_num_workers"),
    ("learning-rate", "learning_rate"),
    ("laerning_rate", "learning_rate"),
    ("eval_step", "eval_steps"),
    ("BF16", "bf16"),
]
OWN_NAMES = [
    "train_batch_size",
    "generation_mix_length_of_mine",
    "max_length",
    "min_steps",
    "fp8",
    "bf32",
    "adam_beta3",
    "eval_samples",
    "lr",
    "data_path",
    "callbacks",
    "early_stopping_metric",
    "save_best_model_at_end",
    "x" * 900,
]


@pytest.mark.parametrize(("written", "meant"), TRAINING)
def test_a_slip_is_told_with_the_key_meant(written, meant):
    value = "{use_reentrant: true}" if meant.endswith("kwargs") else "2"
    text = f"training:\n  do_train: true\n  '{written}': {value}\n"
    unit = read_one(text)
    event = only_event(unit)
    assert (event.kind, event.values) == ("unknown-key", {"key": written, "meant": meant})
    assert set(event.values) == set(EVENTS["unknown-key"]["values"])
    assert (event.span.line, event.span.column) == (3, 3)
    assert mended(text, unit) == f"training:\n  do_train: true\n  '{meant}': {value}\n"


@pytest.mark.parametrize("name", OWN_NAMES)
def test_a_name_of_its_own_is_left_alone(name):
    assert read_one(f"training:\n  do_train: true\n  {name}: 2\n").events == ()


def test_a_slip_beside_the_right_key_has_no_fix():
    unit = read_one("training:\n  learning_rate: 0.1\n  learnin_rate: 0.2\n")
    assert (only_event(unit).kind, only_event(unit).edits) == ("unknown-key", ())


def test_a_misspelt_group_is_told():
    unit = read_one("training: {fp16: true}\ntokenzier: {encoder_max_len: 512}\n")
    assert only_event(unit).values == {"key": "tokenzier", "meant": "tokenizer"}
    assert read_one("training: {fp16: true}\ntokenzier: 512\n").events == ()
    assert read_one("training: {fp16: true}\ntraining2: {steps: 1}\n").events == ()


def test_ignored_keys_are_no_slips():
    assert read_one("training: {fp16: true}\ntokenizer: {bos_token: <s>, eos_token: </s>}\n").events == ()


def test_flat_arguments_have_slips_too():
    text = "model_name_or_path: t5-base\nper_device_train_batch_size: 8\nmax_source_lenght: 512\n"
    assert only_event(read_one(text)).values["meant"] == "max_source_length"


def test_a_renamed_key_keeps_its_quotes_in_json():
    text = '{"training": {"fp16": true, "learning_rte": 1}}'
    assert '"learning_rate": 1' in mended(text, read_one(text, "a.json"))


def test_slips_count_letters_and_swaps():
    assert slips("", "", 2) == 0
    assert slips("abc", "abc", 2) == 0
    assert slips("abc", "acb", 2) == 1
    assert slips("abc", "ab", 2) == 1
    assert slips("abc", "xabc", 2) == 1
    assert slips("abc", "xyz", 2) == 3
    assert slips("a" * 50, "b" * 50, 3) == 4


def test_neighbours_of_nothing_know_nothing():
    assert Neighbours([]).meant_by("learning_rate") is None
