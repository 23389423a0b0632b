"""LongT5 as ``modeling_longt5.py`` reads: a T5 whose encoder's tokens see blocks around them, and global ones.

A global token is the sum of a block of tokens, made anew in every layer (transient global attention). Attention has no
other implementation; the decoder's is T5's.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import adapted
from kb.memory.engine.families.masks import causal_mask, padding_mask
from kb.memory.engine.families.t5 import DROPPED, T5, T5Block, T5FeedForward, T5Norm, T5Stack, bucket_of
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear
from kb.memory.engine.ops import blocks
from kb.memory.engine.tensor import BOOL, F16, F32, I32, I64, Tensor, like, new, seen_as
from kb.memory.engine.world import world


def in_blocks(x: Tensor, size: int, at: int) -> Tensor:
    """``_split_into_blocks``: padded to whole blocks where it is not."""
    more = -x.shape[at] % size
    if more:
        x = blocks.padded(x, at, more)
    return ops.reshape(x, (*x.shape[:at], x.shape[at] // size, size, *x.shape[at + 1 :]))


def three_blocks(x: Tensor) -> Tensor:
    """``_concatenate_3_blocks``: each block with those before and behind it."""
    number = x.shape[1]
    x = blocks.padded(x, 1, 2)
    return ops.cat([ops.cut(x, 1, number) for _ in range(3)], 2)


def as_numbers(flags: Tensor) -> Tensor:
    """``torch.where(flags > 0, 0.0, -1e10)``."""
    seen = like(flags, BOOL)
    zero, low = new((), F32), new((), F32)
    out = new(flags.shape, F32)
    del zero, low, seen
    return out


def local_mask(mask: Tensor, size: int) -> Tensor:
    """``_get_local_attention_mask``: which of three blocks each token of a block sees."""
    whole = in_blocks(mask, size, 1)
    around = three_blocks(whole)
    shape = (*whole.shape, 3 * size)
    both = new(shape, BOOL)
    near = new((size, 3 * size), BOOL)
    seen = new(shape, BOOL)
    del near, both, whole, around
    return seen_as(seen, (shape[0], 1, *shape[1:]), (seen.strides[0], *seen.strides))


def fixed_blocks(mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """``_make_global_fixed_block_ids``: the block of each token, and which global tokens there are."""
    (rows, length), kind = mask.shape, mask.dtype
    ones = new(mask.shape, kind)
    shares = new(mask.shape, F32)
    del ones
    counted = new(mask.shape, F32)
    shares = new(mask.shape, F32)
    del counted
    low = as_numbers(mask)
    low = _as(low, kind)
    ids = new(mask.shape, F32)
    ids = new(mask.shape, F32)
    ids = new(mask.shape, F32)  # floor
    ids = _as(ids, kind)
    least = new((), kind)
    above = new(mask.shape, BOOL)
    ids = new(mask.shape, kind)
    del above
    times, before = new(mask.shape, kind), new(mask.shape, kind)
    ids = new(mask.shape, kind)
    del times, before
    ids = _without_orphans(ids)
    number = length // size
    last = _last_blocks(ids, number) if number else new((rows, 0), kind)
    segments = new((rows, number), F32)
    within = new((rows, number), BOOL)
    one, none = new((), I64), new((), I64)
    segments = new((rows, number), I64)
    del within, one, none
    found = new(mask.shape, I32), new((rows, number), I32)
    del shares, low, ids, least, last, segments
    return found


def _as(tensor: Tensor, kind: str) -> Tensor:
    return tensor if tensor.dtype == kind else like(tensor, kind)


def _without_orphans(ids: Tensor) -> Tensor:
    """``handle_orphan_tokens``: what fills no block belongs to the one before it."""
    rows, length = ids.shape
    ends = new((length,), BOOL)
    real = new(ids.shape, BOOL)
    true_ends = new(ids.shape, BOOL)
    del real
    summed = _as(new((rows,), I64), ids.dtype)
    full = like(summed)
    del summed
    below = new(ids.shape, BOOL)
    found = new(ids.shape, ids.dtype)
    del below, ends, true_ends, full
    return found


def _last_blocks(ids: Tensor, number: int) -> Tensor:
    values, at = new((ids.shape[0],), ids.dtype), new((ids.shape[0],), I64)
    del at
    repeated = new((number, ids.shape[0]), ids.dtype)
    del values
    return repeated


class LocalAttention:
    """``LongT5LocalAttention``; the first layer's holds the table of relative positions."""

    def __init__(self, model: "LongT5", path: str, *, biased: bool) -> None:
        a = model.architecture
        self.model, self.path, self.size = model, path, (a.window or 0) + 1
        inner = a.num_heads * a.d_kv
        self.q, self.k, self.v = (Linear(model, f"{path}.{name}", a.d_model, inner) for name in "qkv")
        self.o = Linear(model, f"{path}.o", inner, a.d_model)
        self.table = None
        if biased:
            self.table = model.table(f"{path}.relative_attention_bias", a.relative_buckets, a.num_heads)

    def by_heads(self, x: Tensor) -> Tensor:
        """``states.view(batch, length, heads, width)``."""
        a = self.model.architecture
        return ops.view(x, (*x.shape[:2], a.num_heads, a.d_kv))

    def __call__(
        self, x: Tensor, mask: Any, bias: Any, other: Any = None, *, causal: bool = False
    ) -> tuple[Tensor, Any]:
        world.inside["LocalAttention"] = self.path
        query = self.by_heads(self.q(x))
        key = self.by_heads(self.k(x))
        value = self.by_heads(self.v(x))
        query = in_blocks(query, self.size, 1)
        key = in_blocks(key, self.size, 1)
        value = in_blocks(value, self.size, 1)
        key = three_blocks(key)
        value = three_blocks(value)
        scores = ops.einsum("bcqhd,bckhd->bchqk", query, key)
        if bias is None:
            bias = self.first_bias(scores)
            mask = as_numbers(mask)
            bias = ops.add(bias, ops.transpose(mask, 1, 2))
        scores = blocks.add_to_view(scores, bias)
        return self.attend(x, scores, value), bias

    def attend(self, x: Tensor, scores: Tensor, value: Tensor) -> Tensor:
        weights = ops.cast(ops.softmax(ops.cast(scores, F32)), scores.dtype)
        weights = ops.dropout(weights, DROPPED)
        weights = ops.cast(weights, value.dtype)
        out = ops.contiguous(ops.einsum("bchqk,bckhd->bcqhd", weights, value))
        rows, length, _ = x.shape
        out = ops.view(out, (rows, out.shape[1] * out.shape[2], out.shape[3] * out.shape[4]))
        if out.shape[1] != length:
            out = ops.cut(out, 1, length)
        return self.o(out)

    def first_bias(self, scores: Tensor) -> Tensor:
        """``compute_bias``: (1, 1, heads, a block, three blocks)."""
        assert self.table is not None
        memory = new((3 * self.size,), I64)
        relative = new((self.size, 3 * self.size), I64)
        values = ops.embedding(bucket_of(relative, decoder=False), self.table)
        values = ops.unsqueeze(ops.unsqueeze(ops.permute(values, (2, 0, 1)), 0), 0)
        del memory, relative
        return values


class GlobalAttention(LocalAttention):
    """``LongT5TransientGlobalAttention``: blocks, and sums of blocks beside them."""

    def __init__(self, model: "LongT5", path: str, *, biased: bool) -> None:
        super().__init__(model, path, biased=biased)
        a = model.architecture
        self.block = a.global_block
        self.far = None
        if biased:
            self.far = model.table(f"{path}.global_relative_attention_bias", a.relative_buckets, a.num_heads)
        self.norm = T5Norm(model, f"{path}.global_input_layer_norm", a.d_model)

    def __call__(
        self, x: Tensor, mask: Any, bias: Any, other: Any = None, *, causal: bool = False
    ) -> tuple[Tensor, Any]:
        world.inside["GlobalAttention"] = self.path
        if x.shape[1] < self.block:
            raise NotFollowedError(f"{x.shape[1]} tokens, fewer than global_block_size {self.block}")
        ids, segments = fixed_blocks(mask, self.block)
        summed = self.aggregates(x, ids, segments.shape[1])
        summed = self.norm(summed)
        query = self.by_heads(self.q(x))
        key = self.by_heads(self.k(x))
        value = self.by_heads(self.v(x))
        side_key = self.by_heads(self.k(summed))
        side_value = self.by_heads(self.v(summed))
        query = in_blocks(query, self.size, 1)
        key = in_blocks(key, self.size, 1)
        value = in_blocks(value, self.size, 1)
        key = three_blocks(key)
        value = three_blocks(value)
        side_key = blocks.tiled(side_key, 1, key.shape[1])
        side_value = blocks.tiled(side_value, 1, key.shape[1])
        key = ops.cat((key, side_key), 2)
        value = ops.cat((value, side_value), 2)
        scores = ops.einsum("bcqhd,bckhd->bchqk", query, key)
        local = local_mask(mask, self.size)
        local = as_numbers(local)
        side: Any = None
        if bias is None:
            bias = self.first_bias(scores)
            bias = ops.add(bias, ops.transpose(local, 1, 2))
            bias = ops.cast(bias, scores.dtype)
            side = self.side_bias(mask, segments)
            side = ops.transpose(in_blocks(side, self.size, 2), 1, 2)
            side = ops.cast(side, scores.dtype)
            bias = ops.cat((bias, side), -1)
        scores = blocks.add_to_view(scores, bias)
        out = self.attend(x, scores, value)
        del ids, segments, summed, side_key, side_value, local, side
        return out, bias

    def aggregates(self, x: Tensor, ids: Tensor, number: int) -> Tensor:
        """``_create_global_aggregates``: the sums, as a product with each token's block."""
        real, beyond = new(ids.shape, BOOL), new((), I32)
        ids = new(ids.shape, I32)
        del real, beyond
        wide = new(ids.shape, I64)
        hot = new((*ids.shape, number + 1), I64)
        del wide
        taken = seen_as(hot, (*ids.shape, number), hot.strides)
        return blocks.summed_by(x, ops.cast(taken, x.dtype))

    def side_bias(self, mask: Tensor, segments: Tensor) -> Tensor:
        """``compute_side_bias``: a bias for each token and each global one."""
        assert self.far is not None
        (rows, length), number = mask.shape, segments.shape[1]
        same = new((rows, length, number), BOOL)
        hidden = as_numbers(seen_as(same, (rows, 1, length, number), (same.strides[0], *same.strides)))
        relative = self.side_positions(mask)
        bucket = bucket_of(relative, decoder=False)
        values = ops.embedding(bucket, self.far)
        values = ops.permute(values, (0, 3, 1, 2))
        out = ops.add(hidden, values)
        del same, relative, bucket
        return out

    def side_positions(self, mask: Tensor) -> Tensor:
        """``_make_side_relative_position_ids``."""
        ids, segments = fixed_blocks(mask, self.block)
        places = new((segments.shape[1],), I64)
        relative = new((*ids.shape, segments.shape[1]), I64)
        del places
        return relative


class FeedForward(T5FeedForward):
    """``LongT5DenseActDense``, which leaves weights of 8 bits alone, and ``LongT5DenseGatedActDense``."""

    def widened(self, x: Tensor) -> Tensor:
        return x if self.gated or self.wo.state is not None else super().widened(x)


class Block(T5Block):
    """``LongT5Block``: what its sublayers gave back lives until it ends."""

    feeding = FeedForward

    def attention(self, model: Any, path: str, at: int, *, decoder: bool) -> Any:
        if decoder:
            return super().attention(model, path, at, decoder=True)
        if model.architecture.global_block:
            return GlobalAttention(model, f"{path}.TransientGlobalSelfAttention", biased=at == 0)
        return LocalAttention(model, f"{path}.LocalSelfAttention", biased=at == 0)

    def self_attention(self, x: Tensor, mask: Any, bias: Any) -> Any:
        if self.decoder:
            return super().self_attention(x, mask, bias)
        normed = self.norm1(x)
        out = self.own(normed, mask, bias)
        return ops.add(x, ops.dropout(out[0], DROPPED)), out[1]

    def __call__(
        self, x: Tensor, mask: Any, bias: Any, other: Any, other_mask: Any, other_bias: Any
    ) -> tuple[Any, ...]:
        world.inside["Block"] = self.path
        found: tuple[Any, ...] = self.self_attention(x, mask, bias)
        x = found[0]
        looked_for_infinite(x)
        kept = found[1:]
        crossed: tuple[Any, ...] = ()
        if self.decoder:
            crossed = self.cross_attention(x, other, other_mask, other_bias)
            x = crossed[0]
            looked_for_infinite(x)
            kept += crossed[1:]
        x = self.feed_forward(x)
        looked_for_infinite(x)
        return x, *kept


def looked_for_infinite(x: Tensor) -> None:
    """``torch.isinf(x).any()`` of states in fp16; finite ones are not clamped."""
    if x.dtype == F16:
        infinite = new(x.shape, BOOL)
        found = new((), BOOL)
        del infinite, found


class Stack(T5Stack):
    """``LongT5Stack``: without a mask it makes one of ones."""

    block = Block

    def __call__(self, ids: Tensor, padding: Any, other: Any = None) -> Tensor:
        world.inside["Stack"] = self.path
        world.recording.term = "activations_decoder" if self.decoder else "activations_encoder"
        model: Any = self.model
        a, options, (rows, length) = model.architecture, model.options, ids.shape
        embeds = adapted(model, f"{self.path}.embed_tokens", ids, self.words)
        mask = other_mask = None
        given = None if self.decoder else padding
        past = model.decoding.own.length() if self.decoder and model.decoding else 0
        if given is None:
            given = new((rows, past + length), F32)
        if self.decoder:
            mask = causal_mask(
                rows, length, past + length, given, eager=embeds.dtype, padded=options.padded, positions=False
            )
            if padding is not None:
                other_mask = padding_mask(
                    rows, length, other.shape[1], padding, eager=embeds.dtype, padded=options.padded
                )
        elif a.global_block:
            mask = given
        else:
            mask = local_mask(given, (a.window or 0) + 1)
        bias = other_bias = None
        x = ops.dropout(embeds, DROPPED)
        outputs: tuple[Any, ...] = ()
        for block in self.blocks:
            outputs = model.layer(block, x, mask, bias, other, other_mask, other_bias)
            x, bias = outputs[0], outputs[1]
            if self.decoder:
                other_bias = outputs[3]
        x = self.norm(x)
        x = ops.dropout(x, DROPPED)
        del outputs
        return x


class LongT5(T5):
    """``LongT5ForConditionalGeneration``."""

    eager_only = True
    stack_class = Stack
    flattens = False
    fills_cache = False
    keeps_wide = False

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2")  # there is none
        if setup.load_in_4bit and setup.method != "full" and not architecture.gated:
            raise NotFollowedError("load_in_4bit of longt5 without a gate")  # its input would become whole numbers

    @property
    def eager(self) -> bool:
        return True
