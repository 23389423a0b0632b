"""Preference and reinforcement runs of the engine against what TRL's own losses took on fake tensors."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import PostTraining, TrainingSetup
from kb.memory import architecture_from_config, predict
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not

LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 50000, "tie_word_embeddings": False,
}  # fmt: skip
QWEN = {
    "model_type": "qwen2", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 70000, "tie_word_embeddings": True,
}  # fmt: skip
ADAPTED: dict[str, Any] = {"bf16": True, "method": "lora", "weights": "bf16"}
WHOLE: dict[str, Any] = {"bf16": True, "gradient_checkpointing": True}
# Recorded by bench/post_training.py: TRL 1.16.0 (heads fused, and rows of ORPO and CPO) and 1.8.0 (rows of DPO) under
# level 1, with compute capability 8.6: batch, length, bytes allocated and reserved.
TRACES = [
    (PostTraining("sft"), QWEN, WHOLE, 4, 1024, 1_654_972_416, 1_883_242_496),
    (PostTraining("dpo", reference="model"), LLAMA, {"bf16": True}, 2, 512, 1_489_142_784, 1_539_309_568),
    (PostTraining("dpo", reference="adapter_off"), LLAMA, ADAPTED | {"gradient_checkpointing": True, "lora_r": 16},
     4, 768, 474_998_784, 547_356_672),
    (PostTraining("dpo", reference="adapter_off"), LLAMA, WHOLE | {"method": "qlora", "weights": "bf16"},
     2, 1024, 614_892_032, 692_060_160),
    (PostTraining("kto", reference="model"), QWEN, WHOLE, 4, 512, 1_817_398_784, 2_126_512_128),
    (PostTraining("grpo", completion=256), QWEN, WHOLE, 8, 768, 1_615_246_336, 1_918_894_080),
    (PostTraining("orpo", head="rows"), QWEN, WHOLE, 2, 512, 3_112_755_712, 4_599_054_336),
    (PostTraining("cpo", head="rows"), LLAMA, ADAPTED, 2, 512, 1_691_663_872, 2_749_366_272),
    (PostTraining("dpo", head="rows", reference="adapter_off"), LLAMA, ADAPTED | {"gradient_checkpointing": True},
     2, 512, 1_458_273_792, 1_619_001_344),
    (PostTraining("dpo", head="rows", reference="model"), QWEN, {"weights": "bf16"},
     2, 512, 2_164_041_728, 2_592_079_872),
]  # fmt: skip


@pytest.mark.parametrize(("post", "config", "settings", "batch", "length", "allocated", "reserved"), TRACES)
def test_a_post_training_step_takes_what_the_trainers_own_loss_takes(
    post: PostTraining,
    config: dict[str, Any],
    settings: dict[str, Any],
    batch: int,
    length: int,
    allocated: int,
    reserved: int,
) -> None:
    setup = TrainingSetup(post=post, per_device_train_batch_size=batch, max_source_length=length, **settings)
    (recording,) = record_runs(setup, architecture_from_config(config), (8, 6))
    peak = recording.phases["train"]
    assert peak.allocated == pytest.approx(allocated, rel=0.015)
    assert peak.reserved == pytest.approx(reserved, rel=0.015)


@pytest.mark.parametrize(
    "trace", TRACES, ids=lambda trace: f"{trace[0].kind}-{trace[0].head}-{trace[2].get('method', 'full')}"
)
def test_a_batch_of_one_row_is_followed_too(trace: tuple[Any, ...]) -> None:
    post, config, settings, _, length, _, _ = trace
    setup = TrainingSetup(post=post, per_device_train_batch_size=1, max_source_length=length, **settings)
    (recording,) = record_runs(setup, architecture_from_config(config), (8, 6))
    assert 0 < recording.phases["train"].allocated <= recording.phases["train"].reserved


def peaks(memory: int = 24 << 30, **more: Any) -> dict[str, int]:
    given: dict[str, Any] = {"per_device_train_batch_size": 2, "max_source_length": 256} | ADAPTED | more
    report = predict(
        TrainingSetup(**given),
        architecture_from_config(LLAMA),
        constants=sample.CONSTANTS,
        gpu_memory_bytes=memory,
        compute_capability=(8, 6),
    )
    return {phase.name: phase.peak_reserved_bytes for phase in report.phases}


def test_a_reference_model_of_its_own_is_as_large_as_the_weights() -> None:
    post = PostTraining("dpo", reference="none")
    alone, beside = (peaks(post=post._replace(reference=kind)) for kind in ("none", "model"))
    weights = 2 * (2 * 50000 * 512)  # embedding and head in bf16; three layers come on top
    assert beside["load"] - alone["load"] > weights


def test_answers_that_the_model_generates_itself_are_a_phase() -> None:
    few, many = (peaks(post=PostTraining("grpo", completion=64, generated_rows=rows))["generate"] for rows in (8, 64))
    assert many > few


def test_vllm_beside_training_takes_its_share_and_gives_it_back_asleep() -> None:
    post = PostTraining("grpo", completion=64, colocated=0.5)
    awake, asleep = (peaks(post=post._replace(sleeps=sleeps)) for sleeps in (False, True))
    assert awake["train"] - asleep["train"] == 12 << 30
    assert asleep["generate"] > 12 << 30


def test_a_model_that_is_no_decoder_has_no_preference_run() -> None:
    t5 = {
        "model_type": "t5",
        "d_model": 64,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "d_kv": 16,
        "vocab_size": 100,
    }
    setup = TrainingSetup(post=PostTraining("dpo", reference="model"))
    assert why_not(setup, architecture_from_config(t5)) == "dpo of t5"


@pytest.mark.parametrize("where", ["lora_target_modules", "modules_to_save"])
def test_an_adapter_on_a_table_of_words_is_refused_by_name(where: str) -> None:
    setup = TrainingSetup(method="lora", post=PostTraining("orpo", head="rows"))
    changed = setup._replace(**{where: ("q_proj", "model.embed_tokens")})  # type: ignore[arg-type]
    assert why_not(setup, architecture_from_config(LLAMA)) is None
    assert why_not(changed, architecture_from_config(LLAMA)) == "LoRA on model.embed_tokens"


@pytest.mark.parametrize(
    ("method", "allocated", "reserved"),
    [("lora", 121_547_776, 155_189_248), ("qlora", 124_606_464, 146_800_640)],
)
def test_reentrant_checkpointing_takes_what_level_1_takes(method: Any, allocated: int, reserved: int) -> None:
    """Axolotl's and LLaMA-Factory's default: recorded by bench/engine_diff.py, to the byte."""
    config = LLAMA | {"num_hidden_layers": 4, "vocab_size": 5000}
    given = WHOLE | {"method": method, "weights": "bf16", "use_reentrant": True, "per_device_train_batch_size": 2}
    (recording,) = record_runs(TrainingSetup(max_source_length=512, **given), architecture_from_config(config), (8, 6))
    assert recording.phases["train"][:2] == (allocated, reserved)
