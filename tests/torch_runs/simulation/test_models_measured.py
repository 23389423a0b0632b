"""What is measured is what was predicted: the simulator and a trial build the same class, parameters and adapters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from effort import few
from kb.core.setup import Images, TrainingSetup
from seeing_models import ANSWERING
from simulation_needs import require_simulator
from torch_later import imported_where_run

if TYPE_CHECKING:
    from kb.torch_runs.simulation.known import Known
    from kb.torch_runs.simulation.loading import build_model as build_simulated
    from kb.torch_runs.simulation.session import open_session
    from kb.torch_runs.simulation.training import batch_of

    # isort: split
    # the simulator's torch comes first: it has a shim
    from kb.torch_runs.models import NoModelError, labels_of
    from kb.torch_runs.probe import trainer_run
    from kb.torch_runs.probe.meter import Meter
imported = imported_where_run(globals(), require_simulator)

AMPERE = (8, 6)
T5 = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 128}
BART = {
    "model_type": "bart", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 128,
    "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": False,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "t5": ({**T5, "architectures": ["T5ForConditionalGeneration"]}, "T5ForConditionalGeneration"),
    "mt5 untied": ({**T5, "model_type": "mt5"}, "MT5ForConditionalGeneration"),
    "bart": (BART, "BartForConditionalGeneration"),
    "bart classifier": ({**BART, "architectures": ["BartForSequenceClassification"]}, "BartForSequenceClassification"),
    "llama": ({**LLAMA, "architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
    "gpt2 in half": ({**GPT2, "architectures": ["GPT2LMHeadModel"], "dtype": "bfloat16"}, "GPT2LMHeadModel"),
    "bert": (BERT, "BertForSequenceClassification"),
    "bert classifier": (
        {**BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 5},
        "BertForSequenceClassification",
    ),
    "bert tokens": ({**BERT, "architectures": ["BertForTokenClassification"]}, "BertForTokenClassification"),
    "bert spans": ({**BERT, "architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
    "bert masked": ({**BERT, "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
}
SETUP = TrainingSetup(per_device_train_batch_size=2, max_source_length=16, max_target_length=8)
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "half": {"weights": "bf16"},
    "lora": {"method": "lora", "lora_r": 4},
    "dora": {"method": "lora", "use_dora": True, "gradient_checkpointing": True},
}


def told(model: Any) -> tuple[str, list[tuple[Any, ...]]]:
    """The class, and each parameter's name, shape, type and whether it trains; a tied one counts once."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    rows = [(name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in model.named_parameters()]
    return f"{type(model).__name__} of {type(inner).__name__}", rows


# Each model in one of the ways by turns, with --exhaustive in every way.
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=[pytest.mark.exhaustive] if (number - at) % len(WAYS) else [])
        for number, name in enumerate(MODELS)
        for at, way in enumerate(WAYS)
    ],
)
def test_the_simulator_and_a_trial_build_the_same_model(name: str, way: str) -> None:
    config, kind = MODELS[name]
    setup = SETUP._replace(**WAYS[way])
    with open_session(AMPERE, bits_and_bytes=False) as tracer:
        simulated = told(build_simulated(config, setup, tracer))
    measured = told(trainer_run.build_model(config, setup, "cpu"))
    assert simulated == measured
    assert simulated[0].endswith(f" of {kind}")
    if way in ("lora", "dora"):
        trained = [row[0] for row in simulated[1] if row[3]]
        assert any("lora_A" in row for row in trained)
        assert any("magnitude" in row for row in trained) == (way == "dora")


@pytest.mark.parametrize("name", MODELS)
def test_a_trial_s_batch_has_the_shapes_of_the_simulated_and_a_loss(name: str) -> None:
    model = trainer_run.build_model(MODELS[name][0], SETUP, "cpu")
    rows = trainer_run.samples(model, SETUP, 2)
    with open_session(AMPERE, bits_and_bytes=False):
        simulated = {entry: tuple(tensor.shape) for entry, tensor in batch_of(model, SETUP, 2).items()}
    assert simulated == {entry: (2, *tensor.shape) for entry, tensor in rows[0].items()}
    assert model(**{entry: tensor[None] for entry, tensor in rows[0].items()}).loss.isfinite()
    assert set(labels_of(model, SETUP).names) < set(simulated)


@pytest.mark.parametrize(
    ("name", "images"),
    few([("llava", (2, 4, 4)), ("llava_next", (1, 90, 130)), ("qwen2_vl", (2, 10, 14)), ("qwen2_5_vl", (1, 10, 14)),
         ("qwen3_vl", (1, 8, 12)), ("paligemma", (1, 4, 4)), ("gemma 3", (1, 4, 4)), ("idefics3", (2, 60, 50)),
         ("smolvlm", (1, 60, 50))], 3),
)  # fmt: skip
def test_a_trial_s_pictures_are_the_simulated_and_are_trained_on(
    name: str, images: tuple[int, int, int], tmp_path: Path
) -> None:
    setup = SETUP._replace(
        per_device_eval_batch_size=2, max_source_length=300, images=Images(*images), do_eval=True, do_predict=True,
        inference_batch_size=2, inference_max_length=3, gradient_checkpointing=name == "llava",
        checkpoints_trained=name == "llava", frozen=("vision_tower",) if name == "llava" else (),
    )  # fmt: skip
    model = trainer_run.build_model(ANSWERING[name], setup, "cpu")
    batch = trainer_run.collated(trainer_run.samples(model, setup, 2))
    with open_session(AMPERE, bits_and_bytes=False):
        simulated = {entry: tensor.shape for entry, tensor in batch_of(model, setup, 2, Known()).items()}
    assert {entry: tensor.shape for entry, tensor in batch.items()} == simulated
    with Meter("cpu") as meter:
        trainer = trainer_run.trainer_of(model, setup, meter, str(tmp_path), steps=2, clock=trainer_run.Clock())
        for run in trainer_run.phase_runs(trainer, model, setup, meter).values():
            run()
    assert {"train", "evaluate", "generate"} <= meter.phases.keys()
    assert trainer.state.global_step == 2


def test_a_type_that_transformers_lacks_is_named() -> None:
    with pytest.raises(NoModelError, match="no model of type nonsense"):
        trainer_run.build_model({"model_type": "nonsense"}, SETUP, "cpu")
