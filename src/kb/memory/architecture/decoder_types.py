"""``config.json`` fields of decoder-only types that are no kin of Llama's or GPT-2's: a function each. Their parameters
are counted from the engine's own model, so that a new type needs no formula.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kb.core.model import Architecture, Delta
from kb.memory.architecture.decoder import rotary_share
from kb.memory.config_fields import (
    UnsupportedArchitectureError,
    flag,
    head_size,
    number,
    rate,
    refuse,
    unpredicted,
    word,
)


def decoder_of(config: Mapping[str, Any], **known: Any) -> Architecture:
    """The fields that most decoder-only types share."""
    width = number(config, "hidden_size", "n_embd", "n_embed")
    heads = number(config, "num_attention_heads", "n_head", "num_heads")
    found: dict[str, Any] = {
        "family": "decoder",
        "model_type": str(config["model_type"]),
        "d_model": width,
        "num_heads": heads,
        "encoder_layers": 0,
        "decoder_layers": number(config, "num_hidden_layers", "n_layer", "num_layers"),
        "vocab_size": number(config, "vocab_size"),
        "kv_heads": heads,
        "engine": True,
    }
    found |= known
    if "d_ff" not in found:
        found["d_ff"] = number(config, "intermediate_size")
    if "d_kv" not in found:
        found["d_kv"] = number(config, "head_dim", default=0) or head_size(width, heads, "num_attention_heads")
    return Architecture(**found)


def kv_heads_of(config: Mapping[str, Any], default: int | None = None) -> int:
    """As many as there are heads, where nothing says less."""
    heads = number(config, "num_attention_heads")
    return number(config, "num_key_value_heads", default=default or heads)


def slides_of(config: Mapping[str, Any], layers: int, every: int) -> tuple[bool, ...]:
    """Which layers slide: as ``layer_types`` says, else all but one of so many."""
    named = config.get("layer_types")
    if not named:
        return tuple((at + 1) % every > 0 for at in range(layers))
    if len(named) != layers:
        raise UnsupportedArchitectureError(f"config.json: layer_types names {len(named)} layers of {layers}")
    return tuple(kind == "sliding_attention" for kind in named)


def _stablelm(config: Mapping[str, Any]) -> Architecture:
    refuse(config, "qk_layernorm")
    parallel = flag(config, "use_parallel_residual", False)
    return decoder_of(
        config,
        kv_heads=kv_heads_of(config),
        tied=flag(config, "tie_word_embeddings", False),
        gated=True,
        activation=word(config, "hidden_act", default="silu"),
        norm="layer",
        norms=1 if parallel else 2,
        parallel=parallel,
        qkv_bias=flag(config, "use_qkv_bias", False),
        rotary=rotary_share(config, default=0.25),
        hidden_dropout=rate(config, "hidden_dropout") > 0,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _starcoder2(config: Mapping[str, Any]) -> Architecture:
    biased = flag(config, "use_bias", True)
    window = config.get("sliding_window")
    layers = number(config, "num_hidden_layers")
    return decoder_of(
        config,
        kv_heads=kv_heads_of(config, 2),
        tied=flag(config, "tie_word_embeddings", True),
        activation=word(config, "hidden_act", default="gelu_pytorch_tanh"),
        norm="layer",
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        rotary=1.0,
        window=None if window is None else number(config, "sliding_window"),
        windowed_layers=0 if window is None else layers,
        hidden_dropout=rate(config, "residual_dropout") > 0,
        embedding_dropout=rate(config, "embedding_dropout") > 0,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _cohere(config: Mapping[str, Any]) -> Architecture:
    refuse(config, "use_qk_norm")
    biased = flag(config, "attention_bias", False)
    return decoder_of(
        config,
        kv_heads=kv_heads_of(config),
        tied=flag(config, "tie_word_embeddings", True),
        gated=True,
        activation=word(config, "hidden_act", default="silu"),
        norms=1,
        parallel=True,
        qkv_bias=biased,
        output_bias=biased,
        rotary=1.0,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _cohere2(config: Mapping[str, Any]) -> Architecture:
    """Command R7B, Aya: three of four layers slide, and those alone turn queries and keys by their positions."""
    layers = number(config, "num_hidden_layers")
    slides = slides_of(config, layers, number(config, "sliding_window_pattern", default=4))
    window = number(config, "sliding_window", default=4096)
    return _cohere(config)._replace(window=window, windowed_layers=sum(slides), slides=slides, turns=slides)


def _granite_hybrid(config: Mapping[str, Any]) -> Architecture:
    """Granite 4: those of attention in every layer and one feed-forward; others mix in Mamba's layers, or experts."""
    kinds, layers = config.get("layer_types"), number(config, "num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= {"attention", "full_attention"}:
        raise unpredicted("layer_types with mamba")
    if config.get("num_local_experts", 8) or config.get("position_embedding_type") != "rope":
        raise unpredicted("num_local_experts, or no rotary positions")
    biased = flag(config, "attention_bias", False)
    return decoder_of(
        config,
        kv_heads=kv_heads_of(config),
        d_ff=number(config, "shared_intermediate_size", default=1024),
        tied=flag(config, "tie_word_embeddings", False),
        gated=True,
        fused_gates=True,
        activation=word(config, "hidden_act", default="silu"),
        norm="rms",
        qkv_bias=biased,
        output_bias=biased,
        rotary=1.0,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _lfm2(config: Mapping[str, Any]) -> Architecture:
    """LFM2: short convolutions in most layers, attention in those that ``layer_types`` or ``full_attn_idxs`` name; the
    feed-forward's size is two thirds of what is written, in whole blocks, where it is adjusted (``Lfm2MLP``)."""
    refuse(config, "conv_bias")
    layers, kinds, named = number(config, "num_hidden_layers"), config.get("layer_types"), config.get("full_attn_idxs")
    if kinds is None:
        kinds = ["full_attention" if named is None or at in named else "conv" for at in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= {"conv", "full_attention"}:
        raise unpredicted("layer_types")
    width = number(config, "block_ff_dim", "intermediate_size", default=12288)
    if flag(config, "block_auto_adjust_ff_dim", True):
        block = number(config, "block_multiple_of", default=256)
        width = int(float(config.get("block_ffn_dim_multiplier") or 1.0) * (2 * width // 3))
        width = -(-width // block) * block
    mixes = tuple(kind == "conv" for kind in kinds)
    return decoder_of(
        config,
        kv_heads=kv_heads_of(config, 8),
        d_ff=width,
        tied=flag(config, "tie_embedding", flag(config, "tie_word_embeddings", True)),
        gated=True,
        activation="silu",
        norm="rms",
        qk_norm="head",
        rotary=1.0,
        conv=number(config, "conv_L_cache", default=3),
        mixes=mixes if any(mixes) else (),
    )


def qwen3_5(config: Mapping[str, Any]) -> Architecture:
    """Qwen3.5's language model: the gated delta rule in most layers, attention in every fourth or where
    ``layer_types`` says so."""
    layers, kinds = number(config, "num_hidden_layers", default=32), config.get("layer_types")
    if kinds is None:
        every = number(config, "full_attention_interval", default=4)
        kinds = ["full_attention" if (at + 1) % every == 0 else "linear_attention" for at in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= {"linear_attention", "full_attention"}:
        raise unpredicted("layer_types")
    mixes = tuple(kind == "linear_attention" for kind in kinds)
    biased = flag(config, "attention_bias", False)
    delta = Delta(
        number(config, "linear_num_key_heads", default=16),
        number(config, "linear_num_value_heads", default=32),
        number(config, "linear_key_head_dim", default=128),
        number(config, "linear_value_head_dim", default=128),
    )
    return decoder_of(
        config,
        decoder_layers=layers,
        kv_heads=kv_heads_of(config, 4),
        d_kv=number(config, "head_dim", default=256),
        tied=flag(config, "tie_word_embeddings", False),
        gated=True,
        activation=word(config, "hidden_act", default="silu"),
        norm="rms",
        qk_norm="head",
        qkv_bias=biased,
        output_bias=biased,
        rotary=rotary_share(config, default=0.25),
        conv=number(config, "linear_conv_kernel_dim", default=4),
        delta=delta,
        mixes=mixes,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _ernie(config: Mapping[str, Any]) -> Architecture:
    """ERNIE 4.5 without experts."""
    biased = flag(config, "use_bias", False)
    return decoder_of(
        config,
        kv_heads=kv_heads_of(config, 2),
        d_kv=number(config, "head_dim", default=128),
        tied=flag(config, "tie_word_embeddings", True),
        gated=True,
        activation=word(config, "hidden_act", default="silu"),
        norm="rms",
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        rotary=1.0,
    )


def _glm(config: Mapping[str, Any]) -> Architecture:
    """GLM-4: ``glm`` as first published, ``glm4`` with norms behind attention and feed-forward too."""
    return decoder_of(
        config,
        kv_heads=kv_heads_of(config, 2),
        d_kv=number(config, "head_dim", default=128),
        tied=flag(config, "tie_word_embeddings", False),
        gated=True,
        fused_gates=True,
        activation=word(config, "hidden_act", default="silu"),
        norm="rms",
        norms=4 if config["model_type"] == "glm4" else 2,
        qkv_bias=flag(config, "attention_bias", True),
        rotary=rotary_share(config, default=0.5),
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _gptj(config: Mapping[str, Any]) -> Architecture:
    width, heads = number(config, "n_embd", "hidden_size"), number(config, "n_head", "num_attention_heads")
    size, turned = head_size(width, heads, "n_head"), number(config, "rotary_dim", default=64)
    if turned > size:
        raise UnsupportedArchitectureError(f"config.json: rotary_dim {turned} of heads of {size}")
    return decoder_of(
        config,
        d_ff=number(config, "n_inner", default=4 * width),
        d_kv=size,
        tied=flag(config, "tie_word_embeddings", False),
        activation=word(config, "activation_function", default="gelu_new"),
        max_positions=number(config, "n_positions", "max_position_embeddings", default=2048),
        norm="layer",
        norms=1,
        parallel=True,
        mlp_bias=True,
        head_bias=True,
        rotary=turned / size,
        hidden_dropout=rate(config, "resid_pdrop") > 0,
        embedding_dropout=rate(config, "embd_pdrop") > 0,
        attention_dropout=rate(config, "attn_pdrop") > 0,
    )


def _gpt_neo(config: Mapping[str, Any]) -> Architecture:
    """Local attention masks what it does not see in whole scores: a window saves no memory."""
    width = number(config, "hidden_size")
    return decoder_of(
        config,
        d_ff=number(config, "intermediate_size", default=4 * width),
        tied=flag(config, "tie_word_embeddings", True),
        activation=word(config, "activation_function", default="gelu_new"),
        max_positions=number(config, "max_position_embeddings", default=2048),
        norm="layer",
        output_bias=True,
        mlp_bias=True,
        hidden_dropout=rate(config, "resid_dropout") > 0,
        embedding_dropout=rate(config, "embed_dropout") > 0,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _bloom(config: Mapping[str, Any]) -> Architecture:
    refuse(config, "apply_residual_connection_post_layernorm")
    if number(config, "pretraining_tp", default=1) > 1:
        refuse(config, "slow_but_exact")
    width = number(config, "hidden_size", "n_embed")
    return decoder_of(
        config,
        d_ff=4 * width,
        tied=flag(config, "tie_word_embeddings", True),
        norm="layer",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        fused_qkv=True,
        alibi=True,
        hidden_dropout=rate(config, "hidden_dropout") > 0,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _falcon(config: Mapping[str, Any]) -> Architecture:
    """Falcon 7B shares one key and value among all heads; 40B and later (``new_decoder_architecture``) among groups,
    with one norm for both parts or one for each; Falcon-RW has ALiBi, biases and one part after the other."""
    width = number(config, "hidden_size", "n_embed")
    heads = number(config, "num_attention_heads", "n_head")
    grouped = flag(config, "new_decoder_architecture", False)
    parallel = flag(config, "parallel_attn", True)
    shared = 1 if flag(config, "multi_query", True) else heads
    norms = number(config, "num_ln_in_parallel_attn", default=2 if grouped else 1)
    if (grouped and not parallel) or norms > 2 or (norms == 2 and not grouped):
        raise UnsupportedArchitectureError(
            "config.json: parallel_attn and num_ln_in_parallel_attn contradict each other"
        )
    kv_heads = number(config, "num_kv_heads", default=heads) if grouped else shared
    if heads % kv_heads:
        raise UnsupportedArchitectureError(f"config.json: {heads} heads are not shared by num_kv_heads {kv_heads}")
    biased = flag(config, "bias", False)
    return decoder_of(
        config,
        d_ff=number(config, "ffn_hidden_size", default=4 * width),
        kv_heads=kv_heads,
        tied=flag(config, "tie_word_embeddings", True),
        activation=word(config, "activation", default="gelu"),
        norm="layer",
        norms=norms if parallel else 2,
        parallel=parallel,
        alibi=flag(config, "alibi", False),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        rotary=1.0,
        fused_qkv=True,
        grouped_qkv=grouped,
        hidden_dropout=rate(config, "hidden_dropout") > 0,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _gpt_oss(config: Mapping[str, Any]) -> Architecture:
    """gpt-oss, with the defaults of ``GptOssConfig``; every other layer slides where no list says which."""
    refuse(config, "output_router_logits")
    layers, own = number(config, "num_hidden_layers"), number(config, "intermediate_size")
    if own % 8:
        raise UnsupportedArchitectureError(f"config.json: intermediate_size {own}: rows of whole 16 bytes are followed")
    slides = slides_of(config, layers, 2)
    biased = flag(config, "attention_bias", True)
    experts, each = number(config, "num_local_experts", "num_experts"), number(config, "num_experts_per_tok", default=4)
    if each > experts:
        raise UnsupportedArchitectureError(f"config.json: num_experts_per_tok {each} of {experts} experts")
    return decoder_of(
        config,
        d_ff=own,
        d_kv=number(config, "head_dim", default=64),
        kv_heads=kv_heads_of(config, 8),
        tied=flag(config, "tie_word_embeddings", False),
        gated=True,
        activation="silu",
        norm="rms",
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=True,
        rotary=1.0,
        window=number(config, "sliding_window", default=128),
        windowed_layers=sum(slides),
        slides=slides,
        experts=experts,
        experts_per_token=each,
        expert_ff=own,
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


def _or_none(config: Mapping[str, Any], name: str, default: int) -> int:
    """A number that may be 0 or null, which are none."""
    return number(config, name, default=default) if config.get(name, default) else 0


def gemma4(config: Mapping[str, Any]) -> Architecture:
    """Gemma 4's language model, with the defaults of ``Gemma4TextConfig``; without experts."""
    refuse(config, "enable_moe_block")
    if config.get("use_bidirectional_attention") == "all" or config.get("per_layer_config"):
        raise unpredicted("use_bidirectional_attention all, or per_layer_config")
    layers = number(config, "num_hidden_layers", default=30)
    slides = slides_of(config, layers, 6)
    slides = (*slides[:-1], False)  # the last one sees everything, whatever is written
    shared = _or_none(config, "num_kv_shared_layers", 0)
    if shared and {*slides[: layers - shared]} != {*slides}:
        raise UnsupportedArchitectureError("config.json: num_kv_shared_layers leaves no layer of a kind")
    size, wide = number(config, "head_dim", default=256), number(config, "global_head_dim", default=512)
    biased = flag(config, "attention_bias", False)
    joined = flag(config, "attention_k_eq_v", False)
    wide_heads = _or_none(config, "num_global_key_value_heads", 0) if joined else 0
    if wide_heads and number(config, "num_attention_heads") % wide_heads:
        raise unpredicted(f"num_global_key_value_heads {wide_heads}")
    width = _or_none(config, "hidden_size_per_layer_input", 256)
    return decoder_of(
        config,
        decoder_layers=layers,
        kv_heads=kv_heads_of(config, 4),
        d_kv=size,
        wide_d_kv=wide if wide != size else 0,
        wide_kv_heads=wide_heads,
        keys_are_values=joined,
        tied=flag(config, "tie_word_embeddings", True),
        gated=True,
        activation=word(config, "hidden_activation", default="gelu_pytorch_tanh"),
        norm="rms",
        norms=4,
        qk_norm="head",
        rotary=1.0,
        qkv_bias=biased,
        output_bias=biased,
        window=number(config, "sliding_window", default=512),
        windowed_layers=sum(slides),
        slides=slides,
        reuses=tuple(at >= layers - shared for at in range(layers)) if shared else (),
        wide_reusing=flag(config, "use_double_wide_mlp", False),
        layer_inputs=width,
        layer_vocab=number(config, "vocab_size_per_layer_input", default=262_144) if width else 0,
        logit_cap=bool(config.get("final_logit_softcapping")),
        attention_dropout=rate(config, "attention_dropout") > 0,
    )


DECODERS: Mapping[str, Callable[[Mapping[str, Any]], Architecture]] = {
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "granitemoehybrid": _granite_hybrid,
    "bloom": _bloom,
    "falcon": _falcon,
    "gptj": _gptj,
    "gpt_neo": _gpt_neo,
    "lfm2": _lfm2,
    "qwen3_5_text": qwen3_5,
    "ernie4_5": _ernie,
    "glm": _glm,
    "glm4": _glm,
    "gpt_oss": _gpt_oss,
    "gemma4_text": gemma4,
}
