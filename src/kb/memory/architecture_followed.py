"""Types of transformers that kb does not know, whose memory the engine predicts: their ``config.json`` fields.

Those of decoder-only types are in :mod:`kb.memory.architecture_decoder_types`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kb.core.model import Architecture, Vision
from kb.memory.architecture_decoder_types import DECODERS, decoder_of, kv_heads_of, refuse
from kb.memory.architecture_encoder import head_of, labels_of, windows_of
from kb.memory.architecture_llava import idefics3, llava, paligemma
from kb.memory.config_fields import UnsupportedArchitectureError, equal, flag, head_size, number, rate, word

MOST_LAYERS = 512  # each is followed: two steps of so many take some seconds


def architecture(config: Mapping[str, Any]) -> Architecture:
    """The dimensions of a model of one of :data:`TYPES`, with transformers' defaults for what may be left out.

    Raises:
        UnsupportedArchitectureError: a field missing, of a wrong type, or asking for what the engine does not follow.
    """
    found = TYPES[str(config["model_type"])](config)
    layers = found.encoder_layers + found.decoder_layers
    if layers > MOST_LAYERS:
        raise UnsupportedArchitectureError(f"config.json: {layers} layers; each is followed, {MOST_LAYERS} at most")
    return found


def _seq2seq(config: Mapping[str, Any], positions: int) -> Architecture:
    """Marian, M2M100 and NLLB: BART's dimensions, positions that are computed and not learned."""
    width = number(config, "d_model")
    heads = equal(config, "encoder_attention_heads", "decoder_attention_heads")
    return Architecture(
        family="bart",
        model_type=str(config["model_type"]),
        d_model=width,
        d_ff=equal(config, "encoder_ffn_dim", "decoder_ffn_dim"),
        num_heads=heads,
        d_kv=head_size(width, heads, "encoder_attention_heads"),
        encoder_layers=number(config, "encoder_layers"),
        decoder_layers=number(config, "decoder_layers"),
        vocab_size=number(config, "vocab_size"),
        tied=flag(config, "tie_word_embeddings", True),
        max_positions=number(config, "max_position_embeddings", default=positions),
        biases=True,
        activation=word(config, "activation_function", default="gelu"),
        attention_dropout=rate(config, "attention_dropout") > 0,
        activation_dropout=rate(config, "activation_dropout") > 0,
        engine=True,
    )


def _longt5(config: Mapping[str, Any]) -> Architecture:
    """LongT5: T5's dimensions, blocks of ``local_radius`` + 1 tokens, global tokens where its attention has them."""
    layers = number(config, "num_layers")
    activation = word(config, "feed_forward_proj", default="relu")
    if activation not in ("relu", "gated-gelu"):
        raise UnsupportedArchitectureError(f"config.json: feed_forward_proj {activation[:40]}: no prediction for that")
    kind = word(config, "encoder_attention_type", default="local")
    if kind not in ("local", "transient-global"):
        raise UnsupportedArchitectureError("config.json: encoder_attention_type is local or transient-global")
    block = number(config, "global_block_size", default=16)
    return Architecture(
        family="t5",
        model_type="longt5",
        d_model=number(config, "d_model"),
        d_ff=number(config, "d_ff"),
        num_heads=number(config, "num_heads"),
        d_kv=number(config, "d_kv"),
        encoder_layers=layers,
        decoder_layers=number(config, "num_decoder_layers", default=layers),
        vocab_size=number(config, "vocab_size"),
        gated=activation == "gated-gelu",
        tied=flag(config, "tie_word_embeddings", True),
        relative_buckets=number(config, "relative_attention_num_buckets", default=32),
        window=number(config, "local_radius", default=127),
        global_block=block if kind == "transient-global" else 0,
        engine=True,
    )


def _keep_layers(config: Mapping[str, Any]) -> None:
    """Refuse layers that some steps leave out."""
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if rate(config, name) > 0:
            raise UnsupportedArchitectureError(f"config.json: {name}: no prediction for that")


def _led(config: Mapping[str, Any]) -> Architecture:
    """LED: BART's dimensions, a window for each layer of the encoder, and positions of both stacks."""
    _keep_layers(config)
    found = _seq2seq(config, 0)
    return found._replace(
        max_positions=number(config, "max_encoder_position_embeddings", default=16384),
        target_positions=number(config, "max_decoder_position_embeddings", default=1024),
        windows=windows_of(config, found.encoder_layers),
    )


def _xlnet(config: Mapping[str, Any]) -> Architecture:
    """XLNet that classifies sequences or tokens."""
    for name in config.get("architectures") or ():
        if name not in ("XLNetForSequenceClassification", "XLNetForTokenClassification"):
            raise UnsupportedArchitectureError(f"config.json: {str(name)[:80]}: no prediction for that")
    known = (("attn_type", "bi"), ("summary_type", "last"), ("summary_activation", "tanh"), ("summary_use_proj", True),
             ("bi_data", False), ("reuse_len", None))  # fmt: skip
    for name, usual in known:
        if config.get(name, usual) != usual:
            raise UnsupportedArchitectureError(f"config.json: {name} {config[name]}: no prediction for that")
    width, heads = number(config, "d_model", "hidden_size"), number(config, "n_head", "num_attention_heads")
    head = head_of(config)
    dropped = rate(config, "dropout", default=0.1) > 0
    return Architecture(
        family="encoder",
        model_type="xlnet",
        d_model=width,
        d_ff=number(config, "d_inner", default=4096),
        num_heads=heads,
        d_kv=head_size(width, heads, "n_head"),
        encoder_layers=number(config, "n_layer", "num_hidden_layers"),
        decoder_layers=0,
        vocab_size=number(config, "vocab_size"),
        biases=True,
        activation=word(config, "ff_activation", default="gelu"),
        hidden_dropout=dropped,
        attention_dropout=dropped,
        head=head,
        labels=labels_of(config, head),
        head_dropout=head == "sequence" and rate(config, "summary_last_dropout", default=0.1) > 0,
        keeps_inputs=flag(config, "use_mems_eval", True),
        engine=True,
    )


def _marian(config: Mapping[str, Any]) -> Architecture:
    if not flag(config, "share_encoder_decoder_embeddings", True):
        raise UnsupportedArchitectureError("config.json: share_encoder_decoder_embeddings false: no prediction")
    return _seq2seq(config, 1024)


def _m2m_100(config: Mapping[str, Any]) -> Architecture:
    found = _seq2seq(config, 1024)
    return found._replace(
        activation=word(config, "activation_function", default="relu"),
        attention_dropout=rate(config, "attention_dropout", default=0.1) > 0,
    )


def _whisper(config: Mapping[str, Any]) -> Architecture:
    """Whisper that writes down what it hears. SpecAugment changes the features in place: no byte of a peak."""
    for name in config.get("architectures") or ():
        if name != "WhisperForConditionalGeneration":
            raise UnsupportedArchitectureError(f"config.json: {str(name)[:80]}: no prediction for that")
    _keep_layers(config)
    found = _seq2seq(config, 448)
    return found._replace(
        max_positions=number(config, "max_target_positions", default=448),
        hidden_dropout=rate(config, "dropout") > 0,
        mel_bins=number(config, "num_mel_bins", default=80),
        audio_positions=number(config, "max_source_positions", default=1500),
    )


def _qwen_vl(config: Mapping[str, Any]) -> Architecture:
    """Qwen2-VL and Qwen2.5-VL. Configs on the hub have the language model's fields at the top, newer ones apart."""
    inner, seen = config.get("text_config"), config.get("vision_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    if not isinstance(seen, Mapping):
        raise UnsupportedArchitectureError("config.json: no vision_config")
    refuse(text, "use_sliding_window")
    tied = flag(config, "tie_word_embeddings", False) or flag(text, "tie_word_embeddings", False)
    return decoder_of(
        {**text, "model_type": config["model_type"]},
        kv_heads=kv_heads_of(text, 8),
        tied=tied,
        gated=True,
        activation=word(text, "hidden_act", default="silu"),
        norm="rms",
        qkv_bias=True,
        rotary=1.0,
        attention_dropout=rate(text, "attention_dropout") > 0,
        vision=_tower(str(config["model_type"]), seen),
    )


def _tower(model_type: str, seen: Mapping[str, Any]) -> Vision:
    """A vision tower's fields, with the defaults of ``Qwen2VLVisionConfig`` and ``Qwen2_5_VLVisionConfig``."""
    sizes: dict[str, Any] = {
        "depth": number(seen, "depth", default=32),
        "heads": number(seen, "num_heads", default=16),
        "channels": number(seen, "in_channels", "in_chans", default=3),
        "patch": number(seen, "patch_size", default=14),
        "frames": number(seen, "temporal_patch_size", default=2),
        "merge": number(seen, "spatial_merge_size", default=2),
    }
    if model_type == "qwen2_vl":
        width = number(seen, "embed_dim", default=1280)
        wider = number(seen, "mlp_ratio", default=4)
        acts = word(seen, "hidden_act", default="quick_gelu")
        return Vision(width=width, ff=width * wider, activation=acts, **sizes)
    full = seen.get("fullatt_block_indexes", (7, 15, 23, 31))
    if not isinstance(full, list | tuple) or not all(isinstance(each, int) for each in full):
        raise UnsupportedArchitectureError("config.json: fullatt_block_indexes: a list of layers' numbers")
    return Vision(
        width=number(seen, "hidden_size", default=3584),
        ff=number(seen, "intermediate_size", default=3420),
        activation=word(seen, "hidden_act", default="silu"),
        window=number(seen, "window_size", default=112),
        full_layers=tuple(full),
        **sizes,
    )


def _modernbert(config: Mapping[str, Any]) -> Architecture:
    """ModernBERT; which layers slide is given by name, or by a period (one of so many sees all tokens)."""
    for name in ("norm_bias", "classifier_bias", "sparse_prediction"):
        refuse(config, name)
    if word(config, "classifier_activation", default="gelu") != "gelu":
        raise UnsupportedArchitectureError("config.json: classifier_activation other than gelu: no prediction for that")
    width, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    layers, biased = number(config, "num_hidden_layers"), flag(config, "attention_bias", False)
    named = config.get("layer_types")
    period = number(config, "global_attn_every_n_layers", default=3)
    slides = list(named).count("sliding_attention") if named else sum(at % period > 0 for at in range(layers))
    head = head_of(config)
    return Architecture(
        family="encoder",
        model_type="modernbert",
        d_model=width,
        d_ff=number(config, "intermediate_size"),
        num_heads=heads,
        d_kv=head_size(width, heads, "num_attention_heads"),
        encoder_layers=layers,
        decoder_layers=0,
        vocab_size=number(config, "vocab_size"),
        gated=True,
        tied=flag(config, "tie_word_embeddings", True),
        activation=word(config, "hidden_activation", default="gelu"),
        rotary=1.0,
        window=number(config, "local_attention", default=128) // 2,
        windowed_layers=slides,
        attention_dropout=rate(config, "attention_dropout") > 0,
        hidden_dropout=rate(config, "mlp_dropout") > 0,
        embedding_dropout=rate(config, "embedding_dropout") > 0,
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=flag(config, "mlp_bias", False),
        head=head,
        head_bias=flag(config, "decoder_bias", True),
        labels=labels_of(config, head),
        head_dropout=rate(config, "classifier_dropout") > 0,
        averages=word(config, "classifier_pooling", default="cls") == "mean",
        engine=True,
    )


TYPES: Mapping[str, Callable[[Mapping[str, Any]], Architecture]] = {
    **DECODERS,
    "llava": llava,
    "llava_next": llava,
    "paligemma": paligemma,
    "idefics3": idefics3,
    "smolvlm": idefics3,
    "led": _led,
    "longt5": _longt5,
    "xlnet": _xlnet,
    "marian": _marian,
    "m2m_100": _m2m_100,
    "modernbert": _modernbert,
    "qwen2_vl": _qwen_vl,
    "qwen2_5_vl": _qwen_vl,
    "whisper": _whisper,
}
