"""DeBERTa v2 and v3 as ``modeling_deberta_v2.py`` reads: scores of content with content, and of content with distances.

Each layer projects the distances' embeddings anew, gathers their scores by a table of distances that all layers share,
and has no other implementation. Every layer's result lives until the stack is done. Distances are whole numbers, made
anew for each batch: buckets once, the indices by which scores are gathered in every layer, which keeps them for
backward.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import looked_up
from kb.memory.engine.families.encoder import BertLayer, Encoder
from kb.memory.engine.families.encoder_heads import DROPPED, Head, activation_of, head_of
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear
from kb.memory.engine.ops.gathers import filled, filled_back, gather, repeated
from kb.memory.engine.ops.pointwise import seen_again
from kb.memory.engine.tape import record
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, new, seen_as
from kb.memory.engine.world import world


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


def for_scores(x: Tensor, heads: int) -> Tensor:
    """``transpose_for_scores``: every head of every sample, side by side."""
    rows, length, width = x.shape
    x = ops.view(x, (rows, length, heads, width // heads))
    return ops.view(ops.contiguous(ops.permute(x, (0, 2, 1, 3))), (rows * heads, length, width // heads))


class Attention:
    """``DisentangledSelfAttention``."""

    def __init__(self, model: "Deberta", path: str) -> None:
        a = model.architecture
        self.path, self.heads, self.shares = path, a.num_heads, a.share_att_key
        self.dropout = DROPPED if a.attention_dropout else 0.0
        self.pos_dropout = DROPPED if a.hidden_dropout else 0.0

        def projection(name: str) -> Linear:
            return Linear(model, f"{path}.{name}", a.d_model, a.d_model, bias=True)

        self.q, self.k, self.v = (projection(f"{name}_proj") for name in ("query", "key", "value"))
        self.kinds = a.relative.split("|") if a.relative else []
        own = [] if self.shares else self.kinds
        self.pos_key = projection("pos_key_proj") if "c2p" in own else self.k
        self.pos_query = projection("pos_query_proj") if "p2c" in own else self.q

    def __call__(self, x: Tensor, mask: Tensor, places: Any, distances: Any) -> tuple[Tensor, None]:
        world.inside["Attention"] = self.path
        heads = self.heads
        q = for_scores(self.q(x), heads)
        k = for_scores(self.k(x), heads)
        v = for_scores(self.v(x), heads)
        scores = ops.bmm(q, ops.scale(ops.transpose(k, 1, 2)))
        by_distance = None
        if self.kinds:
            distances = ops.dropout(distances, self.pos_dropout)
            by_distance = self.by_distance(q, k, places, distances)
            scores = ops.add(scores, by_distance)
        scores = ops.view(scores, (x.shape[0], heads, *scores.shape[1:]))
        mask = new(mask.shape, BOOL)
        scores = filled(scores, mask)
        weights = ops.softmax(scores)
        weights = ops.dropout(weights, self.dropout)
        out = ops.bmm(ops.view(weights, (q.shape[0], *weights.shape[2:])), v)
        out = ops.view(out, (x.shape[0], heads, *out.shape[1:]))
        out = ops.contiguous(ops.permute(out, (0, 2, 1, 3)))
        out = ops.view(out, x.shape)
        del by_distance
        return out, None

    def by_distance(self, q: Tensor, k: Tensor, places: Tensor, distances: Tensor) -> Tensor:
        """``disentangled_attention_bias``: a token's query with distances, and distances with its key."""
        samples = q.shape[0] // self.heads
        distances = ops.unsqueeze(distances, 0)
        query = self.projected(self.pos_query, distances, samples) if self.shares else None
        key = self.projected(self.pos_key, distances, samples) if self.shares or "c2p" in self.kinds else None
        if "p2c" in self.kinds and not self.shares:
            query = self.projected(self.pos_query, distances, samples)
        score: Tensor | None = None
        if "c2p" in self.kinds:
            assert key is not None
            found = ops.bmm(q, ops.transpose(key, 1, 2))
            index = clamped(new(places.shape, I64))
            found = gather(found, index, (*q.shape[:2], places.shape[-1]))
            score = ops.plus(ops.scale(found))
        if "p2c" in self.kinds:
            assert query is not None
            at = from_keys(places)
            seen = ops.bmm(k, ops.transpose(query, 1, 2))
            seen = ops.transpose(gather(seen, at, (*k.shape[:2], k.shape[1])), 1, 2)
            scaled = ops.scale(seen)
            score = ops.plus(scaled) if score is None else ops.add_here(score, scaled)
        assert score is not None  # without either kind the layer has no distances (`why_not`)
        return score

    def projected(self, linear: Linear, distances: Tensor, samples: int) -> Tensor:
        """Distances through a layer, for every sample."""
        return repeated(for_scores(linear(distances), self.heads), samples)


class Layer(BertLayer):
    """``DebertaV2Layer``: BERT's, around its own attention."""

    def attention_of(self, model: Any, path: str) -> Attention:
        return Attention(model, path)

    def __call__(self, x: Tensor, mask: Any, places: Any = None, distances: Any = None) -> Tensor:
        world.inside["Layer"] = self.path
        out, _ = self.attention(x, mask, places, distances)
        attended = self.output(self.dense, self.norm1, out, x)
        del out
        return self.feed_forward(attended)


class Convolution:
    """``ConvLayer``: what was embedded, convolved over its neighbours, beside the first layer's result."""

    def __init__(self, model: "Deberta", path: str) -> None:
        a = model.architecture
        self.weight = model.parameter(f"{path}.conv.weight", (a.d_model, a.d_model, a.conv))
        self.bias = model.parameter(f"{path}.conv.bias", (a.d_model,))
        self.norm = LayerNorm(model, f"{path}.LayerNorm", a.d_model)
        self.dropout = DROPPED if a.hidden_dropout else 0.0
        self.activation = activation_of(a.conv_activation)

    def __call__(self, x: Tensor, residual: Tensor, mask: Tensor) -> Tensor:
        turned = ops.conv1d(ops.contiguous(ops.permute(x, (0, 2, 1))), self.weight, self.bias, 1)
        out = ops.contiguous(ops.permute(turned, (0, 2, 1)))
        del turned
        unseen = new(mask.shape, mask.dtype)
        unseen = new(mask.shape, BOOL)
        out = seen_again(out, record(filled_back, (out,), (unseen,)))
        out = self.activation(ops.dropout(out, self.dropout))
        summed = ops.add(residual, out)
        normed = self.norm(summed)
        shown = column(mask, normed.dtype)
        made = ops.mul(normed, shown)
        del unseen, summed, normed, shown
        return made


def column(mask: Tensor, dtype: str) -> Tensor:
    """``mask.unsqueeze(2).to(dtype)``."""
    return ops.cast(seen_as(mask, (*mask.shape, 1), (*mask.strides, 1)), dtype)


class Embeddings:
    """``DebertaV2Embeddings``: words, positions where the model adds them, kinds of segments; padding becomes zeros."""

    def __init__(self, model: "Deberta", path: str) -> None:
        a, self.model, self.path = model.architecture, model, path
        width = a.embedding_size or a.d_model
        self.words = model.table(f"{path}.word_embeddings", a.vocab_size, width)
        self.places = model.table(f"{path}.position_embeddings", a.max_positions, width) if a.max_positions else None
        self.kinds = (
            model.table(f"{path}.token_type_embeddings", a.type_vocab_size, width) if a.type_vocab_size else None
        )
        self.widen = Linear(model, f"{path}.embed_proj", width, a.d_model) if width != a.d_model else None
        self.norm = LayerNorm(model, f"{path}.LayerNorm", a.d_model)
        model.buffer((1, a.numbered), I64)
        self.dropout = DROPPED if a.embedding_dropout else 0.0

    def __call__(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> Tensor:
        world.inside["Embeddings"] = self.path
        words = looked_up(self.model, f"{self.path}.word_embeddings", ids, self.words, hooked=True)
        x, by_kind = words, None
        if self.places is not None:
            first = self.model.buffers[0]
            places = seen_as(first, (1, ids.shape[1]), first.strides)
            by_place = looked_up(self.model, f"{self.path}.position_embeddings", places, self.places)
            del places
            x = ops.add(x, by_place)
        else:
            by_place = new(words.shape, words.dtype)
        if self.kinds is not None:
            by_kind = looked_up(self.model, f"{self.path}.token_type_embeddings", kinds, self.kinds)
            x = ops.add(x, by_kind)
        if self.widen is not None:
            x = self.widen(x)
        x = self.norm(x)
        seen = column(mask, x.dtype)
        x = ops.mul(x, seen)
        x = ops.dropout(x, self.dropout)
        del words, by_place, by_kind, seen
        return x


class ContextHead(Head):
    """``ContextPooler`` and a classifier of sequences, whose loss picks the rows that have a label."""

    def __init__(self, model: "Deberta") -> None:
        super().__init__(model)
        width = model.architecture.d_model
        self.pooler = Linear(model, "pooler.dense", width, width, bias=True)
        self.classifier = self.outputs_of("classifier")

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        x = self.pool(sequence)
        x = ops.dropout(x, self.dropout)
        logits = self.classifier(x)
        return None if smoothed else labelled(logits), logits

    def pool(self, sequence: Tensor) -> Tensor:
        x = self.pooler(ops.indexed(sequence, 1))
        return ops.gelu(x)


def labelled(logits: Tensor) -> Tensor:
    """The loss of rows whose label is not negative, in fp32."""
    world.recording.term = "activations_head"
    rows = logits.shape[0]
    flags = new((rows,), BOOL)
    places = new((rows, 1), I64)
    del flags
    chosen = gather(logits, places, logits.shape)
    labels = new((rows,), I64)
    return ops.cross_entropy(ops.cast(chosen, F32), labels)


class Deberta(Encoder):
    """DeBERTa v2 or v3 with the head that its config names."""

    eager_only = True
    reenters = False  # the distances' embeddings, which all layers share, would be run back twice
    gathers = False  # nor does a module look them up, whose hook would gather them

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        activation_of(architecture.activation)
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2")  # there is none
        if architecture.conv:
            activation_of(architecture.conv_activation)

    def build(self) -> None:
        a = self.architecture
        self.embeddings: Any = Embeddings(self, "deberta.embeddings")
        self.layers = [Layer(self, f"deberta.encoder.layer.{at}") for at in range(a.encoder_layers)]
        rows = 2 * a.relative_buckets
        self.distances = self.table("deberta.encoder.rel_embeddings", rows, a.d_model) if a.relative else None
        self.norm = LayerNorm(self, "deberta.encoder.LayerNorm", a.d_model) if a.relative_norm else None
        self.conv = Convolution(self, "deberta.encoder.conv") if a.conv else None
        self.head = ContextHead(self) if a.head == "sequence" else head_of(self)

    def base(self, ids: Tensor, padding: Any) -> tuple[Tensor, Any]:
        """The last layer's states; a batch without a mask is given one of ones."""
        world.recording.term = "activations_encoder"
        mask = new(ids.shape, F32) if padding is None else padding
        kinds = new(ids.shape, I64)
        embedded = self.embeddings(ids, kinds, mask)
        sequence = self.encoded(embedded, mask)
        del kinds
        return sequence, None

    def encoded(self, embedded: Tensor, mask: Tensor) -> Tensor:
        a, (rows, length) = self.architecture, mask.shape
        both = new((rows, 1, length, length), mask.dtype)
        places = distances_of(length, bucketed=a.log_buckets) if a.relative else None
        states, x = [embedded], embedded
        distances: Any = self.distances
        if distances is not None and self.norm is not None:
            distances = self.norm(distances)
        for at, layer in enumerate(self.layers):
            x = self.layer(layer, x, both, places, distances)
            if at == 0 and self.conv is not None:
                x = self.conv(embedded, x, mask)
            states.append(x)
        del states, both
        return x
