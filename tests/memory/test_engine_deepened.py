"""A deep model's recording that is written from two shallow ones, beside that of the whole model, entry for entry."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples, few
from kb.core.setup import PostTraining, Spread, TrainingSetup
from kb.memory import architecture_from_config
from kb.memory.engine import deepened
from kb.memory.engine.deepened import recorded_deep
from kb.memory.engine.expandable import ExpandableAllocator
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.predict import record_runs, record_training
from kb.memory.engine.world import Recording

DECODER = {"hidden_size": 128, "num_hidden_layers": 17, "num_attention_heads": 4, "vocab_size": 1000,
           "max_position_embeddings": 512, "intermediate_size": 352}  # fmt: skip
PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**DECODER, "model_type": "llama", "num_key_value_heads": 2},
    "gpt_neox": {**DECODER, "model_type": "gpt_neox"},
    "gemma2": {**DECODER, "model_type": "gemma2", "num_hidden_layers": 34, "num_key_value_heads": 2, "head_dim": 32},
    "gemma3_text": {**DECODER, "model_type": "gemma3_text", "num_hidden_layers": 55, "num_key_value_heads": 2,
                    "head_dim": 32, "sliding_window": 64, "layer_types": [*PATTERN * 18, "sliding_attention"]},
    "qwen3_moe": {**DECODER, "model_type": "qwen3_moe", "num_hidden_layers": 24, "num_key_value_heads": 2,
                  "head_dim": 32, "num_experts": 4,
                  "num_experts_per_tok": 2, "moe_intermediate_size": 64, "mlp_only_layers": [0]},
    "bert": {**DECODER, "model_type": "bert", "architectures": ["BertForMaskedLM"]},
    "t5": {"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 18,
           "vocab_size": 1000},
    "bart": {"model_type": "bart", "d_model": 64, "encoder_layers": 18, "decoder_layers": 18, "vocab_size": 1000,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
             "decoder_ffn_dim": 128, "max_position_embeddings": 512},
}  # fmt: skip
POSTS = (
    PostTraining("dpo", reference="model"),
    PostTraining("dpo", head="rows", reference="adapter_off"),
    PostTraining("orpo", head="copied"),
    PostTraining("reward"),
    PostTraining("grpo", completion=40, generated_rows=4),
)
SETUPS = st.fixed_dictionaries({
    "method": st.sampled_from(("full", "lora", "qlora")),
    "load_in_4bit": st.just(True),
    "bf16": st.booleans(),
    "weights": st.sampled_from(("fp32", "bf16")),
    "gradient_checkpointing": st.booleans(),
    "use_reentrant": st.booleans(),
    "gradient_accumulation_steps": st.sampled_from((1, 4)),
    "attn_implementation": st.sampled_from(("sdpa", "eager")),
    "optim": st.sampled_from(("adamw_torch_fused", "adamw_torch", "adamw_8bit", "sgd", "adafactor", "adamw_hf")),
    "per_device_train_batch_size": st.integers(1, 5),
    "max_source_length": st.integers(50, 300),
    "do_train": st.sampled_from((True, True, False)),
    "do_eval": st.booleans(),
    "predict_with_generate": st.booleans(),
    "generation_num_beams": st.sampled_from((1, 3)),
    "generation_max_length": st.sampled_from((4, 30)),
    "do_predict": st.booleans(),
    "post": st.sampled_from((None, *[None] * 3, *POSTS)),
})  # fmt: skip


def setup_of(options: dict[str, Any]) -> TrainingSetup:
    return TrainingSetup(**{**options, "load_in_4bit": options.get("method") == "qlora"})


def both(setup: TrainingSetup, name: str) -> tuple[list[Recording] | None, list[Recording]]:
    """What is written, and what is recorded whole."""
    architecture = architecture_from_config(CONFIGS[name])
    return recorded_deep(
        setup, architecture, lambda shallow, kind: record_runs(setup, shallow, (8, 6), kind=kind)
    ), record_runs(setup, architecture, (8, 6))


def settled(recording: Recording) -> list[int]:
    """The log, with what is given back at once in the order in which it was asked for."""
    settled: list[int] = []
    given_back: list[int] = []
    happenings = {at for at, _, _ in recording.acts}
    for at, entry in enumerate(recording.log):
        if entry >= 0 or at in happenings:
            settled += sorted(given_back)
            given_back = []
        (settled if entry >= 0 else given_back).append(entry)
    return settled + sorted(given_back)


def same(written: Recording, whole: Recording) -> None:
    assert settled(written) == settled(whole)
    assert written.acts == whole.acts
    assert written.labels() == whole.labels()
    assert written.terms == whole.terms
    assert written.phases == whole.phases
    peaks = {peak.at for peak in whole.phases.values()}
    assert written.sums(peaks) == whole.sums(peaks)
    for peak in peaks - {-1}:
        assert written.label(peak) == whole.label(peak)


@pytest.mark.exhaustive
@settings(max_examples=examples(20, 100), deadline=None)
@given(st.sampled_from(sorted(CONFIGS)), SETUPS)
@pytest.mark.long
def test_what_is_written_of_a_deep_model_is_what_it_asks_for(name: str, options: dict[str, Any]) -> None:
    setup = setup_of(options)
    try:
        written, whole = both(setup, name)
    except NotFollowedError:
        return
    for one, other in zip(written or (), whole, strict=written is not None):
        same(one, other)


# Each family in one of the three ways by turns; with --exhaustive in all.
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(
            name,
            method,
            id=f"{method}-{name}",
            marks=[pytest.mark.exhaustive] if (number - way) % 3 else [],
        )
        for way, method in enumerate(("full", "lora", "qlora"))
        for number, name in enumerate(CONFIGS)
    ],
)
def test_common_runs_of_every_family_are_written(name: str, method: str) -> None:
    options = {"method": method, "bf16": True, "do_eval": True, "max_source_length": 64}
    if name == "qwen3_moe" and method != "full":  # PEFT has no targets for it
        options["lora_target_modules"] = ("q_proj", "v_proj")
    setup = setup_of(options)
    written, whole = both(setup, name)
    assert written is not None
    for one, other in zip(written, whole, strict=True):
        same(one, other)


@pytest.mark.long
def test_batches_of_varied_lengths_are_written() -> None:
    setup, architecture = setup_of({"bf16": True}), architecture_from_config(CONFIGS["llama"])
    lengths = (100, 37, 211, 64, 180)
    written = recorded_deep(
        setup, architecture, lambda shallow, kind: [record_training(setup, shallow, (8, 6), lengths, kind=kind)]
    )
    assert written is not None
    whole = record_training(setup, architecture, (8, 6), lengths)
    same(written[0], whole)
    assert written[0].peaks(ExpandableAllocator()) == whole.peaks(ExpandableAllocator())


SHARDED: dict[str, dict[str, Any]] = {
    "FSDP2": {"gradient_checkpointing": True},
    "FSDP2 with adapters": {"method": "lora", "gradient_accumulation_steps": 4, "do_eval": True},
    "FSDP2 that keeps what is whole": {"spread": Spread(fsdp_reshard=False), "weights": "bf16"},
    "FSDP2 of packed weights": {"method": "qlora", "gradient_checkpointing": True},
    "FSDP2 by SFT": {"post": PostTraining("sft"), "gradient_checkpointing": True, "use_reentrant": True},
    "FSDP1": {"spread": Spread(fsdp_version=1), "gradient_checkpointing": True},
    "FSDP1 with adapters": {"spread": Spread(fsdp_version=1), "method": "lora", "do_eval": True},
    "FSDP1 ahead in backward": {"spread": Spread(fsdp_version=1, fsdp_backward_prefetch="pre")},
    "FSDP1 ahead behind each": {"spread": Spread(fsdp_version=1, fsdp_backward_prefetch="post")},
    "FSDP1 ahead in forward": {"spread": Spread(fsdp_version=1, fsdp_forward_prefetch=True)},
}


@pytest.mark.parametrize("name", few(SHARDED, 5))
def test_what_fsdp_shards_layer_by_layer_is_written(name: str) -> None:
    options = {"bf16": True, "world_size": 4, "fsdp": True, "max_source_length": 64, **SHARDED[name]}
    setup, architecture = setup_of(options), architecture_from_config({**CONFIGS["llama"], "num_hidden_layers": 30})
    written = recorded_deep(setup, architecture, lambda one, kind: record_runs(setup, one, (8, 6), kind=kind))
    assert written is not None
    whole = record_runs(setup, architecture, (8, 6))
    assert {kind for _, kind, _ in whole[0].acts} >= {"stream"}
    for one, other in zip(written, whole, strict=True):
        same(one, other)


def test_layers_that_are_not_alike_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of({"bf16": True})
    architecture = architecture_from_config(CONFIGS["gemma2"])
    assert recorded_deep(setup, architecture, lambda one, kind: record_runs(setup, one, (8, 6), kind=kind)) is not None
    two = deepened.units_of(architecture, "decoder")
    assert two is not None and two.each == 2
    monkeypatch.setattr(
        deepened, "units_of", lambda _, stack, ends: two._replace(first=1, each=1) if stack == "decoder" else None
    )
    assert recorded_deep(setup, architecture, lambda one, kind: record_runs(setup, one, (8, 6), kind=kind)) is None


def test_stacks_of_different_depth_are_followed_whole_where_a_size_grows_with_both() -> None:
    architecture = architecture_from_config({**CONFIGS["t5"], "num_layers": 17, "num_decoder_layers": 19})
    for optim, is_written in (("adamw_torch_fused", False), ("none", True)):  # the norms of all gradients in one tensor
        setup = setup_of({"optim": optim})
        written = recorded_deep(
            setup, architecture, lambda one, kind, setup=setup: record_runs(setup, one, (8, 6), kind=kind)
        )
        assert (written is not None) is is_written


def test_few_layers_and_several_gpus_are_followed_whole() -> None:
    def refuse(*_: object) -> list[Recording]:
        raise AssertionError("recorded shallow")

    shallow = architecture_from_config({**CONFIGS["llama"], "num_hidden_layers": 12})
    assert recorded_deep(setup_of({}), shallow, refuse) is None
    deep = architecture_from_config(CONFIGS["llama"])
    unwrapped = {"world_size": 4, "fsdp": True, "spread": Spread(fsdp_wrapped=False)}
    for spread in ({"world_size": 2}, {"zero_stage": 2}, {"zero_stage": 3, "world_size": 2}, unwrapped):
        assert recorded_deep(setup_of(spread), deep, refuse) is None
