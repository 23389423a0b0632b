"""MPNet as ``modeling_mpnet.py`` reads: a BERT whose scores have a bias for each distance between tokens.

The bias is made once, for every sample of a batch, and added to each layer's scores in place. Attention has no other
implementation, and no layer can be checkpointed.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import looked_up
from kb.memory.engine.families.attention import heads_of
from kb.memory.engine.families.encoder import BertLayer, Encoder
from kb.memory.engine.families.encoder_heads import DROPPED, activation_of, head_of
from kb.memory.engine.families.masks import counted_places, padding_mask
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, new
from kb.memory.engine.world import world


class Embeddings:
    """``MPNetEmbeddings``: words, and positions that count what is no padding."""

    def __init__(self, model: "Mpnet", path: str) -> None:
        a, self.model, self.path = model.architecture, model, path
        self.words = model.table(f"{path}.word_embeddings", a.vocab_size, a.d_model)
        self.places = model.table(f"{path}.position_embeddings", a.max_positions or 0, a.d_model)
        self.norm = LayerNorm(model, f"{path}.LayerNorm", a.d_model)
        model.buffer((1, a.max_positions or 0), I64)
        self.dropout = DROPPED if a.embedding_dropout else 0.0

    def __call__(self, ids: Tensor) -> Tensor:
        world.inside["Embeddings"] = self.path
        places = counted_places(ids, past=False)
        words = looked_up(self.model, f"{self.path}.word_embeddings", ids, self.words, hooked=True)
        by_place = looked_up(self.model, f"{self.path}.position_embeddings", places, self.places)
        x = ops.add(words, by_place)
        x = self.norm(x)
        x = ops.dropout(x, self.dropout)
        del places, words, by_place
        return x


class Layer(BertLayer):
    """``MPNetLayer``."""

    def place_attention(self, model: Any, path: str) -> None:
        a = model.architecture
        self.heads, self.attention_dropout = a.num_heads, DROPPED if a.attention_dropout else 0.0
        self.q, self.k, self.v, self.o = (
            Linear(model, f"{path}.attention.attn.{name}", a.d_model, a.d_model, bias=True) for name in "qkvo"
        )
        self.norm1 = LayerNorm(model, f"{path}.attention.LayerNorm", a.d_model)

    def __call__(self, x: Tensor, mask: Any, bias: Tensor) -> Tensor:  # type: ignore[override]
        world.inside["Layer"] = self.path
        return self.feed_forward(self.attended(x, mask, bias))

    def attended(self, x: Tensor, mask: Any, bias: Tensor) -> Tensor:
        """``MPNetAttention``, which holds its own attention's result until its norm is made."""
        out = self.own(x, mask, bias)
        return self.norm1(ops.add(ops.dropout(out, self.dropout), x))

    def own(self, x: Tensor, mask: Any, bias: Tensor) -> Tensor:
        """``MPNetSelfAttention``."""
        q = heads_of(self.q(x), self.heads)
        k = heads_of(self.k(x), self.heads)
        v = heads_of(self.v(x), self.heads)
        scores = ops.matmul(q, ops.transpose(k, 2, 3))
        scores = ops.scale(scores)
        scores = ops.add_here(scores, bias)
        if mask is not None:
            scores = ops.add(scores, mask)
        weights = ops.softmax(scores)
        weights = ops.dropout(weights, self.attention_dropout)
        out = ops.matmul(weights, v)
        out = ops.contiguous(ops.permute(out, (0, 2, 1, 3)))
        out = ops.view(out, x.shape)
        return self.o(out)


class Mpnet(Encoder):
    """MPNet with the head that its config names."""

    eager_only = True
    adapted_tables = ("word_embeddings", "position_embeddings")

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        activation_of(architecture.activation)
        if setup.do_train and setup.gradient_checkpointing:
            raise NotFollowedError("gradient_checkpointing of mpnet")  # transformers refuses that as well
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2")  # there is none

    def build(self) -> None:
        a = self.architecture
        self.embeddings: Any = Embeddings(self, "mpnet.embeddings")
        self.layers: Any = [Layer(self, f"mpnet.encoder.layer.{at}") for at in range(a.encoder_layers)]
        self.biases = self.table("mpnet.encoder.relative_attention_bias", a.relative_buckets, a.num_heads)
        self.head = head_of(self)

    def base(self, ids: Tensor, padding: Any) -> tuple[Tensor, Any]:
        """The last layer's states."""
        world.recording.term = "activations_encoder"
        rows, length = ids.shape
        embedded = self.embeddings(ids)
        mask = padding_mask(rows, length, length, padding, eager=embedded.dtype, padded=self.options.padded)
        sequence = self.encoded(embedded, mask)
        return sequence, self.head.pooled(sequence)

    def encoded(self, x: Tensor, mask: Any) -> Tensor:
        """``MPNetEncoder``."""
        bias = self.position_bias(*x.shape[:2])
        for layer in self.layers:
            x = self.layer(layer, x, mask, bias)
        del bias
        return x

    def position_bias(self, rows: int, length: int) -> Tensor:
        """``compute_position_bias``: a bucket for every pair of positions, a look-up, and a copy for each sample."""
        queries, keys = new((length,), I64), new((length,), I64)
        relative = new((length, length), I64)
        bucket = buckets_of(relative)
        values = ops.embedding(bucket, self.biases)
        values = ops.unsqueeze(ops.permute(values, (2, 0, 1)), 0)
        values = ops.contiguous(ops.expand(values, (rows, *values.shape[1:])))
        del queries, keys, relative, bucket
        return values


def buckets_of(relative: Tensor) -> Tensor:
    """``relative_position_bucket``, in whole numbers but for the logarithms of far distances."""
    shape = relative.shape
    distances = new(shape, I64)
    flags = new(shape, BOOL)
    before = new(shape, I64)
    del flags
    halves = new(shape, I64)
    del before
    buckets = new(shape, I64)
    del halves
    distances = new(shape, I64)
    near = new(shape, BOOL)
    far: Tensor | None = None
    for dtype in (F32, F32, F32, F32, F32, I64, I64):  # as numbers, divided, log, divided, times, whole, plus
        far = new(shape, dtype)
    most = new(shape, I64)
    least = new(shape, I64)
    del most
    far = least
    del least
    chosen = new(shape, I64)
    del chosen, distances, near, far
    return buckets
