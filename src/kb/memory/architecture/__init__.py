"""A ``config.json`` as a dimensioned architecture: by its type, and of encoder-decoders the fields.

Decoder-only types are read by :mod:`.decoder` and, where only the engine knows them, by :mod:`.decoder_types`; encoders
by :mod:`.encoder`, and what sees pictures by :mod:`.vision`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kb.core.model import Architecture
from kb.memory.architecture import decoder, encoder, vision
from kb.memory.architecture.decoder_types import DECODERS
from kb.memory.config_fields import (
    UnsupportedArchitectureError,
    equal,
    flag,
    head_size,
    number,
    rate,
    unpredicted,
    windows_of,
    word,
)

T5_TYPES = ("t5", "mt5", "umt5")
BART_TYPES = ("bart", "mbart", "pegasus")
MOST_LAYERS = 512  # each is followed: two steps of so many take some seconds


def architecture_from_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture of transformers' ``config.json``: encoder-decoders (T5, BART and their kin), decoder-only and
    encoder-only models.

    A ``model_type`` that is not known but has the fields of a Llama is taken as one of its kind.

    Raises:
        UnsupportedArchitectureError: another ``model_type``, or a field missing, of a wrong type, or contradicting
            another.
    """
    model_type = config.get("model_type")
    if model_type in T5_TYPES:
        return _t5(str(model_type), config)
    if model_type in BART_TYPES:
        return _seq2seq(config, 1024)._replace(engine=False)
    if model_type in decoder.TYPES:
        return decoder.architecture(config)
    if model_type in encoder.TYPES:
        return encoder.architecture(config)
    if model_type in FOLLOWED:
        return _counted(FOLLOWED[str(model_type)](config))
    if isinstance(model_type, str) and decoder.resembles(config):
        return decoder.architecture(config)
    known = ", ".join(known_types())
    if model_type is None:
        raise UnsupportedArchitectureError(
            f"config.json: no model_type; known ones are {known}", "no_type", known=known
        )
    missing = ", ".join(decoder.missing(config))
    raise UnsupportedArchitectureError(
        f"config.json: model_type {model_type!r} is not known yet"
        + (f", and it cannot be taken as a Llama's kin: no {missing}" if missing else "")
        + f"; known ones are {known}",
        "unknown_type",
        type=str(model_type)[:100],
    )


def known_types() -> tuple[str, ...]:
    """The ``model_type`` of every model whose ``config.json`` is read by its own fields."""
    return (*T5_TYPES, *BART_TYPES, *decoder.TYPES, *encoder.TYPES, *FOLLOWED)


def _counted(found: Architecture) -> Architecture:
    """Of so many layers as the engine follows.

    Raises:
        UnsupportedArchitectureError: there are more.
    """
    layers = found.encoder_layers + found.decoder_layers
    if layers > MOST_LAYERS:
        raise UnsupportedArchitectureError(f"config.json: {layers} layers; each is followed, {MOST_LAYERS} at most")
    return found


def _t5(model_type: str, config: Mapping[str, Any]) -> Architecture:
    layers = number(config, "num_layers")
    activation = str(config.get("feed_forward_proj", "relu" if model_type == "t5" else "gated-gelu"))
    return Architecture(
        family="t5",
        model_type=model_type,
        d_model=number(config, "d_model"),
        d_ff=number(config, "d_ff"),
        num_heads=number(config, "num_heads"),
        d_kv=number(config, "d_kv"),
        encoder_layers=layers,
        decoder_layers=number(config, "num_decoder_layers", default=layers),
        vocab_size=number(config, "vocab_size"),
        gated=activation.startswith("gated-"),
        tied=flag(config, "tie_word_embeddings", model_type == "t5"),
        relative_buckets=number(config, "relative_attention_num_buckets", default=32),
    )


def _seq2seq(config: Mapping[str, Any], positions: int) -> Architecture:
    """BART and its kin. Marian, M2M100 and NLLB have positions that are computed and not learned."""
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


def _led(config: Mapping[str, Any]) -> Architecture:
    """LED: BART's dimensions, a window for each layer of the encoder, and positions of both stacks."""
    _keep_layers(config)
    found = _seq2seq(config, 0)
    return found._replace(
        max_positions=number(config, "max_encoder_position_embeddings", default=16384),
        target_positions=number(config, "max_decoder_position_embeddings", default=1024),
        windows=windows_of(config, found.encoder_layers),
    )


def _whisper(config: Mapping[str, Any]) -> Architecture:
    """Whisper that writes down what it hears. SpecAugment changes the features in place: no byte of a peak."""
    for name in config.get("architectures") or ():
        if name != "WhisperForConditionalGeneration":
            raise unpredicted(str(name)[:80])
    _keep_layers(config)
    found = _seq2seq(config, 448)
    return found._replace(
        max_positions=number(config, "max_target_positions", default=448),
        hidden_dropout=rate(config, "dropout") > 0,
        mel_bins=number(config, "num_mel_bins", default=80),
        audio_positions=number(config, "max_source_positions", default=1500),
    )


def _keep_layers(config: Mapping[str, Any]) -> None:
    """Refuse layers that some steps leave out."""
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if rate(config, name) > 0:
            raise unpredicted(name)


def _longt5(config: Mapping[str, Any]) -> Architecture:
    """LongT5: T5's dimensions, blocks of ``local_radius`` + 1 tokens, global tokens where its attention has them."""
    activation = word(config, "feed_forward_proj", default="relu")
    if activation not in ("relu", "gated-gelu"):
        raise unpredicted(f"feed_forward_proj {activation[:40]}")
    kind = word(config, "encoder_attention_type", default="local")
    if kind not in ("local", "transient-global"):
        raise UnsupportedArchitectureError("config.json: encoder_attention_type is local or transient-global")
    block = number(config, "global_block_size", default=16)
    return _t5("longt5", config)._replace(
        gated=activation == "gated-gelu",
        tied=flag(config, "tie_word_embeddings", True),
        window=number(config, "local_radius", default=127),
        global_block=block if kind == "transient-global" else 0,
        engine=True,
    )


# What reads the config of each type that kb has no closed form of, and the memory engine follows.
FOLLOWED: Mapping[str, Callable[[Mapping[str, Any]], Architecture]] = {
    **DECODERS,
    "llava": vision.llava,
    "llava_next": vision.llava,
    "paligemma": vision.paligemma,
    "gemma3": vision.gemma3,
    "gemma4": vision.gemma4,
    "gemma4_unified": vision.gemma4_unified,
    "mistral3": vision.mistral3,
    "idefics3": vision.idefics3,
    "smolvlm": vision.idefics3,
    "led": _led,
    "longt5": _longt5,
    "xlnet": encoder.xlnet,
    "marian": _marian,
    "m2m_100": _m2m_100,
    "modernbert": encoder.modernbert,
    "qwen2_vl": vision.qwen_vl,
    "qwen2_5_vl": vision.qwen_vl,
    "qwen3_vl": vision.qwen3_vl,
    "qwen3_5": vision.qwen3_5,
    "whisper": _whisper,
}
