"""How decoder-only types make queries, keys and values of a block's input."""

from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.tensor import Tensor


def project(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Llama: each projection is seen by heads at once."""
    to_q, to_k, to_v = attention.projections
    q = attention.head(to_q(x))
    k = attention.head(to_k(x), kv=True)
    v = attention.head(to_v(x), kv=True)
    return q, k, v


def project_together(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """StableLM: all three are made before they are seen by heads."""
    to_q, to_k, to_v = attention.projections
    q = to_q(x)
    k = to_k(x)
    v = to_v(x)
    return attention.head(q), attention.head(k, kv=True), attention.head(v, kv=True)


def project_normed(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Qwen3: a norm over each head's dimensions of queries and keys."""
    to_q, to_k, to_v = attention.projections
    norm_q, norm_k = attention.norms
    batch, length, _ = x.shape
    q = ops.transpose(norm_q(ops.view(to_q(x), (batch, length, attention.heads, attention.width))), 1, 2)
    k = ops.transpose(norm_k(ops.view(to_k(x), (batch, length, attention.kv_heads, attention.width))), 1, 2)
    v = attention.head(to_v(x), kv=True)
    return q, k, v


def project_fused(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """GPT-NeoX: one product, a head's query, key and value side by side; its name lives as long as attention runs."""
    batch, length, _ = x.shape
    width = attention.width
    (to_qkv,) = attention.projections
    qkv = ops.transpose(ops.view(to_qkv(x), (batch, length, attention.heads, 3 * width)), 1, 2)
    q, k, v = ops.split(qkv, (width, width, width))
    return q, k, v, qkv


def project_behind(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gemma 3, EXAONE 4: as Qwen3, but the heads come first, and then the norms."""
    norm_q, norm_k = attention.norms
    q, k, v = project(attention, x)
    q = norm_q(q)
    k = norm_k(k)
    return q, k, v


def project_cut(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Phi-3: one product, all queries first, then all keys; its name lives as long as attention runs."""
    (to_qkv,) = attention.projections
    inner, narrow = attention.heads * attention.width, attention.kv_heads * attention.width
    qkv = to_qkv(x)
    q, k, v = ops.cut(qkv, 2, inner), ops.cut(qkv, 2, narrow), ops.cut(qkv, 2, narrow)
    return attention.head(q), attention.head(k, kv=True), attention.head(v, kv=True), qkv


def project_split(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """GPT-2: the same in thirds that are split off together; queries are seen by heads last."""
    (to_qkv,) = attention.projections
    inner = attention.heads * attention.width
    q, k, v = ops.split(to_qkv(x), (inner, inner, inner))
    k = attention.head(k)
    v = attention.head(v)
    return attention.head(q), k, v


def project_scaled(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """OPT: queries are scaled here, before keys are made."""
    to_q, to_k, to_v = attention.projections
    q = attention.head(ops.scale(to_q(x)))
    k = to_k(x)
    v = to_v(x)
    return q, attention.head(k), attention.head(v)


def as_it_is(q: Tensor, k: Tensor, cos: Any, sin: Any) -> tuple[Tensor, Tensor]:
    """Of a layer that turns nothing."""
    return q, k
