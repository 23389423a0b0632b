"""FSDP of 4-bit weights: beside published runs, and what is refused. Act by act beside torch's own FSDP it stands in
``tests/torch_runs/simulation/test_fsdp_acts.py``.

Published: benchmarks_03_2024.md of AnswerDotAI/fsdp_qlora (05ed9f2), peak reserved memory of one of two RTX 3090 or
4090; its train.py: FSDP1 with prefetching in backward, reentrant checkpointing, bf16 throughout, rank 64, dropout 0.1.
And scripts/benchmarks/refs/a100_80gb.csv of foundation-model-stack/fms-acceleration (0aab2c6), peak allocated memory of
one of one or two A100 80 GB: Mistral-7B in bf16, 4096 packed tokens, checkpointing, FSDP1 that wraps each layer and
gathers ahead in backward, transformers 4.45.2, whose checkpoints lie around FSDP's units.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import memory_sample as sample
from effort import few
from kb.core.setup import PostTraining, Spread, TrainingSetup
from kb.core.setup_json import setup_from
from kb.core.units import GIB
from kb.memory import architecture_from_config
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not
from kb.memory.prediction import predict
from kb.memory.releases import earlier_release

LLAMA_7B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
            "num_key_value_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000,
            "max_position_embeddings": 4096}  # fmt: skip
LLAMA_70B = {**LLAMA_7B, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
             "num_key_value_heads": 8, "num_hidden_layers": 80}  # fmt: skip
FSDP_QLORA = TrainingSetup(
    method="qlora",
    load_in_4bit=True,
    bnb_4bit_quant_storage="bf16",
    prepare_for_kbit=False,
    trained_type="bf16",
    weights="bf16",
    padded=False,
    gradient_checkpointing=True,
    use_reentrant=True,
    lora_r=64,
    lora_dropout=0.1,
    lora_target_modules=("k_proj", "q_proj", "v_proj", "up_proj", "down_proj", "gate_proj"),
    optim="adamw_torch",
    world_size=2,
    fsdp=True,
    spread=Spread(fsdp_version=1, packed_on="host"),
)
V2 = {"spread": Spread(packed_on="host")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "batch", "length", "offloads", "published"),
    [
        (LLAMA_7B, 1, 512, False, 4.98),
        (LLAMA_7B, 4, 2048, False, 11.22),
        (LLAMA_7B, 10, 2048, False, 20.97),
        (LLAMA_7B, 12, 2048, True, 22.38),
        (LLAMA_70B, 2, 2048, True, 14.92),
    ],
)
def test_published_runs_of_fsdp_qlora_are_near(
    config: dict[str, Any], batch: int, length: int, offloads: bool, published: float
) -> None:
    setup = FSDP_QLORA._replace(per_device_train_batch_size=batch, max_source_length=length, offload_param=offloads)
    (run,) = record_runs(setup, architecture_from_config(config), (8, 6))
    assert run.phases["train"].reserved / GIB == pytest.approx(published, rel=0.08)


@pytest.mark.long
@pytest.mark.parametrize(
    ("batch", "length", "published"), few([(1, 512, 10.24), (1, 2048, 10.22), (4, 2048, 16.14), (6, 2048, 21.35)], 2)
)
def test_published_runs_of_fsdp_lora_are_near(batch: int, length: int, published: float) -> None:
    setup = FSDP_QLORA._replace(
        method="lora",
        load_in_4bit=False,
        bnb_4bit_quant_storage="uint8",
        per_device_train_batch_size=batch,
        max_source_length=length,
    )
    (run,) = record_runs(setup, architecture_from_config(LLAMA_7B), (8, 6))
    assert run.phases["train"].reserved / GIB == pytest.approx(published, rel=0.1)


MISTRAL_7B = {**LLAMA_7B, "model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8,
              "max_position_embeddings": 32768}  # fmt: skip
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "batch", "gpus", "published"),
    [
        ("full", 4, 1, 72_434_853_376),
        ("full", 8, 1, 72_435_246_592),
        ("full", 2, 2, 36_225_955_840),
        ("full", 4, 2, 36_226_152_448),
        ("lora", 4, 1, 25_653_881_344),
        ("lora", 8, 1, 36_643_613_184),
        ("lora", 2, 2, 15_245_549_568),
        ("lora", 4, 2, 22_161_170_432),
        ("qlora", 2, 2, 9_525_273_600),
        ("qlora", 4, 2, 16_171_410_432),
    ],
)
def test_published_runs_of_fms_acceleration_are_near(method: Any, batch: int, gpus: int, published: int) -> None:
    sharded: dict[str, Any] = {}
    if gpus > 1:
        spread = Spread(fsdp_version=1, fsdp_backward_prefetch="pre")
        sharded = {"fsdp": True, "spread": spread, "earlier": earlier_release("mistral", (4, 45))}
    if method == "qlora":
        sharded |= {"load_in_4bit": True, "bnb_4bit_use_double_quant": True, "bnb_4bit_quant_storage": "bf16",
                    "prepare_for_kbit": False, "bf16": True}  # fmt: skip
    setup = TrainingSetup(
        method=method, weights="bf16", per_device_train_batch_size=batch, max_source_length=4096,
        gradient_checkpointing=True, use_reentrant=True, optim="adamw_torch", padded=False, lora_r=16,
        lora_dropout=0.1, lora_target_modules=ATTENTION, world_size=gpus, **sharded,
    )  # fmt: skip
    architecture = architecture_from_config(MISTRAL_7B)
    train = predict(setup, architecture, constants=sample.CONSTANTS, compute_capability=(8, 0)).phase("train")
    assert train is not None
    assert train.peak_allocated_bytes == pytest.approx(published, rel=0.01)


def test_where_packed_weights_wait_decides_what_loading_takes() -> None:
    def loading(packed_on: Any) -> tuple[int, int]:
        setup = FSDP_QLORA._replace(spread=Spread(packed_on=packed_on), world_size=8)
        (run,) = record_runs(setup, architecture_from_config({**LLAMA_7B, "num_hidden_layers": 4}), (8, 6))
        return run.phases["load"].allocated, run.phases["load"].reserved

    on_gpu, on_host, warmed = map(loading, ("gpu", "host", "warmed"))
    assert on_gpu[0] > 1.5 * on_host[0]
    assert warmed[0] > 1.5 * on_host[0]  # transformers 4.57 takes a byte for each parameter first, and frees it
    assert on_gpu[1] > on_host[1] < warmed[1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"bnb_4bit_quant_storage": "uint8"}, "FSDP1 of 4 bits in uint8"),
        ({"prepare_for_kbit": True}, "FSDP1 of 4 bits in bf16 beside fp32"),
        ({"bnb_4bit_quant_storage": "fp32", "bf16": True, **V2}, "FSDP of 4 bits in fp32 computing in bf16"),
        ({"bnb_4bit_quant_storage": "uint8", **V2}, "FSDP2 of 4 bits in uint8 on the host"),
        ({"load_in_4bit": False, "load_in_8bit": True}, "FSDP of 8 bits"),
        ({"method": "full"}, "FSDP of 4 bits without adapters"),
    ],
)  # fmt: skip
def test_what_fsdp_does_not_take_is_named(change: dict[str, Any], named: str) -> None:
    assert why_not(FSDP_QLORA._replace(**change), architecture_from_config(LLAMA_7B)) == named


# --- a loss that reads the output layer's weight (bench/post_training_fsdp.py) ---------------------------------------

TRL_ROWS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "fsdp_trl_peaks.json").read_text("utf-8"))
TRL_BASE = {"bf16": True, "per_device_train_batch_size": 3, "max_source_length": 72, "world_size": 2, "fsdp": True,
            "gradient_checkpointing": True, "post": PostTraining("sft")}  # fmt: skip


@pytest.mark.parametrize("name", TRL_ROWS)
def test_sft_of_trl_peaks_under_fsdp_where_trl_s_own_code_does(name: str) -> None:
    row = TRL_ROWS[name]
    setup = setup_from({**TRL_BASE, **row["setup"]})._replace(spread=Spread(**row["spread"]))
    (recording,) = record_runs(setup, architecture_from_config(row["config"]), (8, 6))
    peak = recording.phases["train"]
    assert [peak.allocated, peak.reserved] == row["peak"]


def test_a_reference_under_fsdp_is_refused_by_name() -> None:
    setup = TrainingSetup(**{**TRL_BASE, "post": PostTraining("dpo", reference="model")})
    assert why_not(setup, architecture_from_config(TRL_ROWS["FSDP2"]["config"])) == "FSDP of dpo"
