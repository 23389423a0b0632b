"""Encoders as ``modeling_bert.py`` reads: BERT, RoBERTa, ELECTRA; DistilBERT and ALBERT have layers of their own.

Norms come after the sum, so that what flows between layers is fp32 under autocast and each reader casts it anew.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import adapted
from kb.memory.engine.families.attention import eager_forward, heads_of, sdpa_forward
from kb.memory.engine.families.encoder_heads import DROPPED, activation_of, head_of
from kb.memory.engine.families.masks import counted_places, padding_mask
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear, Model
from kb.memory.engine.tensor import I64, Tensor, new, seen_as
from kb.memory.engine.world import world


class Traits(NamedTuple):
    """What a type does differently, from its modelling file. ``counted``: positions count what is no padding."""

    root: str = "bert"
    layers: str = "encoder.layer"
    counted: bool = False
    widened: str = ""  # the layer from the embeddings' width to the model's, where there is one
    always_widened: bool = False
    checkpoints: bool = True
    head_first: bool = False  # a head for labels is placed before the encoder


_ROBERTA = Traits("roberta", counted=True)
_XLM_ROBERTA = _ROBERTA._replace(head_first=True)
TYPES = {
    "bert": Traits(),
    "roberta": _ROBERTA,
    "xlm-roberta": _XLM_ROBERTA,
    "camembert": _XLM_ROBERTA,
    "electra": Traits("electra", widened="embeddings_project"),
    "distilbert": Traits("distilbert", "transformer.layer"),
    "albert": Traits("albert", "encoder.albert_layer_groups.0.albert_layers", always_widened=True,
                     widened="encoder.embedding_hidden_mapping_in", checkpoints=False),
}  # fmt: skip


class SelfAttention:
    """Queries, keys, values under the names of the type, and the implementation that the setup asks for."""

    def __init__(self, model: "Encoder", path: str, names: tuple[str, str, str]) -> None:
        a = model.architecture
        self.model, self.path, self.dropout = model, path, DROPPED if a.attention_dropout else 0.0
        self.q, self.k, self.v = (Linear(model, f"{path}.{name}", a.d_model, a.d_model, bias=True) for name in names)

    def __call__(self, x: Tensor, mask: Any, *ending: Callable[[Tensor], Tensor]) -> tuple[Tensor, Any]:
        """``ending`` is what the class itself does with the result, one name for each step's: queries, keys and values
        live until then."""
        world.inside["SelfAttention"] = self.path
        heads = self.model.architecture.num_heads
        q = heads_of(self.q(x), heads)
        k = heads_of(self.k(x), heads)
        v = heads_of(self.v(x), heads)
        weights = None
        if self.model.options.eager:
            holds = self.model.options.earlier.scores_held
            out, weights = eager_forward(q, k, v, mask, dropout=self.dropout, holds=holds)
        else:
            out = sdpa_forward(q, k, v, mask, dropout=self.dropout)
        out = ops.reshape(out, x.shape)
        for step in ending:
            out = step(out)
        return out, weights


class BertLayer:
    """``BertLayer``: its attention's weights live until it returns, its wide activation until its norm is made."""

    def __init__(self, model: "Encoder", path: str) -> None:
        a, self.model, self.returns = model.architecture, model, model.options.earlier.weights_returned
        self.path, self.dropout = path, DROPPED if a.hidden_dropout else 0.0
        self.place_attention(model, path)
        self.up = Linear(model, f"{path}.intermediate.dense", a.d_model, a.d_ff, bias=True)
        self.down = Linear(model, f"{path}.output.dense", a.d_ff, a.d_model, bias=True)
        self.norm2 = LayerNorm(model, f"{path}.output.LayerNorm", a.d_model)
        self.activation = activation_of(a.activation)

    def place_attention(self, model: Any, path: str) -> None:
        """With the norm behind it."""
        width = model.architecture.d_model
        self.attention = self.attention_of(model, f"{path}.attention.self")
        self.dense = Linear(model, f"{path}.attention.output.dense", width, width, bias=True)
        self.norm1 = LayerNorm(model, f"{path}.attention.output.LayerNorm", width)

    def attention_of(self, model: Any, path: str) -> Any:
        return SelfAttention(model, path, ("query", "key", "value"))

    def __call__(self, x: Tensor, mask: Any) -> Tensor:
        world.inside["BertLayer"] = self.path
        attended, weights = self.attend(x, mask)
        x = self.feed_forward(attended)
        if self.returns and not (world.training and self.model.options.checkpointing):  # of a recomputed layer, nobody
            self.model.returned = weights
        return x

    def attend(self, x: Tensor, mask: Any) -> tuple[Tensor, Any]:
        out, weights = self.attention(x, mask)
        out = self.output(self.dense, self.norm1, out, x)
        return out, weights

    def feed_forward(self, attended: Tensor) -> Tensor:
        wide = self.intermediate(attended)
        return self.output(self.down, self.norm2, wide, attended)

    def intermediate(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = self.activation(x)
        return x

    def output(self, dense: Linear, norm: LayerNorm, x: Tensor, residual: Tensor) -> Tensor:
        x = dense(x)
        x = ops.dropout(x, self.dropout)
        return norm(ops.add(x, residual))


class DistilBertLayer:
    """``TransformerBlock`` of ``modeling_distilbert.py``: no dropout behind the attention."""

    def __init__(self, model: "Encoder", path: str) -> None:
        a = model.architecture
        self.path, self.dropout = path, DROPPED if a.hidden_dropout else 0.0
        self.attention = SelfAttention(model, f"{path}.attention", ("q_lin", "k_lin", "v_lin"))
        self.dense = Linear(model, f"{path}.attention.out_lin", a.d_model, a.d_model, bias=True)
        self.norm1 = LayerNorm(model, f"{path}.sa_layer_norm", a.d_model)
        self.up = Linear(model, f"{path}.ffn.lin1", a.d_model, a.d_ff, bias=True)
        self.down = Linear(model, f"{path}.ffn.lin2", a.d_ff, a.d_model, bias=True)
        self.norm2 = LayerNorm(model, f"{path}.output_layer_norm", a.d_model)
        self.activation = activation_of(a.activation)

    def __call__(self, x: Tensor, mask: Any) -> Tensor:
        world.inside["DistilBertLayer"] = self.path
        out, _ = self.attention(x, mask, self.dense)
        out = self.norm1(ops.add(out, x))
        fed = self.feed_forward(out)
        fed = self.norm2(ops.add(fed, out))
        return fed

    def feed_forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = self.activation(x)
        x = self.down(x)
        return ops.dropout(x, self.dropout)


class AlbertLayer:
    """``AlbertLayer``: one for all layers; no dropout behind the feed forward."""

    def __init__(self, model: "Encoder", path: str) -> None:
        a = model.architecture
        self.path, self.dropout = path, DROPPED if a.hidden_dropout else 0.0
        self.norm2 = LayerNorm(model, f"{path}.full_layer_layer_norm", a.d_model)
        self.attention = SelfAttention(model, f"{path}.attention", ("query", "key", "value"))
        self.dense = Linear(model, f"{path}.attention.dense", a.d_model, a.d_model, bias=True)
        self.norm1 = LayerNorm(model, f"{path}.attention.LayerNorm", a.d_model)
        self.up = Linear(model, f"{path}.ffn", a.d_model, a.d_ff, bias=True)
        self.down = Linear(model, f"{path}.ffn_output", a.d_ff, a.d_model, bias=True)
        self.activation = activation_of(a.activation)

    def __call__(self, x: Tensor, mask: Any) -> Tensor:
        world.inside["AlbertLayer"] = self.path
        out, _ = self.attention(x, mask, self.dense, self.dropped, lambda out: self.norm1(ops.add(x, out)))
        fed = self.feed_forward(out)
        x = self.norm2(ops.add(fed, out))
        return x

    def dropped(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.dropout)

    def feed_forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = self.activation(x)
        x = self.down(x)
        return x


LAYERS: dict[str, Any] = {"distilbert": DistilBertLayer, "albert": AlbertLayer}


class Embeddings:
    """``BertEmbeddings``: words, kinds of segments, positions, and a norm over their sum."""

    def __init__(self, model: "Encoder", path: str, width: int) -> None:
        a, self.model, self.path, self.counted = model.architecture, model, path, model.traits.counted
        self.words = model.table(f"{path}.word_embeddings", a.vocab_size, width)
        places = (f"{path}.position_embeddings", a.max_positions or 0, width)
        self.places: Any = None if self.counted else model.table(*places)
        self.kinds = (
            model.table(f"{path}.token_type_embeddings", a.type_vocab_size, width) if a.type_vocab_size else None
        )
        self.norm = LayerNorm(model, f"{path}.LayerNorm", width)
        if self.counted:  # RoBERTa's stand behind the norm
            self.places = model.table(*places)
        self.dropout = DROPPED if a.embedding_dropout else 0.0
        for _ in range(2 if self.kinds is not None else 1):  # position_ids, token_type_ids
            model.buffer((1, a.max_positions or 0), I64)

    def __call__(self, ids: Tensor) -> Tensor:
        world.inside["Embeddings"] = self.path
        rows, length = ids.shape
        first = self.model.buffers[0]
        places = counted_places(ids) if self.counted else seen_as(first, (1, length), first.strides)
        kinds: Any = None
        if self.kinds is not None:  # gathered for each row of positions
            kinds = new(places.shape, I64)
            kinds = seen_as(kinds, (rows, length), kinds.strides if self.counted else (0, 1))
        words = adapted(self.model, f"{self.path}.word_embeddings", ids, self._words)
        x, by_kind = words, None
        if self.kinds is not None:
            by_kind = self._looked_up("token_type_embeddings", kinds, self.kinds)
            x = ops.add(words, by_kind)
        by_place = self._looked_up("position_embeddings", places, self.places)
        x = ops.add(x, by_place)
        x = self.norm(x)
        x = ops.dropout(x, self.dropout)
        del words, by_kind, by_place, kinds, places
        return x

    def _words(self, ids: Tensor) -> Tensor:
        words = ops.embedding(ids, self.words)
        self.model.require_input_grads(words)
        return words

    def _looked_up(self, name: str, ids: Tensor, table: Tensor) -> Tensor:
        return adapted(self.model, f"{self.path}.{name}", ids, partial(ops.embedding, weight=table))


class Encoder(Model):
    """An encoder with the head that its config names."""

    generates = False
    trains_rows = True
    stems = 2  # the model below the head, its embeddings
    adapted_tables: tuple[str, ...] = ("word_embeddings", "token_type_embeddings", "position_embeddings")

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        kind = architecture.model_type
        if kind not in TYPES:
            raise NotFollowedError(kind)
        if setup.do_train and setup.gradient_checkpointing and not TYPES[kind].checkpoints:
            raise NotFollowedError(f"gradient_checkpointing of {kind}")  # transformers refuses that as well
        activation_of(architecture.activation)

    def build(self) -> None:
        a, traits = self.architecture, self.traits
        width = a.embedding_size or a.d_model
        first = traits.head_first and a.head not in ("masked", "embedding")  # they read the table, or lie inside
        if first:
            self.head = head_of(self)
        self.embeddings = Embeddings(self, f"{traits.root}.embeddings", width)
        self.widen: Any = None
        if traits.always_widened or width != a.d_model:
            self.widen = Linear(self, f"{traits.root}.{traits.widened}", width, a.d_model, bias=True)
        kind, path = LAYERS.get(a.model_type, BertLayer), f"{traits.root}.{traits.layers}"
        layers = [kind(self, f"{path}.{at}") for at in range(1 if a.shared_layers else a.encoder_layers)]
        self.layers = layers * a.encoder_layers if a.shared_layers else layers
        if not first:
            self.head = head_of(self)

    @property
    def traits(self) -> Traits:
        """What this type does differently."""
        return TYPES[self.architecture.model_type]

    @property
    def copies_last(self) -> bool:  # type: ignore[override]
        """PEFT's classes for labels of tokens and for spans wrap the head when the adapters are there."""
        return self.architecture.head in ("token", "span")

    def spared(self, linear: Linear) -> bool:
        return linear.head or linear.path.partition(".")[0] == "classifier"

    def every_layer(self) -> list[Any]:
        return list(dict.fromkeys(self.layers))  # of ALBERT, all are one

    def beside_layers(self) -> list[Any]:
        return [self.embeddings]

    def batch(self, rows: int, source: int, target: int = 0) -> list[Tensor]:
        labels: dict[str, list[tuple[int, ...]]] = {"sequence": [(rows,)], "span": [(rows,), (rows,)]}
        shapes = labels.get(self.architecture.head, [(rows, source)])
        return [new((rows, source), I64), new((rows, source), I64), *(new(shape, I64) for shape in shapes)]

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        ids, padding, *labels = batch
        sequence, pooled = self.base(ids, padding)
        world.recording.term = "activations_head"
        found: tuple[Any, ...] = self.head(sequence, pooled, labels, smoothed)
        return found

    def base(self, ids: Tensor, padding: Any) -> tuple[Tensor, Any]:
        """The last layer's states, and the first token's pooled where the head reads it."""
        world.recording.term = "activations_encoder"
        options, (rows, length) = self.options, ids.shape
        embedded = self.embeddings(ids)
        if self.widen is not None and not self.traits.always_widened:
            embedded = self.widen(embedded)
        eager = embedded.dtype if options.eager else None
        if eager and options.earlier.scores_held:  # get_extended_attention_mask
            mask: Any = new((rows, 1, 1, length), options.dtype)
        else:
            mask = padding_mask(rows, length, length, padding, eager=eager, padded=options.padded)
        sequence = self.stack(embedded, mask)
        return sequence, self.head.pooled(sequence)

    def stack(self, x: Tensor, mask: Any) -> Tensor:
        """All layers; ALBERT's come behind a layer to the model's width."""
        if self.traits.always_widened:
            x = self.widen(x)
        for layer in self.layers:
            x = self.layer(layer, x, mask)
        self.returned = None
        return x
