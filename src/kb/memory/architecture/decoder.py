"""Decoder-only models' ``config.json`` fields as an architecture: GPT-2, OPT, GPT-NeoX, Llama and its kin."""

from collections.abc import Callable, Mapping
from typing import Any

from kb.core.model import Architecture, Norm, QkNorm
from kb.core.record import NamedTuple
from kb.memory.config_fields import (
    UnsupportedArchitectureError,
    flag,
    head_size,
    number,
    rate,
    word,
)


class Traits(NamedTuple):
    """What a model_type has that its config.json does not say, and transformers' defaults for what it may leave out.

    ``qkv_bias`` and its like are defaults where ``attention_bias`` (or ``mlp_bias``) is a field of the type.
    """

    norm: Norm = "rms"
    norms: int = 2
    norm_after: bool = False
    gated: bool = True
    tied: bool = False
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: QkNorm = "none"
    rotary: float = 1.0
    parallel: bool = False
    fused: bool = False
    kv_heads: int | None = None
    window: int | None = None
    every: int | None = None  # one layer in so many sees everything, the others slide
    experts: int = 0
    dropout: float = 0.0


TRAITS = {
    "llama": Traits(),
    "mistral": Traits(kv_heads=8, window=4096),
    "qwen2": Traits(qkv_bias=True),
    "qwen3": Traits(qk_norm="head"),
    "gemma": Traits(norm="rms_offset", tied=True, activation="gelu_pytorch_tanh"),
    "gemma2": Traits(norm="rms_offset", norms=4, tied=True, activation="gelu_pytorch_tanh", window=4096, every=2),
    "gemma3_text": Traits(norm="rms_offset", norms=4, tied=True, activation="gelu_pytorch_tanh", qk_norm="head",
                          window=4096, every=6),
    "phi": Traits(norm="layer", norms=1, gated=False, activation="gelu_new", qkv_bias=True, output_bias=True,
                  mlp_bias=True, head_bias=True, rotary=0.5, parallel=True),
    "phi3": Traits(fused=True),
    "exaone": Traits(),
    "exaone4": Traits(norm_after=True, qk_norm="head", window=4096, every=4),
    "olmo2": Traits(norm_after=True, qk_norm="whole"),
    "olmo3": Traits(norm_after=True, qk_norm="whole", window=4096, every=4),
    "ministral3": Traits(kv_heads=8),
    "hunyuan_v1_dense": Traits(qk_norm="head"),
    "smollm3": Traits(tied=True, kv_heads=4),
    "granite": Traits(),
    "hyperclovax": Traits(norms=4),
    "mixtral": Traits(kv_heads=8, experts=8),
    "qwen2_moe": Traits(qkv_bias=True, experts=60),
    "qwen3_moe": Traits(qk_norm="head", experts=128),
    "gpt2": Traits(norm="layer", gated=False, tied=True, activation="gelu_new", qkv_bias=True, output_bias=True,
                   mlp_bias=True, rotary=0.0, fused=True, dropout=0.1),
    "opt": Traits(norm="layer", gated=False, tied=True, activation="relu", qkv_bias=True, output_bias=True,
                  mlp_bias=True, rotary=0.0, dropout=0.1),
    "gpt_neox": Traits(norm="layer", gated=False, activation="gelu", qkv_bias=True, output_bias=True, mlp_bias=True,
                       rotary=0.25, parallel=True, fused=True),
}  # fmt: skip
TYPES = tuple(TRAITS)
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
LEARNED_POSITIONS = ("gpt2", "opt")
MOST_NAMED = 1 << 12  # layers: of a model of more, only how many slide is said
# Types whose window counts for nothing unless the config says that it is used.
_ASKED = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3")
# what a model needs to be taken for a Llama's kin, and what no such model has
_NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps")
_FOREIGN = (
    "state_size", "ssm_cfg", "mamba_d_state", "mamba_d_conv", "kv_lora_rank", "q_lora_rank", "conv_L_cache",
    "n_routed_experts", "num_experts", "num_local_experts", "vision_config", "audio_config", "text_config",
    "cross_attention_layers", "linear_num_value_heads", "kv_channels", "qk_layernorm", "use_qk_norm",
    "hidden_size_per_layer_input", "num_kv_shared_layers", "global_head_dim", "shared_intermediate_size",
)  # fmt: skip


def missing(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a Llama that this config lacks."""
    return tuple(name for name in _NEEDED if config.get(name) is None)


def resembles(config: Mapping[str, Any]) -> bool:
    """Whether a config of an unknown type has the fields of a Llama, and none of another kind of model."""
    return not missing(config) and not config.get("is_encoder_decoder") and not any(
        config.get(name) for name in _FOREIGN
    )  # fmt: skip


def _kv_heads(config: Mapping[str, Any], heads: int, default: int) -> int:
    shared = number(config, "num_key_value_heads", default=default)
    if heads % shared:
        raise UnsupportedArchitectureError(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {shared}",
            "not_shared",
            heads=heads,
            shared=shared,
        )
    return shared


def architecture(config: Mapping[str, Any]) -> Architecture:
    """The dimensions of a decoder-only model, under the field names of its own type.

    Raises:
        UnsupportedArchitectureError: a field missing, of a wrong type, or contradicting another.
    """
    model_type = str(config.get("model_type"))
    traits = TRAITS.get(model_type, TRAITS["llama"])
    d_model = number(config, "hidden_size", "n_embd")
    layers = number(config, "num_hidden_layers", "n_layer", "num_layers")
    heads = number(config, "num_attention_heads", "n_head")
    d_kv = number(config, "head_dim", default=0) or head_size(d_model, heads, "num_attention_heads")
    kv_heads = _kv_heads(config, heads, traits.kv_heads or heads)
    unbiased = {"qwen2": "", "ministral3": "", "opt": "enable_bias"}.get(model_type, "attention_bias")
    both = flag(config, unbiased, traits.output_bias)
    window, windowed, slides = _windows(config, layers, traits.window, traits.every)
    found = Architecture(
        family="decoder",
        model_type=model_type,
        d_model=d_model,
        d_ff=_feed_forward(config, model_type, d_model),
        num_heads=heads,
        d_kv=d_kv,
        encoder_layers=0,
        decoder_layers=layers,
        vocab_size=number(config, "vocab_size"),
        gated=traits.gated,
        tied=flag(config, "tie_word_embeddings", traits.tied),
        max_positions=_positions(config, model_type),
        attention_dropout=rate(config, "attention_dropout", "attn_pdrop", default=0.1 if model_type == "gpt2" else 0.0)
        > 0,
        kv_heads=kv_heads,
        activation=word(config, "hidden_activation", "hidden_act", "activation_function", default=traits.activation),
        norm=traits.norm,
        norms=2 if config.get("use_post_norm") is False else traits.norms,
        norms_sums=model_type == "opt" and not flag(config, "do_layer_norm_before", True),
        norm_after=traits.norm_after,
        hidden_dropout=rate(config, "resid_pdrop", "hidden_dropout", "dropout", default=traits.dropout) > 0,
        embedding_dropout=_embedding_dropout(config, traits),
        embedding_size=_embedding_size(config, d_model),
        qkv_bias=both if model_type == "opt" else traits.qkv_bias or both,
        output_bias=both,
        mlp_bias=both if model_type == "opt" else flag(config, "mlp_bias", traits.mlp_bias),
        head_bias=traits.head_bias,
        qk_norm=traits.qk_norm,
        rotary=rotary_share(config, "rotary_pct", default=traits.rotary),
        parallel=flag(config, "use_parallel_residual", traits.parallel),
        fused_qkv=traits.fused,
        fused_gates=traits.fused and traits.gated,
        window=window,
        windowed_layers=windowed,
        slides=slides,
        turns=_turned(config, layers, window, slides),
        score_cap=bool(config.get("attn_logit_softcapping", model_type == "gemma2")),
        logit_cap=bool(config.get("final_logit_softcapping", model_type == "gemma2")),
    )
    return _with_experts(found, config, traits) if model_type in MIXTURES else found


def _feed_forward(config: Mapping[str, Any], model_type: str, d_model: int) -> int:
    if model_type == "gpt2":
        return number(config, "n_inner", default=4 * d_model)
    return number(config, "intermediate_size", "ffn_dim")


def _embedding_dropout(config: Mapping[str, Any], traits: Traits) -> bool:
    """GPT-2 and GPT-NeoX drop out embeddings too; OPT and Phi-3 do not."""
    if config.get("model_type") in ("opt", "phi3"):
        return False
    return rate(config, "embd_pdrop", "embed_dropout", "hidden_dropout", default=traits.dropout) > 0


def _embedding_size(config: Mapping[str, Any], d_model: int) -> int | None:
    size = number(config, "word_embed_proj_dim", default=d_model)
    return size if size != d_model else None


def _positions(config: Mapping[str, Any], model_type: str) -> int | None:
    """Learned positions, which are parameters; None where they are rotary."""
    if model_type not in LEARNED_POSITIONS:
        return None
    return number(config, "max_position_embeddings", "n_positions", default=2048 if model_type == "opt" else 1024)


def rotary_share(config: Mapping[str, Any], *names: str, default: float) -> float:
    """The share of a head that is turned, by ``rope_parameters`` or the first of the named fields."""
    inner = config.get("rope_parameters")
    given = inner.get("partial_rotary_factor") if isinstance(inner, Mapping) else None
    if given is not None:
        return rate({"partial_rotary_factor": given}, "partial_rotary_factor")
    return rate(config, "partial_rotary_factor", *names, default=default)


def _with_experts(found: Architecture, config: Mapping[str, Any], traits: Traits) -> Architecture:
    """Mixtures of experts: how many, how many a token passes, their sizes, and the layers that have none."""
    shared = "shared_expert_intermediate_size"
    without, which = _dense(config, found.decoder_layers)
    return found._replace(
        experts=number(config, "num_local_experts", "num_experts", default=traits.experts),
        experts_per_token=number(config, "num_experts_per_tok"),
        expert_ff=number(config, "moe_intermediate_size", "intermediate_size"),
        shared_ff=number(config, shared) if found.model_type == "qwen2_moe" else 0,
        dense_layers=without,
        dense=which,
        shares_normed=found.model_type == "mixtral" or flag(config, "norm_topk_prob", False),
        router_loss=flag(config, "output_router_logits", False),
    )


# How the layers of one model differ, each read as the type's ``configuration_*.py`` of transformers 5.23 does.


def _windows(
    config: Mapping[str, Any], layers: int, window: int | None, every: int | None
) -> tuple[int | None, int, tuple[bool, ...]]:
    """The window of sliding attention, how many layers slide, and which do where not all are alike.

    ``window`` and ``every`` are the type's defaults; of so many layers one sees everything.
    """
    asked = str(config.get("model_type")) in _ASKED
    if not flag(config, "use_sliding_window", not asked):
        return None, 0, ()
    found = config.get("sliding_window", window)
    if not found:
        return None, 0, ()
    found = number({"sliding_window": found}, "sliding_window")
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) >= layers:
        slides: tuple[bool, ...] = tuple(kind == "sliding_attention" for kind in kinds[:layers])
    else:
        slides = tuple(map(_slider(config, every), range(min(layers, MOST_NAMED))))
    several = any(slides) and not all(slides)
    counted = sum(slides) if len(slides) == layers else layers * sum(slides) // len(slides)
    return (found if counted else None), counted, slides if several and len(slides) == layers else ()


def _slider(config: Mapping[str, Any], every: int | None) -> Callable[[int], bool]:
    """Whether the layer of a number slides, where no list says it."""
    kind = config.get("model_type")
    if kind in ("qwen2", "qwen3"):
        first = number(config, "max_window_layers", default=28)
        return lambda at: at >= first
    if kind == "qwen2_moe":
        last = number(config, "max_window_layers", default=28)
        return lambda at: at % 2 == 0 and at < last
    if kind == "smollm3":
        turns = _turner(config)
        return lambda at: not turns(at)
    each = 0
    if every:  # Gemma 2 has no field for it
        each = every if kind == "gemma2" else number(config, "sliding_window_pattern", default=every)
    return lambda at: not each or (at + 1) % each > 0


def _turned(config: Mapping[str, Any], layers: int, window: int | None, slides: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers turn queries and keys by their positions; () where all do.

    EXAONE 4's layers that see everything do not, where others slide.
    """
    kind = config.get("model_type")
    found: tuple[bool, ...] = ()
    if kind == "smollm3" and layers <= MOST_NAMED:
        found = tuple(map(_turner(config), range(layers)))
    if kind == "exaone4" and window is not None:
        found = slides
    return () if all(found) else found


def _turner(config: Mapping[str, Any]) -> Callable[[int], bool]:
    """SmolLM3: a list of ones and zeros, or one of so many layers that turns nothing."""
    named = config.get("no_rope_layers")
    if isinstance(named, list):
        return lambda at: bool(named[at]) if at < len(named) else True
    interval = number(config, "no_rope_layer_interval", default=4)
    return lambda at: (at + 1) % interval > 0


def _dense(config: Mapping[str, Any], layers: int) -> tuple[int, tuple[bool, ...]]:
    """How many layers of a mixture have no experts, and which."""
    step = number(config, "decoder_sparse_step", default=1)
    named = config.get("mlp_only_layers")
    alone = set(named) if isinstance(named, list) else set()
    found = [layer in alone or (layer + 1) % step != 0 for layer in range(layers)]
    return sum(found), tuple(found) if any(found) and layers <= MOST_NAMED else ()
