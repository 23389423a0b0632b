"""Beam search of decoder-only models against recorded runs of transformers' own ``generate``."""

import sys
from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.memory import architecture_from_config
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not
from kb.memory.releases import earlier_release

sys.path.insert(0, str(sample.ROOT / "bench"))

from engine_models import MODELS

ALONE = {"do_train": False, "do_predict": True}
EVALUATED = {"do_eval": True, "predict_with_generate": True}
QUERY_VALUE = ("q_proj", "v_proj")
# Simulated as tests/data/engine_traces.json is (bench/grid.py, transformers 5.23.0, torch 2.13.0): bytes allocated and
# reserved, by phase. Rows × beams read the prompt; windows, ALiBi, experts and a fused q, k and v are among them.
ROWS: list[tuple[str, dict[str, Any], dict[str, tuple[int, int]]]] = [
    ("llama", ALONE | {"inference_batch_size": 4, "inference_num_beams": 4, "inference_max_length": 64,
     "max_source_length": 512, "weights": "bf16"}, {"generate": (1_118_422_016, 1_262_485_504)}),
    ("llama", EVALUATED | {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 4,
     "generation_num_beams": 2, "generation_max_length": 32, "max_source_length": 333, "bf16": True, "method":
     "lora", "lora_target_modules": QUERY_VALUE}, {"train": (2_209_054_208, 2_294_284_288), "evaluate":
     (1_703_754_240, 2_638_217_216), "generate": (1_578_793_984, 2_294_284_288)}),
    ("gpt2-medium", ALONE | {"inference_batch_size": 8, "inference_num_beams": 2, "inference_max_length": 12,
     "max_source_length": 200}, {"generate": (662_545_920, 757_071_872)}),
    ("gpt2-medium", EVALUATED | {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 3,
     "generation_num_beams": 4, "generation_max_length": 48, "max_source_length": 256, "bf16": True}, {"train":
     (1_508_924_416, 1_799_356_416), "evaluate": (1_493_941_248, 1_799_356_416), "generate": (1_238_892_544,
     1_799_356_416)}),
    ("gemma-2", ALONE | {"inference_batch_size": 3, "inference_num_beams": 4, "inference_max_length": 40,
     "max_source_length": 777, "weights": "bf16", "padded": False}, {"generate": (1_556_050_944, 1_881_145_344)}),
    ("gemma-2", EVALUATED | {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 2,
     "generation_num_beams": 2, "generation_max_length": 9, "max_source_length": 512}, {"train": (6_069_778_944,
     6_452_936_704), "evaluate": (4_207_978_496, 6_452_936_704), "generate": (4_057_071_104, 6_452_936_704)}),
    ("bloom", ALONE | {"inference_batch_size": 4, "inference_num_beams": 2, "inference_max_length": 30,
     "max_source_length": 333}, {"generate": (1_634_689_024, 1_757_413_376)}),
    ("bloom", EVALUATED | {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 4,
     "generation_num_beams": 4, "generation_max_length": 12, "max_source_length": 256, "weights": "bf16", "bf16":
     True, "gradient_checkpointing": True}, {"train": (3_406_161_408, 3_498_049_536), "evaluate": (4_362_403_840,
     5_553_258_496), "generate": (2_152_423_424, 3_498_049_536)}),
    ("falcon-7b", ALONE | {"inference_batch_size": 4, "inference_num_beams": 4, "inference_max_length": 150,
     "max_source_length": 256, "weights": "bf16"}, {"generate": (2_749_588_480, 2_900_361_216)}),
    ("exaone-4", EVALUATED | {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 3,
     "generation_num_beams": 4, "generation_max_length": 24, "max_source_length": 256, "weights": "bf16", "method":
     "qlora", "load_in_4bit": True, "lora_target_modules": QUERY_VALUE}, {"train": (2_713_573_376, 3_080_716_288),
     "evaluate": (2_435_385_856, 3_395_289_088), "generate": (2_136_689_152, 3_080_716_288)}),
    ("mixtral", ALONE | {"inference_batch_size": 2, "inference_num_beams": 4, "inference_max_length": 12,
     "max_source_length": 128, "weights": "bf16"}, {"generate": (576_390_144, 599_785_472)}),
    ("gpt-j", ALONE | {"inference_batch_size": 2, "inference_num_beams": 2, "inference_max_length": 12,
     "max_source_length": 333, "weights": "bf16", "attn_implementation": "eager"}, {"generate": (1_935_250_944,
     2_128_609_280)}),
]  # fmt: skip


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{model} {'alone' if 'do_predict' in given else 'evaluated'}" for model, given, _ in ROWS]
)
def test_beams_of_a_decoder_take_what_transformers_takes(row: Any) -> None:
    model, given, wanted = row
    architecture = architecture_from_config(MODELS[model])
    setup = TrainingSetup(**given, earlier=earlier_release(architecture.model_type, (5, 23)))
    recordings = record_runs(setup, architecture, (8, 6))
    found = {name: peak for recording in recordings for name, peak in recording.phases.items()}
    assert {name: (found[name].allocated, found[name].reserved) for name in wanted} == wanted


def generated(**given: Any) -> int:
    """Bytes allocated at most while an answer is generated."""
    setup = TrainingSetup(**ALONE, weights="bf16", inference_batch_size=2, max_source_length=256, **given)
    assert why_not(setup, LLAMA) is None
    (recording,) = record_runs(setup, LLAMA, (8, 6))
    return recording.phases["generate"].allocated


LLAMA = architecture_from_config(MODELS["llama"])


def test_every_beam_keeps_the_prompt_of_its_own() -> None:
    """Keys and values of 257 tokens at least, for each of the beams that are more."""
    row = 2 * 2 * LLAMA.decoder_layers * (LLAMA.kv_heads or 0) * LLAMA.d_kv * 257  # in bf16
    two, four = (generated(inference_num_beams=beams, inference_max_length=8) for beams in (2, 4))
    assert four - two > 2 * 2 * row


def test_a_long_answer_of_many_beams_grows_with_its_length() -> None:
    short, long = (generated(inference_num_beams=4, inference_max_length=tokens) for tokens in (3000, 6000))
    row = 2 * 2 * LLAMA.decoder_layers * (LLAMA.kv_heads or 0) * LLAMA.d_kv
    assert long - short >= 2 * 4 * 3000 * row


def test_between_the_first_tokens_and_the_last_a_step_now_and_then_is_followed_whole() -> None:
    """bloom-560m on an H200 (rules/measurements/generation-h200-2026-11-27.yaml): 15,680,405,504 bytes reserved."""
    bloom = architecture_from_config(
        {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250_880}
    )
    setup = TrainingSetup(
        **ALONE, weights="bf16", max_source_length=300, inference_batch_size=32, inference_num_beams=4,
        inference_max_length=256, attn_implementation="eager",
    )  # fmt: skip
    (recording,) = record_runs(setup, bloom, (9, 0))
    assert recording.phases["generate"].reserved == pytest.approx(15_680_405_504, rel=0.04)
