"""DeBERTa's tables of distances between tokens, and the indices by which scores are gathered.

They are whole numbers, made anew for each batch: buckets once, indices in every layer, which keeps them for backward.
"""

from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, new


def clamped(shifted: Tensor) -> Tensor:
    """``torch.clamp`` of numbers made for it."""
    return new(shifted.shape, I64)


def from_keys(places: Tensor) -> Tensor:
    """``clamp(-relative_pos + att_span)``."""
    negative = new(places.shape, I64)
    shifted = new(places.shape, I64)
    del negative
    return clamped(shifted)


def distances_of(length: int, *, bucketed: bool) -> Tensor:
    """``build_relative_position``: how far each token is from each other, far ones in buckets that grow."""
    queries, keys = new((length,), I64), new((length,), I64)
    found = new((length, length), I64)
    if bucketed:
        found = log_buckets(length)
        found = new((length, length), I64)  # whole numbers again
    del queries, keys
    return found


def log_buckets(length: int) -> Tensor:
    """``make_log_bucket_position``, in fp32."""
    shape = (length, length)
    sign = new(shape, I64)
    below, above = new(shape, BOOL), new(shape, BOOL)
    near = new(shape, BOOL)
    del below, above
    middle = new((), I64)
    plain = new(shape, I64)
    far = new(shape, I64)
    del near, middle, plain
    logs = new(shape, F32)
    for _ in range(5):  # log, divided, times, ceil, plus
        logs = new(shape, F32)
    near = new(shape, BOOL)
    whole = new(shape, F32)
    signed = new(shape, F32)
    buckets = new(shape, F32)
    del near, whole, signed, logs, far, sign
    return buckets
