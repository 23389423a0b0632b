"""Preference and reinforcement runs of the engine against what TRL's own losses took on fake tensors."""

from typing import Any, get_args

import pytest

import memory_sample as sample
from kb.core.setup import Colocated, Liger, PostKind, PostTraining, TrainingSetup
from kb.memory import architecture_from_config, predict
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not
from kb.memory.releases import earlier_release

LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 50000, "tie_word_embeddings": False,
}  # fmt: skip
QWEN = {
    "model_type": "qwen2", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 70000, "tie_word_embeddings": True,
}  # fmt: skip
MISTRAL = {
    "model_type": "mistral", "hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 5,
    "num_attention_heads": 10, "num_key_value_heads": 2, "vocab_size": 32000, "sliding_window": None,
}  # fmt: skip
ADAPTED: dict[str, Any] = {"bf16": True, "method": "lora", "weights": "bf16"}
WHOLE: dict[str, Any] = {"bf16": True, "gradient_checkpointing": True}
# Recorded by bench/post_training.py: TRL 1.16.0 (heads fused, and rows of ORPO and CPO) and 1.8.0 (rows of DPO) under
# level 1, with compute capability 8.6: batch, length, bytes allocated and reserved.
TRACES = [
    (PostTraining("sft"), QWEN, WHOLE, 4, 1024, 1_655_408_640, 1_883_242_496),
    (PostTraining("dpo", reference="model"), LLAMA, {"bf16": True}, 2, 512, 1_490_387_968, 1_539_309_568),
    (PostTraining("dpo", reference="adapter_off"), LLAMA, ADAPTED | {"gradient_checkpointing": True, "lora_r": 16},
     4, 768, 468_243_456, 547_356_672),
    (PostTraining("dpo", reference="adapter_off"), LLAMA, WHOLE | {"method": "qlora", "weights": "bf16"},
     2, 1024, 607_145_472, 692_060_160),
    (PostTraining("kto", reference="model"), QWEN, WHOLE, 4, 512, 1_819_627_008, 2_126_512_128),
    (PostTraining("orpo", head="rows"), QWEN, WHOLE, 2, 512, 3_112_755_712, 4_599_054_336),
    (PostTraining("cpo", head="rows"), LLAMA, ADAPTED, 2, 512, 1_691_663_872, 2_749_366_272),
    (PostTraining("dpo", head="rows", reference="adapter_off"), LLAMA, ADAPTED | {"gradient_checkpointing": True},
     2, 512, 1_454_078_976, 1_619_001_344),
    (PostTraining("dpo", head="rows", reference="model"), QWEN, {"weights": "bf16"},
     2, 512, 2_164_041_216, 2_592_079_872),
    (PostTraining("reward"), LLAMA, {"bf16": True}, 2, 512, 664_338_944, 851_443_712),
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
    assert peak.allocated == pytest.approx(allocated, rel=0.0001)
    assert peak.reserved == reserved


# The same of GRPO and RLOO (TRL 1.16.0, and 0.29.1 with whole logits): bytes of training, then of the answers that the
# model generates between the steps.
GENERATED = [
    (PostTraining("grpo", completion=256), QWEN, WHOLE, 8, 768, (1_616_032_768, 1_893_728_256)),
    (PostTraining("grpo", completion=256, generated_rows=8), QWEN, WHOLE, 8, 768,
     (1_619_440_640, 1_944_059_904), (1_158_836_736, 1_568_669_696)),
    (PostTraining("grpo", completion=256, generated_rows=32, reference="adapter_off"), LLAMA,
     ADAPTED | {"gradient_checkpointing": True, "lora_r": 16}, 8, 512,
     (303_861_760, 427_819_008), (269_820_416, 427_819_008)),
    (PostTraining("grpo", completion=512, generated_rows=16), LLAMA, WHOLE | {"method": "qlora", "weights": "bf16"},
     4, 1024, (462_352_896, 681_574_400), (491_533_312, 681_574_400)),
    (PostTraining("rloo", completion=200, generated_rows=16, reference="model"), MISTRAL, {"bf16": True}, 4, 300,
     (1_502_047_744, 1_623_195_648), (1_160_418_816, 1_444_937_728)),
    (PostTraining("grpo", completion=300, generated_rows=64), LLAMA, {"weights": "bf16"}, 8, 512,
     (1_010_312_704, 1_201_668_096), (596_764_672, 887_095_296)),
    (PostTraining("grpo", completion=256, generated_rows=16, head="rows"), QWEN, WHOLE, 4, 640,
     (1_982_390_272, 2_311_061_504), (1_194_428_928, 1_732_247_552)),
]  # fmt: skip


@pytest.mark.parametrize("row", GENERATED)
def test_answers_generated_between_the_steps_take_what_trl_and_transformers_take(row: Any) -> None:
    post, config, settings, batch, length, *wanted = row
    setup = TrainingSetup(post=post, per_device_train_batch_size=batch, max_source_length=length, **settings)
    architecture = architecture_from_config(config)
    setup = setup._replace(earlier=earlier_release(architecture.model_type, (5, 23)))  # simulated with it
    (recording,) = record_runs(setup, architecture, (8, 6))
    for name, (allocated, reserved) in zip(("train", "generate"), wanted, strict=False):
        peak = recording.phases[name]
        assert peak.allocated == pytest.approx(allocated, rel=0.0004)
        assert peak.reserved == pytest.approx(reserved, rel=0.001)


# GRPO with Liger's loss: TRL 1.8.0 beside liger-kernel 0.8.5, and 0.8.2, which makes a frozen output layer's gradient
# too. Nothing of it runs under the Trainer's autocast: the second row computes in fp32, whatever `bf16` says.
BY_TILES = [
    (Liger(), LLAMA, {"bf16": True, "weights": "bf16", "gradient_checkpointing": True}, 768, 256,
     (613_414_400, 645_922_816)),
    (Liger(), QWEN, WHOLE, 640, 300, (1_502_876_672, 1_784_676_352)),
    (Liger(frozen_gradient=True), LLAMA, ADAPTED | {"gradient_accumulation_steps": 2}, 640, 300,
     (518_422_528, 599_785_472)),
    (Liger(), LLAMA, WHOLE | {"method": "qlora", "weights": "bf16", "prepare_for_kbit": False, "trained_type": "bf16"},
     640, 300, (209_031_680, 245_366_784)),
]  # fmt: skip


@pytest.mark.parametrize("row", BY_TILES)
def test_grpo_with_liger_takes_what_trl_and_liger_take(row: Any) -> None:
    liger, config, settings, length, answer, (allocated, reserved) = row
    post = PostTraining("grpo", head="rows", completion=answer, liger=liger)
    setup = TrainingSetup(post=post, per_device_train_batch_size=4, max_source_length=length, **settings)
    (recording,) = record_runs(setup, architecture_from_config(config), (8, 6))
    assert recording.phases["train"].allocated == pytest.approx(allocated, rel=0.0001)
    assert recording.phases["train"].reserved == reserved


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("kind", [kind for kind in get_args(PostKind) if kind != "embedding"])  # an encoder's
def test_every_trainer_is_followed_as_a_setup_names_it_first(kind: Any, method: Any) -> None:
    post = PostTraining(kind, completion=16 if kind in ("grpo", "rloo") else 0)
    setup = TrainingSetup(post=post, method=method, bf16=True, per_device_train_batch_size=2, max_source_length=64)
    (recording,) = record_runs(setup, architecture_from_config(LLAMA), (8, 6))
    assert 0 < recording.phases["train"].allocated <= recording.phases["train"].reserved


def trained(post: PostTraining, config: dict[str, Any] = LLAMA, **more: Any) -> int:
    """Bytes allocated at most in training."""
    given: dict[str, Any] = {"weights": "bf16", "gradient_checkpointing": True, "max_source_length": 512} | more
    (recording,) = record_runs(TrainingSetup(post=post, **given), architecture_from_config(config), (8, 6))
    return recording.phases["train"].allocated


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_liger_holds_the_logits_of_a_pair_or_a_row_whatever_the_batch(kind: Any) -> None:
    """Of a pair the policy's and the reference's logits and an fp32 tensor as large, at once. KTO's own estimate of
    the distance has whole logits still.
    """
    post = PostTraining(kind, head="rows", reference="adapter_off", liger=Liger())
    few, many = (trained(post, method="lora", per_device_train_batch_size=size) for size in (2, 4))
    assert many < trained(post._replace(liger=None), method="lora", per_device_train_batch_size=4)
    if kind == "dpo":
        logits = 2 * 511 * 50000 * (2 + 2 + 4)
        assert few > logits > 4 * (many - few)  # nothing of a length times the vocabulary comes with two more pairs


def test_before_liger_spared_it_a_frozen_output_layer_had_a_gradient() -> None:
    post = PostTraining("dpo", head="rows", reference="adapter_off", liger=Liger())
    older = post._replace(liger=Liger(frozen_gradient=True))
    took, spared = (trained(each, method="lora", per_device_train_batch_size=2) for each in (older, post))
    assert took - spared == pytest.approx(50000 * 512 * 2, rel=0.01)


def test_before_the_loss_was_rewritten_every_layers_output_waited_for_it() -> None:
    """``output_hidden_states=True``, of the reference too, where nothing else keeps them."""
    post = PostTraining("dpo", head="rows", reference="adapter_off", liger=Liger())
    older, few = post._replace(liger=Liger(states_kept=True)), LLAMA | {"vocab_size": 60000, "num_hidden_layers": 12}
    kept, let_go = (trained(each, few, method="lora", per_device_train_batch_size=2) for each in (older, post))
    assert kept - let_go > 10 * (4 * 512 * 512 * 2)


def test_liger_refuses_hidden_states_of_another_type_than_the_output_layer() -> None:
    settings = WHOLE | {"method": "qlora", "weights": "bf16", "half_tables": True}
    post = PostTraining("kto", head="rows", reference="adapter_off", liger=Liger())
    with pytest.raises(NotFollowedError, match="weights of two types"):
        trained(post, **settings)
    assert trained(post._replace(liger=Liger(autocast=True)), **settings) > 0  # which TRL sets for these


def test_an_answer_as_long_as_the_whole_is_refused_by_name() -> None:
    setup = TrainingSetup(max_source_length=64, post=PostTraining("grpo", completion=512, generated_rows=8))
    assert why_not(setup, architecture_from_config(LLAMA)) == "512 of 64 tokens generated"
    with pytest.raises(NotFollowedError, match="512 of 64 tokens generated"):
        record_runs(setup, architecture_from_config(LLAMA), (8, 6))


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
    awake, asleep = (
        peaks(post=PostTraining("grpo", completion=64, colocated=Colocated(0.5, sleeps))) for sleeps in (False, True)
    )
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
