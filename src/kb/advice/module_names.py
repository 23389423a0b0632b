"""What the modules of a model are called, and what classes they are, by transformers' ``model_type``.

Read off models of transformers 5.23.0, built without memory in both feed-forward forms.
"""

_COMMON = ("Dropout", "Embedding", "Linear", "ModuleList")
_T5 = (
    *("Attention", "Block", "DenseActDense", "DenseGatedActDense", "ForConditionalGeneration"),
    *("LayerCrossAttention", "LayerFF", "LayerNorm", "LayerSelfAttention", "Stack"),
)
_T5_NAMES = (
    *("DenseReluDense", "EncDecAttention", "SelfAttention", "act", "block", "decoder", "dropout", "embed_tokens"),
    *("encoder", "final_layer_norm", "k", "layer", "layer_norm", "lm_head", "o", "q", "relative_attention_bias"),
    *("shared", "v", "wi", "wi_0", "wi_1", "wo"),
)
_BART_NAMES = (
    *("activation_fn", "decoder", "embed_positions", "embed_tokens", "encoder", "encoder_attn", "fc1", "fc2"),
    *("encoder_attn_layer_norm", "final_layer_norm", "k_proj", "layernorm_embedding", "layers", "lm_head", "model"),
    *("out_proj", "q_proj", "self_attn", "self_attn_layer_norm", "shared", "v_proj"),
)
_BART = (
    *("BartAttention", "BartDecoder", "BartDecoderLayer", "BartEncoder", "BartEncoderLayer", "BartModel"),
    *("BartForConditionalGeneration", "BartLearnedPositionalEmbedding", "BartScaledWordEmbedding", "LayerNorm"),
    *("GELUActivation", *_COMMON),
)
_ACTIVATIONS = ("NewGELUActivation", "GELUActivation", "ReLU", "SiLUActivation", *_COMMON)

# Every class that a module of the model has; FSDP may be told to wrap any of them.
MODULE_CLASSES: dict[str, tuple[str, ...]] = {
    **{
        family: (*(prefix + name for name in _T5), *_ACTIVATIONS)
        for family, prefix in (("t5", "T5"), ("mt5", "MT5"), ("umt5", "UMT5"))
    },
    "bart": _BART,
}
# Those that transformers itself keeps whole, ``_no_split_modules``.
LAYER_CLASSES: dict[str, tuple[str, ...]] = {
    "t5": ("T5Block",),
    "mt5": ("MT5Block",),
    "umt5": ("UMT5Block",),
    "bart": ("BartEncoderLayer", "BartDecoderLayer"),
}
# Every step of a module's path, numbers left out.
MODULE_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5_NAMES),
    "bart": _BART_NAMES,
}
