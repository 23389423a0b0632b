"""The type that weights are loaded in: the one named, the checkpoint's own, or fp32; what is taken is listed."""

import json
from pathlib import Path

import pytest

from kb.advice.check import Checker
from kb.advice.flags import Flags, unit_of
from kb.advice.recommend import Asked
from kb.advice.room import Room, on_gpu
from kb.advice.settings_reader import SettingsReader
from kb.advice.weights import checkpoint_dtype, weights_of
from kb.config.reader import read_units
from kb.core.document import Unit
from kb.core.hardware import Machine
from kb.core.setup import TrainingSetup
from kb.knowledge import load_catalog, load_guide
from kb.linting.model_config import read_model_config

CATALOG = load_catalog()
BF16, FP32 = CATALOG.models["phi-3-mini"], CATALOG.models["mt5-base"]
UNKNOWN = CATALOG.models["gpt2"]._replace(weights_dtype=None)


def unit(model: str = "microsoft/Phi-3-mini-4k-instruct", dtype: str = "") -> Unit:
    text = f"model_name_or_path: {model}\n{dtype}\nper_device_train_batch_size: 1\nlearning_rate: 0.001\n"
    (found,) = read_units(text, "train.yaml", CATALOG.dialects, CATALOG.facts)
    return found


def setup_of(found: Unit) -> TrainingSetup:
    return Checker(CATALOG, Machine()).prepare(found).setup


@pytest.mark.parametrize(
    ("model", "version", "dialect", "weights"),
    [
        (BF16, None, "hf", "bf16"),
        (BF16, (5, 23), "hf", "bf16"),
        (BF16, (4, 57, 6), "hf", "fp32"),
        (BF16, (5, 23), "trl", "fp32"),
        (FP32, (5, 23), "hf", "fp32"),
        (UNKNOWN, (5, 23), "hf", "fp32"),
        (None, None, "hf", "fp32"),
    ],
)
def test_transformers_5_keeps_the_type_of_the_checkpoint(model, version, dialect, weights) -> None:
    read = SettingsReader(unit(), CATALOG.facts)
    assert weights_of(read, model, {}, version, dialect) == weights
    assert [each.reason for each in read.assumed] == (["checkpoint_own_type"] if weights != "fp32" else [])


@pytest.mark.parametrize(
    ("dtype", "weights"), [("dtype: float32", "fp32"), ("dtype: bfloat16", "bf16"), ("dtype: torch.float16", "fp16")]
)
def test_a_type_that_the_config_names_wins(dtype: str, weights: str) -> None:
    setup = setup_of(unit(dtype=dtype))
    assert setup.weights == weights
    assert "checkpoint_own_type" not in {each.reason for each in setup.assumed}


def test_auto_is_the_checkpoints_type_in_any_version() -> None:
    read = SettingsReader(unit(dtype="dtype: auto"), CATALOG.facts)
    assert weights_of(read, BF16, {}, (4, 50), "hf") == "bf16"


def test_a_project_can_say_what_its_checkpoint_stores() -> None:
    read = SettingsReader(unit(), CATALOG.facts)
    assert weights_of(read, UNKNOWN, {"model.checkpoint_dtype": "bfloat16"}, None, "hf") == "bf16"


def test_full_training_of_a_half_checkpoint_is_predicted_as_such() -> None:
    checker = Checker(CATALOG, Machine())
    own, wide = (checker.prepare(unit(dtype=dtype)).fit.report for dtype in ("", "dtype: float32"))
    assert own is not None
    assert wide is not None
    assert own.phase("train").peak_allocated_bytes < 0.6 * wide.phase("train").peak_allocated_bytes


def test_flags_name_fp32_themselves() -> None:
    assert setup_of(unit_of(Flags(model="phi-3-mini"))).weights == "fp32"


def test_a_config_json_says_what_its_weights_are(tmp_path: Path) -> None:
    architecture = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
    for name, weights in (("torch_dtype", "bf16"), ("dtype", "bf16"), ("other", None)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**architecture, name: "bfloat16"}))
        assert read_model_config(str(path)).weights_dtype == weights


def test_the_fact_has_pytorchs_name() -> None:
    assert [checkpoint_dtype(model) for model in (BF16, FP32, UNKNOWN, None)] == ["bfloat16", "float32", None, None]


@pytest.mark.parametrize(
    ("model", "named"), [("mt5-base", None), ("phi-3-mini", "float32"), ("qwen2.5-0.5b", "float32")]
)
def test_a_recommended_config_names_the_type_that_the_library_might_not_take(model: str, named: str | None) -> None:
    from kb.advice.answer import answer
    from kb.report.recommend.config import settings_of

    room = Room(CATALOG.models[model], on_gpu(CATALOG.gpus["h200"]), CATALOG.constants)
    setup = answer("train", Asked(), room, CATALOG, load_guide()).setup
    assert setup is not None
    assert settings_of(setup, stored=CATALOG.models[model].weights_dtype).get("model.torch_dtype") == named
