"""The models of bench/engine_grid.py: dimensions of published ones in config.json's names, of fewer layers.

A layer more is the same once more, and a trace of two takes a second.
"""

from collections.abc import Mapping
from typing import Any

import grid
import yaml

LAYERS = 2
_LONGT5 = {"model_type": "longt5", "d_model": 768, "d_ff": 2048, "num_heads": 12, "d_kv": 64, "num_layers": 2,
           "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "pad_token_id": 0,
           "decoder_start_token_id": 0}  # fmt: skip
_LLAMA = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_hidden_layers": 4}
_BART = {"encoder_layers": 4, "decoder_layers": 4, "scale_embedding": True, "pad_token_id": 1, "eos_token_id": 2,
         "decoder_start_token_id": 2}  # fmt: skip
_BERT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 4,
         "vocab_size": 30522, "max_position_embeddings": 512}  # fmt: skip
_DEBERTA = {**_BERT, "model_type": "deberta-v2", "vocab_size": 128100, "type_vocab_size": 0,
            "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256,
            "max_relative_positions": -1, "position_biased_input": False, "share_att_key": True,
            "norm_rel_ebd": "layer_norm"}  # fmt: skip
_LONGFORMER = {**_BERT, "model_type": "longformer", "num_hidden_layers": 2, "vocab_size": 50265, "pad_token_id": 1,
               "max_position_embeddings": 4098, "type_vocab_size": 1, "attention_window": 512}  # fmt: skip
_BIG_BIRD = {**_BERT, "model_type": "big_bird", "num_hidden_layers": 2, "vocab_size": 50358, "block_size": 64,
             "num_random_blocks": 3, "max_position_embeddings": 4096, "hidden_act": "gelu_new"}  # fmt: skip
WRITTEN: Mapping[str, dict[str, Any]] = {
    "stablelm-2": {**_LLAMA, "model_type": "stablelm", "num_key_value_heads": 32, "vocab_size": 100352,
                   "use_qkv_bias": True, "partial_rotary_factor": 0.25, "max_position_embeddings": 4096},
    "stablelm-parallel": {**_LLAMA, "model_type": "stablelm", "num_key_value_heads": 8, "vocab_size": 50304,
                          "use_parallel_residual": True, "max_position_embeddings": 4096, "hidden_dropout": 0.1},
    "starcoder2": {"model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288,
                   "num_attention_heads": 24, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 49152,
                   "residual_dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1,
                   "max_position_embeddings": 16384},
    "cohere": {"model_type": "cohere", "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
               "num_key_value_heads": 8, "num_hidden_layers": 3, "vocab_size": 64000, "pad_token_id": 0,
               "bos_token_id": 5, "eos_token_id": 6},
    "opus-mt": {**_BART, "model_type": "marian", "d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
                "encoder_attention_heads": 8, "decoder_attention_heads": 8, "vocab_size": 65001,
                "max_position_embeddings": 512, "activation_function": "swish"},
    "nllb": {**_BART, "model_type": "m2m_100", "d_model": 1024, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
             "encoder_attention_heads": 16, "decoder_attention_heads": 16, "vocab_size": 256206,
             "max_position_embeddings": 1024, "activation_function": "relu", "attention_dropout": 0.1},
    "t5": {"model_type": "t5", "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_kv": 64, "num_layers": 4,
           "vocab_size": 32128},
    "longt5-local": {**_LONGT5, "encoder_attention_type": "local"},
    "longt5-tglobal": {**_LONGT5, "encoder_attention_type": "transient-global"},
    "mt5": {"model_type": "mt5", "d_model": 512, "d_ff": 1024, "num_heads": 6, "d_kv": 64, "num_layers": 4,
            "vocab_size": 250112, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "bart": {**_BART, "model_type": "bart", "d_model": 768, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
             "encoder_attention_heads": 12, "decoder_attention_heads": 12, "vocab_size": 50265,
             "max_position_embeddings": 1024, "attention_dropout": 0.1},
    "led": {**_BART, "model_type": "led", "encoder_layers": 2, "decoder_layers": 2, "d_model": 768,
            "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "encoder_attention_heads": 12,
            "decoder_attention_heads": 12, "vocab_size": 50265, "max_encoder_position_embeddings": 16384,
            "max_decoder_position_embeddings": 1024, "attention_window": 1024},
    "llama": {**_LLAMA, "model_type": "llama", "num_key_value_heads": 8, "vocab_size": 32000, "rms_norm_eps": 1e-5},
    "gemma-2": {"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
                "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 2, "vocab_size": 64000,
                "sliding_window": 256},
    "gemma-3": {"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4,
                "num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 3, "vocab_size": 64000,
                "sliding_window": 128, "sliding_window_pattern": 3},
    "phi-3": {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
              "num_hidden_layers": 2, "vocab_size": 32064, "sliding_window": 2047, "pad_token_id": 32000},
    "granite": {**_LLAMA, "model_type": "granite", "num_key_value_heads": 8, "vocab_size": 49159,
                "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
                "residual_multiplier": 0.22, "tie_word_embeddings": True},
    "hyperclovax": {**_LLAMA, "model_type": "hyperclovax", "num_key_value_heads": 8, "vocab_size": 110592,
                    "use_post_norm": True},
    "smollm3": {**_LLAMA, "model_type": "smollm3", "num_key_value_heads": 4, "vocab_size": 128256},
    "exaone-4": {**_LLAMA, "model_type": "exaone4", "num_key_value_heads": 8, "vocab_size": 102400,
                 "sliding_window": 256, "sliding_window_pattern": 4},
    "qwen2-windowed": {**_LLAMA, "model_type": "qwen2", "num_key_value_heads": 8, "vocab_size": 32000,
                       "use_sliding_window": True, "sliding_window": 200, "max_window_layers": 2, "bos_token_id": 1,
                       "eos_token_id": 2},
    "mixtral": {"model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 16,
                "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 32000, "num_local_experts": 8,
                "num_experts_per_tok": 2},
    "qwen2-moe": {"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
                  "num_attention_heads": 16, "num_hidden_layers": 2, "vocab_size": 64000, "num_experts": 16,
                  "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
                  "bos_token_id": 1, "eos_token_id": 2},
    "qwen3-moe": {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
                  "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 3,
                  "vocab_size": 64000, "num_experts": 16, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                  "norm_topk_prob": True, "mlp_only_layers": [0], "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": {"model_type": "gpt_neox", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
                 "num_hidden_layers": 4, "vocab_size": 50304, "max_position_embeddings": 2048},
    "gpt-oss": {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
                "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 2, "vocab_size": 201088,
                "num_local_experts": 8, "num_experts_per_tok": 4, "sliding_window": 128},
    "falcon-7b": {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 2, "num_attention_heads": 71,
                  "vocab_size": 65024},
    "falcon-40b": {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 128,
                   "num_kv_heads": 8, "new_decoder_architecture": True, "vocab_size": 65024},
    "falcon-rw": {"model_type": "falcon", "hidden_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 32,
                  "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True, "vocab_size": 50304},
    "bloom": {"model_type": "bloom", "hidden_size": 1024, "n_layer": 3, "n_head": 16, "vocab_size": 250880,
              "pad_token_id": 3},
    "gpt-j": {"model_type": "gptj", "n_embd": 4096, "n_layer": 2, "n_head": 16, "rotary_dim": 64, "vocab_size": 50400},
    "gpt-neo": {"model_type": "gpt_neo", "hidden_size": 2048, "num_layers": 4, "num_heads": 16, "vocab_size": 50257,
                "attention_types": [[["global", "local"], 2]], "attention_dropout": 0.1},
    "glm": {"model_type": "glm", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 2,
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552},
    "glm4": {"model_type": "glm4", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 2,
             "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552},
    "bert": {**_BERT, "model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 3},
    "bert-masked": {**_BERT, "model_type": "bert", "architectures": ["BertForMaskedLM"]},
    "roberta": {**_BERT, "model_type": "roberta", "architectures": ["RobertaForTokenClassification"],
                "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "num_labels": 9},
    "electra": {**_BERT, "model_type": "electra", "architectures": ["ElectraForSequenceClassification"],
                "embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4},
    "distilbert": {"model_type": "distilbert", "architectures": ["DistilBertForQuestionAnswering"], "dim": 768,
                   "hidden_dim": 3072, "n_heads": 12, "n_layers": 4, "vocab_size": 30522},
    "modernbert": {"model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"],
                   "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 4, "num_attention_heads": 12,
                   "vocab_size": 50368, "max_position_embeddings": 8192},
    "modernbert-masked": {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "hidden_size": 1024,
                          "intermediate_size": 2624, "num_hidden_layers": 4, "num_attention_heads": 16,
                          "vocab_size": 50368, "max_position_embeddings": 8192},
    "deberta-v2": {**_DEBERTA, "architectures": ["DebertaV2ForMaskedLM"], "hidden_size": 1536,
                   "intermediate_size": 6144, "num_attention_heads": 24, "num_hidden_layers": 2,
                   "conv_kernel_size": 3, "conv_act": "gelu"},
    "deberta-unshared": {**_DEBERTA, "architectures": ["DebertaV2ForTokenClassification"], "num_labels": 9,
                         "vocab_size": 32000, "share_att_key": False, "position_buckets": -1, "type_vocab_size": 2,
                         "position_biased_input": True, "norm_rel_ebd": "none"},
    "mpnet": {**_BERT, "model_type": "mpnet", "architectures": ["MPNetForSequenceClassification"], "vocab_size": 30527,
              "max_position_embeddings": 514},
    "mpnet-masked": {**_BERT, "model_type": "mpnet", "architectures": ["MPNetForMaskedLM"], "vocab_size": 30527,
                     "max_position_embeddings": 514},
    "longformer": {**_LONGFORMER, "architectures": ["LongformerForSequenceClassification"]},
    "longformer-tokens": {**_LONGFORMER, "architectures": ["LongformerForTokenClassification"], "num_labels": 9,
                          "attention_window": [256, 512]},
    "longformer-masked": {**_LONGFORMER, "architectures": ["LongformerForMaskedLM"]},
    "bigbird": {**_BIG_BIRD, "architectures": ["BigBirdForSequenceClassification"]},
    "bigbird-masked": {**_BIG_BIRD, "architectures": ["BigBirdForMaskedLM"], "block_size": 16},
    "xlnet": {"model_type": "xlnet", "architectures": ["XLNetForSequenceClassification"], "d_model": 768, "n_head": 12,
              "n_layer": 2, "d_inner": 3072, "vocab_size": 32000},
    "albert": {**_BERT, "model_type": "albert", "architectures": ["AlbertForSequenceClassification"],
               "embedding_size": 128, "vocab_size": 30000, "hidden_act": "gelu_new"},
}  # fmt: skip
# Of rules/models, with so few layers.
CATALOGUED = (
    "llama-3.2-1b",
    "smollm2-135m",
    "mistral-7b",
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-8b",
    "phi-2",
    "phi-1.5",
    "pythia-410m",
    "polyglot-ko-1.3b",
    "gpt2-medium",
    "opt-125m",
    "opt-350m",
    "gemma-2b",
    "t5-base",
    "t5-v1.1-base",
    "mt5-small",
    "pko-t5-base",
    "kobart",
    "bart-large",
    "mbart-large-50",
    "pegasus-large",
    "whisper-tiny",
    "whisper-large-v3-turbo",
    "klue-bert-base",
    "klue-roberta-base",
    "xlm-roberta-base",
    "kcelectra-base",
    "koelectra-small-v3",
    "bert-large-cased",
    "gpt-neo-125m",
    "deberta-v3-base",
    "deberta-v3-large",
    "llava-1.5-7b",
    "llava-v1.6-mistral-7b",
)
_NUMBERS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def _catalogued(name: str) -> dict[str, Any]:
    """A model of rules/models with :data:`LAYERS` layers."""
    path = grid.ROOT / "rules" / "models" / f"{name}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    config: dict[str, Any] = yaml.load(path.read_text("utf-8"), loader)["architecture"]
    config |= {number: LAYERS for number in _NUMBERS if number in config}
    for part in ("text_config", "vision_config"):
        if "num_hidden_layers" in config.get(part, {}):
            config[part]["num_hidden_layers"] = LAYERS
    if "attention_types" in config:
        config["attention_types"] = [[["global", "local"], LAYERS // 2]]
    return config


MODELS: Mapping[str, dict[str, Any]] = {**WRITTEN, **{name: _catalogued(name) for name in CATALOGUED}}
