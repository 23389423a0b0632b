"""T5, mT5 and UMT5 as ``modeling_t5.py`` reads."""

from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.adapters import adapted
from kb.memory.engine.families.attention import PairedCache, heads_of
from kb.memory.engine.families.masks import causal_mask, padding_mask, shifted_right
from kb.memory.engine.modules import EncoderDecoder, Linear, Model
from kb.memory.engine.tensor import BOOL, F16, F32, I64, Tensor, like, new
from kb.memory.engine.world import world

DROPPED = 0.1  # dropout_rate; any but 0 allocates the same


class T5Norm:
    """``T5LayerNorm``: the variance in fp32, no mean; a 16-bit weight casts what it scales."""

    def __init__(self, model: Model, path: str, width: int) -> None:
        self.path = path
        self.weight = model.parameter(path + ".weight", (width,))

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["T5Norm"] = self.path
        variance = ops.mean(ops.power(ops.cast(x, F32)))
        x = ops.mul(x, ops.rsqrt(ops.plus(variance)))
        if self.weight.dtype != F32:
            x = ops.cast(x, self.weight.dtype)
        return ops.mul(self.weight, x)


class T5Attention:
    """Self- or cross-attention; ``biased`` where it holds a table of relative positions."""

    def __init__(self, model: "T5", path: str, at: int, *, decoder: bool, biased: bool) -> None:
        a = model.architecture
        self.model, self.at, self.path, self.decoder = model, at, path, decoder
        inner = a.num_heads * a.d_kv
        self.q, self.k, self.v = (Linear(model, f"{path}.{name}", a.d_model, inner) for name in "qkv")
        self.o = Linear(model, f"{path}.o", inner, a.d_model)
        self.table = None
        if biased:
            self.table = model.table(f"{path}.relative_attention_bias", a.relative_buckets, a.num_heads)

    def heads(self, x: Tensor) -> Tensor:
        return heads_of(x, self.model.architecture.num_heads)

    def __call__(
        self, x: Tensor, mask: Any, bias: Any, other: Any = None, *, causal: bool = False
    ) -> tuple[Tensor, Any, Any]:
        world.inside["T5Attention"] = self.path
        model, a, (batch, length, _) = self.model, self.model.architecture, x.shape
        q = self.heads(self.q(x))
        states = x if other is None else other
        decoding = model.decoding if self.decoder else None
        held = decoding and (decoding.own if other is None else decoding.cross)
        if held and other is not None and self.at in held.keys:
            k, v = held.keys[self.at], held.values[self.at]
        else:
            k = self.heads(self.k(states))
            v = self.heads(self.v(states))
            if held:
                k, v = held.update(self.at, k, v)
        fills = model.fills_cache and not (model.options.checkpointing and world.training)
        if self.decoder and not decoding and fills and not model.options.earlier.fills_none:
            # the Trainer's use_cache=False does not reach the decoder's own config: it fills a cache
            if model.options.earlier.cache in ("copied", "alike"):
                k, v = ops.copied(k), ops.copied(v)
            model.cache.append([k, v])
        if model.options.earlier.biases_masked:
            out, bias, weights = self.eager_once_masked(q, k, v, mask, bias)
        else:
            if bias is None:
                bias = self.bias(q, length, k.shape[2])
            out, weights = (self.eager if model.eager else self.sdpa)(q, k, v, mask, bias, causal)
        out = ops.reshape(out, (batch, length, a.num_heads * a.d_kv))
        out = self.o(out)
        return out, bias, weights

    def bias(self, q: Tensor, length: int, keys: int) -> Tensor:
        """Position biases, or zeros that learn only to satisfy a checkpoint."""
        if self.table is not None:
            return self.compute_bias(length, keys)
        zeros = new((1, self.model.architecture.num_heads, length, keys), q.dtype)
        zeros.needs = self.model.options.checkpointing and world.training
        return zeros

    def compute_bias(self, length: int, keys: int) -> Tensor:
        """``compute_bias``: a bucket for every pair of positions, and a look-up."""
        assert self.table is not None
        first = new((length, 1), I64)
        context = new((length, 1), I64)
        del first
        memory = new((1, keys), I64)
        relative = new((length, keys), I64)
        values = ops.embedding(bucket_of(relative, decoder=self.decoder), self.table)
        values = ops.permute(ops.unsqueeze(values, 0), (0, 3, 1, 2))
        del context, memory, relative
        return values

    def sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Tensor, causal: bool) -> tuple[Tensor, None]:
        """``sdpa_attention_forward`` with a position bias."""
        bias = _position_bias_mask(bias, mask, q.shape[2], k.shape[2], causal)
        out = ops.sdpa(q, k, v, bias, dropout=DROPPED if world.training else 0.0)
        return ops.contiguous(ops.transpose(out, 1, 2)), None

    def eager(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        weights = ops.scale(ops.matmul(q, ops.transpose(k, 2, 3)))
        weights = ops.add(weights, bias)
        if mask is not None:
            weights = ops.add(weights, mask)
        weights = ops.softmax(weights)
        weights = ops.dropout(weights, DROPPED)
        out = ops.matmul(weights, v)
        out = ops.contiguous(ops.transpose(out, 1, 2))
        return out, weights

    def eager_once_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any) -> tuple[Tensor, Any, Any]:
        """As ``T5Attention.forward`` was before transformers 5.15: the biases that all layers share have the mask."""
        scores = ops.matmul(q, ops.transpose(k, 2, 3))
        if bias is None:
            bias = self.bias(q, q.shape[2], k.shape[2])
            if mask is not None:
                bias = ops.add(bias, mask)
        scores = ops.add_here(scores, bias)
        weights = ops.cast(ops.softmax(ops.cast(scores, F32)), scores.dtype)
        weights = ops.dropout(weights, DROPPED)
        out = ops.matmul(weights, v)
        out = ops.contiguous(ops.transpose(out, 1, 2))
        return out, bias, weights


def _position_bias_mask(bias: Tensor, mask: Any, queries: int, keys: int, causal: bool) -> Tensor:
    """``create_position_bias_mask`` (integrations/sdpa_attention.py): the bias where it may be seen."""
    if mask is None and causal and queries > 1:
        rows, columns = new((queries,), I64), new((keys,), I64)
        mask = new((1, 1, queries, keys), BOOL)
        del rows, columns
    if mask is not None:
        bias = ops.where(mask, bias)
    return ops.contiguous(bias)


def bucket_of(relative: Tensor, *, decoder: bool) -> Tensor:
    """``_relative_position_bucket``: each tensor made from the last, which is let go."""
    buckets = None
    if decoder:
        relative = _steps(relative, I64, I64, I64)
    else:
        buckets = _steps(relative, BOOL, I64, I64, I64)
        relative = like(relative)
    small = like(relative, BOOL)
    large = _steps(relative, F32, F32, F32, F32, F32, I64, I64)
    full = like(large)
    least = like(large)
    del full
    large = least
    del least
    chosen = like(large)
    if buckets is None:
        buckets = like(chosen)
    del chosen, relative, small, large
    return buckets


def _steps(first: Tensor, *dtypes: str) -> Tensor:
    """Tensors of one shape, each made from the one before, which is let go."""
    tensor = new(first.shape, dtypes[0])
    for dtype in dtypes[1:]:
        tensor = new(tensor.shape, dtype)
    return tensor


class T5FeedForward:
    """``T5DenseActDense`` or ``T5DenseGatedActDense``; T5's ``wo`` stays in fp32 where the weights are fp16."""

    def __init__(self, model: "T5", path: str) -> None:
        a = model.architecture
        self.path, self.gated = path, a.gated
        if a.gated:
            self.wi_0 = Linear(model, f"{path}.wi_0", a.d_model, a.d_ff)
            self.wi_1 = Linear(model, f"{path}.wi_1", a.d_model, a.d_ff)
        else:
            self.wi = Linear(model, f"{path}.wi", a.d_model, a.d_ff)
        wide = F32 if model.options.dtype == F16 and model.keeps_wide else None
        weight = model.parameter(f"{path}.wo.weight", (a.d_model, a.d_ff), dtype=wide)
        self.wo = Linear(model, f"{path}.wo", a.d_ff, a.d_model, weight=weight, packs=not model.keeps_wide)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["T5FeedForward"] = self.path
        if self.gated:
            first = ops.gelu_new(self.wi_0(x))
            second = self.wi_1(x)
            x = ops.mul(first, second)
        else:
            x = self.wi(x)
            x = ops.relu(x)
        x = ops.dropout(x, DROPPED)
        x = self.widened(x)
        x = self.wo(x)
        return x

    def widened(self, x: Tensor) -> Tensor:
        """In the type of the last layer's weight."""
        return ops.cast(x, self.wo.weight.dtype)


class T5Block:
    """``T5Block`` with its two or three sublayers."""

    feeding: type[T5FeedForward] = T5FeedForward

    def __init__(self, model: "T5", path: str, at: int, *, decoder: bool) -> None:
        a, self.path, self.decoder = model.architecture, path, decoder
        path = f"{path}.layer"
        self.own = self.attention(model, f"{path}.0", at, decoder=decoder)
        self.norm1 = T5Norm(model, f"{path}.0.layer_norm", a.d_model)
        if decoder:
            self.cross = T5Attention(model, f"{path}.1.EncDecAttention", at, decoder=True, biased=False)
            self.norm2 = T5Norm(model, f"{path}.1.layer_norm", a.d_model)
        last = f"{path}.{2 if decoder else 1}"
        self.dense = self.feeding(model, f"{last}.DenseReluDense")
        self.norm3 = T5Norm(model, f"{last}.layer_norm", a.d_model)

    def attention(self, model: Any, path: str, at: int, *, decoder: bool) -> Any:
        """Its self-attention, whose table of positions the others share."""
        biased = at == 0 or model.architecture.model_type == "umt5"
        return T5Attention(model, f"{path}.SelfAttention", at, decoder=decoder, biased=biased)

    def self_attention(self, x: Tensor, mask: Any, bias: Any) -> tuple[Tensor, Any, Any]:
        normed = self.norm1(x)
        out, bias, weights = self.own(normed, mask, bias, causal=self.decoder)
        out = ops.add(x, ops.dropout(out, DROPPED))
        return out, bias, weights

    def cross_attention(self, x: Tensor, other: Tensor, mask: Any, bias: Any) -> tuple[Tensor, Any, Any]:
        normed = self.norm2(x)
        out, bias, weights = self.cross(normed, mask, bias, other)
        out = ops.add(x, ops.dropout(out, DROPPED))
        return out, bias, weights

    def feed_forward(self, x: Tensor) -> Tensor:
        forwarded = self.norm3(x)
        forwarded = self.dense(forwarded)
        x = ops.add(x, ops.dropout(forwarded, DROPPED))
        return x

    def __call__(
        self, x: Tensor, mask: Any, bias: Any, other: Any, other_mask: Any, other_bias: Any
    ) -> tuple[Tensor, Any, Any]:
        world.inside["T5Block"] = self.path
        x, own_bias, _ = self.self_attention(x, mask, bias)
        if x.dtype == F16:
            x, _limit = bounded(x)
        cross_bias = None
        if self.decoder:
            x, cross_bias, _ = self.cross_attention(x, other, other_mask, other_bias)
            if x.dtype == F16:
                x, _limit = bounded(x)
        x = self.feed_forward(x)
        if x.dtype == F16:
            x, _limit = bounded(x)
        return x, own_bias, cross_bias


def bounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """States of fp16 clamped to the largest number, or to less where one is infinite; that limit's name lives on."""
    infinite = new(x.shape, BOOL)
    found = new((), BOOL)
    del infinite
    less, largest = new((), F32), new((), F32)
    most = new((), F32)
    del less, largest, found
    return ops.clamp(x, new((), F32), most), most


class T5Stack:
    """The encoder, or the decoder."""

    block: type[T5Block] = T5Block

    def __init__(self, model: "T5", name: str, layers: int) -> None:
        self.model, self.path, self.decoder = model, name, name == "decoder"
        model.lookups.append((f"{name}.embed_tokens", model.shared, len(model.linears)))
        self.blocks = [self.block(model, f"{name}.block.{at}", at, decoder=self.decoder) for at in range(layers)]
        self.norm = T5Norm(model, f"{name}.final_layer_norm", model.architecture.d_model)

    def words(self, ids: Tensor) -> Tensor:
        """As the table has them, before an adapter adds to them."""
        embeds = ops.embedding(ids, self.model.stack_words.get(self.path, self.model.shared))
        self.model.require_input_grads(embeds)
        return embeds

    def __call__(self, ids: Tensor, padding: Any, other: Any = None) -> Tensor:
        world.inside["T5Stack"] = self.path
        world.recording.term = "activations_decoder" if self.decoder else "activations_encoder"
        model, options, (batch, length) = self.model, self.model.options, ids.shape
        embeds = adapted(model, f"{self.path}.embed_tokens", ids, self.words)
        mask = other_mask = None
        eager = embeds.dtype if options.eager else None
        if self.decoder:
            past = model.decoding.own.length() if model.decoding else 0
            mask = causal_mask(batch, length, past + length, None, eager=eager, padded=options.padded, positions=False)
            keys = other.shape[1]
            other_mask = padding_mask(batch, length, keys, padding, eager=eager, padded=options.padded)
        else:
            mask = padding_mask(batch, length, length, padding, eager=eager, padded=options.padded)
        bias = other_bias = None
        x = ops.dropout(embeds, DROPPED)
        for block in self.blocks:
            x, own, cross = model.layer(block, x, mask, bias, other, other_mask, other_bias)
            if model.architecture.model_type != "umt5":
                bias, other_bias = own, cross
            own = cross = None
        x = self.norm(x)
        x = ops.dropout(x, DROPPED)
        return x


class T5(EncoderDecoder):
    """``T5ForConditionalGeneration``."""

    stack_class = T5Stack
    flattens = True
    special_tokens, forces_end = 3, False
    fills_cache = True  # also where nothing is generated
    keeps_wide = True  # the feed-forward's last layer, in fp32 and unpacked

    def build(self) -> None:
        a = self.architecture
        self.decoding: PairedCache | None = None
        self.cache: list[list[Tensor]] = []
        self.shared = self.table("shared", a.vocab_size, a.d_model)
        self.place_stacks()
        weight = self.shared if a.tied else None
        self.head = Linear(self, "lm_head", a.d_model, a.vocab_size, weight=weight, packs=False, head=True)

    @property
    def eager(self) -> bool:
        """Whether attention is computed eagerly."""
        return self.options.eager

    stems = 1  # the encoder

    def every_layer(self) -> list[Any]:
        return [*self.encoder.blocks, *self.decoder.blocks]

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        ids, padding, labels = batch
        self.cache = []  # a loop may still hold the last pass's
        if smoothed:
            decoder_ids = self.collate(labels)
        encoded = self.encoder(ids, padding)
        if not smoothed:
            decoder_ids = shifted_right(labels)
        decoded = self.decoder(decoder_ids, padding, encoded)
        sequence = self.scaled(decoded)
        world.recording.term = "activations_head"
        logits = self.head(sequence)
        rows, length, vocabulary = logits.shape
        loss = None if smoothed else ops.cross_entropy(ops.view(logits, (rows * length, vocabulary)), labels)
        return loss, logits, encoded, self.cache.clear

    def in_tuples(self) -> list[Tensor]:
        return [tensor for pair in self.cache for tensor in pair] if self.keeps_tuples() else []

    def scaled(self, sequence: Tensor) -> Tensor:
        """A tied head's input is scaled by the model's width."""
        return ops.scale(sequence) if self.architecture.tied else sequence

    def step(self, ids: Tensor, padding: Any, encoded: Tensor, cache: PairedCache) -> Tensor:
        """One step of decoding: the logits of the last tokens."""
        self.decoding = cache
        decoded = self.decoder(ids, padding, encoded)
        sequence = self.scaled(decoded)
        logits = self.head(sequence)
        self.decoding = None
        return logits
