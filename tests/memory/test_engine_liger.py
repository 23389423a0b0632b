"""Liger's kernels in plain training: sizes by hand from its source, and its own code on fake tensors."""

import sys
from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import LigerKernels, TrainingSetup
from kb.memory import architecture_from_config, predict
from kb.memory.engine.ops.liger import chunk_of, fused_cross_entropy
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not
from kb.memory.engine.tensor import BF16, new
from kb.memory.engine.world import held, world

sys.path.insert(0, str(sample.ROOT / "bench"))

from engine_models import MODELS

QUERY_VALUE = ("q_proj", "v_proj")
LLAMA = MODELS["llama"]
# By bench/liger.py: liger-kernel's Python code on fake tensors with kernels of Triton's that do nothing (transformers
# 5.23.0, torch 2.13.0): bytes allocated and reserved, by phase.
ROWS: list[tuple[tuple[int, ...], str, dict[str, Any], dict[str, tuple[int, int]]]] = [
    ((0, 8, 5), "llama", {"weights": "bf16", "per_device_train_batch_size": 2, "max_source_length": 512}, {"train":
     (2_527_524_352, 2_724_200_448)}),
    ((0, 8, 5), "llama", {"bf16": True, "per_device_train_batch_size": 1, "max_source_length": 1024,
     "gradient_checkpointing": True, "gradient_accumulation_steps": 2}, {"train": (5_952_083_968, 6_071_255_040)}),
    ((0, 8, 5), "llama", {"bf16": True, "weights": "bf16", "method": "lora", "lora_target_modules": QUERY_VALUE,
     "per_device_train_batch_size": 4, "max_source_length": 333, "do_eval": True, "per_device_eval_batch_size": 2,
     "prediction_loss_only": True}, {"train": (974_730_752, 1_012_924_416), "evaluate": (678_837_760,
     1_012_924_416)}),
    ((0, 8, 5), "qwen3-0.6b", {"bf16": True, "per_device_train_batch_size": 2, "max_source_length": 512, "do_eval":
     True, "per_device_eval_batch_size": 2}, {"train": (3_710_951_936, 4_412_407_808), "evaluate": (4_198_359_552,
     4_412_407_808)}),
    ((0, 8, 5), "gemma-2", {"bf16": True, "weights": "bf16", "method": "qlora", "load_in_4bit": True,
     "lora_target_modules": QUERY_VALUE, "per_device_train_batch_size": 2, "max_source_length": 777,
     "gradient_checkpointing": True}, {"train": (1_150_784_000, 1_325_400_064)}),
    ((0, 8, 5), "phi-3", {"weights": "bf16", "bf16": True, "per_device_train_batch_size": 2, "max_source_length":
     256}, {"train": (3_409_327_616, 3_659_530_240)}),
    ((0, 8, 5), "exaone-4", {"per_device_train_batch_size": 1, "max_source_length": 512}, {"train": (9_619_199_488,
     10_615_783_424)}),
    ((0, 8, 5), "gemma-3", {"weights": "bf16", "per_device_train_batch_size": 2, "max_source_length": 1024, "optim":
     "adafactor"}, {"train": (1_824_988_160, 2_313_158_656)}),
    ((0, 8, 5), "llama", {"bf16": True, "weights": "bf16", "method": "lora", "lora_target_modules": ("q_proj",
     "lm_head"), "per_device_train_batch_size": 2, "max_source_length": 333, "do_eval": True,
     "per_device_eval_batch_size": 2}, {"train": (797_884_928, 822_083_584), "evaluate": (862_849_536,
     1_126_170_624)}),  # the adapter of the head is passed over in training
    ((0, 8, 0), "llama", {"weights": "bf16", "per_device_train_batch_size": 2, "max_source_length": 512}, {"train":
     (2_717_767_680, 2_866_806_784)}),
    ((0, 8, 0), "llama", {"bf16": True, "per_device_train_batch_size": 1, "max_source_length": 1024,
     "gradient_checkpointing": True, "gradient_accumulation_steps": 2}, {"train": (6_213_965_824, 6_348_079_104)}),
    ((0, 8, 0), "qwen3-0.6b", {"bf16": True, "per_device_train_batch_size": 2, "max_source_length": 512, "do_eval":
     True, "per_device_eval_batch_size": 2}, {"train": (4_358_955_520, 4_433_379_328), "evaluate": (4_198_359_552,
     4_433_379_328)}),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{model} {at}" for at, (_, model, *_) in enumerate(ROWS)])
def test_training_takes_what_ligers_own_code_takes(row: Any) -> None:
    release, model, given, wanted = row
    setup = TrainingSetup(**given, fused_loss=True, liger_kernels=LigerKernels(release))
    (recording,) = record_runs(setup, architecture_from_config(MODELS[model]), (8, 6))
    found = {name: (peak.allocated, peak.reserved) for name, peak in recording.phases.items()}
    assert {name: found[name] for name in wanted} == wanted


def test_chunks_are_as_ligers_source_has_them() -> None:
    assert chunk_of(4096 * 4, 4096, 32000) == 2048  # its own example, fused_linear_cross_entropy.py
    # 63 times 512 reach 32,000; a 63rd of 2,048 tokens is 33, and the power of two from there 64
    assert chunk_of(2048, 512, 32000) == 64
    assert chunk_of(100, 4096, 1000) == 128  # as many words as the states are wide, or fewer: one chunk


def peak_of_head(release: tuple[int, ...], *, trains: bool = True) -> int:
    """Bytes at the peak of a loss of 2,048 tokens, 512 wide, among 32,000 words, beside its inputs in bf16."""
    with held():
        recording = world.begin((8, 6))
        recording.begin("train")
        hidden, weight = new((2048, 512), BF16), new((32000, 512), BF16)
        hidden.needs, weight.needs = True, trains
        loss = fused_cross_entropy(hidden, weight, release)
        recording.begin("")
        del loss
        at = recording.phases["train"].at
        asked = sum(recording.sums([at])[at].values())
        return asked - hidden.storage.size - weight.storage.size


def test_the_head_takes_what_its_source_says() -> None:
    by_hidden, by_weight = 2048 * 512 * 2, 32000 * 512 * 2  # grad_input, grad_weight: zeros_like
    chunk = 64 * 32000 * 2  # logits, over which their gradient is written
    small, workspace = 2048 * 4 + 2048, 8_519_680  # loss_1d in fp32, target_mask; cuBLAS's own
    held_always = by_hidden + by_weight + small + workspace
    assert peak_of_head((0, 8, 5)) == held_always + chunk  # one buffer, written over and over
    # before 0.8.3 of a gradient in bf16: the product of a chunk, and its ``.float()``, are whole weights
    assert peak_of_head((0, 8, 2)) == held_always + chunk + by_weight + 2 * by_weight
    assert peak_of_head((0, 8, 5), trains=False) == by_hidden + small + workspace + chunk


@pytest.mark.parametrize("vocabulary", [32_000, 128_256, 256_000])
@pytest.mark.parametrize(
    "given",
    [
        {"weights": "bf16"},
        {"bf16": True},
        {"bf16": True, "gradient_checkpointing": True},
        {"weights": "bf16", "method": "lora", "lora_target_modules": QUERY_VALUE},
    ],
)
@pytest.mark.parametrize("kernels", [LigerKernels(), None])
def test_fused_never_takes_more_than_whole_logits(vocabulary: int, given: dict[str, Any], kernels: Any) -> None:
    architecture = architecture_from_config(LLAMA | {"vocab_size": vocabulary})
    """Of few tokens it may: the output layer's gradient is there before backward begins."""
    setup = TrainingSetup(per_device_train_batch_size=4, max_source_length=1024, **given)
    (plain,) = record_runs(setup, architecture, (8, 6))
    (fused,) = record_runs(setup._replace(fused_loss=True, liger_kernels=kernels), architecture, (8, 6))
    assert fused.phases["train"].allocated <= plain.phases["train"].allocated
    if given.get("method"):  # else the optimizer's step may be the peak
        assert fused.phases["train"].allocated < plain.phases["train"].allocated


def test_whole_logits_are_never_alive() -> None:
    architecture = architecture_from_config(LLAMA)
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=2, max_source_length=512, fused_loss=True,
                          liger_kernels=LigerKernels())  # fmt: skip
    (recording,) = record_runs(setup, architecture, (8, 6))
    sizes = {recording.log[number] for number, term in recording.terms.items() if term == "logits"}
    # 1,024 tokens, 2,048 wide, among 32,000 words: a chunk of 64 tokens in bf16, and nothing larger
    assert sizes == {64 * 32000 * 2}


def report(setup: TrainingSetup, config: dict[str, Any] = LLAMA) -> Any:
    return predict(setup, architecture_from_config(config), constants=sample.CONSTANTS)


def reasons(setup: TrainingSetup, config: dict[str, Any] = LLAMA) -> set[str]:
    return {each.reason for each in report(setup, config).assumed}


@pytest.mark.parametrize(
    ("config", "kernels", "said"),
    [
        (LLAMA, LigerKernels(), {"liger_source"}),
        (MODELS["mixtral"], LigerKernels(), {"liger_source", "liger_layers"}),  # its experts are transformers' own
        (MODELS["granite"], LigerKernels(), {"liger_layers"}),  # its logits are scaled: Liger does not fuse its loss
        (MODELS["gpt_neox"], LigerKernels(), {"no_liger_of_the_type"}),
        (MODELS["exaone-4"], LigerKernels((0, 6, 4)), {"no_liger_of_the_type"}),  # which 0.7.0 learned
        (MODELS["t5"], LigerKernels(), {"no_liger_of_the_type"}),
        (MODELS["gpt_neox"], None, {"fused_as_liger"}),  # Cut Cross-Entropy, Unsloth
    ],
)
def test_it_is_said_what_of_liger_is_followed(config: dict[str, Any], kernels: Any, said: set[str]) -> None:
    setup = TrainingSetup(bf16=True, max_source_length=128, max_target_length=16, per_device_train_batch_size=2)
    fused = setup._replace(fused_loss=True, liger_kernels=kernels)
    known = {"liger_source", "liger_layers", "no_liger_of_the_type", "fused_as_liger"}
    assert reasons(fused, config) & known == said
    assert not reasons(setup, config) & known
    if "no_liger_of_the_type" in said:
        taken, plain = report(fused, config).phase("train"), report(setup, config).phase("train")
        assert taken.peak_allocated_bytes == plain.peak_allocated_bytes


def test_the_range_is_wider_where_kernels_were_only_read() -> None:
    setup = TrainingSetup(bf16=True, max_source_length=512, fused_loss=True, liger_kernels=LigerKernels())
    train = report(setup).phase("train")
    assert train.low_bytes < train.peak_allocated_bytes * 0.96 + (1 << 30)
    assert train.high_bytes > train.peak_reserved_bytes * 1.04


@pytest.mark.parametrize(
    ("given", "fewer"),
    [
        ({"prediction_loss_only": True, "liger_kernels": LigerKernels()}, True),
        ({"prediction_loss_only": True, "liger_kernels": LigerKernels(skips=False)}, False),  # transformers before 5.15
        ({"liger_kernels": LigerKernels()}, False),  # predictions are kept
        ({"prediction_loss_only": True}, False),
        ({"prediction_loss_only": True, "fused_evaluation": True}, True),  # Cut Cross-Entropy
    ],
)
def test_evaluation_makes_logits_unless_the_loss_alone_is_asked_for(given: dict[str, Any], fewer: bool) -> None:
    setup = TrainingSetup(bf16=True, weights="bf16", do_train=False, do_eval=True, fused_loss=True, **given,
                          per_device_eval_batch_size=4, max_source_length=512)  # fmt: skip
    logits = 4 * 512 * LLAMA["vocab_size"] * 2
    taken = report(setup).phase("evaluate").peak_allocated_bytes
    plain = report(setup._replace(fused_loss=False, liger_kernels=None)).phase("evaluate").peak_allocated_bytes
    assert (taken < plain - logits) == fewer


def test_a_smoothed_loss_needs_whole_logits() -> None:
    """The Trainer takes the labels out before the forward pass, and Liger then makes logits."""
    setup = TrainingSetup(bf16=True, max_source_length=256, label_smoothing_factor=0.1)
    kernels = LigerKernels(layers=False)
    taken, plain = (report(each).phase("train").peak_allocated_bytes
                    for each in (setup._replace(fused_loss=True, liger_kernels=kernels), setup))  # fmt: skip
    assert taken == plain


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"world_size": 2, "fsdp": True}, "FSDP with use_liger_kernel"),
        ({"world_size": 2, "zero_stage": 3}, "ZeRO-3 with use_liger_kernel"),
        ({"world_size": 2}, None),
        ({"world_size": 2, "zero_stage": 2}, None),
    ],
)
def test_weights_that_are_sharded_are_refused_by_name(given: dict[str, Any], what: str | None) -> None:
    setup = TrainingSetup(bf16=True, fused_loss=True, liger_kernels=LigerKernels(), **given)
    assert why_not(setup, architecture_from_config(LLAMA)) == what
