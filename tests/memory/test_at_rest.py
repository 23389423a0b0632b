"""What surely lies on the GPU while training, beside what the memory engine finds of the whole run."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import PostTraining, Spread, TrainingSetup
from kb.memory import architecture_from_config, predict, surely_out_of_memory
from kb.memory.engine.follow import _at_rest, _resting_bytes, counted
from kb.memory.engine.predict import record_runs

LLAMA = {"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 512,
         "intermediate_size": 352}  # fmt: skip
LONGFORMER = {"model_type": "longformer", "architectures": ["LongformerForTokenClassification"], "hidden_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 500,
              "max_position_embeddings": 130, "attention_window": [32, 32]}  # fmt: skip
FULL = TrainingSetup(bf16=True, per_device_train_batch_size=1, max_source_length=64)
FOUR = FULL._replace(world_size=4)
RUNS: dict[str, TrainingSetup] = {
    "AdamW": FULL,
    "AdamW, in steps of two passes": FULL._replace(gradient_accumulation_steps=2, optim="adamw_torch"),
    "8-bit": FULL._replace(optim="adamw_8bit", weights="bf16"),
    "paged": FULL._replace(optim="paged_adamw_32bit"),
    "SGD": FULL._replace(optim="sgd"),
    "Adafactor": FULL._replace(optim="adafactor"),
    "adapters": FULL._replace(method="lora", lora_target_modules=("q_proj", "v_proj")),
    "DPO with a reference": FULL._replace(post=PostTraining("dpo", reference="model")),
    "DDP": FOUR,
    "ZeRO-2": FOUR._replace(zero_stage=2),
    "ZeRO-3": FOUR._replace(zero_stage=3),
    "ZeRO-3, offloaded": FOUR._replace(zero_stage=3, offload_optimizer=True),
    "FSDP2": FOUR._replace(fsdp=True),
    "FSDP1": FOUR._replace(fsdp=True, spread=Spread(fsdp_version=1)),
}


def resting(setup: TrainingSetup, config: dict[str, Any], *, stepped: bool = True) -> int:
    return _resting_bytes(_at_rest(setup, stepped=stepped), architecture_from_config(config), (8, 6))


def peak(setup: TrainingSetup, config: dict[str, Any]) -> int:
    (recording,) = record_runs(counted(setup), architecture_from_config(config), (8, 6))
    return recording.phases["train"].allocated


@pytest.mark.parametrize("name", RUNS)
def test_no_training_takes_less_than_what_rests_beside_its_steps(name: str) -> None:
    assert 0 < resting(RUNS[name], LLAMA) <= peak(RUNS[name], LLAMA)


def test_states_and_gradients_rest_beside_the_weights() -> None:
    weights = resting(FULL, LLAMA, stepped=False)
    assert resting(FULL, LLAMA) == pytest.approx(4 * weights, rel=0.01)
    assert resting(FULL._replace(optim="sgd"), LLAMA) == pytest.approx(2 * weights, rel=0.01)


def test_parameters_that_no_pass_reaches_are_not_counted() -> None:
    tokens = FULL._replace(bf16=False, max_source_length=32)
    assert resting(tokens, LONGFORMER) == resting(tokens, LONGFORMER, stepped=False) <= peak(tokens, LONGFORMER)


def test_a_run_that_is_over_by_its_states_is_out_of_memory_by_the_whole_prediction() -> None:
    setup, config = (
        FULL._replace(per_device_train_batch_size=2),
        {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192},
    )
    architecture, found = architecture_from_config(config), set()
    for mib in range(1500, 6000, 250):
        where = {"constants": sample.CONSTANTS, "compute_capability": (8, 6)}
        over = surely_out_of_memory(setup, architecture, mib << 20, **where)
        verdict = predict(setup, architecture, gpu_memory_bytes=mib << 20, **where).verdict.status
        assert not over or verdict == "oom"
        found.add((over, verdict == "oom"))
    assert {(True, True), (False, False)} <= found
