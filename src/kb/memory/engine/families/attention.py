"""What the families' attentions share: caches (of which some keep a window), heads, rotary positions, and the two
implementations.
"""

from collections.abc import Iterable, Iterator, Sequence

from kb.core.setup import CacheKind
from kb.memory.engine import ops
from kb.memory.engine.allocator import SMALL_REQUEST
from kb.memory.engine.tensor import F32, I64, WIDTH, Storage, Tensor, mark, new, packed
from kb.memory.engine.world import world

MOST_STRIDES = 128  # in which an answer's cache is grown
MOST_ALONE = 1 << 14  # tokens that beams are followed for one by one


class Cache:
    """``DynamicCache``: every layer's keys and values, grown by concatenation; ``term`` is the report's."""

    def __init__(self, term: str = "kv_cache_self", kind: CacheKind = "copied") -> None:
        self.term, self.kind = term, kind
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def length(self) -> int:
        """Tokens that are kept."""
        return next(iter(self.keys.values())).shape[2] if self.keys else 0

    def update(self, at: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's keys and values with those of new tokens behind them (cache_utils.py, DynamicLayer).

        Both begin empty, each in its own type; before 5.24 ("alike") in the keys', so that values were kept in the
        wider of the two.
        """
        past = self.keys[at].shape[2] if at in self.keys else 0
        for held, tensor in ((self.keys, key), (self.values, value)):
            batch, heads, more, width = tensor.shape
            if self.kind in ("copied", "alike") or past:
                held[at] = new((batch, heads, past + more, width), self.kept_type(key, tensor))
            else:  # maybe a view of more than itself
                held[at] = tensor
            mark(held[at], self.term)
        return self.keys[at], self.values[at]

    def kept_type(self, key: Tensor, tensor: Tensor) -> str:
        """The type in which a layer's keys, or its values, are kept."""
        return tensor.dtype if self.kind == "copied" else ops.promoted(key, tensor)

    def reorder(self) -> None:
        """Beam search's ``index_select``: tensor by tensor, one copy above the cache; of tuples, all above it."""
        before = self.whole()
        for at in turns(self.keys):
            for held in (self.keys, self.values):
                held[at] = new(held[at].shape, held[at].dtype)
                mark(held[at], self.term)
        del before

    def whole(self) -> list[Tensor]:
        """What lives until all of it is there anew."""
        return [*self.keys.values(), *self.values.values()] if self.kind == "tuples" else []

    def grow(self, tokens: int, *, reorders: bool = False) -> None:
        """As if ``tokens`` more had been decoded; between the first and the last only the cache grows.

        ``reorders``: beam search copies all of it before each token.
        Nobody else holds keys or values, so larger blocks are put under the same storages: the shortest way, as it is
        gone often. Of long answers several tokens are put there at once: of 60 caches drawn at random, 59 reserved the
        same with four at once, and 57 with eight, the others 1.2 % more or less. The last is alone: the peak is there.
        """
        if not self.keys:
            return
        rows = new((next(iter(self.keys.values())).shape[0],), I64)
        turn = world.recording.turns
        layers = [(key.storage, _row_bytes(key), self.values[at].storage, _row_bytes(self.values[at]))
                  for at, key in self.keys.items()]  # fmt: skip
        named = [(layer_path(at), layer) for at, layer in zip(self.keys, layers, strict=True)]
        alike = len({(key_row, value_row) for _, key_row, _, value_row in layers}) == 1
        apart: list[int] = []
        ask, give_back = world.recording.ask, world.recording.give_back
        for at_once in strides_of(tokens):
            if not apart and alike and all(_apart(*layer) for layer in layers):
                apart = [ask(layers[0][1]), ask(layers[0][3])]
            if reorders:
                for key, _, value, _ in turn(named):
                    self._longer(key, 0)
                    self._longer(value, 0)
            for key, key_row, value, value_row in turn(named):
                more = apart or [ask(key_row), ask(value_row)]
                self._longer(key, key_row * at_once)
                self._longer(value, value_row * at_once)
                if not apart:
                    give_back(more[1])
                    give_back(more[0])
        for number in reversed(apart):
            give_back(number)
        for held in (*self.keys.values(), *self.values.values()):
            batch, heads, length, width = held.shape
            held.shape = (batch, heads, length + tokens, width)
            held.strides = packed(held.shape)
        del rows

    def _longer(self, storage: Storage, more: int) -> None:
        """A block with ``more`` bytes in the place of a storage's, which is given back after it."""
        recording, before = storage.recording, storage.number
        storage.size += more
        storage.number = recording.ask(storage.size)
        recording.terms[storage.number] = self.term
        recording.give_back(before)


def layer_path(at: int) -> str:
    """What a cache of layer ``at`` is about: a layer of what decodes."""
    return f"layers.{at}"


def turns(layers: Iterable[int]) -> Iterator[int]:
    """Each of some layers that a cache is kept of, in its turn."""
    return world.recording.turns((layer_path(at), at) for at in layers)


def _row_bytes(cached: Tensor) -> int:
    """Bytes of one token's keys, or values, of a layer."""
    batch, heads, _, width = cached.shape
    return batch * heads * width * WIDTH[cached.dtype]


def strides_of(tokens: int) -> list[int]:
    """How many tokens are put behind the cache at a time."""
    at_once = -(-tokens // MOST_STRIDES)
    whole, rest = divmod(tokens - 1, at_once)
    return [at_once] * whole + [rest] * bool(rest) + [1]


def _apart(key: Storage, key_row: int, value: Storage, value_row: int) -> bool:
    """Whether a token's own keys and values come from other segments than the layer's.

    Then they leave those as they found them, layer after layer, and can be held for all as for each.
    """
    return max(key_row, value_row) <= SMALL_REQUEST < min(key.size, value.size)


class PairedCache:
    """``EncoderDecoderCache``."""

    def __init__(self, kind: CacheKind = "copied") -> None:
        self.own, self.cross = Cache(kind=kind), Cache("kv_cache_cross", kind)

    def reorder(self) -> None:
        before = self.own.whole(), self.cross.whole()
        self.own.reorder()
        self.cross.reorder()
        del before

    def grow(self, tokens: int, *, reorders: bool) -> None:
        """As :meth:`Cache.grow` with beams: each token's reordering copies the cross-attention's cache as well."""
        rows = new((next(iter(self.own.keys.values())).shape[0],), I64)
        for at_once in strides_of(tokens) if tokens > MOST_ALONE else [1] * tokens:
            if reorders:
                self.reorder()
            for at in turns(self.own.keys):
                batch, heads, _, width = self.own.keys[at].shape
                self.own.update(at, *(new((batch, heads, at_once, width), self.own.keys[at].dtype) for _ in range(2)))
        del rows


class SlidingCache(Cache):
    """``DynamicCache`` of a model whose layers of ``slides`` keep ``window`` tokens less one.

    What such a layer keeps is seen in the keys and values of its last step: those are let go when both of the next
    are there.
    """

    def __init__(self, slides: Sequence[bool], window: int, kind: CacheKind = "copied") -> None:
        super().__init__(kind=kind)
        self.slides, self.kept = slides, window - 1
        self.seen = 0
        self.windows: dict[int, Tensor] = {}  # each layer's window, a number on the GPU

    def length(self) -> int:
        return self.seen

    def update(self, at: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if at == 0:
            self.seen += key.shape[2]
        if not self.slides[at]:
            return super().update(at, key, value)
        if at not in self.windows:
            self.windows[at] = new((), I64)
        past = self.keys[at].shape[2] if at in self.keys else 0
        made = []
        for tensor in (key, value):
            batch, heads, more, width = tensor.shape
            made.append(new((batch, heads, past + more, width), self.kept_type(key, tensor)))
            mark(made[-1], self.term)
        whole_key, whole_value = made
        del made
        self.keys[at] = self._last(whole_key)
        self.values[at] = self._last(whole_value)
        return whole_key, whole_value

    def _last(self, tensor: Tensor) -> Tensor:
        batch, heads, length, width = tensor.shape
        shape = (batch, heads, min(length, self.kept), width)
        return Tensor(shape, tensor.dtype, tensor.strides, tensor.storage)

    def grow(self, tokens: int, *, reorders: bool = False) -> None:
        """As :meth:`Cache.grow`, several tokens of a long answer at once; a full window is only made anew."""
        if not self.keys:
            return
        before = self.seen
        rows = new((next(iter(self.keys.values())).shape[0],), I64)
        for at_once in strides_of(tokens):
            if reorders:
                self.reorder()
            for at in turns(list(self.keys)):
                more = at_once if not self.slides[at] else max(1, min(at_once, self.kept - self.keys[at].shape[2]))
                key, value = (
                    new((*held.shape[:2], more, held.shape[3]), held.dtype) for held in (self.keys[at], self.values[at])
                )
                self.update(at, key, value)
                del key, value
        self.seen = before + tokens
        del rows


def heads_of(x: Tensor, heads: int) -> Tensor:
    """``view(batch, length, heads, width).transpose(1, 2)``."""
    return ops.transpose(ops.view(x, (*x.shape[:2], heads, x.shape[2] // heads)), 1, 2)


def rotate_half(x: Tensor) -> Tensor:
    first = ops.part(x, x.shape[-1] // 2)
    second = ops.part(x, x.shape[-1] // 2)
    return ops.cat((ops.neg(second), first))


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb`` of whole heads (modeling_llama.py)."""
    q_embed = ops.add(ops.mul(q, cos), ops.mul(rotate_half(q), sin))
    k_embed = ops.add(ops.mul(k, cos), ops.mul(rotate_half(k), sin))
    return q_embed, k_embed


def rotary_tables(batch: int, length: int, width: int, dtype: str) -> tuple[Tensor, Tensor]:
    """``LlamaRotaryEmbedding.forward``: cosines and sines, seen with a dimension for the heads."""
    position = new((batch, length), F32)
    freqs = new((batch, length, width // 2), F32)
    del position
    both = new((batch, length, width), F32)
    cos = ops.scale(new((batch, length, width), F32))
    sin = ops.scale(new((batch, length, width), F32))
    out = ops.cast(cos, dtype), ops.cast(sin, dtype)
    del freqs, both, cos, sin
    return _for_heads(out[0]), _for_heads(out[1])


def _for_heads(table: Tensor) -> Tensor:
    batch, length, width = table.shape
    return Tensor((batch, 1, length, width), table.dtype, (table.strides[0], *table.strides), table.storage)


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """Every query head's own keys or values: a copy."""
    if groups == 1:
        return x
    batch, heads, length, width = x.shape
    x = ops.expand(ops.unsqueeze(x, 2), (batch, heads, groups, length, width))
    return ops.reshape(x, (batch, heads * groups, length, width))


def for_flash(q: Tensor, k: Tensor, v: Tensor, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """``fa_peft_integration_check`` (modeling_flash_attention_utils.py): what norms made fp32, in the weights' type."""
    if q.dtype != F32 or dtype == F32:
        return q, k, v
    return ops.cast(q, dtype), ops.cast(k, dtype), ops.cast(v, dtype)


def sdpa_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """``sdpa_attention_forward`` (integrations/sdpa_attention.py): grouped heads stay so only without a mask."""
    groups = q.shape[1] // k.shape[1]
    length = q.shape[2]
    p = dropout if world.training else 0.0
    if groups > 1 and mask is not None and length == 1:  # pack_gqa
        batch, heads, _, width = q.shape
        packed = ops.reshape(q, (batch, heads // groups, groups, width))
        out = ops.reshape(ops.sdpa(packed, k, v, mask, dropout=p), (batch, heads, 1, width))
        return ops.contiguous(ops.transpose(out, 1, 2))
    if groups > 1 and mask is not None:
        k = repeat_kv(k, groups)
        v = repeat_kv(v, groups)
        groups = 1
    out = ops.sdpa(q, k, v, mask, causal=causal and mask is None and length > 1, dropout=p, grouped=groups > 1)
    return ops.contiguous(ops.transpose(out, 1, 2))


def eager_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    dropout: float = 0.0,
    wide: bool = False,
    narrow: bool = False,
    caps: bool = False,
    holds: bool = False,
) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward``; ``wide`` where softmax is asked for in fp32 (Llama) and its result cast back.

    ``narrow``: it is cast back where it became fp32 (GPT-2); ``caps``: scores pass through a tanh (Gemma 2).
    ``holds``: scores keep a name of their own to the end.
    """
    groups = q.shape[1] // k.shape[1]
    k = repeat_kv(k, groups)
    v = repeat_kv(v, groups)
    weights = ops.scale(ops.matmul(q, ops.transpose(k, 2, 3)))
    if caps:
        weights = ops.scale(weights)
        weights = ops.tanh(weights)
        weights = ops.scale(weights)
    if mask is not None:
        weights = ops.add(weights, mask)
    scores = weights if holds else None
    weights = ops.cast(ops.softmax(weights, F32), q.dtype) if wide else ops.softmax(weights)
    weights = ops.cast(weights, v.dtype) if narrow else weights
    weights = ops.dropout(weights, dropout)
    out = ops.matmul(weights, v)
    out = ops.contiguous(ops.transpose(out, 1, 2))
    del scores
    return out, weights
