"""Facts about an adapter's settings against the model, from a config's text."""

from typing import Any

import pytest

from catalog_sample import shallow_catalog
from kb.advice.check import Checker
from kb.config.reader import ConfigReader
from kb.core.expression import is_unknown
from kb.core.hardware import Machine

CATALOG = shallow_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)


def fact(name: str, settings: str, model: str = "google/mt5-base") -> Any:
    text = f"general: {{model_name: {model}}}\nqlora: {{use_lora: true, {settings}}}\n"
    (unit,) = READER.read(text, "train.yaml")
    return Checker(CATALOG, Machine(gpus=(), gpu_source="none")).facts(unit).get(name)


@pytest.mark.parametrize(
    ("named", "missing"),
    [
        ("[shared, lm_head]", ()),
        ("[classifier, shared]", ("classifier",)),
        ("[decoder.final_layer_norm]", ()),
        ("[norm]", ()),  # PEFT compares the ends of names
        ("[q_proj]", ("q_proj",)),
    ],
)
def test_modules_to_save_are_compared_with_the_ends_of_the_models_names(named: str, missing: tuple[str, ...]):
    assert fact("lora.unmatched_modules_to_save", f"modules_to_save: {named}") == missing


@pytest.mark.parametrize(
    ("written", "rows", "beyond"),
    [
        ("[3, 4, 5]", 3, ()),
        ("{shared: [3, 4]}", 2, ()),
        ("{lm_head: [3]}", 1, ("trainable_token_indices of lm_head",)),
        ("${TOKENS}", 1, ()),
    ],
)
def test_rows_of_words_that_train_are_counted_and_a_heads_own_have_no_model(
    written: str, rows: int, beyond: tuple[str, ...]
):
    text = "output_dir: o\nmodel_name_or_path: t5-base\nlearning_rate: 1e-4\nbf16: true\nlora_r: 8\n"
    (unit,) = READER.read(f"{text}trainable_token_indices: {written}\n", "train.yaml")
    setup = Checker(CATALOG, Machine(gpus=(), gpu_source="none")).check(unit).setup
    assert setup is not None
    assert (setup.trained_tokens, setup.unmodelled) == (rows, beyond)
    assert any(each.name == "lora.trainable_token_indices" for each in setup.assumed) == written.startswith("$")


def test_a_head_that_peft_adds_for_another_task_is_not_called_missing():
    assert is_unknown(fact("lora.unmatched_modules_to_save", "task_type: SEQ_CLS, modules_to_save: [classifier]"))


def test_of_an_unknown_model_nothing_is_said():
    settings = "target_modules: [q], modules_to_save: [x], rank_pattern: {x: 4}"
    for name in ("lora.unmatched_modules_to_save", "lora.unmatched_patterns"):
        assert fact(name, settings, model="someone/model").needs == {"model.name"}


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ("target_modules: [q, v], rank_pattern: {q: 16}", ()),
        ("target_modules: [q, v], rank_pattern: {k: 16}", ("k",)),
        ("target_modules: [q, v], rank_pattern: {EncDecAttention.q: 16}, alpha_pattern: {wo: 4}", ("wo",)),
        ('target_modules: [q, v], alpha_pattern: {"decoder.*[qv]": 4}', ()),
        ("target_modules: [q, v]", ()),
    ],
)
def test_pattern_keys_are_compared_with_the_targeted_modules_alone(settings: str, missing: tuple[str, ...]):
    assert fact("lora.unmatched_patterns", settings) == missing


@pytest.mark.parametrize("key", ["(a+)+$", ".*" * 40 + "X", "(.|.)*X"])
def test_a_pattern_with_more_ways_than_time_is_settled_all_the_same(key: str):
    assert fact("lora.unmatched_patterns", f'target_modules: [q], rank_pattern: {{"{key}": 4}}') == (key,)


@pytest.mark.parametrize("key", ["(?=a)+$", "(x{50}){50}", "["])
def test_a_pattern_that_cannot_be_run_is_not_run(key: str):
    assert is_unknown(fact("lora.unmatched_patterns", f'target_modules: [q], rank_pattern: {{"{key}": 4}}'))


@pytest.mark.parametrize(
    ("targets", "names"),
    [("q", ("q",)), ("'q,v'", ("q", "v")), ("q v", ("q", "v")), ("all-linear", ()), ("'.*[qv]'", ()), ("[q, v]", ())],
)
def test_names_in_a_text_are_told_from_a_regular_expression(targets: str, names: tuple[str, ...]):
    assert fact("lora.target_names", f"target_modules: {targets}") == names
