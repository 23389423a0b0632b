"""Decoder-only models by their parts: the modules under transformers' names, and the parameters they hold."""

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.memory.parameters import Counts, LinearModule, table_module


class _Names(NamedTuple):
    """Dotted names; ``layer`` ends with the star of the layer's number."""

    embedding: str = "model.embed_tokens"
    positions: str = ""
    layer: str = "model.layers.*"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    head: str = "lm_head"


_LLAMA = _Names()
_NAMES = {
    "gpt2": _Names("transformer.wte", "transformer.wpe", "transformer.h.*", ("attn.c_attn",), "attn.c_proj",
                   ("mlp.c_fc",), "mlp.c_proj"),
    "opt": _Names("model.decoder.embed_tokens", "model.decoder.embed_positions", "model.decoder.layers.*",
                  ("self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"), "self_attn.out_proj", ("fc1",), "fc2"),
    "gpt_neox": _Names("gpt_neox.embed_in", "", "gpt_neox.layers.*", ("attention.query_key_value",),
                       "attention.dense", ("mlp.dense_h_to_4h",), "mlp.dense_4h_to_h"),
    "phi": _LLAMA._replace(output="self_attn.dense", up=("mlp.fc1",), down="mlp.fc2"),
    "phi3": _LLAMA._replace(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
    "exaone": _Names("transformer.wte", "", "transformer.h.*", ("attn.attention.q_proj", "attn.attention.k_proj",
                     "attn.attention.v_proj"), "attn.attention.out_proj", ("mlp.c_fc_0", "mlp.c_fc_1"), "mlp.c_proj"),
}  # fmt: skip


def modules_of(a: Architecture) -> tuple[LinearModule, ...]:
    """Linear layers and embeddings. Experts are no modules: transformers keeps all of a layer's in one parameter."""
    names, layers, embedded = _NAMES.get(a.model_type, _LLAMA), a.decoder_layers, a.embedding_size or a.d_model
    found = [table_module(names.embedding, a.vocab_size, embedded)]
    if names.positions:
        found.append(table_module(names.positions, position_rows(a), a.d_model))
    if embedded != a.d_model:
        stem = names.embedding.rpartition(".")[0]
        found.append(LinearModule(f"{stem}.project_out", "decoder", a.d_model, embedded, 1))
        found.append(LinearModule(f"{stem}.project_in", "decoder", embedded, a.d_model, 1))
    for name, rows, columns in (*_attention(a, names), *_feed_forward(a, names)):
        number = layers
        if a.experts and name.startswith("mlp."):
            number = a.dense_layers
        if number:
            found.append(LinearModule(f"{names.layer}.{name}", "decoder", rows, columns, number))
    if a.shared_ff:
        stem, number = f"{names.layer}.mlp.shared_expert", layers - a.dense_layers
        found += [
            LinearModule(f"{stem}.gate_proj", "decoder", a.d_model, a.shared_ff, number),
            LinearModule(f"{stem}.up_proj", "decoder", a.d_model, a.shared_ff, number),
            LinearModule(f"{stem}.down_proj", "decoder", a.shared_ff, a.d_model, number),
            LinearModule(f"{stem}_gate", "decoder", a.d_model, 1, number),
        ]
    found.append(LinearModule(names.head, "head", embedded, a.vocab_size, 1))
    return tuple(found)


def _attention(a: Architecture, names: _Names) -> list[tuple[str, int, int]]:
    inner, narrow = a.num_heads * a.d_kv, (a.kv_heads or a.num_heads) * a.d_kv
    if a.fused_qkv:
        shapes = [(names.qkv[0], a.d_model, inner + 2 * narrow)]
    else:
        shapes = [(name, a.d_model, inner if "q_proj" in name else narrow) for name in names.qkv]
    return [*shapes, (names.output, inner, a.d_model)]


def _feed_forward(a: Architecture, names: _Names) -> list[tuple[str, int, int]]:
    wide = 2 * a.d_ff if a.fused_gates else a.d_ff
    return [*((name, a.d_model, wide) for name in names.up), (names.down, a.d_ff, a.d_model)]


def position_rows(a: Architecture) -> int:
    """Rows of learned positions: OPT keeps two more, for padding."""
    return (a.max_positions or 0) + (2 if a.model_type == "opt" else 0)


def expert_parameters(a: Architecture) -> int:
    """Parameters of one layer's experts and of the router that chooses among them."""
    return a.experts * (3 * a.d_model * a.expert_ff + a.d_model)


def count_parts(a: Architecture) -> Counts:
    """Parameters of a decoder-only model, as transformers 5 builds it from the same dimensions."""
    linear = sum(m.in_features * m.out_features * m.number for m in modules_of(a) if m.stack == "decoder")
    return Counts(
        embedding=a.vocab_size * (a.embedding_size or a.d_model),
        head=(0 if a.tied else a.vocab_size * (a.embedding_size or a.d_model)) + a.vocab_size * a.head_bias,
        positions=position_rows(a) * a.d_model if a.max_positions else 0,
        encoder_linear=0,
        decoder_linear=linear,
        biases=_biases(a),
        kept_wide=0,
        norms=_norms(a),
        experts=(a.decoder_layers - a.dense_layers) * expert_parameters(a) if a.experts else 0,
    )


def _biases(a: Architecture) -> int:
    narrow = (a.kv_heads or a.num_heads) * a.d_kv
    each = (a.num_heads * a.d_kv + 2 * narrow) * a.qkv_bias + a.d_model * a.output_bias
    each += (a.d_model + a.d_ff * (1 + a.gated)) * a.mlp_bias
    return a.decoder_layers * each


def _norms(a: Architecture) -> int:
    """Scales (and shifts, of layer norms) of the residual stream's norms, the final one, and of q and k."""
    vectors = 2 if a.norm == "layer" else 1
    final = 0 if a.embedding_size and a.model_type == "opt" else 1  # opt-350m norms after, and has no final one
    found = vectors * a.d_model * (a.norms * a.decoder_layers + final)
    if a.qk_norm == "head":
        found += 2 * a.d_kv * a.decoder_layers
    elif a.qk_norm == "whole":
        found += (a.num_heads + (a.kv_heads or a.num_heads)) * a.d_kv * a.decoder_layers
    return found
