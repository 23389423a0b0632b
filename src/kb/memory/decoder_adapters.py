"""What adapters change in a decoder: the first layer needs less, a wrapped last projection needs room."""

from functools import lru_cache

from kb.core.model import Architecture
from kb.memory.adapters import input_bytes
from kb.memory.linear import LinearModule, modules
from kb.memory.shape import Shape

FP32 = 4
MASK = 1  # dropout keeps a byte for each element
_READERS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value")
_DOWN = ("mlp.down_proj", "mlp.c_proj", "fc2", "dense_4h_to_h")
_FORWARD = ("fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h")


@lru_cache(maxsize=256)
def _weights(arch: Architecture, inner: bool) -> int:
    """Elements of one layer's weights that read the first norm; the feed-forward's too with ``inner``."""
    names = _READERS + _FORWARD if inner else _READERS
    return sum(m.in_features * m.out_features for m in modules(arch) if m.leaf in names)


def unneeded(s: Shape, targets: tuple[LinearModule, ...]) -> tuple[int, int]:
    """Bytes of activations and of autocast's weight copies that the first layer does not keep.

    The first norm, the embedding's dropout, the masks of the adapters that read the norm; and, where attention and
    feed-forward read one input, the whole feed-forward, unless adapters train in it.
    """
    from kb.memory.decoder import feed_forward, norm

    a, t, width = s.arch, s.source_tokens, s.weight_bytes
    leaves = {module.leaf for module in targets}
    inner = a.parallel and not leaves & set(_FORWARD)
    a_token = 0 if a.norm_after else norm(s, a.d_model, 0, width)
    if s.lora_dropout:
        a_token += MASK * sum(module.in_features for module in targets if module.leaf in _READERS)
    a_token += MASK * a.d_model if a.embedding_dropout else 0
    if inner:
        a_token += feed_forward(s)[0]
    copied = 2 if s.copied and not s.quantized else 0
    return t * a_token, copied * _weights(a, inner)


def wrapped_backward(s: Shape, targets: tuple[LinearModule, ...], backward: int) -> int:
    """The most that a layer's backward needs above what it keeps, where adapters wrap the feed-forward's last layer.

    Their dropped-out input is gone when the feed-forward's product gets its gradient. Made again, the product stands
    beside its fp32 copy and that copy's dropped-out one, or beside a 4-bit weight in half.
    """
    from kb.memory.decoder import linear_width

    if not any(module.name.endswith(_DOWN) for module in targets):
        return backward
    a, width = s.arch, linear_width(s)
    elements = s.source_tokens * a.d_ff
    kept = input_bytes(s)
    again = elements * (width + (FP32 if width == 2 else 0) + (FP32 if s.autocast and s.lora_dropout else 0))
    if s.quantized and not s.autocast:
        again = max(again, elements * (width + 2 - kept) + 2 * a.d_model * a.d_ff)
    return max(backward - elements * kept, again + 2 * FP32 * s.source_tokens * a.d_model)
