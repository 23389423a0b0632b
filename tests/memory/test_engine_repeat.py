"""A step that is asked for again without being followed again, beside the same run followed whole: act for act."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from kb.core.setup import PostTraining, TrainingSetup
from kb.memory import architecture_from_config
from kb.memory.engine import predict
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.predict import record_runs
from kb.memory.engine.world import Recording

DECODER = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 1000,
           "max_position_embeddings": 512}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**DECODER, "model_type": "llama", "intermediate_size": 352, "num_key_value_heads": 2},
    "gpt_neox": {**DECODER, "model_type": "gpt_neox", "intermediate_size": 256},
    "t5": {"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2,
           "vocab_size": 1000},
    "bart": {"model_type": "bart", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 1000,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
             "decoder_ffn_dim": 128, "max_position_embeddings": 512},
}  # fmt: skip
POSTS = (
    None,
    PostTraining("sft"),
    PostTraining("dpo", reference="model"),
    PostTraining("dpo", head="rows"),
    PostTraining("orpo", head="copied"),
    PostTraining("grpo", completion=40, generated_rows=8),
    PostTraining("grpo", completion=40, head="rows", reference="adapter_off"),
    PostTraining("rloo", completion=30, reference="model", generated_rows=3),
)
SETUPS = st.fixed_dictionaries({
    "method": st.sampled_from(("full", "lora", "qlora")),
    "bf16": st.booleans(),
    "weights": st.sampled_from(("fp32", "bf16")),
    "gradient_checkpointing": st.booleans(),
    "use_reentrant": st.booleans(),
    "gradient_accumulation_steps": st.sampled_from((1, 4)),
    "attn_implementation": st.sampled_from(("sdpa", "eager")),
    "label_smoothing_factor": st.sampled_from((0.0, 0.1)),
    "optim": st.sampled_from(
        ("adamw_torch_fused", "adamw_torch", "adamw_8bit", "paged_adamw_8bit", "sgd", "adafactor", "lion_8bit")
    ),
    "per_device_train_batch_size": st.integers(1, 9),
    "max_source_length": st.integers(50, 700),
    "post": st.sampled_from(POSTS),
})  # fmt: skip


class Whole(Recording):
    """Every step is followed."""

    repeats = False


@pytest.mark.long
@settings(max_examples=examples(30, 120), deadline=None)
@given(st.sampled_from(sorted(CONFIGS)), SETUPS)
def test_a_repeated_step_asks_for_what_a_followed_one_asks_for(name: str, written: dict[str, Any]) -> None:
    architecture = architecture_from_config(CONFIGS[name])
    setup = TrainingSetup(
        max_target_length=32, lora_target_modules=("all-linear",), load_in_4bit=written["method"] == "qlora", **written
    )
    try:
        (whole,) = record_runs(setup, architecture, (8, 6), kind=Whole)
    except NotFollowedError:
        return
    (repeated,) = record_runs(setup, architecture, (8, 6))
    assert repeated.log == whole.log
    assert repeated.phases == whole.phases
    assert repeated.starts == whole.starts
    assert (repeated.terms, repeated.paths) == (whole.terms, whole.paths)


def test_the_second_step_is_really_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Recording, "repeat_step", lambda self, start, _: asked.append(start))
    record_runs(TrainingSetup(max_source_length=64), architecture_from_config(CONFIGS["llama"]), (8, 6))
    assert len(asked) == 1


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_second_pass_is_written_from_the_first(name: str, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[bool] = []
    write = Recording.repeat_pass

    def written(self: Recording, since: tuple[int, ...], replaced: Any) -> bool:
        known.append(write(self, since, replaced))
        return known[-1]

    monkeypatch.setattr(Recording, "repeat_pass", written)
    setup = TrainingSetup(
        method=method, lora_target_modules=("all-linear",), gradient_accumulation_steps=16, max_source_length=64
    )
    record_runs(setup, architecture_from_config(CONFIGS[name]), (8, 6))
    assert known == [True]


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_reentrant_checkpoints_of_an_encoder_decoder_are_refused_by_name(name: str) -> None:
    setup = TrainingSetup(gradient_checkpointing=True, use_reentrant=True)
    with pytest.raises(NotFollowedError) as refused:
        record_runs(setup, architecture_from_config(CONFIGS[name]), (8, 6))
    assert refused.value.what == f"use_reentrant of {name}"


# --- a search of an evaluation's batch --------------------------------------------------------------------------------

EVALUATED: dict[str, tuple[str, dict[str, Any]]] = {
    "beams": ("t5", {"predict_with_generate": True, "generation_num_beams": 3, "generation_max_length": 12}),
    "a copied cache": ("bart", {"predict_with_generate": True, "generation_max_length": 12, "method": "lora"}),
    "logits that are joined": ("llama", {"eval_samples": 20, "eval_accumulation_steps": 2, "bf16": True}),
    "packed weights": ("gpt_neox", {"method": "qlora", "load_in_4bit": True, "bf16": True, "optim": "adamw_8bit"}),
    "smoothed labels": ("llama", {"label_smoothing_factor": 0.1, "bf16": True, "gradient_checkpointing": True}),
}


def everything(recording: Recording) -> tuple[Any, ...]:
    return recording.log, recording.acts, recording.labels(), recording.terms, recording.paths, recording.phases


@pytest.mark.parametrize("name", EVALUATED)
def test_a_training_is_followed_once_for_several_batches_of_its_evaluation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = EVALUATED[name]
    setup = TrainingSetup(do_eval=True, max_source_length=64, **options)
    architecture, trained = architecture_from_config(CONFIGS[model]), []
    train = predict.train
    monkeypatch.setattr(predict, "train", lambda *asked: trained.append(asked) or train(*asked))

    def recorded(batch: int) -> Recording:
        (found,) = record_runs(setup._replace(per_device_eval_batch_size=batch), architecture, (8, 6))
        return found

    predict._TRAINED.clear()
    in_turn = {batch: recorded(batch) for batch in (6, 1, 4)}
    assert len(trained) == 1
    for batch, found in in_turn.items():
        predict._TRAINED.clear()
        assert everything(found) == everything(recorded(batch))
    assert len(trained) == 4


def test_a_training_is_followed_again_where_its_evaluation_left_something() -> None:
    recording = Recording()
    kept = recording.ask(1000)
    point = recording.point()
    recording.give_back(recording.ask(2000))
    recording.begin("evaluate")
    assert recording.back_to(point) and recording.log == [1000] and not recording.acts
    recording.ask(3000)
    assert not recording.back_to(point)
    recording.log[1:] = [~kept]
    assert not recording.back_to(point)
