"""Decoder-only models: their config.json, parameters and modules, and what changes a prediction."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.memory_report import MemoryReport
from kb.core.setup import TrainingSetup, WeightType
from kb.memory import (
    UnsupportedArchitectureError,
    architecture_from_config,
    default_targets,
    match_targets,
    parameter_count,
    predict,
)

LLAMA_32_1B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True,
    "rms_norm_eps": 1e-05,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
KOGPT2 = {"model_type": "gpt2", "vocab_size": 51200, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
PYTHIA_410M = {
    "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16,
}  # fmt: skip
GEMMA3_1B = {
    "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
    "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "sliding_window": 512,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen2_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
    "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
}  # fmt: skip
OPT_350M = {
    "model_type": "opt", "vocab_size": 50272, "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
}  # fmt: skip


def report_of(config: dict[str, Any], **changes: Any) -> MemoryReport:
    setup = TrainingSetup(**{"max_source_length": 1024, "bf16": True, **changes})
    return predict(setup, architecture_from_config(config), constants=sample.CONSTANTS, compute_capability=(8, 6))


def train_bytes(config: dict[str, Any], **changes: Any) -> int:
    phase = report_of(config, **changes).phase("train")
    assert phase is not None
    return phase.peak_allocated_bytes


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(LLAMA_32_1B, 1_235_814_400), (MISTRAL_7B, 7_241_732_096), (KOGPT2, 125_164_032), (PYTHIA_410M, 405_334_016),
     (GEMMA3_1B, 999_885_952), (MIXTRAL, 46_702_792_704), (QWEN_MOE, 14_315_784_192), (OPT_350M, 331_196_416)],
)  # fmt: skip
def test_parameters_of_known_models(config: dict[str, Any], parameters: int) -> None:
    assert parameter_count(architecture_from_config(config)) == parameters


def test_a_type_that_is_not_known_but_has_a_llamas_fields_is_taken_as_one() -> None:
    found = architecture_from_config({**LLAMA_32_1B, "model_type": "newcomer"})
    assert found.model_type == "newcomer"
    assert parameter_count(found) == 1_235_814_400


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "newcomer", "hidden_size": 64}, "no intermediate_size, num_hidden_layers"),
        ({**LLAMA_32_1B, "model_type": "newcomer", "mamba_d_state": 16}, "newcomer"),
        ({**LLAMA_32_1B, "num_key_value_heads": 5}, "not a multiple of num_key_value_heads 5"),
        ({**LLAMA_32_1B, "num_hidden_layers": None}, "num_hidden_layers"),
        ({**MIXTRAL, "num_experts_per_tok": None}, "num_experts_per_tok is missing"),
        ({**LLAMA_32_1B, "hidden_act": 3}, "hidden_act must be a name"),
    ],
)
def test_a_config_that_cannot_be_used_says_which_field(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=says):
        architecture_from_config(config)


def test_peft_targets_are_found_under_each_familys_names() -> None:
    llama = architecture_from_config(LLAMA_32_1B)
    matched, missing = match_targets(llama, ("q_proj", "down_proj", "nowhere"))
    assert [(module.leaf, module.number) for module in matched] == [("q_proj", 16), ("down_proj", 16)]
    assert missing == ("nowhere",)
    assert default_targets(architecture_from_config(KOGPT2)) == ("c_attn",)
    everything, _ = match_targets(architecture_from_config(PYTHIA_410M), "all-linear")
    assert {module.leaf for module in everything} == {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}


def test_experts_are_no_linear_layers_that_adapters_could_wrap() -> None:
    matched, _ = match_targets(architecture_from_config(MIXTRAL), "all-linear")
    assert {module.leaf for module in matched} == {"q_proj", "k_proj", "v_proj", "o_proj"}


# Each family in one way by turns; with --exhaustive in every way.
@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "method"),
    [
        pytest.param(
            config,
            method,
            id=f"{method}-{config['model_type']}",
            marks=[pytest.mark.exhaustive] if (number - way) % 3 else [],
        )
        for way, method in enumerate(("full", "lora", "qlora"))
        for number, config in enumerate((LLAMA_32_1B, KOGPT2, PYTHIA_410M, GEMMA3_1B, MIXTRAL, OPT_350M, QWEN_MOE))
    ],
)
def test_the_terms_of_every_phase_add_up_to_its_peak(config: dict[str, Any], method: str) -> None:
    report = report_of(
        config, method=method, weights="fp32" if method == "full" else "bf16", load_in_4bit=method == "qlora",
        lora_target_modules=("q_proj", "c_attn", "query_key_value"), do_eval=True, predict_with_generate=True,
        do_predict=True,
    )  # fmt: skip
    assert {phase.name for phase in report.phases} == {"load", "train", "evaluate", "generate", "save"}
    for phase in report.phases:
        assert sum(term.bytes for term in phase.terms) == phase.peak_allocated_bytes
        assert all(term.bytes > 0 for term in phase.terms)


def test_the_answer_length_of_an_encoder_decoder_does_not_count() -> None:
    assert train_bytes(LLAMA_32_1B, max_target_length=64) == train_bytes(LLAMA_32_1B, max_target_length=512)


def test_more_keys_and_values_need_more_cache() -> None:
    grouped = report_of(LLAMA_32_1B, do_train=False, do_predict=True).phase("generate")
    own = report_of({**LLAMA_32_1B, "num_key_value_heads": 32}, do_train=False, do_predict=True).phase("generate")
    assert grouped is not None
    assert own is not None
    cache = {term.name: term.bytes for term in grouped.terms}["kv_cache_self"]
    assert {term.name: term.bytes for term in own.terms}["kv_cache_self"] == 4 * cache


@pytest.mark.long
def test_written_out_attention_costs_the_square_of_the_length() -> None:
    def more(length: int) -> int:
        setup = {"max_source_length": length, "per_device_train_batch_size": 1}
        eager = train_bytes(LLAMA_32_1B, **setup, attn_implementation="eager")
        return eager - train_bytes(LLAMA_32_1B, **setup, attn_implementation="sdpa")

    assert more(2048) > 3.5 * more(1024) > 0


def test_checkpointing_and_adapters_save_memory() -> None:
    full = train_bytes(LLAMA_32_1B)
    assert train_bytes(LLAMA_32_1B, gradient_checkpointing=True) < full
    adapters = {"method": "lora", "weights": "bf16", "lora_target_modules": ("q_proj", "v_proj")}
    assert train_bytes(LLAMA_32_1B, **adapters) < full


def test_fp32_heads_that_share_keys_fall_to_written_out_attention_without_a_mask() -> None:
    masked = train_bytes(LLAMA_32_1B, bf16=False, padded=True, max_source_length=2048)
    assert train_bytes(LLAMA_32_1B, bf16=False, padded=False, max_source_length=2048) > masked


def test_capped_scores_have_written_out_attention_and_that_is_said() -> None:
    gemma2 = {**GEMMA3_1B, "model_type": "gemma2"}
    assert train_bytes(gemma2) == train_bytes(gemma2, attn_implementation="eager")
    assert "no_sdpa_of_the_type" in {assumption.reason for assumption in report_of(gemma2).assumed}


# Level 1 (bench/engine_diff.py) on this config, 4 × 256 tokens, eager: MiB at the peak of evaluation after training.
CAPPED = {
    "model_type": "gemma2", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "head_dim": 64,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 64000, "max_position_embeddings": 2048,
    "tie_word_embeddings": True, "sliding_window": 512,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "traced"),
    [
        ({"bf16": True}, 1209.91),
        ({"bf16": False, "weights": "bf16"}, 884.86),
        ({"bf16": False}, 1002.41),
        ({"bf16": True, "do_train": False}, 878.70),
    ],
)
def test_capped_logits_are_no_copy_in_evaluation(changes: dict[str, Any], traced: float) -> None:
    setup = {"max_source_length": 256, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
             "attn_implementation": "eager", "do_eval": True}  # fmt: skip
    phase = report_of(CAPPED, **setup, **changes).phase("evaluate")
    assert phase is not None
    assert phase.peak_allocated_bytes / 2**20 == pytest.approx(traced, rel=0.004)


def test_lion_keeps_one_moment_of_32_bits_whatever_the_weights_are() -> None:
    def optimizer(optim: str, weights: WeightType = "fp32") -> int:
        phase = report_of(LLAMA_32_1B, optim=optim, weights=weights).phase("train")
        assert phase is not None
        return {term.name: term.bytes for term in phase.terms}["optimizer"]

    assert 2 * optimizer("lion_32bit") == pytest.approx(optimizer("adamw_torch_fused"), rel=0.01)
    assert 2 * optimizer("lion_8bit") == pytest.approx(optimizer("adamw_8bit"), rel=0.01)
    assert optimizer("lion_32bit", "bf16") == pytest.approx(optimizer("lion_32bit"), rel=0.001)


def test_ministral_3_has_no_biases_whatever_its_config_says() -> None:
    """Its linear layers are built without: 600,704 parameters, as transformers builds them."""
    config = {"model_type": "ministral3", "hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2, "vocab_size": 1000,
              "max_position_embeddings": 512, "attention_bias": True}  # fmt: skip
    assert parameter_count(architecture_from_config(config)) == 600_704
