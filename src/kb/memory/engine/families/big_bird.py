"""BigBird as ``modeling_big_bird.py`` reads: blocks that see their neighbours, the first, the last, and random ones.

Short inputs are attended to in full. The whole matrix of shares is put together beside the blocks', read by nobody.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import looked_up
from kb.memory.engine.families.attention import heads_of
from kb.memory.engine.families.encoder import BertLayer, Encoder
from kb.memory.engine.families.encoder_heads import DROPPED, activation_of, head_of
from kb.memory.engine.families.masks import padding_mask
from kb.memory.engine.families.windows import lengthened
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear
from kb.memory.engine.ops import blocks, gathers
from kb.memory.engine.tensor import F32, I64, Tensor, new, seen_as
from kb.memory.engine.world import world

WITH_ONE, WEIGHTED_BY_ONE = "bhlqd,bhkd->bhlqk", "bhlqk,bhkd->bhlqd"  # blocks of queries with one block of keys


class Masks(NamedTuple):
    """What layers that attend by blocks are given: which tokens are real, and of which neighbours."""

    real: Tensor
    band: Tensor


class Embeddings:
    """``BigBirdEmbeddings``: dropout comes before the norm, positions are added in place."""

    def __init__(self, model: "BigBird", path: str) -> None:
        a, self.model, self.path = model.architecture, model, path
        self.words = model.table(f"{path}.word_embeddings", a.vocab_size, a.d_model)
        self.places = model.table(f"{path}.position_embeddings", a.max_positions or 0, a.d_model)
        self.kinds = model.table(f"{path}.token_type_embeddings", a.type_vocab_size, a.d_model)
        self.norm = LayerNorm(model, f"{path}.LayerNorm", a.d_model)
        self.dropout = DROPPED if a.embedding_dropout else 0.0
        for _ in range(2):  # position_ids, token_type_ids
            model.buffer((1, a.max_positions or 0), I64)

    def __call__(self, ids: Tensor, kinds: Tensor) -> Tensor:
        world.inside["Embeddings"] = self.path
        first = self.model.buffers[0]
        places = seen_as(first, (1, ids.shape[1]), first.strides)
        words = looked_up(self.model, f"{self.path}.word_embeddings", ids, self.words, hooked=True)
        by_kind = looked_up(self.model, f"{self.path}.token_type_embeddings", kinds, self.kinds)
        x = ops.add(words, by_kind)
        by_place = looked_up(self.model, f"{self.path}.position_embeddings", places, self.places)
        x = ops.add_here(x, by_place)
        x = ops.dropout(x, self.dropout)
        x = self.norm(x)
        del words, by_kind, by_place
        return x


class Attention:
    """``BigBirdSelfAttention`` or, where masks of blocks are given, ``BigBirdBlockSparseAttention``."""

    def __init__(self, model: Any, path: str) -> None:
        a = model.architecture
        self.path, self.heads, self.width = path, a.num_heads, a.d_model // a.num_heads
        self.size, self.random = a.block, a.random_blocks
        self.dropout = DROPPED if a.attention_dropout else 0.0
        self.q, self.k, self.v = (
            Linear(model, f"{path}.{name}", a.d_model, a.d_model, bias=a.qkv_bias) for name in ("query", "key", "value")
        )

    def __call__(self, x: Tensor, mask: Any) -> tuple[Any, ...]:
        world.inside["Attention"] = self.path
        if not isinstance(mask, Masks):
            return self.whole(x, mask)
        band, real, other = (blocks.as_type(each, x.dtype) for each in (mask.band, mask.real, mask.real))
        found = self.sparse(x, band, real, other, mask.real)
        return *found, band, real, other

    def whole(self, x: Tensor, mask: Any) -> tuple[Tensor, Any]:
        q = heads_of(self.q(x), self.heads)
        k = heads_of(self.k(x), self.heads)
        v = heads_of(self.v(x), self.heads)
        shares = ops.matmul(q, ops.transpose(k, 2, 3))
        shares = ops.scale(shares)
        if mask is not None:
            shares = ops.add(shares, mask)
        weights = ops.softmax(shares)
        weights = ops.dropout(weights, self.dropout)
        out = ops.matmul(weights, v)
        out = ops.contiguous(ops.permute(out, (0, 2, 1, 3)))
        out = ops.view(out, x.shape)
        del q, k, v, shares
        return out, weights

    def sparse(self, x: Tensor, band: Tensor, real: Tensor, other: Tensor, flags: Tensor) -> tuple[Tensor, Any]:
        q = heads_of(self.q(x), self.heads)
        k = heads_of(self.k(x), self.heads)
        v = heads_of(self.v(x), self.heads)
        out, shares = self.by_blocks(q, k, v, band, real, other, flags)
        out = ops.view(ops.contiguous(out), x.shape)
        del q, k, v
        return out, shares

    def by_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, band: Tensor, real: Tensor, other: Tensor, flags: Tensor
    ) -> tuple[Tensor, Any]:
        """``bigbird_block_sparse_attention``: the first block, the second, those between, the last but one, the
        last."""
        batch, heads, length, width = q.shape
        places = self.places(batch, length)
        random_mask = self.random_mask(flags, places)
        in_blocks = (batch, heads, length // self.size, self.size, width)
        q, keys, values = (ops.view(each, in_blocks) for each in (q, k, v))
        random_keys = self.picked(keys, places)
        random_values = self.picked(values, places)
        first = self.edge(ops.indexed(q, 2), k, v, other)
        second = self.beside_edge(q, keys, values, random_keys, random_values, other, random_mask)
        middle = self.middle(q, keys, values, random_keys, random_values, band, other, random_mask)
        middle_out = middle.pop()
        last_but_one = self.beside_edge(q, keys, values, random_keys, random_values, other, random_mask)
        last = self.edge(ops.indexed(q, 2), k, v, other)
        middle_out = ops.cat([*(ops.unsqueeze(each[0], 2) for each in (first, second)), middle_out,
                              *(ops.unsqueeze(each[0], 2) for each in (last_but_one, last))], 2)  # fmt: skip
        middle_out = ops.mul(ops.view(middle_out, (batch, heads, length, width)), self.by_row(real, batch, length))
        out = ops.transpose(middle_out, 1, 2)
        shares = new((batch, heads, length, length), out.dtype)
        numbers = new((length // self.size - 4,), I64)
        three = new((3,), I64)
        diagonal = new((length // self.size - 4, 3), I64)
        del three
        del (
            numbers,
            places,
            first,
            second,
            middle,
            middle_out,
            last_but_one,
            last,
            random_mask,
            random_keys,
            random_values,
        )
        kept = world.grad and world.frame is None  # by what put shares in their places
        return out, (shares, diagonal if kept else None)

    def by_row(self, real: Tensor, batch: int, length: int) -> Tensor:
        return seen_as(real, (batch, 1, length, 1), (length, length, 1, 1))

    def places(self, batch: int, length: int) -> Tensor:
        """Which random blocks each block sees, sent from the host for each head, and copied for each sample."""
        shape = (self.heads, length // self.size - 2, self.random)
        sent = new(shape, I64)
        return sent if batch == 1 else new((batch, *shape), I64)

    def random_mask(self, flags: Tensor, places: Tensor) -> Tensor:
        """``_create_rand_mask_from_inputs``: a number for every token and every one of its random blocks'."""
        batch, length = flags.shape
        inner = length // self.size - 2
        picked = new((batch, self.heads * inner * self.random, self.size), flags.dtype)
        shape = (batch, self.heads, inner, self.size, self.random * self.size)
        own = seen_as(flags, (batch, inner, self.size), (length, self.size, 1))
        found = blocks.outer(own, picked, shape)
        del picked
        return found

    def picked(self, tensor: Tensor, places: Tensor) -> Tensor:
        """``torch_gather_b2``: the random blocks, side by side."""
        batch, heads, count, size, width = tensor.shape
        found = gathers.gather(tensor, places, (batch, heads, (count - 2) * self.random, size, width))
        return ops.view(found, (batch, heads, count - 2, self.random * size, width))

    def edge(self, q: Tensor, k: Tensor, v: Tensor, other: Tensor) -> tuple[Any, ...]:
        """The first or the last block, which sees every token."""
        shares = blocks.matmul(q, ops.transpose(k, 2, 3))
        shares = ops.scale(shares)
        shares = ops.add_here(shares, blocks.penalty(other))
        weights = ops.softmax(shares)
        return blocks.matmul(weights, v), shares, weights

    def beside_edge(
        self, q: Tensor, keys: Tensor, values: Tensor, random_keys: Tensor, random_values: Tensor,
        other: Tensor, random_mask: Tensor,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The second block, or the last but one: four others and random ones."""
        key = ops.cat([*(ops.indexed(keys, 2) for _ in range(4)), ops.indexed(random_keys, 2)], 2)
        value = ops.cat([*(ops.indexed(values, 2) for _ in range(4)), ops.indexed(random_values, 2)], 2)
        shares = blocks.matmul(ops.indexed(q, 2), ops.transpose(key, 2, 3))
        batch, heads = q.shape[:2]
        far, near = self.random * self.size, 4 * self.size
        ones = new((batch, 1, 1, far), other.dtype)
        by_token = new((batch, 1, 1, near + far), other.dtype)
        del ones
        ones = new((batch, heads, self.size, near), random_mask.dtype)
        by_block = new((batch, heads, self.size, near + far), random_mask.dtype)
        del ones
        shares = ops.scale(shares)
        shares = ops.add_here(shares, blocks.penalty(blocks.smaller(by_token, by_block)))
        weights = ops.softmax(shares)
        return blocks.matmul(weights, value), key, value, shares, by_token, by_block, weights

    def middle(
        self, q: Tensor, keys: Tensor, values: Tensor, random_keys: Tensor, random_values: Tensor,
        band: Tensor, other: Tensor, random_mask: Tensor,
    ) -> list[Any]:  # fmt: skip
        """The blocks between: what lives until all is done, and the result."""
        count, size = q.shape[2] - 4, self.size
        near_keys = ops.cat([ops.cut(keys, 2, count) for _ in range(3)], 3)
        near_values = ops.cat([ops.cut(values, 2, count) for _ in range(3)], 3)
        q = ops.cut(q, 2, count)
        near = ops.scale(blocks.matmul(q, ops.transpose(near_keys, 3, 4)))
        far = ops.scale(blocks.matmul(q, ops.transpose(ops.cut(random_keys, 2, count), 3, 4)))
        first = ops.scale(ops.einsum(WITH_ONE, q, ops.indexed(keys, 2)))
        last = ops.scale(ops.einsum(WITH_ONE, q, ops.indexed(keys, 2)))
        near = ops.add_here(near, blocks.penalty(band))
        of_block = seen_as(other, (other.shape[0], 1, 1, 1, size), (other.shape[1], 0, 0, 0, 1))
        first = ops.add_here(first, blocks.penalty(of_block))
        last = ops.add_here(last, blocks.penalty(of_block))
        inner = (*random_mask.shape[:2], count, *random_mask.shape[3:])
        far = ops.add_here(far, blocks.penalty(seen_as(random_mask, inner, random_mask.strides)))
        shares = ops.cat([first, near, far, last], -1)
        weights = ops.softmax(shares)
        out = blocks.matmul(ops.part(weights, 3 * size), near_values)
        out = ops.add_here(out, blocks.matmul(ops.part(weights, self.random * size), ops.cut(random_values, 2, count)))
        out = ops.add_here(out, ops.einsum(WEIGHTED_BY_ONE, ops.part(weights, size), ops.indexed(values, 2)))
        out = ops.add_here(out, ops.einsum(WEIGHTED_BY_ONE, ops.part(weights, size), ops.indexed(values, 2)))
        return [near_keys, near_values, near, far, first, last, shares, weights, out]


class Layer(BertLayer):
    """``BigBirdLayer``: the shares of its attention live until it ends."""

    def attention_of(self, model: Any, path: str) -> Any:
        return Attention(model, path)

    def attend(self, x: Tensor, mask: Any) -> tuple[Tensor, Any]:
        out, weights, *held = self.attention(x, mask)
        out = self.output(self.dense, self.norm1, out, x)
        del held
        return out, weights

    def __call__(self, x: Tensor, mask: Any) -> Tensor:
        world.inside["Layer"] = self.path
        attended, weights = self.attend(x, mask)
        found = self.feed_forward(attended)
        del weights
        return found


class BigBird(Encoder):
    """BigBird with the head that its config names."""

    eager_only = True

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        activation_of(architecture.activation)
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2")  # there is none
        if architecture.head == "span":
            raise NotFollowedError("questions of big_bird")  # whose head is wider than others'

    def build(self) -> None:
        a = self.architecture
        self.whole = not a.block  # for good from the first short input on (``set_attention_type``)
        self.embeddings: Any = Embeddings(self, "bert.embeddings")
        self.layers: Any = [Layer(self, f"bert.encoder.layer.{at}") for at in range(a.encoder_layers)]
        self.pooler = Linear(self, "bert.pooler", a.d_model, a.d_model, bias=True)
        self.head = head_of(self)

    def base(self, ids: Tensor, padding: Any) -> tuple[Tensor, Any]:
        """``BigBirdModel``, which pools whatever reads it."""
        world.recording.term = "activations_encoder"
        a, (rows, given) = self.architecture, ids.shape
        mask: Any = padding if padding is not None else new(ids.shape, F32)
        first = self.buffers[1]
        kinds = seen_as(first, ids.shape, (0, 1))
        self.whole = self.whole or given <= (5 + 2 * a.random_blocks) * a.block
        sparse = not self.whole
        more = -given % a.block if sparse else 0
        if more:
            ids, mask, kinds = (lengthened(each, more) for each in (ids, mask, kinds))
        x = self.embeddings(ids, kinds)
        masks: Any
        if sparse:
            masks = Masks(mask, self.band(mask))
        else:
            masks = padding_mask(rows, given, given, mask, eager=x.dtype, padded=self.options.padded)
            mask = None
        embedded = x
        for layer in self.layers:
            x = self.layer(layer, x, masks)
        pooled = ops.tanh(self.pooler(ops.indexed(x, 1)))
        if more:
            x = ops.cut(x, 1, given)
        del embedded, masks, mask, kinds
        return x, pooled

    def band(self, mask: Tensor) -> Tensor:
        """``create_band_mask_from_inputs``."""
        rows, length = mask.shape
        size = self.architecture.block
        count = length // size - 4
        around = new((rows, count, 3 * size), mask.dtype)
        own = seen_as(mask, (rows, count, size), (length, size, 1))
        found = blocks.outer(own, around, (rows, count, size, 3 * size))
        del around
        return found
