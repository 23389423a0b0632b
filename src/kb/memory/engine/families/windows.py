"""Longformer's self-attention as ``modeling_longformer.py`` reads; LED's encoder has the same (``modeling_led.py``).

Tokens see a window around them, computed in overlapping chunks, and a few global tokens, which see all. Which those are
is asked of the GPU: here the first of each row, or none.
"""

from typing import Any

from kb.core.record import NamedTuple
from kb.memory.engine import ops
from kb.memory.engine.families.encoder_heads import DROPPED
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear
from kb.memory.engine.ops import blocks, windows
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, like, new, seen_as
from kb.memory.engine.world import world

NAMES = ("query", "key", "value", "query_global", "key_global", "value_global")


class Masks(NamedTuple):
    """What every layer is given: the mask in numbers, what it hides, and where tokens are global, if any are."""

    numbers: Tensor
    hidden: Tensor
    spread: Tensor
    first: bool


def masks_of(numbers: Tensor, *, first: bool) -> Masks:
    """What the encoder asks of its mask; ``first``: the first token of each row is global."""
    hidden, spread = like(numbers, BOOL), like(numbers, BOOL)
    found = new((), BOOL)
    del found
    return Masks(numbers, hidden, spread, first)


class Global(NamedTuple):
    """``_get_global_attn_indices``: how many, where they are, and where in a table of them."""

    most: Tensor
    where: tuple[Tensor, ...]
    inside: tuple[Tensor, ...]


def places_of(spread: Tensor) -> Global:
    """Of one global token in each row."""
    rows = spread.shape[0]
    wide = like(spread, I64)
    counted = new((rows,), I64)
    del wide
    most = new((), I64)
    where = new((rows, 2), I64)
    numbers = new((1,), I64)
    local = new((rows, 1), BOOL)
    del numbers
    inside = new((rows, 2), I64)
    none = new((rows, 1), BOOL)
    del none, local, counted
    return Global(most, (where,), (inside,))


class WindowAttention:
    """``LongformerSelfAttention``."""

    def __init__(self, model: Any, path: str, window: int) -> None:
        a = model.architecture
        self.model, self.path, self.side = model, path, window // 2
        self.heads, self.width = a.num_heads, a.d_model // a.num_heads
        self.dropout = DROPPED if a.attention_dropout else 0.0
        layers = [Linear(model, f"{path}.{name}", a.d_model, a.d_model, bias=True) for name in NAMES]
        self.q, self.k, self.v, self.q_global, self.k_global, self.v_global = layers

    def __call__(self, x: Tensor, masks: Masks) -> Tensor:
        world.inside["WindowAttention"] = self.path
        x = ops.transpose(x, 0, 1)
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q = self.divided(q, self.q)
        q = self.by_heads(q)
        k = self.by_heads(k)
        base = self.scores(q, k)
        removed = like(masks.numbers, BOOL)
        plain = self.mask_numbers(removed, q.dtype)
        beside = self.scores(new(plain.shape, plain.dtype), plain)
        base = blocks.add_to_view(base, beside)
        scores = self.by_rows(base, x.shape[1])
        del base
        places: Any = None
        if masks.first:
            places = places_of(masks.spread)
            by_global = self.scores_of_global(q, k, places)
            scores = ops.cat((by_global, scores), -1)
            del by_global
        shares = ops.softmax(scores, F32)
        shares = windows.blanked(shares, masks.hidden)
        shares = ops.cast(shares, scores.dtype)
        del scores
        shares = ops.dropout(shares, self.dropout)
        v = self.by_heads(v)
        out = self.with_global(v, shares, places) if masks.first else self.local(shares, v)
        out = ops.reshape(ops.transpose(out, 0, 1), x.shape)
        if masks.first:
            by_global, shares_of_global = self.global_rows(x, places, masks)
            picked = windows.at(by_global, places.inside, (x.shape[1], self.heads, self.width))
            out = windows.put_at(out, places.where, ops.view(picked, (x.shape[1], x.shape[2])))
            del by_global, shares_of_global, picked
        return ops.transpose(out, 0, 1)

    def divided(self, q: Tensor, layer: Linear) -> Tensor:
        """``query_vectors /= sqrt(width)``, in place: of 8 bits torch refuses that where no adapter's sum is between.

        Raises:
            NotFollowedError: such a layer.
        """
        if isinstance(layer.state, Tensor) and layer.a is None and q.needs:
            raise NotFollowedError("load_in_8bit with queries that no adapter wraps")
        return windows.divided(q)

    def by_heads(self, x: Tensor) -> Tensor:
        """(length, batch, width) as (batch, length, heads, a head's width)."""
        return ops.transpose(ops.view(x, (*x.shape[:2], self.heads, self.width)), 0, 1)

    def mask_numbers(self, removed: Tensor, dtype: str) -> Tensor:
        """``type_as(query).masked_fill``: for each token a number."""
        plain = new((*removed.shape, 1, 1), dtype)
        filled = new(plain.shape, dtype)
        del plain
        return filled

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """``_sliding_chunks_query_key_matmul``: (batch × heads, chunks + 1, half a window, window + 1)."""
        batch, length, heads, width = q.shape
        side = self.side
        q = ops.reshape(ops.transpose(q, 1, 2), (batch * heads, length, width))
        k = ops.reshape(ops.transpose(k, 1, 2), (batch * heads, length, width))
        q = self.chunks(q)
        k = self.chunks(k)
        found = windows.scores_of(q, k)
        found = blocks.padded(found, 2, 1)
        found = ops.view(found, (*found.shape[:2], found.shape[3], found.shape[2]))
        count = found.shape[1]
        base = new((batch * heads, count + 1, side, 2 * side + 1), found.dtype)
        upper = ops.cut(ops.cut(found, 2, side), 3, side + 1)
        base = windows.put(base, upper.shape, upper)
        last = ops.cut(ops.cut(ops.indexed(found, 1), 1, side), 2, side + 1)
        base = windows.put(base, last.shape, last)
        lower = ops.cut(ops.cut(found, 2, side), 3, side)
        base = windows.put(base, lower.shape, lower)
        first = ops.cut(ops.cut(ops.indexed(found, 1), 1, side - 1), 2, side - 1)
        base = windows.put(base, first.shape, first)
        del upper, last, lower, first
        return self.without_invalid(base, batch)

    def chunks(self, x: Tensor) -> Tensor:
        """``_chunk``: as long as a window, each half of one behind the other."""
        many, length, width = x.shape
        size = 2 * self.side
        x = ops.view(x, (many, length // size, size, width))
        strides = (x.strides[0], x.strides[1] // 2, *x.strides[2:])
        return windows.overlapping(x, (many, 2 * x.shape[1] - 1, size, width), strides)

    def without_invalid(self, base: Tensor, batch: int) -> Tensor:
        """``_mask_invalid_locations``: before the first token and behind the last."""
        shape = (self.side, self.side + 1)
        below = new(shape, base.dtype)
        below = new(shape, base.dtype)  # tril
        first = below = new(shape, base.dtype)  # flip
        last = new(shape, base.dtype)
        for _ in range(2):
            seen = self.edge(base, batch)
            chosen = windows.chosen_beside(seen)
            base = windows.put(base, chosen.shape, chosen)
            del chosen, seen
        del below, first, last
        return base

    def edge(self, base: Tensor, batch: int) -> Tensor:
        """``scores[:, :side, :, : side + 1]``."""
        rows = self.by_rows(base, batch)
        return ops.cut(ops.cut(rows, 1, self.side), 3, self.side + 1)

    def by_rows(self, base: Tensor, batch: int) -> Tensor:
        """(batch, length, heads, window + 1)."""
        many, chunks, side, columns = base.shape
        return ops.transpose(ops.view(base, (batch, many // batch, chunks * side, columns)), 1, 2)

    def scores_of_global(self, q: Tensor, k: Tensor, places: Global) -> Tensor:
        """``_concat_with_global_key_attn_probs``."""
        keys = self.picked(k, places)
        return windows.scores_by_head(q, keys)

    def picked(self, x: Tensor, places: Global) -> Tensor:
        """Zeros, into which the rows of global tokens are put."""
        shape = (x.shape[0], 1, self.heads, self.width)
        table = new(shape, x.dtype)
        rows = windows.at(x, places.where, (x.shape[0], self.heads, self.width))
        return windows.put_at(table, places.inside, rows)

    def with_global(self, v: Tensor, shares: Tensor, places: Global) -> Tensor:
        """``_compute_attn_output_with_global_indices``."""
        wide = ops.cut(shares, 3, 1)
        values = self.picked(v, places)
        out = ops.matmul(ops.clone(ops.transpose(wide, 1, 2)), ops.clone(ops.transpose(values, 1, 2)))
        out = ops.transpose(out, 1, 2)
        number = new((), I64)
        rest = ops.cut(shares, 3, shares.shape[3] - 1)
        del number
        rest = ops.contiguous(rest)
        local = self.local(rest, v)
        return ops.add(out, local)

    def local(self, shares: Tensor, v: Tensor) -> Tensor:
        """``_sliding_chunks_matmul_attn_probs_value``."""
        batch, length, heads, width = v.shape
        side, many = self.side, batch * heads
        shares = ops.reshape(ops.transpose(shares, 1, 2), (many, length // side, side, 2 * side + 1))
        v = ops.reshape(ops.transpose(v, 1, 2), (many, length, width))
        longer = blocks.padded(v, 1, 2 * side)
        strides = (longer.strides[0], side * width, width, 1)
        pieces = windows.overlapping(longer, (many, length // side, 3 * side, width), strides)
        shares = self.diagonal(shares)
        out = ops.einsum("bcwd,bcdh->bcwh", shares, pieces)
        out = ops.transpose(ops.view(out, (batch, heads, length, width)), 1, 2)
        del longer, pieces
        return out

    def diagonal(self, shares: Tensor) -> Tensor:
        """``_pad_and_diagonalize``."""
        many, chunks, side, columns = shares.shape
        shares = blocks.padded(shares, 3, side + 1)
        shares = ops.view(shares, (many, chunks, side * (columns + side + 1)))
        shares = ops.cut(shares, 2, shares.shape[2] - side)
        shares = ops.view(shares, (many, chunks, side, side + columns))
        return ops.cut(shares, 3, side + columns - 1)

    def global_rows(self, x: Tensor, places: Global, masks: Masks) -> tuple[Tensor, Tensor]:
        """``_compute_global_attn_output_from_hidden``: what global tokens see, and their shares."""
        length, batch, wide = x.shape
        many = batch * self.heads
        rows = new((1, batch, wide), x.dtype)
        given = windows.at(x, places.where, (batch, wide))
        rows = windows.put_at(rows, places.inside, given)
        del given
        q = self.q_global(rows)
        k = self.k_global(x)
        v = self.v_global(x)
        q = self.divided(q, self.q_global)
        q = ops.transpose(ops.view(ops.contiguous(q), (1, many, self.width)), 0, 1)
        k = ops.transpose(ops.view(ops.contiguous(k), (length, many, self.width)), 0, 1)
        v = ops.transpose(ops.view(ops.contiguous(v), (length, many, self.width)), 0, 1)
        scores = ops.bmm(q, ops.transpose(k, 1, 2))
        asserted()
        scores = ops.view(scores, (batch, self.heads, 1, length))
        scores = windows.number_in_view(scores)
        scores = windows.blanked(scores, masks.hidden)
        scores = ops.view(scores, (many, 1, length))
        shares = ops.softmax(scores, F32)
        shares_16 = ops.dropout(ops.cast(shares, scores.dtype), self.dropout)
        out = ops.bmm(shares_16, v)
        asserted()
        shares_16 = ops.view(shares_16, (batch, self.heads, 1, length))
        out = ops.view(out, (batch, self.heads, 1, self.width))
        del rows, q, k, v, scores, shares
        return out, shares_16


def asserted() -> None:
    """A size is compared with the number of global tokens, which the GPU holds."""
    same = new((), BOOL)
    del same


def spread_over(numbers: Tensor, rows: int, length: int) -> Tensor:
    """``mask[:, 0, 0, :]`` of (rows, 1, length, length)."""
    return seen_as(numbers, (rows, length), (numbers.strides[0], 1))


def lengthened(tensor: Tensor, more: int) -> Tensor:
    """``torch.nn.functional.pad`` of what has no gradient."""
    return new((tensor.shape[0], tensor.shape[1] + more), tensor.dtype)
