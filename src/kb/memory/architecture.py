"""A ``config.json`` as a dimensioned architecture."""

from collections.abc import Mapping
from typing import Any

from kb.core.model import Architecture
from kb.memory.config_fields import UnsupportedArchitectureError, equal, flag, head_size, number, rate, word

T5_TYPES = ("t5", "mt5", "umt5")
BART_TYPES = ("bart", "mbart", "pegasus")


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
        return _bart(str(model_type), config)
    # imported where used: a T5's run does not pay for the others at its start
    from kb.memory import architecture_decoder, architecture_encoder, architecture_followed

    if model_type in architecture_decoder.TYPES:
        return architecture_decoder.architecture(config)
    if model_type in architecture_encoder.TYPES:
        return architecture_encoder.architecture(config)
    if model_type in architecture_followed.TYPES:
        return architecture_followed.architecture(config)
    if isinstance(model_type, str) and architecture_decoder.resembles(config):
        return architecture_decoder.architecture(config)
    known = ", ".join(
        (*T5_TYPES, *BART_TYPES, *architecture_decoder.TYPES, *architecture_encoder.TYPES, *architecture_followed.TYPES)
    )
    if model_type is None:
        raise UnsupportedArchitectureError(
            f"config.json: no model_type; known ones are {known}", "no_type", known=known
        )
    missing = ", ".join(architecture_decoder.missing(config))
    raise UnsupportedArchitectureError(
        f"config.json: model_type {model_type!r} is not known yet"
        + (f", and it cannot be taken as a Llama's kin: no {missing}" if missing else "")
        + f"; known ones are {known}",
        "unknown_type",
        type=str(model_type)[:100],
        known=known,
    )


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


def _bart(model_type: str, config: Mapping[str, Any]) -> Architecture:
    d_model = number(config, "d_model")
    heads = equal(config, "encoder_attention_heads", "decoder_attention_heads")
    return Architecture(
        family="bart",
        model_type=model_type,
        d_model=d_model,
        d_ff=equal(config, "encoder_ffn_dim", "decoder_ffn_dim"),
        num_heads=heads,
        d_kv=head_size(d_model, heads, "encoder_attention_heads"),
        encoder_layers=number(config, "encoder_layers"),
        decoder_layers=number(config, "decoder_layers"),
        vocab_size=number(config, "vocab_size"),
        tied=flag(config, "tie_word_embeddings", True),
        max_positions=number(config, "max_position_embeddings", default=1024),
        biases=True,
        attention_dropout=rate(config, "attention_dropout") > 0,
        activation=word(config, "activation_function", default="gelu"),
        activation_dropout=rate(config, "activation_dropout") > 0,
    )
