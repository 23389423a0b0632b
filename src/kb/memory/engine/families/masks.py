"""Attention masks as transformers' masking_utils.py makes them: every tensor, in its order; and
the ids that a decoder reads.
"""

from kb.memory.engine.tensor import BOOL, I32, I64, Tensor, new
from kb.memory.engine.world import world


def asked(shape: tuple[int, ...] = ()) -> None:
    """A question that the host asks of a mask: is all of it visible?"""
    summed = new(shape, I64)
    equal = new(shape, BOOL)
    del summed, equal


def causal_mask(
    batch: int,
    queries: int,
    keys: int,
    padding: Tensor | None,
    *,
    eager: str | None,
    padded: bool,
    positions: bool = True,
    window: int | None = None,
    skips: bool = True,
    blocks: bool = False,
    mapped: bool = False,
) -> Tensor | None:
    """``create_causal_mask``: bool, or numbers of the type ``eager``; None where attention is told to be causal.

    Args:
        padding: the batch's mask, where there is one; of a full window's cache it is longer than the keys.
        padded: whether some of it is padding, which decides whether the mask can be left out.
        positions: position ids were given, and no cache: packed sequences are looked for where there is no mask.
        window: tokens that a sliding layer sees (``create_sliding_window_causal_mask``).
        skips: whether the mask may be left out (``allow_is_causal_skip``).
        blocks: some tokens see all of their block, before them and behind (``block_sequence_ids``).
        mapped: a window is laid over the blocks too, by functions that are mapped over all places (``vmap``).
    """
    flags, skips = None, skips and not blocks
    if padding is not None:
        flags = new(padding.shape, BOOL)
    elif positions and world.grad:
        packed_sequences(batch, keys)
    whole = keys if padding is None else padding.shape[1]
    longer = new((batch, whole), I64) if blocks and whole > queries else None  # ``maybe_pad_block_sequence_ids``
    if skips and eager is None and flags is not None and flags.shape[1] > keys:  # of a window, more than it sees
        places = _range(keys)
        cut = new((batch, keys), BOOL)
        del places, cut
    may_be_left_out = skips and eager is None and not (window is not None and keys >= window)
    if may_be_left_out and _is_left_out(queries, keys, given=flags is not None, padded=padded):
        return None
    rows, heads = new((batch,), I64), new((1,), I64)
    q, k = _range(queries), _range(keys)
    seen_by = _blocks_in_window if mapped else _or_block if blocks else None
    if flags is None and seen_by is not None:
        out = seen_by(batch, queries, keys, window)
    elif flags is None:
        seen = _seen(queries, keys, window)
        out = Tensor((batch, 1, queries, keys), BOOL, (0, 0, keys, 1), seen.storage)
        del seen
    else:
        ones = new((queries,) if mapped else (), BOOL)
        seen = _seen(queries, keys, window) if seen_by is None else seen_by(batch, queries, keys, window)
        causal = new(seen.shape, BOOL)
        del seen, ones
        index = new((batch, keys), BOOL)
        out = new((batch, 1, queries, keys), BOOL)
        del index, causal
    del rows, heads, q, k
    numbers = in_numbers(out, eager)
    del longer
    return numbers


def _is_left_out(queries: int, keys: int, *, given: bool, padded: bool) -> bool:
    """``_ignore_causal_mask_sdpa``, which asks a mask that is ``given`` whether all of it is seen."""
    alike = queries == keys
    if given and (queries == 1 or alike):
        asked()
        if not padded:
            return True
        if alike:
            asked()
    return not given and (queries == 1 or alike)


def _seen(queries: int, keys: int, window: int | None) -> Tensor:
    """``causal_mask_function``, or ``and_masks`` of a sliding window and it."""
    if window is None:
        return new((queries, keys), BOOL)
    ones = new((), BOOL)
    below = new((queries,), I64)
    overlay = new((queries, keys), BOOL)
    del below
    result = new((queries, keys), BOOL)
    del overlay, ones
    lower = new((queries, keys), BOOL)
    both = new((queries, keys), BOOL)
    del lower, result
    return both


def _blocks_in_window(batch: int, queries: int, keys: int, _: int | None) -> Tensor:
    """``and_masks`` of causal sight or a block's, and of a sliding window over both."""
    ones = new((queries,), BOOL)
    either = _or_block(batch, queries, keys, None, nothing=(queries,))
    result = new(either.shape, BOOL)
    del either, ones
    below = new((queries,), I64)
    overlay = new((queries, keys), BOOL)
    del below
    both = new(result.shape, BOOL)
    del overlay, result
    return both


def _or_block(batch: int, queries: int, keys: int, window: int | None, nothing: tuple[int, ...] = ()) -> Tensor:
    """``or_masks`` of what :func:`_seen` makes and of ``blockwise_overlay``; ``nothing``: the shape it begins with."""
    none = new(nothing, BOOL)
    seen = _seen(queries, keys, window)
    result = new((queries, keys), BOOL)
    del seen, none
    of_queries, of_keys = new((batch, 1, queries, 1), I64), new((batch, 1, 1, keys), I64)
    same = new((batch, 1, queries, keys), BOOL)
    named = new((batch, 1, queries, 1), BOOL)
    both = new(same.shape, BOOL)
    del same, named, of_queries, of_keys
    either = new(both.shape, BOOL)
    del result, both
    return either


def padding_mask(
    batch: int,
    queries: int,
    keys: int,
    padding: Tensor | None,
    *,
    eager: str | None,
    padded: bool,
    window: int | None = None,
    skips: bool = True,
) -> Tensor | None:
    """``create_bidirectional_mask`` of a batch; None where nothing is padded and all tokens are seen.

    Args:
        window: how far a token of a sliding layer sees to either side (``create_bidirectional_sliding_window_mask``).
        skips: whether the mask may be left out (``allow_is_bidirectional_skip``).
    """
    whole, flags = window is None or keys < window, None
    if padding is not None:
        flags = new((batch, keys), BOOL)
        padding = None
        looked = new((), BOOL) if skips else None
        del looked
    if skips and whole and not (padded and flags is not None):
        return None
    rows, heads = new((batch,), I64), new((1,), I64)
    q, k = _range(queries), _range(keys)
    if flags is None:
        near = _near(queries, keys)
        del rows, heads, q, k
        return in_numbers(Tensor((batch, 1, queries, keys), BOOL, (0, 0, keys, 1), near.storage), eager)
    ones = new((), BOOL)
    seen = new((queries,), BOOL) if window is None else _near(queries, keys)
    both = new(seen.shape, BOOL)
    del seen, ones
    index = new((batch, keys), BOOL)
    out = new((batch, 1, queries, keys), BOOL)
    del index, both, rows, heads, q, k
    numbers = in_numbers(out, eager)
    del flags
    return numbers


def _near(queries: int, keys: int) -> Tensor:
    """``sliding_window_bidirectional_mask_function``: distances in whole numbers, compared, and every query."""
    ones = new((), BOOL)
    difference = new((queries, keys), I64)
    distance = new((queries, keys), I64)
    del difference
    near = new((queries, keys), BOOL)
    del distance
    result = new((queries, keys), BOOL)
    del near, ones
    every = new((queries,), BOOL)
    both = new((queries, keys), BOOL)
    del every, result
    return both


def _range(length: int) -> Tensor:
    """``torch.arange(length) + offset``."""
    plain = new((length,), I64)
    shifted = new((length,), I64)
    del plain
    return shifted


def packed_sequences(batch: int, length: int) -> None:
    """``find_packed_sequence_indices``, without a mask and a cache: positions are compared with their neighbours."""
    first = new((batch, 1), I64)
    longer = new((batch, length + 1), I64)
    differences = new((batch, length), I64)
    del longer
    breaks = new((batch, length), BOOL)
    counted = new((batch, length), I64)
    del breaks
    last = new((batch,), BOOL)
    every = new((), BOOL)
    del last, every, counted, differences, first


def in_numbers(mask: Tensor, dtype: str | None) -> Tensor:
    """``eager_mask``: the boolean mask as numbers; the zero outlives the lowest number."""
    if dtype is None:
        return mask
    zero, low = new((), dtype), new((), dtype)
    out = new(mask.shape, dtype)
    del low, zero
    return out


def counted_places(ids: Tensor, *, past: bool = True) -> Tensor:
    """``create_position_ids_from_input_ids`` (RoBERTa, M2M100): numbers that count what is no padding.

    ``past``: what a cache holds is added to them, none or not; MPNet has no cache.
    """
    differs = new(ids.shape, BOOL)
    mask = new(ids.shape, I32)
    del differs
    wide = new(ids.shape, I64)
    narrow = new(ids.shape, I32)
    del wide
    if past:
        narrow = new(ids.shape, I32)
    indices = new(ids.shape, I32)
    del narrow
    long = new(ids.shape, I64)
    places = new(ids.shape, I64)
    del long, indices, mask
    return places


def shifted_right(labels: Tensor) -> Tensor:
    """``_shift_right``: zeros, a copy, and a mask of what is ignored."""
    ids = new(labels.shape, I64)
    copy = new((labels.shape[0], labels.shape[1] - 1), I64)
    del copy
    ignored = new(labels.shape, BOOL)
    del ignored
    return ids
