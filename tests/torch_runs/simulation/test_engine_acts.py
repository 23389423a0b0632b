"""The engine and the simulation ask the allocator for the same blocks in the same order: small models, act by act."""

from typing import Any

import pytest

from effort import few
from simulation_needs import require_simulator

require_simulator()

from kb.core.setup import Images, TrainingSetup  # noqa: E402
from seeing_models import ANSWERING, CUT, PALIGEMMA, SEEING  # noqa: E402
from simulated_runs import followed, peaks_of, releases, same_acts  # noqa: E402

_DECODER = {"hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 2,
            "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 512, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_SEQ2SEQ = {"d_model": 128, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 1000,
            "max_position_embeddings": 512, "scale_embedding": True, "pad_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 2}  # fmt: skip
_BERT = {"hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4, "num_hidden_layers": 2,
         "vocab_size": 1000, "max_position_embeddings": 256}  # fmt: skip
_DEBERTA = {**_BERT, "model_type": "deberta-v2", "relative_attention": True, "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"]}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_DECODER, "model_type": "llama", "rms_norm_eps": 1e-5},
    "gpt_neox": {**_DECODER, "model_type": "gpt_neox", "num_key_value_heads": 4},
    "stablelm": {**_DECODER, "model_type": "stablelm"},
    "starcoder2": {**_DECODER, "model_type": "starcoder2", "residual_dropout": 0.1},
    "cohere": {**_DECODER, "model_type": "cohere"},
    "gpt2": {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 256},
    "gemma": {**_DECODER, "model_type": "gemma", "head_dim": 32},
    "gemma 2": {**_DECODER, "model_type": "gemma2", "head_dim": 48, "sliding_window": 32},
    "gemma 3": {**_DECODER, "model_type": "gemma3_text", "head_dim": 32, "sliding_window": 32,
                "sliding_window_pattern": 2, "final_logit_softcapping": 30.0},
    "phi 3": {**_DECODER, "model_type": "phi3", "resid_pdrop": 0.1, "partial_rotary_factor": 0.75},
    "opt": {"model_type": "opt", "hidden_size": 128, "ffn_dim": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
            "vocab_size": 1000, "max_position_embeddings": 256, "word_embed_proj_dim": 128},
    "opt, narrow words": {"model_type": "opt", "hidden_size": 128, "ffn_dim": 512, "num_attention_heads": 4,
                          "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 256,
                          "word_embed_proj_dim": 64, "do_layer_norm_before": False},
    "granite": {**_DECODER, "model_type": "granite", "tie_word_embeddings": True},
    "hyperclovax": {**_DECODER, "model_type": "hyperclovax", "use_post_norm": True},
    "smollm 3": {**_DECODER, "model_type": "smollm3", "num_hidden_layers": 4},
    "exaone 4": {**_DECODER, "model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": 32,
                 "sliding_window_pattern": 4},
    "olmo 2": {**_DECODER, "model_type": "olmo2", "bos_token_id": None},
    "qwen 2, windowed": {**_DECODER, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32,
                         "max_window_layers": 1},
    "mixtral": {**_DECODER, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen 2, experts": {**_DECODER, "model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 4,
                        "moe_intermediate_size": 88, "shared_expert_intermediate_size": 320},
    "qwen 3, experts": {**_DECODER, "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 8,
                        "num_experts_per_tok": 4, "moe_intermediate_size": 88, "norm_topk_prob": True,
                        "mlp_only_layers": [0]},
    "t5": {"model_type": "t5", "d_model": 128, "d_ff": 256, "num_heads": 4, "d_kv": 32, "num_layers": 2,
           "vocab_size": 1000},
    "bart": {**_SEQ2SEQ, "model_type": "bart"},
    "marian": {**_SEQ2SEQ, "model_type": "marian", "activation_function": "swish"},
    "m2m_100": {**_SEQ2SEQ, "model_type": "m2m_100", "activation_function": "relu"},
    "whisper": {**_SEQ2SEQ, "model_type": "whisper", "max_source_positions": 50, "decoder_start_token_id": 5},
    "bert": {**_BERT, "model_type": "bert"},
    "bert, masked": {**_BERT, "model_type": "bert", "architectures": ["BertForMaskedLM"]},
    "roberta": {**_BERT, "model_type": "roberta", "architectures": ["RobertaForTokenClassification"]},
    "electra": {**_BERT, "model_type": "electra", "embedding_size": 64},
    "distilbert": {"model_type": "distilbert", "dim": 128, "hidden_dim": 320, "n_heads": 4, "n_layers": 2,
                   "vocab_size": 1000, "architectures": ["DistilBertForQuestionAnswering"]},
    "deberta": {**_DEBERTA, "position_buckets": 32, "position_biased_input": False, "share_att_key": True},
    "deberta, masked, convolved": {**_DEBERTA, "type_vocab_size": 2, "conv_kernel_size": 3, "conv_act": "gelu",
                                   "architectures": ["DebertaV2ForMaskedLM"]},
    # sequences that are longer than the window; the average of all tokens is read
    "modernbert": {**_BERT, "model_type": "modernbert", "num_hidden_layers": 4, "local_attention": 32,
                   "classifier_pooling": "mean", "pad_token_id": 0},
    "cohere 2": {**_DECODER, "model_type": "cohere2", "num_hidden_layers": 4, "sliding_window": 32},
    "olmo 3": {**_DECODER, "model_type": "olmo3", "num_hidden_layers": 4, "bos_token_id": None, "sliding_window": 32},
    "ministral 3": {**_DECODER, "model_type": "ministral3", "head_dim": 32},
    "ernie 4.5": {**_DECODER, "model_type": "ernie4_5", "head_dim": 32, "tie_word_embeddings": True},
    "hunyuan": {**_DECODER, "model_type": "hunyuan_v1_dense", "head_dim": 32},
    "granite 4": {**_DECODER, "model_type": "granitemoehybrid", "num_local_experts": 0, "mamba_n_heads": 4,
                  "shared_intermediate_size": 320, "position_embedding_type": "rope", "layer_types": ["attention"] * 2,
                  "tie_word_embeddings": True},
    "lfm 2": {**_DECODER, "model_type": "lfm2", "num_hidden_layers": 3, "block_multiple_of": 64,
              "layer_types": ["conv", "full_attention", "conv"]},
    "qwen 3.5": {**_DECODER, "model_type": "qwen3_5_text", "head_dim": 32, "linear_num_key_heads": 2,
                 "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
                 "layer_types": ["linear_attention", "full_attention"], "tie_word_embeddings": True},
    # heads of one width: transformers makes the tables of both kinds of layers in the order of a set
    "gemma 4": {**_DECODER, "model_type": "gemma4_text", "num_hidden_layers": 5, "head_dim": 32, "global_head_dim": 32,
                "sliding_window": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 1000, "final_logit_softcapping": 30.0,
                "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")]},
}  # fmt: skip
_LONGT5 = {"model_type": "longt5", "d_model": 128, "d_ff": 256, "num_heads": 4, "d_kv": 32, "num_layers": 2,
           "vocab_size": 1000, "local_radius": 15, "pad_token_id": 0, "decoder_start_token_id": 0}  # fmt: skip
LONGT5: dict[str, dict[str, Any]] = {
    "local": _LONGT5,
    "global": {**_LONGT5, "feed_forward_proj": "gated-gelu", "encoder_attention_type": "transient-global",
               "global_block_size": 8, "tie_word_embeddings": False},
}  # fmt: skip
MPNET: dict[str, Any] = {**_BERT, "model_type": "mpnet"}  # no layer of which can be checkpointed
SETUPS: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "checkpointed": {"bf16": True, "gradient_checkpointing": True},
    "eager, fp32": {"attn_implementation": "eager"},
}


# each model in the first and in one of the others, which the traced rows of every type hold too: by its own name, so
# that one that is added leaves what is recorded of the rest as it is
@pytest.mark.parametrize(
    ("model", "name"),
    [(model, name) for model in CONFIGS for name in ("bf16", [*SETUPS][1 + len(model) % 2])],
)
def test_training_asks_for_the_same_blocks_in_the_same_order(model: str, name: str) -> None:
    same_acts(CONFIGS[model], TrainingSetup(per_device_train_batch_size=3, max_source_length=72, **SETUPS[name]))


LOOPS = {
    "autocast alone, outputs kept": {"keeps_outputs": "loop", "outputs_widened": False, "bf16": True},
    "gradients kept": {"keeps_outputs": "loop", "gradients_kept": True, "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("model", few(CONFIGS, 12))
def test_loops_of_a_programs_own(model: str, name: str) -> None:
    """What such a loop holds longer than the Trainer does, in every family of models."""
    if (model, name) == ("opt, narrow words", "gradients kept"):
        pytest.skip("the gradients of its two projections go in another order")
    same_acts(CONFIGS[model], TrainingSetup(per_device_train_batch_size=3, max_source_length=72, **LOOPS[name]))


@pytest.mark.parametrize(
    "given",
    [{}, {"weights": "bf16"}, {"method": "lora", "bf16": True}, {"fp16": True, "gradient_accumulation_steps": 2}],
    ids=["full", "bf16 weights", "lora", "accumulated"],
)
def test_the_adamw_that_transformers_had_itself_steps_in_the_same_order(given: dict[str, Any]) -> None:
    """``adamw_hf``, up to release 4.49: a loop over tensors, whose roots are the only temporaries."""
    setup = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, optim="adamw_hf", **given)
    same_acts(CONFIGS["bert"], setup)


@pytest.mark.parametrize(
    ("head", "given"),
    [
        ("SequenceClassification", {"bf16": True, "do_eval": True, "eval_samples": 7}),
        ("SequenceClassification", {"attn_implementation": "eager", "padded": False}),
        ("MaskedLM", {"fp16": True, "method": "lora", "lora_target_modules": ("q", "v")}),
        ("TokenClassification", {"method": "qlora", "load_in_4bit": True, "lora_target_modules": ("q", "v")}),
    ],
)
def test_mpnet_asks_for_the_same_blocks(head: str, given: dict[str, Any]) -> None:
    setup = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, **given)
    same_acts({**MPNET, "architectures": [f"MPNetFor{head}"]}, setup)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("llama", {"bf16": True, "lora_target_modules": ("q_proj", "embed_tokens")}),
        ("llama", {"weights": "bf16", "gradient_checkpointing": True, "lora_dropout": 0.1, "do_eval": True,
                   "lora_target_modules": ("q_proj", "embed_tokens", "lm_head")}),
        ("gpt2", {"bf16": True, "lora_target_modules": ("c_attn", "wte", "wpe")}),
        ("gemma", {"bf16": True, "weights": "bf16", "lora_target_modules": ("q_proj", "embed_tokens")}),
        ("t5", {"method": "qlora", "load_in_4bit": True, "bf16": True, "do_eval": True,
                "lora_target_modules": ("q", "v", "embed_tokens", "lm_head")}),
        ("bert", {"fp16": True, "lora_target_modules": ("query", "word_embeddings", "position_embeddings")}),
        ("llama", {"bf16": True, "do_eval": True, "modules_to_save": ("embed_tokens", "lm_head")}),
        ("gpt2", {"bf16": True, "lora_target_modules": ("c_attn",), "modules_to_save": ("wte", "lm_head")}),
        ("t5", {"bf16": True, "lora_target_modules": ("q", "v"), "modules_to_save": ("embed_tokens", "lm_head")}),
    ],
    ids=["words", "words and head", "positions", "scaled words", "both stacks", "encoder", "trained whole",
         "trained whole, tied", "trained whole, both stacks"],
)  # fmt: skip
def test_adapters_of_embeddings_ask_for_the_same_blocks(model: str, given: dict[str, Any]) -> None:
    base = TrainingSetup(method="lora", per_device_train_batch_size=3, max_source_length=72)
    same_acts(CONFIGS[model], base._replace(**given))


@pytest.mark.parametrize(
    ("kind", "head"), [("XLMRoberta", "SequenceClassification"), ("Camembert", "QuestionAnswering")]
)
def test_a_head_that_is_placed_before_its_encoder_is_loaded_first(kind: str, head: str) -> None:
    model_type = {"XLMRoberta": "xlm-roberta", "Camembert": "camembert"}[kind]
    config = {**_BERT, "model_type": model_type, "pad_token_id": 1, "architectures": [f"{kind}For{head}"]}
    same_acts(config, TrainingSetup(per_device_train_batch_size=3, max_source_length=72, fp16=True, do_eval=True))


@pytest.mark.parametrize("model", ["gpt2", "gemma", "bert, masked"])
def test_a_head_stays_tied_to_the_words_as_they_were_where_a_copy_of_them_trains(model: str) -> None:
    words = {"gpt2": "wte", "gemma": "embed_tokens"}.get(model, "word_embeddings")
    setup = TrainingSetup(method="lora", bf16=True, max_source_length=72, modules_to_save=(words,))
    same_acts(CONFIGS[model], setup)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("llama", {"bf16": True, "weights": "bf16", "do_eval": True}),
        ("gemma", {"bf16": True, "gradient_checkpointing": True}),
        ("gemma", {"bf16": True, "weights": "bf16", "optim": "adamw_bnb_8bit"}),
        ("gpt2", {"method": "qlora", "load_in_4bit": True, "bf16": True}),
        ("t5", {"bf16": True, "weights": "bf16", "gradient_checkpointing": True, "gradient_accumulation_steps": 2}),
        ("bert, masked", {"fp16": True}),
    ],
    ids=["words", "tied head", "scaled words", "4 bits", "both stacks", "encoder"],
)  # fmt: skip
def test_rows_of_words_that_train_by_themselves_ask_for_the_same_blocks(model: str, given: dict[str, Any]) -> None:
    base = TrainingSetup(method="lora", per_device_train_batch_size=3, max_source_length=72, trained_tokens=5)
    same_acts(CONFIGS[model], base._replace(**given))


LONGFORMER: dict[str, Any] = {**_BERT, "model_type": "longformer", "attention_window": 32, "pad_token_id": 1}


@pytest.mark.parametrize(
    ("head", "given"),
    [
        ("SequenceClassification", {"bf16": True, "do_eval": True, "eval_samples": 7}),
        ("SequenceClassification", {"gradient_checkpointing": True, "per_device_train_batch_size": 1}),
        (
            "SequenceClassification",
            {"method": "qlora", "load_in_4bit": True, "padded": False, "lora_target_modules": ("query", "value")},
        ),
        ("MaskedLM", {"fp16": True, "method": "lora", "lora_target_modules": ("query", "value")}),
        ("TokenClassification", {"weights": "bf16", "padded": False, "max_source_length": 64}),
    ],
)
def test_longformer_asks_for_the_same_blocks(head: str, given: dict[str, Any]) -> None:
    base = TrainingSetup(per_device_train_batch_size=3, max_source_length=72)
    same_acts({**LONGFORMER, "architectures": [f"LongformerFor{head}"]}, base._replace(**given))


BIG_BIRD: dict[str, Any] = {**_BERT, "model_type": "big_bird", "block_size": 8, "num_random_blocks": 1}


@pytest.mark.parametrize(
    ("head", "given"),
    [
        ("SequenceClassification", {"bf16": True, "do_eval": True, "eval_samples": 7}),
        ("TokenClassification", {"gradient_checkpointing": True, "padded": False}),
        ("TokenClassification", {"max_source_length": 56, "padded": False}),
        ("MaskedLM", {"fp16": True, "method": "lora", "lora_target_modules": ("query", "value"),
                      "per_device_train_batch_size": 1}),
    ],
)  # fmt: skip
def test_big_bird_asks_for_the_same_blocks(head: str, given: dict[str, Any]) -> None:
    base = TrainingSetup(per_device_train_batch_size=3, max_source_length=70)
    same_acts({**BIG_BIRD, "architectures": [f"BigBirdFor{head}"]}, base._replace(**given))


XLNET: dict[str, Any] = {
    "model_type": "xlnet",
    "d_model": 128,
    "n_head": 4,
    "n_layer": 2,
    "d_inner": 256,
    "vocab_size": 500,
}


@pytest.mark.parametrize(
    ("head", "given"),
    [
        ("SequenceClassification", {"bf16": True, "do_eval": True, "eval_samples": 7}),
        ("SequenceClassification", {"weights": "bf16", "padded": False, "per_device_train_batch_size": 1}),
        ("TokenClassification", {"method": "lora", "lora_target_modules": ("layer_1", "layer_2")}),
    ],
)
def test_xlnet_asks_for_the_same_blocks(head: str, given: dict[str, Any]) -> None:
    base = TrainingSetup(per_device_train_batch_size=3, max_source_length=70)
    same_acts({**XLNET, "architectures": [f"XLNetFor{head}"]}, base._replace(**given))


LED: dict[str, Any] = {
    "model_type": "led", "d_model": 128, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 500, "pad_token_id": 1,
    "max_encoder_position_embeddings": 256, "max_decoder_position_embeddings": 128, "attention_window": [16, 32],
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"bf16": True, "weights": "bf16", "do_eval": True, "eval_samples": 7},
        {"gradient_checkpointing": True, "padded": False, "per_device_train_batch_size": 1},
        {"fp16": True, "method": "lora", "lora_target_modules": ("query", "v_proj"), "max_source_length": 64},
        {"method": "qlora", "load_in_4bit": True, "lora_target_modules": ("q_proj", "v_proj")},
    ],
    ids=["evaluated", "checkpointed", "lora", "4 bits"],
)
def test_led_asks_for_the_same_blocks(given: dict[str, Any]) -> None:
    base = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, max_target_length=20)
    same_acts(LED, base._replace(**given))


_WRITTEN_WORDS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {  # config, layers, tables
    "bart": (CONFIGS["bart"], ("q_proj",), ("embed_tokens",)),
    "marian": (CONFIGS["marian"], ("q_proj",), ("embed_tokens",)),
    "m2m_100": (CONFIGS["m2m_100"], ("q_proj",), ("embed_tokens",)),
    "led": (LED, ("query", "q_proj"), ("embed_tokens",)),
    "longt5": (_LONGT5, ("q",), ("embed_tokens",)),
    "deberta": (_DEBERTA, ("query_proj",), ("word_embeddings",)),
    "modernbert": (CONFIGS["modernbert"], ("Wqkv",), ("tok_embeddings",)),
    "longformer": (LONGFORMER, ("query",), ("word_embeddings", "position_embeddings")),
    "big bird": (BIG_BIRD, ("query",), ("word_embeddings", "token_type_embeddings")),
    "xlnet": ({**XLNET, "architectures": ["XLNetForSequenceClassification"]}, ("layer_1",), ("word_embedding",)),
    "mpnet": (MPNET, ("q",), ("word_embeddings", "position_embeddings")),
}


@pytest.mark.parametrize("model", _WRITTEN_WORDS)
@pytest.mark.parametrize("how", ["adapters", "trained whole", "rows"])
def test_words_that_a_family_looks_up_itself_are_adapted_as_peft_does(model: str, how: str) -> None:
    config, layers, tables = _WRITTEN_WORDS[model]
    checkpointed = model not in ("xlnet", "mpnet") and how != "adapters"
    base = TrainingSetup(
        method="lora",
        bf16=True,
        per_device_train_batch_size=3,
        max_source_length=72,
        gradient_checkpointing=checkpointed,
    )
    setup = base._replace(lora_target_modules=(*layers, *tables) if how == "adapters" else layers)
    if how == "trained whole":
        setup = setup._replace(modules_to_save=tables, weights="bf16")
    if how == "rows":
        setup = setup._replace(trained_tokens=5)
    same_acts(config, setup)


@pytest.mark.parametrize(
    "model",
    [
        "gemma 3",
        "gemma 4",
        "exaone 4",
        "olmo 2",
        "cohere 2",
        "granite 4",
        "lfm 2",
        "opt",
        "gpt2",
        "mixtral",
        "qwen 3, experts",
    ],
)
@pytest.mark.parametrize("padded", [True, False])
def test_decoding_takes_what_the_simulation_takes(model: str, padded: bool) -> None:
    """Windows that fill up, positions that are counted, experts whose weights are copied for each token."""
    setup = TrainingSetup(do_train=False, do_predict=True, inference_batch_size=3, inference_max_length=7,
                          max_source_length=30, padded=padded)  # fmt: skip
    config = CONFIGS[model] | ({"global_head_dim": 64} if "global_head_dim" in CONFIGS[model] else {})
    config.pop("pad_token_id", None)  # as published configs of the type have it, or as transformers does
    peaks = peaks_of(config, setup)
    _, own = followed(config, setup, (8, 6))
    assert {phase: own[phase] for phase in peaks} == peaks


@pytest.mark.parametrize("model", ["llama", "gemma 2", "gpt2", "mixtral", "lfm 2", "gemma 4"])
def test_beams_of_decoders_take_what_the_simulation_takes(model: str) -> None:
    """Alone, with an answer whose middle is skipped, and in evaluation after training."""
    setup = TrainingSetup(do_eval=True, predict_with_generate=True, do_predict=True, inference_batch_size=3,
                          inference_num_beams=4, inference_max_length=40, per_device_train_batch_size=2,
                          per_device_eval_batch_size=3, generation_num_beams=2, generation_max_length=9,
                          max_source_length=40, bf16=True)  # fmt: skip
    config = dict(CONFIGS[model])
    config.pop("pad_token_id", None)
    peaks = peaks_of(config, setup)
    _, own = followed(config, setup, (8, 6))
    assert {phase: own[phase] for phase in peaks} == peaks


@pytest.mark.parametrize("kind", LONGT5)
@pytest.mark.parametrize(
    "given",
    [
        {"bf16": True, "label_smoothing_factor": 0.1, "do_eval": True, "eval_samples": 7},
        {"gradient_checkpointing": True, "padded": False, "max_source_length": 64},
        {"fp16": True, "method": "lora", "lora_target_modules": ("q", "v"), "max_source_length": 17},
        {"weights": "bf16", "method": "lora", "load_in_8bit": True, "lora_target_modules": ("all-linear",)},
    ],
    ids=["smoothed, evaluated", "checkpointed", "lora", "8 bits"],
)
def test_longt5_asks_for_the_same_blocks(kind: str, given: dict[str, Any]) -> None:
    base = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, max_target_length=20)
    same_acts(LONGT5[kind], base._replace(**given))


# all of whose layers see everything: else transformers makes masks in the order of a set
GEMMA_4 = {
    "model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "tie_word_embeddings": True,
    "text_config": {**CONFIGS["gemma 4"], "layer_types": ["full_attention"] * 5, "attention_k_eq_v": True,
                    "num_global_key_value_heads": 1},
    "vision_config": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "num_key_value_heads": 2, "head_dim": 32, "position_embedding_size": 64,
                      "use_clipped_linears": True, "standardize": True},
    "audio_config": {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 48},
    **{f"{name}_token_id": 990 for name in ("image", "video", "audio", "boi", "eoi", "boa")}, "eoa_token_index": 990,
}  # fmt: skip


# without towers, and with masks over blocks of pictures that are not there
GEMMA_4_12B = {
    **GEMMA_4, "model_type": "gemma4_unified", "architectures": ["Gemma4UnifiedForConditionalGeneration"],
    "text_config": {**GEMMA_4["text_config"], "model_type": "gemma4_unified_text", "num_kv_shared_layers": 0},
    "vision_config": {"mm_embed_dim": 64, "output_proj_dims": 64, "mm_posemb_size": 16, "patch_size": 2},
    "audio_config": {"audio_embed_dim": 48, "output_proj_dims": 48},
}  # fmt: skip


MISTRAL_3 = {
    "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "tie_word_embeddings": True,
    "text_config": {**CONFIGS["ministral 3"], "tie_word_embeddings": True},
    "vision_config": {"model_type": "pixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
                      "num_attention_heads": 2, "patch_size": 4, "image_size": 32},
}  # fmt: skip


# in training without checkpoints the language model's cache holds what its last states were made of
QWEN_3_5 = {
    "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "tie_word_embeddings": True,
    "text_config": CONFIGS["qwen 3.5"],
    "vision_config": {"depth": 1, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 128,
                      "num_position_embeddings": 16},
    **{f"{name}_token_id": 990 for name in ("image", "video", "vision_start", "vision_end")},
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [GEMMA_4, GEMMA_4_12B, MISTRAL_3, QWEN_3_5],
    ids=["towers", "no towers", "mistral 3", "qwen 3.5"],
)
@pytest.mark.parametrize(
    "given",
    [
        {"bf16": True, "do_eval": True, "gradient_checkpointing": True},
        {"bf16": True, "method": "qlora", "load_in_4bit": True, "lora_target_modules": ("all-linear",),
         "gradient_checkpointing": True, "padded": False},
        {"do_train": False, "do_predict": True, "inference_batch_size": 3, "inference_max_length": 4,
         "max_source_length": 30},
    ],
    ids=["evaluated", "4 bits", "decoded"],
)  # fmt: skip
def test_words_alone_reach_no_tower(given: dict[str, Any], config: dict[str, Any]) -> None:
    base = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, images=Images(0, 1, 1))
    same_acts(config, base._replace(**given))


def test_gemma_4_without_shared_keys_runs_its_blocks_again_by_reentrance() -> None:
    """Its blocks are then handed nothing but states that a gradient reaches."""
    words = {**GEMMA_4_12B["text_config"], "hidden_size_per_layer_input": 0}
    given = TrainingSetup(gradient_checkpointing=True, use_reentrant=True, bf16=True, images=Images(0, 1, 1))
    same_acts(
        {**GEMMA_4_12B, "text_config": words}, given._replace(per_device_train_batch_size=3, max_source_length=72)
    )


GPT_OSS = {**_DECODER, "model_type": "gpt_oss", "head_dim": 32, "intermediate_size": 64, "num_local_experts": 8,
           "num_experts_per_tok": 2, "sliding_window": 16}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"bf16": True, "do_eval": True, "eval_samples": 7},
        {"fp16": True, "weights": "fp16"},
        {"weights": "bf16", "bf16": True, "gradient_checkpointing": True, "method": "lora",
         "lora_target_modules": ("all-linear",)},
        {"bf16": True, "method": "qlora", "load_in_4bit": True, "lora_target_modules": ("q_proj", "v_proj")},
        {"padded": False, "gradient_checkpointing": True, "use_reentrant": True, "max_source_length": 12},
    ],
    ids=["evaluated", "fp16 weights", "lora, checkpointed", "4 bits", "within the window"],
)  # fmt: skip
def test_gpt_oss_asks_for_the_same_blocks(given: dict[str, Any]) -> None:
    base = TrainingSetup(per_device_train_batch_size=3, max_source_length=72)
    same_acts(GPT_OSS, base._replace(**given))


@pytest.mark.parametrize(
    "given",
    [
        {"weights": "bf16", "inference_max_length": 40},
        {"inference_num_beams": 3, "inference_max_length": 30, "padded": False},
        {"do_train": True, "do_eval": True, "predict_with_generate": True, "generation_max_length": 12, "bf16": True,
         "do_predict": False},
        {"weights": "fp16", "inference_max_length": 12, "max_source_length": 40, "method": "lora",
         "lora_target_modules": ("q_proj", "v_proj")},
    ],
    ids=["greedy", "beams", "between steps of training", "adapters"],
)  # fmt: skip
def test_gpt_oss_answers_within_the_same_memory(given: dict[str, Any]) -> None:
    base = TrainingSetup(per_device_train_batch_size=3, per_device_eval_batch_size=3, max_source_length=72,
                         do_train=False, do_predict=True)  # fmt: skip
    setup = base._replace(**given)
    peaks = peaks_of(GPT_OSS, setup)
    found = followed(GPT_OSS, setup, (8, 6))[1]
    assert {phase: found[phase] for phase in peaks} == peaks


@pytest.mark.parametrize("kind", ["led", *LONGT5])
def test_long_inputs_are_answered_within_the_same_memory(kind: str) -> None:
    config = LONGT5.get(kind, LED)
    setup = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, bf16=True, do_eval=True,
                          predict_with_generate=True, generation_num_beams=3, generation_max_length=9)  # fmt: skip
    peaks = peaks_of(config, setup)
    found = followed(config, setup, (8, 6))[1]
    assert {phase: found[phase] for phase in peaks} == peaks


WRITTEN: dict[str, dict[str, Any]] = {
    "falcon, one key for all": {**_DECODER, "model_type": "falcon"},
    "falcon, ALiBi": {**_DECODER, "model_type": "falcon", "num_attention_heads": 6, "hidden_size": 96,
                      "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True},
    "gpt-j": {"model_type": "gptj", "n_embd": 128, "n_layer": 2, "n_head": 4, "rotary_dim": 16, "vocab_size": 1000,
              "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neo": {"model_type": "gpt_neo", "hidden_size": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000,
                "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 128},
}  # fmt: skip


@pytest.mark.parametrize("model", WRITTEN)
def test_attention_that_a_type_writes_out_is_run_again_as_it_is_there(model: str) -> None:
    """Checkpointed by torch's older way, whose backward also runs from the attention's weights, that nobody read."""
    setup = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, bf16=True, gradient_checkpointing=True,
                          use_reentrant=True, method="lora", lora_target_modules=("all-linear",),
                          attn_implementation="eager" if "one key" not in model else "sdpa")  # fmt: skip
    same_acts(WRITTEN[model], setup)


@pytest.mark.skipif(
    tuple(map(int, releases()["transformers"].split(".")[:2])) < (5, 24),
    reason="GPT-J has scaled_dot_product_attention since 5.24",
)
def test_gpt_j_by_sdpa_asks_for_the_same_blocks_and_decodes_within_the_same_memory() -> None:
    """The words are fp32, and so are sines and cosines, while autocast made keys bf16."""
    setup = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, bf16=True)
    same_acts(WRITTEN["gpt-j"], setup)
    setup = setup._replace(do_train=False, do_eval=True, predict_with_generate=True, generation_num_beams=2,
                           generation_max_length=30)  # fmt: skip
    peaks = peaks_of(WRITTEN["gpt-j"], setup)
    _, own = followed(WRITTEN["gpt-j"], setup, (8, 6))
    assert {phase: own[phase] for phase in peaks} == peaks


SPANS = {**_BERT, "model_type": "bert", "architectures": ["BertForQuestionAnswering"]}


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (SPANS, {"do_eval": True, "eval_samples": 12, "per_device_eval_batch_size": 4}),
        (SPANS, {"label_smoothing_factor": 0.1}),  # there are no "labels": the loss stays the model's
        (CONFIGS["roberta"], {"label_smoothing_factor": 0.1}),
        (CONFIGS["bert, masked"], {"label_smoothing_factor": 0.1}),
        (CONFIGS["roberta"], {"method": "lora", "lora_target_modules": ("query", "value")}),
        (CONFIGS["deberta"], {"do_eval": True, "eval_samples": 7, "padded": False}),
        (CONFIGS["deberta"], {"method": "lora", "lora_target_modules": ("query_proj", "value_proj")}),
        ({**CONFIGS["modernbert"], "architectures": ["ModernBertForMaskedLM"]}, {"do_eval": True, "eval_samples": 9}),
        (
            {**CONFIGS["modernbert"], "architectures": ["ModernBertForQuestionAnswering"]},
            {"method": "lora", "lora_target_modules": ("Wqkv",), "padded": False},
        ),
    ],
)
def test_labels_of_encoders_are_kept_and_smoothed_as_the_trainer_does(
    config: dict[str, Any], given: dict[str, Any]
) -> None:
    setup = TrainingSetup(per_device_train_batch_size=3, max_source_length=72, bf16=True, **given)
    peaks = peaks_of(config, setup)
    assert {phase: followed(config, setup, (8, 6))[1][phase] for phase in peaks} == peaks


DORA: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"lora_dropout": 0.1},
    "weights in bf16": {"weights": "bf16", "lora_dropout": 0.1},
    "checkpointed": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(("llama", name) for name in DORA),
        *(("t5", name) for name in ("dropout", "checkpointed")),
        *(("bert", name) for name in ("plain", "weights in bf16")),
    ],
)
def test_dora_asks_for_the_same_blocks(model: str, name: str) -> None:
    targets = {"llama": ("q_proj", "down_proj"), "t5": ("q", "wo"), "bert": ("query", "dense")}[model]
    setup = TrainingSetup(method="lora", use_dora=True, bf16=True, lora_target_modules=targets,
                          per_device_train_batch_size=3, max_source_length=72, **DORA[name])  # fmt: skip
    same_acts(CONFIGS[model], setup)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("llama", {"fp16": True, "weights": "fp16", "gradient_checkpointing": True}),  # each layer keeps its input
        ("llama", {"bf16": True, "weights": "bf16", "prepare_for_kbit": False, "per_device_train_batch_size": 1}),
        ("starcoder2", {"gradient_checkpointing": True, "use_reentrant": True, "optim": "paged_adamw_8bit"}),  # biases
        ("t5", {"bf16": True, "optim": "paged_adamw_8bit", "do_eval": True, "eval_samples": 6}),
    ],
)
def test_weights_in_8_bits_peak_where_bitsandbytes_own_layers_do(model: str, given: dict[str, Any]) -> None:
    targets = {"t5": ("q", "v")}.get(model, ("q_proj", "v_proj"))
    base = TrainingSetup(method="lora", load_in_8bit=True, lora_target_modules=targets, lora_r=64, lora_dropout=0.1,
                         per_device_train_batch_size=3, max_source_length=72)  # fmt: skip
    setup = base._replace(**given)
    peaks = peaks_of(CONFIGS[model], setup)
    assert {phase: followed(CONFIGS[model], setup, (8, 6))[1][phase] for phase in peaks} == peaks


@pytest.mark.parametrize(
    "given",
    [
        {"method": "lora", "lora_target_modules": ("q_proj", "v_proj"), "gradient_checkpointing": True, "fp16": True},
        {"method": "lora", "load_in_8bit": True, "lora_target_modules": ("q_proj", "v_proj"), "fp16": True},
        {"weights": "fp16", "do_eval": True, "eval_samples": 9},  # whose encoder clamps; there is no autocast
        {"fp16": True, "do_eval": True, "predict_with_generate": True, "generation_max_length": 12},
        {"do_train": False, "do_predict": True, "inference_max_length": 448, "inference_num_beams": 4},
    ],
    ids=["lora, checkpointed", "8 bits", "fp16 weights", "greedy", "beams"],
)
def test_whisper_peaks_where_the_simulation_does(given: dict[str, Any]) -> None:
    setup = TrainingSetup(per_device_train_batch_size=3, max_target_length=40, **given)
    peaks = peaks_of(CONFIGS["whisper"], setup, (7, 5))
    _, found = followed(CONFIGS["whisper"], setup, (7, 5))
    near = 512 if setup.do_eval and setup.predict_with_generate else 0  # one block of a small tensor of token ids
    for phase, (allocated, reserved) in peaks.items():
        assert abs(found[phase][0] - allocated) <= (near if phase == "generate" else 0), phase
        assert found[phase][1] == reserved, phase


_EVALUATED = {"do_train": True, "do_predict": False, "do_eval": True, "predict_with_generate": True, "bf16": True,
              "generation_max_length": 5, "per_device_eval_batch_size": 2}  # fmt: skip
_TOWER_FROZEN = {"frozen": ("vision_tower",), "checkpoints_trained": True, "gradient_checkpointing": True}
_FLASH = {"attn_implementation": "flash", "padded": False}  # what is padded is laid out otherwise, as of text
_FROZEN = {"frozen": ("visual.",), "checkpoints_trained": True, "gradient_checkpointing": True, "use_reentrant": True}


@pytest.mark.parametrize(
    ("model", "images", "given"),
    few([
        ("llava", (1, 4, 4), {"weights": "bf16"}),
        ("llava", (2, 4, 4), {"inference_max_length": 40, "padded": False}),
        ("llava", (0, 0, 0), {"weights": "bf16", "inference_num_beams": 3}),
        ("llava", (1, 4, 4), _EVALUATED),
        ("llava of several layers", (1, 4, 4), {"attn_implementation": "eager"}),
        ("llava of SigLIP", (1, 4, 4), {"weights": "bf16"}),
        ("llava_next", (1, 90, 130), {"weights": "bf16"}),
        ("idefics3", (2, 60, 50), {"weights": "bf16"}),
        ("smolvlm", (1, 60, 50), {"bf16": True}),
        ("smolvlm", (1, 60, 50), {**_EVALUATED, "generation_num_beams": 2}),
        ("qwen2_vl", (1, 10, 14), {"padded": False, "inference_max_length": 40}),
        ("qwen2_vl", (2, 10, 14), {"weights": "bf16", "inference_num_beams": 3}),
        ("qwen2_vl", (0, 0, 0), {"weights": "bf16", "inference_num_beams": 3}),
        ("qwen2_5_vl", (2, 10, 14), {"method": "lora", "lora_target_modules": ("q_proj",), **_EVALUATED}),
        ("paligemma", (1, 4, 4), {"attn_implementation": "eager"}),
        ("paligemma", (2, 4, 4), {"weights": "bf16", "inference_num_beams": 3}),
        ("paligemma 2", (1, 4, 4), _EVALUATED),
        ("gemma 3", (2, 4, 4), {"weights": "bf16", "inference_num_beams": 3}),
        ("gemma 3", (1, 4, 4), {**_EVALUATED, "padded": False}),
        ("qwen3_vl", (2, 8, 8), {"weights": "bf16", "inference_num_beams": 3}),
        ("qwen3_vl", (1, 8, 12), {**_EVALUATED, "padded": False}),
        ("qwen2_5_vl", (1, 10, 14), {**_EVALUATED, "method": "qlora", "load_in_4bit": True, "padded": False,
                                     "lora_target_modules": ("q_proj", "down_proj"), "attn_implementation": "flash"}),
        # flash attention of one sample asks if it is several
        ("smolvlm", (0, 0, 0), {**_EVALUATED, "attn_implementation": "flash", "padded": False,
                                "per_device_train_batch_size": 1}),
        ("llava", (2, 4, 4), {"padded": False, "inference_num_beams": 3}),
        ("llava_next", (1, 90, 130), {"weights": "bf16", "inference_num_beams": 2}),
        ("idefics3", (2, 60, 50), {"weights": "bf16", "inference_num_beams": 3}),
    ], 13),
    ids=["one", "two, long", "none, by beams", "in evaluation", "layers", "SigLIP", "tiles", "cut", "cut small",
         "cut small, by beams in evaluation", "Qwen2-VL, long", "Qwen2-VL by beams", "Qwen2-VL without any",
         "Qwen2.5-VL in evaluation", "PaliGemma", "PaliGemma by beams", "PaliGemma 2 in evaluation",
         "Gemma 3 by beams", "Gemma 3 in evaluation", "Qwen3-VL by beams", "Qwen3-VL in evaluation",
         "4 bits by flash", "one by flash", "by beams", "tiles by beams", "cut, by beams"],
)  # fmt: skip
def test_answers_about_pictures_take_what_the_simulation_takes(
    model: str, images: tuple[int, int, int], given: dict[str, Any]
) -> None:
    base = TrainingSetup(do_train=False, do_predict=True, inference_batch_size=2, inference_max_length=6,
                         per_device_train_batch_size=2, max_source_length=400, images=Images(*images))  # fmt: skip
    peaks = peaks_of(ANSWERING[model], base._replace(**given))
    _, found = followed(ANSWERING[model], base._replace(**given), (8, 6))
    assert "generate" in peaks
    assert {phase: found[phase] for phase in peaks} == peaks


@pytest.mark.parametrize(
    ("words", "images", "given"),
    [
        ("gemma", (1, 4, 4), {"bf16": True, "do_eval": True, "eval_samples": 6}),
        ("gemma", (2, 4, 4), {"weights": "bf16", "gradient_checkpointing": True, "padded": False}),
        ("gemma", (1, 4, 4), {"method": "qlora", "load_in_4bit": True, "bf16": True, **_TOWER_FROZEN, "do_eval": True,
                              "lora_target_modules": ("all-linear",)}),
        ("gemma", (0, 0, 0), {"attn_implementation": "eager"}),
        ("gemma 2", (1, 4, 4), {"bf16": True, "do_eval": True}),
        ("gemma 2", (2, 4, 4), {"bf16": True, "method": "lora", "lora_target_modules": ("q_proj", "linear")}),
        ("gemma 3", (2, 4, 4), {"bf16": True, "do_eval": True, "eval_samples": 6}),
        ("gemma 3", (1, 4, 4), {"attn_implementation": "eager", "padded": False}),
        ("gemma 3", (1, 4, 4), {"weights": "bf16", "bf16": True, "gradient_checkpointing": True, "method": "lora",
                                "lora_target_modules": ("all-linear",), "do_eval": True}),
        ("gemma 3", (1, 4, 4), {"method": "qlora", "load_in_4bit": True, "bf16": True, **_TOWER_FROZEN,
                                "lora_target_modules": ("q_proj", "v_proj")}),
    ],
    ids=["evaluated", "checkpointed, two images", "4 bits, tower frozen", "no image", "windows", "lora",
         "blocks, evaluated", "blocks, eager", "blocks, checkpointed", "blocks, 4 bits, tower frozen"],
)  # fmt: skip
def test_paligemma_asks_for_the_same_blocks(words: str, images: tuple[int, int, int], given: dict[str, Any]) -> None:
    setup = TrainingSetup(per_device_train_batch_size=2, max_source_length=200, images=Images(*images), **given)
    same_acts(PALIGEMMA[words], setup)


@pytest.mark.parametrize(
    ("model", "images", "given"),
    [
        ("idefics3", (1, 60, 50), {"bf16": True, "do_eval": True, "eval_samples": 6}),
        ("idefics3", (2, 30, 90), {"weights": "bf16", "gradient_checkpointing": True, "padded": False}),
        ("idefics3", (0, 0, 0), {"attn_implementation": "eager"}),
        ("smolvlm", (1, 50, 60), {"bf16": True, "do_eval": True, "eval_samples": 6}),
        ("smolvlm", (2, 30, 90), {"method": "qlora", "load_in_4bit": True, "bf16": True, "gradient_checkpointing": True,
                                  "lora_target_modules": ("all-linear",)}),
        ("smolvlm", (1, 900, 20), {"attn_implementation": "eager", "do_eval": True, "prediction_loss_only": True}),
    ],
    ids=["evaluated", "checkpointed", "no image", "smol, evaluated", "smol, 4 bits", "smol, eager"],
)  # fmt: skip
def test_models_that_cut_pictures_ask_for_the_same_blocks(
    model: str, images: tuple[int, int, int], given: dict[str, Any]
) -> None:
    setup = TrainingSetup(per_device_train_batch_size=2, max_source_length=400, images=Images(*images), **given)
    same_acts(CUT[model], setup)


@pytest.mark.parametrize(
    ("model", "images", "given"),
    few([
        ("qwen2_vl", (1, 10, 14), {"bf16": True, "do_eval": True, "eval_samples": 6}),
        ("qwen2_5_vl", (2, 10, 18), {"bf16": True, "method": "lora", "lora_target_modules": ("q_proj", "v_proj")}),
        ("qwen2_5_vl", (1, 16, 16), {"weights": "bf16", "gradient_checkpointing": True, "padded": False}),
        ("qwen2_vl", (1, 12, 12), {"method": "qlora", "load_in_4bit": True, "bf16": True, **_FROZEN,
                                   "lora_target_modules": ("all-linear",)}),
        ("qwen2_5_vl", (1, 10, 14), {"bf16": True, **_FROZEN, "frozen_weights": "bf16"}),
        ("qwen2_5_vl", (0, 0, 0), {"attn_implementation": "eager"}),
        ("llava", (2, 4, 4), {"bf16": True, "do_eval": True, "eval_samples": 6, "optim": "adamw_torch"}),
        ("llava", (1, 4, 4), {"weights": "bf16", "gradient_checkpointing": True, "use_reentrant": True}),
        ("llava", (1, 4, 4), {"method": "qlora", "load_in_4bit": True, "bf16": True, **_TOWER_FROZEN,
                              "lora_target_modules": ("all-linear",)}),
        ("llava of several layers", (1, 4, 4), {"attn_implementation": "eager", "padded": False, "do_eval": True}),
        ("llava of SigLIP", (1, 4, 4), {"bf16": True, "gradient_checkpointing": True, "do_eval": True}),
        ("llava_next", (1, 90, 130), {"bf16": True, "do_eval": True, "prediction_loss_only": True}),
        ("llava_next", (2, 300, 40), {"weights": "bf16", "method": "lora", "lora_dropout": 0.05,
                                      "lora_target_modules": ("q_proj", "fc1", "linear_1")}),
        ("llava_next", (0, 0, 0), {"fp16": True, **_TOWER_FROZEN, "frozen_weights": "fp16"}),
        ("qwen2_vl", (2, 10, 14), {"bf16": True, **_FLASH}),
        ("qwen2_5_vl", (1, 10, 14), {"weights": "bf16", "gradient_checkpointing": True, **_FLASH}),
        ("qwen3_vl", (2, 8, 12), {"bf16": True, "do_eval": True, "eval_samples": 6}),
        ("qwen3_vl", (1, 8, 8), {"attn_implementation": "eager", "padded": False}),
        ("qwen3_vl", (1, 8, 12), {"method": "qlora", "load_in_4bit": True, "bf16": True, "gradient_checkpointing": True,
                                  "lora_target_modules": ("all-linear",)}),
        ("qwen3_vl", (1, 8, 12), {"bf16": True, **_FROZEN, "frozen_weights": "bf16"}),
        ("qwen3_vl", (1, 8, 12), {"weights": "bf16", "gradient_checkpointing": True, **_FLASH}),
        ("llava", (1, 4, 4), {"bf16": True, "method": "lora", "lora_target_modules": ("q_proj", "v_proj"), **_FLASH}),
    ], 11),
    ids=["whole, evaluated", "lora, two images", "checkpointed", "4 bits, tower frozen", "tower frozen", "no image",
         "llava", "llava checkpointed", "llava in 4 bits", "layers", "SigLIP", "tiles", "two in tiles", "no tile",
         "flash", "flash in windows", "early states, evaluated", "early states, eager", "early states, 4 bits",
         "early states, tower frozen", "early states by flash", "llava by flash"],
)  # fmt: skip
def test_models_that_see_ask_for_the_same_blocks(
    model: str, images: tuple[int, int, int], given: dict[str, Any]
) -> None:
    setup = TrainingSetup(per_device_train_batch_size=2, max_source_length=200, images=Images(*images), **given)
    same_acts(SEEING[model], setup)
