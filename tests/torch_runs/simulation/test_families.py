"""Kinds of models and ways to run them that have each failed once: small ones, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from kb.core.setup import TrainingSetup
from kb.knowledge import load_catalog
from kb.torch_runs.simulation.job import (
    BadJobError,
    Job,
    NoAdaptersError,
)
from simulation_needs import require_simulator
from torch_later import imported_where_run

if TYPE_CHECKING:
    from kb.torch_runs.models import model_class
    from kb.torch_runs.simulation.kernels import efficient_scratch, grouped_product
    from kb.torch_runs.simulation.session import open_session
    from kb.torch_runs.simulation.simulator import Run, runs_of
    from kb.torch_runs.simulation.timeline import peaks_of
    from kb.torch_runs.simulation.torch_modules import torch
imported = imported_where_run(globals(), require_simulator)

T4, V100, AMPERE = (7, 5), (7, 0), (8, 6)
ENCODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 130,
}
DEBERTA = ENCODER | {
    "model_type": "deberta-v2",
    "relative_attention": True,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": "p2c|c2p",
    "share_att_key": True,
    "position_buckets": 32,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "type_vocab_size": 0,
}
ENCODERS = {
    "bert": ENCODER | {"model_type": "bert"},
    "roberta": ENCODER | {"model_type": "roberta", "pad_token_id": 1},
    "electra": ENCODER | {"model_type": "electra", "embedding_size": 32},
    "deberta": DEBERTA,
}
DECODER = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
}
MIXTURES = {
    "mixtral": DECODER | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": DECODER
    | {
        "model_type": "qwen2_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 128,
    },
}
LLAMA = DECODER | {"model_type": "llama"}
T5 = {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000}
SMALL = TrainingSetup(per_device_train_batch_size=2, max_source_length=64, max_target_length=32)
GENERATES = SMALL._replace(do_train=False, do_predict=True, inference_batch_size=2, inference_max_length=40)


def traced(config: Mapping[str, Any], setup: TrainingSetup, gpu: tuple[int, int] = AMPERE, **more: Any) -> Run:
    (run,) = runs_of(Job(setup, config, gpu, **more))
    return run


def peak(run: Run, phase: str) -> int:
    return peaks_of(run.events)[phase].allocated_bytes


def test_the_class_that_is_built_is_the_one_that_is_predicted() -> None:
    """Of every type of model in the rules, without ``architectures``: an encoder classifies, all others write."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    types = {model.architecture.model_type: model for model in load_catalog().models.values()}
    for kind, model in types.items():
        if kind not in CONFIG_MAPPING_NAMES:  # comes with code of its own
            continue
        read = CONFIG_MAPPING[kind]()
        built = model_class(read, {"model_type": kind}).__name__
        classifies = model.architecture.family == "encoder"
        assert (built == "AutoModelForSequenceClassification") == classifies, kind


@pytest.mark.parametrize(
    ("name", "eight"),
    [
        pytest.param("bert", False, marks=pytest.mark.exhaustive),
        pytest.param("roberta", False, marks=pytest.mark.exhaustive),
        pytest.param("electra", False, marks=pytest.mark.exhaustive),
        pytest.param("deberta", False, marks=pytest.mark.exhaustive),
        pytest.param("bert", True, marks=pytest.mark.exhaustive),
        ("deberta", True),
    ],
)
def test_a_quantized_classifier_keeps_its_head_wide_and_says_so(name: str, eight: bool) -> None:
    setup = SMALL._replace(method="lora" if eight else "qlora", load_in_4bit=not eight, load_in_8bit=eight, bf16=True)
    run = traced(ENCODERS[name], setup)
    assert run.kept_head == "classifier"
    assert peak(run, "train") > peak(run, "load")


@pytest.mark.exhaustive
def test_a_head_that_nobody_trains_is_not_named() -> None:
    assert traced(ENCODERS["bert"], SMALL).kept_head is None
    assert traced(LLAMA, SMALL._replace(method="qlora", load_in_4bit=True)).kept_head is None


def test_reentrant_checkpointing_that_the_model_cannot_do_is_the_settings_fault() -> None:
    with pytest.raises(BadJobError, match="use_reentrant"):
        traced(DEBERTA, SMALL._replace(gradient_checkpointing=True, use_reentrant=True))


def test_a_quantized_module_to_save_is_the_settings_fault() -> None:
    setup = SMALL._replace(method="qlora", load_in_4bit=True, modules_to_save=("v_proj",))
    with pytest.raises(NoAdaptersError, match="floating point"):
        traced(LLAMA, setup._replace(lora_target_modules=("q_proj",)))


QLORA = {"bf16": True, "method": "qlora", "load_in_4bit": True, "lora_target_modules": ("q_proj", "v_proj")}


@pytest.mark.parametrize(
    ("name", "change", "gpu"),
    [
        pytest.param("mixtral", {"bf16": True}, AMPERE, id="autocast", marks=pytest.mark.exhaustive),
        pytest.param("mixtral", {"weights": "fp16"}, AMPERE, id="fp16", marks=pytest.mark.exhaustive),
        pytest.param("mixtral", {"weights": "bf16"}, AMPERE, id="bf16", marks=pytest.mark.exhaustive),
        pytest.param("mixtral", {"fp16": True}, T4, id="t4", marks=pytest.mark.exhaustive),
        pytest.param("mixtral", QLORA, AMPERE, id="qlora", marks=pytest.mark.exhaustive),
        pytest.param("qwen2_moe", QLORA, AMPERE, id="shared-expert"),
    ],
)
def test_a_mixture_of_experts_trains(name: str, change: dict[str, Any], gpu: tuple[int, int]) -> None:
    run = traced(MIXTURES[name], SMALL._replace(**change), gpu)
    assert peak(run, "train") > peak(run, "load") > 0


def test_a_grouped_product_is_one_output_with_padded_rows() -> None:
    with open_session(AMPERE) as tracer:
        rows = torch.empty(10, 16, device="cuda", dtype=torch.float32)
        experts = torch.empty(4, 16, 6, device="cuda", dtype=torch.float32)
        offsets = torch.empty(4, device="cuda", dtype=torch.int32)
        out = grouped_product(tracer, rows, experts, offsets)
        assert out.shape == (10, 6)
        assert out.untyped_storage().nbytes() == (9 * 8 + 6) * 4  # rows of 8 floats: 32 bytes
        assert grouped_product(tracer, rows.T, rows, offsets).shape == (4, 16, 16)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("config", "beams"),
    [
        pytest.param(LLAMA, 1, id="a decoder", marks=pytest.mark.exhaustive),  # as one of experts
        pytest.param(T5, 3, id="an encoder-decoder's beams"),
        pytest.param(MIXTURES["mixtral"], 1, id="experts", marks=pytest.mark.exhaustive),
    ],
)
def test_every_way_of_decoding_runs(config: dict[str, Any], beams: int) -> None:
    setup = GENERATES._replace(inference_num_beams=beams, inference_max_length=8)
    greedy = peak(traced(config, setup), "generate")
    assert peak(traced(config, setup, sampling=True), "generate") >= greedy * 0.95
    assert peak(traced(config, setup, static_cache=True), "generate") >= greedy * 0.95


@pytest.mark.parametrize(
    "optim",
    [
        "ademamix",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("rmsprop", "adagrad", "paged_lion_8bit")),
    ],
)
def test_the_trainers_other_optimizers_run(optim: str) -> None:
    assert peak(traced(LLAMA, SMALL._replace(optim=optim, bf16=True)), "train") > 0


def test_evaluation_moves_its_predictions_away_every_so_many_steps() -> None:
    setup = SMALL._replace(do_train=False, do_eval=True, per_device_eval_batch_size=2, eval_samples=16)
    kept = peak(traced(LLAMA, setup), "evaluate")
    moved = peak(traced(LLAMA, setup._replace(eval_accumulation_steps=1)), "evaluate")
    assert moved < kept


@pytest.mark.exhaustive
def test_sdpa_before_ampere_keeps_no_scores_where_the_efficient_kernel_serves() -> None:
    whole = LLAMA | {"num_key_value_heads": 4}
    setup = SMALL._replace(fp16=True, max_source_length=256, per_device_train_batch_size=8)
    eager = peak(traced(whole, setup._replace(attn_implementation="eager"), V100), "train")
    assert peak(traced(whole, setup, V100), "train") < eager


def test_a_wide_head_before_ampere_adds_up_in_a_float_buffer() -> None:
    with open_session(T4) as tracer:
        narrow = torch.empty(2, 4, 64, 128, device="cuda", dtype=torch.float16)
        wide = torch.empty(2, 4, 64, 256, device="cuda", dtype=torch.float16)
        assert efficient_scratch(tracer, narrow, narrow, narrow) == ()
        assert efficient_scratch(tracer, wide, wide, wide) == ((wide.numel() * 4,),)
        assert efficient_scratch(tracer, wide.float(), wide.float(), wide.float()) == ()
