"""Whisper as the memory engine follows it: recorded runs of the real code, and an input of one length."""

from typing import Any

import pytest

from kb.advice.run.row_lengths import assumed_source_length, longest_input
from kb.core.setup import TrainingSetup
from kb.knowledge import load_catalog
from kb.memory import UnsupportedArchitectureError, architecture_from_config, parameter_count
from kb.memory.engine.predict import record_runs

CATALOG = load_catalog()
SMALL: dict[str, Any] = {
    "per_device_train_batch_size": 16, "fp16": True, "gradient_checkpointing": True, "do_eval": True,
    "per_device_eval_batch_size": 8, "predict_with_generate": True, "generation_max_length": 225,
}  # fmt: skip
TURBO: dict[str, Any] = {
    "per_device_train_batch_size": 4, "max_target_length": 448, "bf16": True, "method": "lora", "lora_r": 32,
    "lora_target_modules": ("q_proj", "v_proj"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "given", "capability", "recorded"),
    [
        ("whisper-small", SMALL, (7, 5), {"train": (5637632512, 6396313600), "evaluate": (3931018752, 6421479424)}),
        ("whisper-large-v3-turbo", TURBO, (8, 6), {"train": (13694100480, 14434697216)}),
    ],
)
def test_whole_checkpoints_peak_where_the_real_code_did(
    model: str, given: dict[str, Any], capability: tuple[int, int], recorded: dict[str, tuple[int, int]]
) -> None:
    setup = TrainingSetup(**{"max_target_length": 128, **given})
    (run,) = record_runs(setup, CATALOG.models[model].architecture, capability)
    assert {phase: run.phases[phase][:2] for phase in recorded} == recorded


def test_what_a_run_says_of_the_inputs_length_changes_nothing() -> None:
    model = CATALOG.models["whisper-tiny"]
    setups = (TrainingSetup(max_source_length=length, max_target_length=40) for length in (16, 4096))
    one, other = (record_runs(setup, model.architecture, (8, 6))[0].phases for setup in setups)
    assert one == other
    assert assumed_source_length(model, CATALOG.constants, tokenizer=64) == (1500, "fixed_by_model")
    assert longest_input(model) is None


def test_parameters_are_those_of_the_built_model() -> None:
    assert parameter_count(CATALOG.models["whisper-small"].architecture) == 241_734_912


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop"),
        ({"architectures": ["WhisperForAudioClassification"]}, "WhisperForAudioClassification"),
    ],
)
def test_what_is_not_followed_of_it_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    config = {"model_type": "whisper", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 100,
              "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
              "decoder_ffn_dim": 64}  # fmt: skip
    with pytest.raises(UnsupportedArchitectureError, match=named):
        architecture_from_config(config | fields)
