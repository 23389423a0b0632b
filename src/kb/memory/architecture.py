"""A ``config.json`` as a dimensioned architecture."""

from collections.abc import Mapping
from typing import Any

from kb.core.model import Architecture

T5_TYPES = ("t5", "mt5", "umt5")
BART_TYPES = ("bart", "mbart", "pegasus")


class UnsupportedArchitectureError(ValueError):
    """A config.json whose model has no closed form, or whose dimensions are missing or contradictory."""


def architecture_from_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture of transformers' ``config.json``: t5, mt5, umt5, bart, mbart, pegasus.

    Raises:
        UnsupportedArchitectureError: another ``model_type``, or a field missing, of a wrong type, or contradicting
            another.
    """
    model_type = config.get("model_type")
    if model_type in T5_TYPES:
        return _t5(str(model_type), config)
    if model_type in BART_TYPES:
        return _bart(str(model_type), config)
    known = ", ".join(T5_TYPES + BART_TYPES)
    if model_type is None:
        raise UnsupportedArchitectureError(f"config.json: no model_type; known ones are {known}")
    raise UnsupportedArchitectureError(
        f"config.json: no closed form for model_type {model_type!r} yet; known ones are {known}"
    )


def _t5(model_type: str, config: Mapping[str, Any]) -> Architecture:
    layers = _number(config, "num_layers")
    activation = str(config.get("feed_forward_proj", "relu" if model_type == "t5" else "gated-gelu"))
    return Architecture(
        family="t5",
        model_type=model_type,
        d_model=_number(config, "d_model"),
        d_ff=_number(config, "d_ff"),
        num_heads=_number(config, "num_heads"),
        d_kv=_number(config, "d_kv"),
        encoder_layers=layers,
        decoder_layers=_number(config, "num_decoder_layers", layers),
        vocab_size=_number(config, "vocab_size"),
        gated=activation.startswith("gated-"),
        tied=_flag(config, "tie_word_embeddings", model_type == "t5"),
        relative_buckets=_number(config, "relative_attention_num_buckets", 32),
    )


def _bart(model_type: str, config: Mapping[str, Any]) -> Architecture:
    d_model = _number(config, "d_model")
    heads = _equal(config, "encoder_attention_heads", "decoder_attention_heads")
    if d_model % heads:
        raise UnsupportedArchitectureError(
            f"config.json: d_model {d_model} is not a multiple of encoder_attention_heads {heads}"
        )
    return Architecture(
        family="bart",
        model_type=model_type,
        d_model=d_model,
        d_ff=_equal(config, "encoder_ffn_dim", "decoder_ffn_dim"),
        num_heads=heads,
        d_kv=d_model // heads,
        encoder_layers=_number(config, "encoder_layers"),
        decoder_layers=_number(config, "decoder_layers"),
        vocab_size=_number(config, "vocab_size"),
        tied=_flag(config, "tie_word_embeddings", True),
        max_positions=_number(config, "max_position_embeddings", 1024),
        biases=True,
        attention_dropout=_rate(config, "attention_dropout") > 0,
        activation_dropout=_rate(config, "activation_dropout") > 0,
    )


def _number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        if default is None:
            raise UnsupportedArchitectureError(f"config.json: {name} is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**8:
        raise UnsupportedArchitectureError(f"config.json: {name} must be a positive whole number, not {value!r}")
    return value


def _equal(config: Mapping[str, Any], first: str, second: str) -> int:
    """Two fields that the closed form takes as one."""
    one, other = _number(config, first), _number(config, second)
    if one != other:
        raise UnsupportedArchitectureError(
            f"config.json: {first} {one} and {second} {other} differ; no closed form for that"
        )
    return one


def _flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise UnsupportedArchitectureError(f"config.json: {name} must be true or false, not {value!r}")
    return value


def _rate(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UnsupportedArchitectureError(f"config.json: {name} must be between 0 and 1, not {value!r}")
    return float(value)
