"""The engine and torch's FSDP2, as accelerate prepares it, ask the allocator for the same blocks in the same order; of
FSDP1 the peaks are the same, act by act all but the casts of rotary buffers of 64 bytes.
"""

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from simulation_needs import require_simulator

require_simulator()

from kb.core.setup import EarlierRelease, Images, Spread, TrainingSetup  # noqa: E402
from seeing_models import SEEING  # noqa: E402
from simulated_runs import Acts, Peaks, followed, peaks_of, same_acts  # noqa: E402

LLAMA = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 512,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5}  # fmt: skip
TIED = {**LLAMA, "model_type": "starcoder2", "tie_word_embeddings": True}  # one unit with the last norm
GPT2 = {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 256}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BLOOM = {"model_type": "bloom", "hidden_size": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000, **IDS}
FALCON = {"model_type": "falcon", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "vocab_size": 1000, **IDS}  # fmt: skip
GPT_OSS = {**LLAMA, "model_type": "gpt_oss", "intermediate_size": 128, "head_dim": 32, "num_local_experts": 4,
           "num_experts_per_tok": 2, "sliding_window": 64}  # fmt: skip
LORA = {"method": "lora", "lora_target_modules": ("q_proj", "down_proj")}
QLORA = {**LORA, "method": "qlora", "load_in_4bit": True, "bnb_4bit_quant_storage": "bf16", "weights": "bf16",
         "prepare_for_kbit": False}  # fmt: skip
REENTRANT = {"gradient_checkpointing": True, "use_reentrant": True}


def in_fsdp(config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int]) -> tuple[Acts, Peaks]:
    """With torch's own FSDP around the model; torch is imported here alone."""
    from sharded_by_fsdp import simulated_in_fsdp

    with pytest.MonkeyPatch.context() as patch:
        return simulated_in_fsdp(config, setup, capability, patch)


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (LLAMA, {"world_size": 4, "gradient_accumulation_steps": 2}),  # gradients stay whole until the last pass
        (TIED, {"gradient_checkpointing": True, "world_size": 8}),
        (LLAMA, {**LORA, "weights": "bf16", "gradient_checkpointing": True}),
        (LLAMA, {**LORA, "weights": "bf16", "bf16": False}),  # gathered as bytes: two types in a unit
        (LLAMA, {"spread": Spread(fsdp_reshard=False), "optim": "adamw_torch"}),
        (LLAMA, {"spread": Spread(fsdp_wrapped=False), "bf16": False}),
        (LLAMA, {"offload_param": True}),
        (LLAMA, REENTRANT),
        (GPT2, {"method": "lora", "lora_target_modules": ("c_attn",), "bf16": False}),  # its last norm is found
        (FALCON, {"gradient_checkpointing": True, "world_size": 4}),
        (BLOOM, {"method": "lora", "lora_target_modules": ("query_key_value",), "weights": "bf16"}),
        (LLAMA, {**QLORA, "bnb_4bit_use_double_quant": True, "world_size": 4}),  # whole on each GPU first
        (LLAMA, {**QLORA, **REENTRANT, "spread": Spread(packed_on="host"), "bf16": False, "trained_type": "bf16"}),
        (LLAMA, {**QLORA, "bnb_4bit_quant_storage": "uint8"}),  # integers are not sharded
        (LLAMA, {**QLORA, "prepare_for_kbit": True, "offload_param": True}),
    ],
    ids=[
        "accumulated",
        "tied",
        "lora",
        "two types",
        "not resharded",
        "one unit",
        "offloaded",
        "reentrant",
        "gpt2, lora",
        "falcon",
        "bloom, lora",
        "4 bits",
        "4 bits from the host",
        "4 bits in uint8",
        "4 bits, prepared and offloaded",
    ],
)
def test_fsdp_asks_for_the_same_blocks(config: dict[str, Any], given: dict[str, Any]) -> None:
    base = TrainingSetup(bf16=True, per_device_train_batch_size=3, max_source_length=72, world_size=2, fsdp=True)
    same_acts(config, base._replace(**given), simulate=in_fsdp, wrapped="fsdp")


QWEN_VL = {**LLAMA, "model_type": "qwen2_5_vl", "max_position_embeddings": 1024,
           "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}, "image_token_id": 5, "video_token_id": 6,
           "vision_start_token_id": 7, "vision_end_token_id": 8,
           "vision_config": {"depth": 2, "num_heads": 4, "in_channels": 3, "patch_size": 14, "temporal_patch_size": 2,
                             "spatial_merge_size": 2, "hidden_size": 96, "intermediate_size": 212,
                             "out_hidden_size": 128, "window_size": 112, "fullatt_block_indexes": [1]}}  # fmt: skip
FROZEN = {"frozen": ("visual.",), "checkpoints_trained": True, "gradient_checkpointing": True, "use_reentrant": True}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "given",
    [
        {"gradient_checkpointing": True, "world_size": 4, "do_eval": True, "prediction_loss_only": True},
        {**LORA, "weights": "bf16", "bf16": False},
        {**FROZEN, "gradient_accumulation_steps": 2},  # in one flat parameter beside what trains
        QLORA,
    ],
    ids=["checkpointed, evaluated", "lora", "tower frozen", "4 bits"],
)
def test_models_that_see_peak_under_fsdp_where_torchs_do(version: int, given: dict[str, Any]) -> None:
    base = TrainingSetup(bf16=True, per_device_train_batch_size=2, max_source_length=200, world_size=2, fsdp=True)
    setup = base._replace(images=Images(1, 10, 14), spread=Spread(fsdp_version=version), **given)
    peaks = peaks_of(QWEN_VL, setup, simulate=in_fsdp, wrapped="fsdp")
    _, own = followed(QWEN_VL, setup, (8, 6))
    assert {phase: own[phase] for phase in peaks} == peaks


@pytest.mark.parametrize("version", [1, 2])
def test_earlier_states_of_a_tower_peak_under_fsdp_where_torchs_do(version: int) -> None:
    base = TrainingSetup(bf16=True, per_device_train_batch_size=2, max_source_length=200, world_size=4, fsdp=True)
    setup = base._replace(images=Images(1, 8, 12), spread=Spread(fsdp_version=version), gradient_checkpointing=True)
    peaks = peaks_of(SEEING["qwen3_vl"], setup, simulate=in_fsdp, wrapped="fsdp")
    _, own = followed(SEEING["qwen3_vl"], setup, (8, 6))
    assert {phase: own[phase] for phase in peaks} == peaks


FROM_HOST = {"spread": Spread(fsdp_version=1, packed_on="host")}
# many layers of few words: what lives through all of backward is more than a loss takes
DEEP = {**LLAMA, "num_hidden_layers": 6, "vocab_size": 60}
UNITS = {**REENTRANT, "earlier": EarlierRelease(checkpoints_units=True), "max_source_length": 288}


def ahead(backward: Literal["no", "pre", "post"], *, forward: bool = False) -> dict[str, Any]:
    """Settings of a run that gathers units ahead of their turn."""
    return {"spread": Spread(fsdp_version=1, fsdp_backward_prefetch=backward, fsdp_forward_prefetch=forward)}


T5 = {"model_type": "t5", "d_model": 128, "d_ff": 256, "num_heads": 4, "d_kv": 32, "num_layers": 2, "vocab_size": 1000}


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (LLAMA, {"world_size": 4, "gradient_accumulation_steps": 2}),
        (LLAMA, {"weights": "bf16", "gradient_checkpointing": True}),
        (LLAMA, {"spread": Spread(fsdp_version=1, fsdp_wrapped=False), "bf16": False}),
        (T5, {"gradient_checkpointing": True, "world_size": 8}),
        (FALCON, {"bf16": False}),
        (BLOOM, {"gradient_checkpointing": True}),
        (GPT_OSS, {"world_size": 4}),
        (LLAMA, {**LORA, "lora_dropout": 0.1, "gradient_accumulation_steps": 2}),
        (LLAMA, {**LORA, "weights": "bf16", "gradient_checkpointing": True, "world_size": 4}),
        (T5, {"method": "lora", "lora_target_modules": ("q", "wo"), "bf16": False}),
        (LLAMA, {**REENTRANT, "offload_param": True}),
        (LLAMA, QLORA),  # whole on each GPU first
        (LLAMA, {**QLORA, **REENTRANT, **FROM_HOST, "bf16": False, "trained_type": "bf16", "lora_dropout": 0.1}),
        (LLAMA, {**QLORA, **FROM_HOST, "offload_param": True, "world_size": 4}),
        (LLAMA, ahead("pre")),
        (DEEP, {**ahead("no", forward=True), "gradient_checkpointing": True}),
        (DEEP, {**LORA, **ahead("post", forward=True), "gradient_checkpointing": True, "do_eval": True}),
        (DEEP, {**LORA, **UNITS, "weights": "bf16", "bf16": False}),
        (DEEP, {**LORA, **UNITS, **ahead("pre"), "gradient_accumulation_steps": 2}),
        (DEEP, {**UNITS, "world_size": 4}),
    ],
    ids=[
        "accumulated",
        "weights in bf16",
        "one unit",
        "t5",
        "falcon in fp32",
        "bloom",
        "gpt_oss",
        "lora",
        "lora, checkpointed",
        "lora of t5 in fp32",
        "offloaded",
        "4 bits",
        "4 bits from the host",
        "4 bits, offloaded",
        "gathered ahead in backward",
        "gathered ahead in forward",
        "lora, gathered ahead both ways",
        "lora, units checkpointed",
        "lora, units checkpointed and gathered ahead",
        "units checkpointed",
    ],
)
def test_fsdp1_peaks_where_torchs_does(config: dict[str, Any], given: dict[str, Any]) -> None:
    base = TrainingSetup(bf16=True, per_device_train_batch_size=3, max_source_length=72, world_size=2, fsdp=True)
    setup = base._replace(**{"spread": Spread(fsdp_version=1), **given})
    peaks = peaks_of(config, setup, simulate=in_fsdp, wrapped="fsdp")
    _, own = followed(config, setup, (8, 6))
    assert {phase: own[phase] for phase in peaks} == peaks


def test_gpt_oss_peaks_where_fsdp2_does() -> None:
    """Its parameters arrive in another order, which moves no peak."""
    base = TrainingSetup(bf16=True, per_device_train_batch_size=3, max_source_length=72, world_size=2, fsdp=True)
    setup = base._replace(gradient_checkpointing=True, do_eval=True, prediction_loss_only=True)
    peaks = peaks_of(GPT_OSS, setup, simulate=in_fsdp, wrapped="fsdp")
    _, own = followed(GPT_OSS, setup, (8, 6))
    assert {phase: own[phase] for phase in peaks} == peaks
