"""Unsloth's layers and checkpoints: its own code on fake tensors, and the lengths that it has published."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.memory import architecture_from_config, predict
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SMALL = {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 2, "num_attention_heads": 16,
         "num_key_value_heads": 4, "vocab_size": 1024, "tie_word_embeddings": False}  # fmt: skip
LLAMA: dict[str, Any] = SMALL | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN3: dict[str, Any] = SMALL | {"model_type": "qwen3", "head_dim": 64, "architectures": ["Qwen3ForCausalLM"]}
MISTRAL: dict[str, Any] = SMALL | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
CHECKPOINTED = {"gradient_checkpointing": True, "use_reentrant": True}
ADAPTED: dict[str, Any] = {"method": "lora", "bf16": True, "weights": "bf16", "lora_target_modules": TARGETS,
                           "padded": False, "unsloth": True, "unsloth_layers": True}  # fmt: skip
# By bench/unsloth_layers.py: the functions of Unsloth 2026.10.9 on fake tensors (transformers 5.23.0, torch 2.13.0):
# bytes of training, allocated and reserved.
ROWS: list[tuple[dict[str, Any], int, int, dict[str, Any], tuple[int, int]]] = [
    (LLAMA, 2, 1024, CHECKPOINTED, (164_596_736, 190_840_832)),
    (LLAMA, 2, 1024, {}, (218_755_584, 270_532_608)),
    (LLAMA, 4, 4096, CHECKPOINTED, (754_560_000, 905_969_664)),
    (QWEN3, 2, 1024, CHECKPOINTED, (170_005_504, 192_937_984)),
    (QWEN3, 2, 1024, {}, (229_571_072, 272_629_760)),
    (MISTRAL, 3, 777, CHECKPOINTED, (176_626_176, 197_132_288)),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]['model_type']} {at}" for at, row in enumerate(ROWS)])
def test_training_takes_what_unsloths_own_functions_take(row: Any) -> None:
    config, rows, length, given, wanted = row
    setup = TrainingSetup(per_device_train_batch_size=rows, max_source_length=length, **ADAPTED, **given)
    (recording,) = record_runs(setup, architecture_from_config(config), (8, 6))
    peak = recording.phases["train"]
    assert (peak.allocated, peak.reserved) == wanted


def of_a_layer(length: int, **given: Any) -> float:
    """Bytes that a further layer adds to the peak of training, beside its weights and adapters."""

    def peak(layers: int) -> int:
        architecture = architecture_from_config(LLAMA | {"num_hidden_layers": layers})
        setup = TrainingSetup(per_device_train_batch_size=1, max_source_length=length, **ADAPTED, **given)
        (recording,) = record_runs(setup, architecture, (8, 6))
        return recording.phases["train"].allocated - recording.phases["load"].allocated

    return (peak(10) - peak(6)) / 4


def test_what_goes_into_checkpointed_layers_waits_on_the_host() -> None:
    states = 4096 * 1024 * 2
    kept = of_a_layer(4096, **CHECKPOINTED) - of_a_layer(4096, **CHECKPOINTED, offloads_checkpoints=True)
    assert kept == states
    short = 512 * 1024 * 2  # 1 MiB, which Unsloth leaves where it is
    assert of_a_layer(512, **CHECKPOINTED) == of_a_layer(512, **CHECKPOINTED, offloads_checkpoints=True) > short
    setup = TrainingSetup(per_device_train_batch_size=2, max_source_length=4096, **ADAPTED, **CHECKPOINTED)
    on_host = [
        predict(
            setup._replace(offloads_checkpoints=away), architecture_from_config(LLAMA), constants=sample.CONSTANTS
        ).host
        for away in (True, False)
    ]
    # two layers of two samples, where rows are as long as they may be: no more than the high end says so
    assert on_host[0].claimed_low_bytes - on_host[1].claimed_low_bytes == 2 * 2 * states


# https://unsloth.ai/docs/basics/unsloth-benchmarks: the longest sample that trains on a card of so many GB, Llama 3.1
# 8B and Llama 3.3 70B in 4 bits, rank 32, one sample; lines through few measurements, and no more than a claim.
PUBLISHED = [(8, 12, 21_848), (8, 24, 78_475), (8, 80, 342_733), (70, 80, 89_389)]


@pytest.mark.parametrize(("billions", "card", "length"), PUBLISHED)
def test_published_lengths_fit_their_cards_and_nearly_fill_them(billions: int, card: int, length: int) -> None:
    wide, inner, layers, heads = (4096, 14336, 32, 32) if billions == 8 else (8192, 28672, 80, 64)
    config = LLAMA | {"hidden_size": wide, "intermediate_size": inner, "num_hidden_layers": layers,
                      "num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 128_256}  # fmt: skip
    setup = TrainingSetup(
        per_device_train_batch_size=1, max_source_length=length, load_in_4bit=True, bnb_4bit_use_double_quant=True,
        prepare_for_kbit=False, trained_type="fp32", optim="adamw_8bit", lora_r=32, attn_implementation="flash",
        fused_loss=True, offloads_checkpoints=True, **ADAPTED | CHECKPOINTED | {"method": "qlora"},
    )  # fmt: skip
    report = predict(setup, architecture_from_config(config), constants=sample.CONSTANTS)
    train = report.phase("train")
    assert train is not None
    assert 0.85 * card < train.process_used_bytes / 2**30 < card


def test_its_loss_takes_of_what_is_free_and_makes_nothing_too_large() -> None:
    setup = TrainingSetup(per_device_train_batch_size=8, max_source_length=4096, fused_loss=True, **ADAPTED)
    architecture = architecture_from_config(LLAMA | {"vocab_size": 32_768})
    reports = [predict(setup, architecture, constants=sample.CONSTANTS, gpu_memory_bytes=gib << 30) for gib in (8, 9)]
    less, more = (each.phase("train") for each in reports)
    assert less is not None and more is not None
    assert (less.low_bytes, less.peak_reserved_bytes) == (more.low_bytes, more.peak_reserved_bytes)
    assert less.high_bytes < more.high_bytes < 9 << 30
    assert {each.verdict.status for each in reports} == {"fits"}


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (LLAMA, {"lora_dropout": 0.05}),  # which releases before 2026 leave to PEFT
        (LLAMA | {"model_type": "granite"}, {}),
        (LLAMA, {"unsloth_layers": False}),  # FastModel, 8 bits, all weights
    ],
)
def test_layers_that_are_not_followed_make_no_run_surely_out_of_memory(config: Any, given: Any) -> None:
    setup = TrainingSetup(per_device_train_batch_size=16, max_source_length=4096, **ADAPTED | given)
    architecture = architecture_from_config(config)
    assert "Unsloth's layers" in (why_not(setup, architecture) or "")
    report = predict(setup, architecture, constants=sample.CONSTANTS, gpu_memory_bytes=4 << 30)
    assert report.verdict.status == "likely_oom"
    assert "unsloth_layers" in {each.reason for each in report.assumed}
