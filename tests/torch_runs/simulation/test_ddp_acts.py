"""The engine and torch's DistributedDataParallel ask the allocator for the same blocks in the same order."""

from collections.abc import Mapping
from typing import Any

import pytest

from simulation_needs import require_simulator

require_simulator()

from kb.core.setup import Spread, TrainingSetup  # noqa: E402
from simulated_runs import Acts, Peaks, same_acts  # noqa: E402

LLAMA = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 512,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5}  # fmt: skip
T5 = {"model_type": "t5", "d_model": 128, "d_ff": 256, "num_heads": 4, "d_kv": 32, "num_layers": 2, "vocab_size": 1000}
VIEW = Spread(gradient_as_bucket_view=True)


def in_ddp(config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int]) -> tuple[Acts, Peaks]:
    """With torch's own DistributedDataParallel around the model; torch is imported here alone."""
    from wrapped_in_ddp import simulated_in_ddp

    with pytest.MonkeyPatch.context() as patch:
        return simulated_in_ddp(config, setup, capability, patch)


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (LLAMA, {}),  # unused parameters are looked for: outputs are cloned
        (LLAMA, {"gradient_checkpointing": True, "gradient_accumulation_steps": 2, "spread": VIEW}),
        (T5, {"gradient_checkpointing": True}),  # buckets are made again after the first step
        (LLAMA, {"method": "lora", "lora_target_modules": ("q_proj", "down_proj"), "gradient_accumulation_steps": 2}),
        (LLAMA, {"method": "lora", "load_in_8bit": True, "prepare_for_kbit": False, "weights": "bf16"}),
    ],
    ids=["llama", "views of buckets", "made again", "lora", "8 bits"],
)
def test_ddp_asks_for_the_same_blocks(config: dict[str, Any], given: dict[str, Any]) -> None:
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=3, max_source_length=72, world_size=2, **given)
    same_acts(config, setup, simulate=in_ddp, wrapped="ddp")
