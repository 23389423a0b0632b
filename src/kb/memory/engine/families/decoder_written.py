"""Attention as types write it out themselves, beside transformers' interface: from a block's input to its output.

There is no ``scaled_dot_product_attention`` of GPT-Neo and BLOOM, nor of GPT-J before 5.24: transformers computes them
eagerly.
"""

from typing import Any

from kb.core.model import Architecture
from kb.memory.engine import ops
from kb.memory.engine.families.attention import rotary
from kb.memory.engine.families.decoder_parts import rotated_pairs
from kb.memory.engine.tensor import BOOL, F32, I64, Shape, Tensor, new
from kb.memory.engine.world import world


def table_of_angles(a: Architecture) -> tuple[Shape, str]:
    """GPT-J's ``embed_positions``: sines and cosines of every position."""
    return (a.max_positions or 0, round(a.d_kv * a.rotary)), F32


def table_of_sight(a: Architecture, usual: int = 0) -> tuple[Shape, str]:
    """GPT-Neo's ``bias``: which tokens a token sees; ``usual``: positions where the architecture says none."""
    positions = a.max_positions or usual
    return (1, 1, positions, positions), BOOL


def gptj(attention: Any, x: Tensor, mask: Any, sin: Tensor, cos: Tensor, cache: Any) -> tuple[Tensor, Any]:
    """GPT-J: heads are turned before they are put in their place; the implementation is transformers'.

    Source: ``GPTJAttention.forward`` (models/gptj/modeling_gptj.py of 5.24).
    """
    to_q, to_k, to_v = attention.projections
    batch, length, _ = x.shape
    query, key = (ops.view(to(x), (batch, length, attention.heads, attention.width)) for to in (to_q, to_k))
    value = attention.head(to_v(x))
    turned = attention.turned
    k_rot, k_pass = ops.part(key, turned), ops.part(key, attention.width - turned)
    q_rot, q_pass = ops.part(query, turned), ops.part(query, attention.width - turned)
    k_rot = _turned_pairs(k_rot, sin, cos)
    q_rot = _turned_pairs(q_rot, sin, cos)
    key = ops.cat((k_rot, k_pass))
    query = ops.cat((q_rot, q_pass))
    query, key = ops.transpose(query, 1, 2), ops.transpose(key, 1, 2)
    if cache is not None:
        key, value = cache.update(attention.at, key, value)
    if attention.model.eager:
        out, weights = _eager_gptj(attention, query, key, value, mask)
    else:
        out, weights = attention.attend(query, key, value, mask)
    out = ops.reshape(out, (batch, length, attention.heads * attention.width))
    out = attention.o(out)
    return ops.dropout(out, attention.output_dropout), weights


def _eager_gptj(attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward`` of modeling_gptj.py: scores in fp32."""
    weights = ops.matmul(ops.cast(query, F32), ops.transpose(ops.cast(key, F32), 2, 3))
    weights = ops.scale(weights)
    if mask is not None:
        weights = ops.add(weights, mask)
    weights = ops.cast(ops.softmax(weights, F32), value.dtype)
    weights = ops.dropout(weights, attention.dropout)
    out = ops.matmul(weights, value)
    return ops.contiguous(ops.transpose(out, 1, 2)), weights


def gptj_before(attention: Any, x: Tensor, mask: Any, positions: Tensor, _: Any, cache: Any) -> tuple[Tensor, Any]:
    """GPT-J before 5.24: every layer looks sines and cosines up in a table of its own; scores are computed in fp32.

    Source: ``GPTJAttention.forward`` (models/gptj/modeling_gptj.py of 5.23).
    """
    to_q, to_k, to_v = attention.projections
    query = to_q(x)
    key = to_k(x)
    value = to_v(x)
    batch, length, _ = x.shape
    query, key = (ops.view(one, (batch, length, attention.heads, attention.width)) for one in (query, key))
    value = attention.head(value)
    turned, ((rows, _), _) = attention.turned, attention.table
    table = new((positions.shape[0], rows, turned), F32)  # repeat
    places = new((positions.shape[0], length, turned), I64)
    sincos = ops.cast(new((positions.shape[0], length, turned), F32), key.dtype)
    sin = cos = Tensor((*sincos.shape[:-1], turned // 2), sincos.dtype, sincos.strides, sincos.storage)
    k_rot, k_pass = ops.part(key, turned), ops.part(key, attention.width - turned)
    q_rot, q_pass = ops.part(query, turned), ops.part(query, attention.width - turned)
    k_rot = _turned_pairs(k_rot, sin, cos)
    q_rot = _turned_pairs(q_rot, sin, cos)
    key = ops.cat((k_rot, k_pass))
    query = ops.cat((q_rot, q_pass))
    key = ops.permute(key, (0, 2, 1, 3))
    query = ops.permute(query, (0, 2, 1, 3))
    if cache is not None:
        key, value = cache.update(attention.at, key, value)
    out, weights = _in_fp32(attention, query, key, value, mask)
    out = _merged(out)
    out = attention.o(out)
    out = ops.dropout(out, attention.output_dropout)
    del table, places
    return out, weights


def _turned_pairs(tensor: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """``apply_rotary_pos_emb``: each number of the tables twice (``repeat_interleave``), for all heads."""
    batch, length, half_width = sin.shape
    sin = new((batch, length, 1, 2 * half_width), sin.dtype)
    cos = new((batch, length, 1, 2 * half_width), cos.dtype)
    return ops.add(ops.mul(tensor, cos), ops.mul(rotated_pairs(tensor), sin))


def gpt_neo(attention: Any, x: Tensor, mask: Any, _: Any, __: Any, cache: Any) -> tuple[Tensor, Any]:
    """GPT-Neo: which tokens a layer sees is a table of its own, of all of them or of a window; no scaling.

    Source: ``GPTNeoSelfAttention`` (models/gpt_neo/modeling_gpt_neo.py).
    """
    to_q, to_k, to_v = attention.projections
    query = to_q(x)
    key = to_k(x)
    value = to_v(x)
    query, key, value = attention.head(query), attention.head(key), attention.head(value)
    if cache is not None:
        key, value = cache.update(attention.at, key, value)
    out, weights = _in_fp32(attention, query, key, value, mask, seen=True)
    out = _merged(out)
    out = attention.o(out)
    return ops.dropout(out, attention.output_dropout), weights


def bloom(attention: Any, x: Tensor, mask: Any, alibi: Tensor, residual: Tensor, cache: Any) -> tuple[Tensor, Any]:
    """BLOOM: the heads' slopes are what products are added to, and the block's input is added here.

    Source: ``BloomAttention.forward`` (models/bloom/modeling_bloom.py).
    """
    batch, length, _ = x.shape
    heads, width = attention.heads, attention.width
    (to_qkv,) = attention.projections
    fused = to_qkv(x)
    query, key, value = thirds(fused, heads, width)
    if cache is not None:
        key, value = cache.update(attention.at, key, value)
    keys = key.shape[2]
    query = ops.reshape(query, (batch * heads, length, width))
    key = ops.transpose(ops.reshape(key, (batch * heads, keys, width)), 1, 2)
    value = ops.reshape(value, (batch * heads, keys, width))
    scores = ops.baddbmm(alibi, query, key)
    weights = ops.view(scores, (batch, heads, length, keys))
    if mask is not None:
        weights = ops.add(weights, mask)
    shares = ops.cast(ops.softmax(weights, F32), query.dtype)
    shares = ops.dropout(shares, attention.dropout)
    context = ops.bmm(ops.view(shares, (batch * heads, length, keys)), value)
    context = _merged(ops.view(context, (batch, heads, length, width)))
    out = attention.o(context)
    out = ops.add(residual, ops.dropout(out, attention.output_dropout))
    del fused, scores, context
    return out, shares


def thirds(fused: Tensor, heads: int, width: int) -> tuple[Tensor, ...]:
    """A head's query, key and value, which lie side by side: views, seen by heads."""
    batch, length, _ = fused.shape
    fused = ops.view(fused, (batch, length, heads, 3, width))
    return tuple(ops.transpose(ops.indexed(fused, 3), 1, 2) for _ in range(3))


def falcon(attention: Any, x: Tensor, mask: Any, tables: Any, alibi: Any, cache: Any) -> tuple[Tensor, Any]:
    """Falcon: keys and values of groups become those of every head, one that all share stays one.

    Source: ``FalconAttention.forward`` (models/falcon/modeling_falcon.py).
    """
    batch, length, _ = x.shape
    heads, width = attention.heads, attention.width
    (to_qkv,) = attention.projections
    fused = to_qkv(x)
    query, key, value = _apart(attention, fused)
    query, key, value = (ops.transpose(one, 1, 2) for one in (query, key, value))
    if alibi is None:
        query, key = rotary(query, key, *tables)
    if cache is not None:
        key, value = cache.update(attention.at, key, value)
    weights = None
    if attention.model.eager:
        out, weights, *held = _eagerly(attention, x, mask, alibi, query, key, value)
        out = ops.view(out, (batch, heads, length, width)) if alibi is None else out
    else:
        held = []
        dropped = attention.dropout if alibi is not None and world.training else 0.0
        out = ops.sdpa(query, key, value, mask, dropout=dropped)
    out = ops.reshape(ops.transpose(out, 1, 2), (batch, length, heads * width))
    out = attention.o(out)
    del fused, held
    return out, weights


def _eagerly(
    attention: Any, x: Tensor, mask: Any, alibi: Any, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, ...]:
    """Scores as they are written out, in the type of the block's input; slopes are added in fp32, and once more in the
    mask."""
    scores = ops.matmul(query, ops.transpose(key, 2, 3))
    if alibi is None:
        scores = ops.scale_here(scores)
        summed = ops.add(scores, mask)
        scores = ops.softmax(summed, x.dtype)
        del summed
        return ops.matmul(scores, value), scores
    wide = ops.cast(scores, F32) if scores.dtype != F32 else scores
    logits = ops.add(wide, alibi)
    logits = ops.scale_here(logits)
    summed = ops.add(logits, mask)
    shares = ops.softmax(summed, x.dtype)
    del summed
    shares = ops.dropout(shares, attention.dropout)
    seen = ops.view(shares, shares.shape)
    return ops.matmul(seen, value), shares, scores, wide, logits


def _apart(attention: Any, fused: Tensor) -> tuple[Tensor, ...]:
    """``_split_heads``: (batch, length, heads, width) each."""
    batch, length, _ = fused.shape
    heads, shared, width = attention.heads, attention.kv_heads, attention.width
    if attention.model.architecture.grouped_qkv:
        each = heads // shared
        qkv = ops.view(fused, (batch, length, shared, each + 2, width))
        query = ops.cut(qkv, 3, each)
        key = ops.picked(qkv, 3)
        value = ops.picked(qkv, 3)
        key = ops.expand(key, query.shape)
        value = ops.expand(value, query.shape)
        return tuple(ops.reshape(one, (batch, length, heads, width)) for one in (query, key, value))
    if shared > 1:
        fused = ops.view(fused, (batch, length, heads, 3, width))
        return ops.indexed(fused, 3), ops.indexed(fused, 3), ops.indexed(fused, 3)
    fused = ops.view(fused, (batch, length, heads + 2, width))
    return ops.cut(fused, 2, heads), ops.picked(fused, 2), ops.picked(fused, 2)


def _in_fp32(
    attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *, seen: bool = False
) -> tuple[Tensor, Tensor]:
    """``_attn`` of both: queries and keys in fp32; ``seen``: scores outside of the layer's table are replaced."""
    query = ops.cast(query, F32)
    key = ops.cast(key, F32)
    weights = ops.matmul(query, ops.transpose(key, 2, 3))
    lowest = None
    if seen:
        lowest = new((), weights.dtype)
        weights = ops.chosen(weights)
    else:
        weights = ops.scale(weights)
    if mask is not None:
        weights = ops.add(weights, mask)
    weights = ops.softmax(weights)
    weights = ops.cast(weights, value.dtype)
    weights = ops.dropout(weights, attention.dropout)
    out = ops.matmul(weights, value)
    del lowest
    return out, weights


def _merged(out: Tensor) -> Tensor:
    """``_merge_heads``: a copy with the heads side by side."""
    out = ops.contiguous(ops.permute(out, (0, 2, 1, 3)))
    return ops.view(out, (*out.shape[:2], out.shape[2] * out.shape[3]))
