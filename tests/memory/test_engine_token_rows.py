"""Rows of the words' table that train by themselves (PEFT's ``trainable_token_indices``): what they take, and of what
runs they are not followed. Block by block beside PEFT they are in ``tests/torch_runs/simulation/test_engine_acts.py``.
"""

from typing import Any

import pytest

from kb.core.setup import PostTraining, TrainingSetup
from kb.memory import architecture_from_config
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not

LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
         "num_hidden_layers": 2, "vocab_size": 20000, "tie_word_embeddings": False}  # fmt: skip
LORA = TrainingSetup(method="lora", max_source_length=8, per_device_train_batch_size=1, trained_tokens=4)
TABLE = 20000 * 256 * 4


def peak(setup: TrainingSetup, **changes: Any) -> int:
    (run,) = record_runs(setup, architecture_from_config({**LLAMA, **changes}), (8, 6))
    return run.phases["train"].allocated


def test_a_table_is_copied_for_the_words_and_again_for_a_head_that_is_tied_to_them() -> None:
    plain, rows = LORA._replace(trained_tokens=0), peak(LORA)
    assert 0.9 * TABLE < rows - peak(plain) < 1.1 * TABLE
    tied = peak(LORA, tie_word_embeddings=True) - peak(plain, tie_word_embeddings=True)
    assert 1.9 * TABLE < tied < 2.1 * TABLE  # the head's copy, and its gradient
    assert peak(LORA._replace(trained_tokens=400)) - rows < 0.1 * TABLE  # their own number matters little


def test_rows_take_less_than_a_table_that_trains_whole() -> None:
    whole = LORA._replace(trained_tokens=0, modules_to_save=("embed_tokens",))
    assert peak(LORA) < peak(whole)


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (LLAMA, {"world_size": 2, "fsdp": True}),
        (LLAMA, {"world_size": 2, "zero_stage": 2}),
        (LLAMA, {"modules_to_save": ("lm_head",)}),
        (LLAMA, {"fused_loss": True}),
        (LLAMA, {"post": PostTraining("dpo")}),
        ({"model_type": "whisper", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 1000,
          "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
         {}),
    ],
    ids=["FSDP", "ZeRO", "a copy beside them", "Liger", "DPO", "Whisper"],
)  # fmt: skip
def test_where_they_are_not_followed_they_are_named(config: dict[str, Any], change: dict[str, Any]) -> None:
    setup = LORA._replace(lora_target_modules=("q_proj",), **change)
    assert why_not(setup, architecture_from_config(config)) == "trainable_token_indices"
    assert why_not(setup._replace(trained_tokens=0), architecture_from_config(config)) != "trainable_token_indices"
