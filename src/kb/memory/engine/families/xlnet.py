"""XLNet as ``modeling_xlnet.py`` reads, to classify sequences or tokens: length before batch, relative positions.

Queries, keys, values, positions and outputs are parameters of attention, no layers: neither adapters nor 4 bits reach
them. Evaluation keeps every layer's input as memory. Attention has no other implementation.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import looked_up
from kb.memory.engine.families.encoder import Encoder
from kb.memory.engine.families.encoder_heads import DROPPED, TokenHead, activation_of, classified
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear
from kb.memory.engine.ops import windows
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, new, seen_as
from kb.memory.engine.world import world

BY_HEAD, SCORES = "ibh,hnd->ibnd", "ibnd,jbnd->bnij"  # length, batch, width; what each of ``n`` heads has of them


class Attention:
    """``XLNetRelativeAttention`` of one stream, without segments."""

    def __init__(self, model: "XLNet", path: str) -> None:
        a = model.architecture
        self.path, self.dropout = path, DROPPED if a.hidden_dropout else 0.0
        self.norm = LayerNorm(model, f"{path}.layer_norm", a.d_model)
        wide, narrow = (a.d_model, a.num_heads, a.d_kv), (a.num_heads, a.d_kv)
        self.q, self.k, self.v, self.o, self.r = (model.parameter(f"{path}.{name}", wide) for name in "qkvor")
        self.by_place, _, self.by_word = (
            model.parameter(f"{path}.{name}", narrow) for name in ("r_r_bias", "r_s_bias", "r_w_bias")
        )
        model.parameter(f"{path}.seg_embed", (2, *narrow))
        named = model.parameters
        norm = named[-11:-9]  # placed first, as what is inside of a module, and named behind its own
        named[-11:] = [*named[-9:], *norm]

    def __call__(self, x: Tensor, mask: Any, places: Tensor) -> Tensor:
        world.inside["Attention"] = self.path
        q = ops.einsum(BY_HEAD, x, self.q)
        k = ops.einsum(BY_HEAD, x, self.k)
        v = ops.einsum(BY_HEAD, x, self.v)
        r = ops.einsum(BY_HEAD, ops.cast(places, self.r.dtype), self.r)
        attended = self.core(q, k, v, r, mask)
        out = self.ending(x, attended)
        del q, k, v, r, attended
        return out

    def core(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor, mask: Any) -> Tensor:
        """``rel_attn_core``."""
        by_word = ops.einsum(SCORES, ops.add(q, self.by_word), k)
        by_place = ops.einsum(SCORES, ops.add(q, self.by_place), r)
        by_place = windows.shifted(by_place)
        scores = ops.scale(ops.plus(ops.add(by_word, by_place)))
        if mask is not None:
            scores = ops.sub(scores, windows.times(mask))
        weights = ops.softmax(scores)
        weights = ops.dropout(weights, self.dropout)
        out = ops.einsum("bnij,jbnd->ibnd", weights, v)
        del by_word, by_place, scores
        return out

    def ending(self, x: Tensor, attended: Tensor) -> Tensor:
        """``post_attention``."""
        out = ops.einsum("ibnd,hnd->ibh", attended, self.o)
        out = ops.dropout(out, self.dropout)
        out = ops.add(out, x)
        return self.norm(out)


class Layer:
    """``XLNetLayer``."""

    def __init__(self, model: "XLNet", path: str) -> None:
        a = model.architecture
        self.path, self.dropout = path, DROPPED if a.hidden_dropout else 0.0
        self.attention = Attention(model, f"{path}.rel_attn")
        self.norm = LayerNorm(model, f"{path}.ff.layer_norm", a.d_model)
        self.up = Linear(model, f"{path}.ff.layer_1", a.d_model, a.d_ff, bias=True)
        self.down = Linear(model, f"{path}.ff.layer_2", a.d_ff, a.d_model, bias=True)
        self.activation = activation_of(a.activation)

    def __call__(self, x: Tensor, mask: Any, places: Tensor) -> Tensor:
        world.inside["Layer"] = self.path
        x = self.attention(x, mask, places)
        return self.feed_forward(x)

    def feed_forward(self, given: Tensor) -> Tensor:
        x = self.up(given)
        x = self.activation(x)
        x = ops.dropout(x, self.dropout)
        x = self.down(x)
        x = ops.dropout(x, self.dropout)
        return self.norm(ops.add(x, given))


class SummaryHead(TokenHead):
    """``XLNetSequenceSummary`` of the last token, and a layer to the labels."""

    def __init__(self, model: "XLNet") -> None:
        a = model.architecture
        self.model: Any = model
        self.dropout = DROPPED if a.head_dropout else 0.0
        self.summary = Linear(model, "sequence_summary.summary", a.d_model, a.d_model, bias=True)
        self.outputs = Linear(model, "logits_proj", a.d_model, a.labels, bias=True)

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        x = self.summarized(sequence)
        logits = self.outputs(x)
        return classified(logits, labels, smoothed), logits

    def summarized(self, x: Tensor) -> Tensor:
        x = ops.indexed(x, 1)
        x = self.summary(x)
        x = ops.tanh(x)
        return ops.dropout(x, self.dropout)


class XLNet(Encoder):
    """XLNet with the head that its config names."""

    eager_only = True
    adapted_tables = ("word_embedding",)
    gathers = False  # what attention multiplies is no layer: its gathering is not followed

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        activation_of(architecture.activation)
        if setup.do_train and setup.gradient_checkpointing:
            raise NotFollowedError("gradient_checkpointing of xlnet")  # transformers refuses that as well
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2")  # there is none

    def build(self) -> None:
        a = self.architecture
        self.words = self.table("transformer.word_embedding", a.vocab_size, a.d_model)
        self.layers: Any = [Layer(self, f"transformer.layer.{at}") for at in range(a.encoder_layers)]
        self.parameter("transformer.mask_emb", (1, 1, a.d_model))
        self.parameters.insert(0, self.parameters.pop())
        self.dropout = DROPPED if a.hidden_dropout else 0.0
        self.kept: list[Tensor] = []
        self.head = SummaryHead(self) if a.head == "sequence" else TokenHead(self)

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        ids, padding, *labels = batch
        sequence = self.states(ids, padding)
        world.recording.term = "activations_head"
        found: tuple[Any, ...] = self.head(sequence, None, labels, smoothed)
        return (*found[:2], None, self.kept.clear) if self.kept else found

    def states(self, ids: Tensor, padding: Any) -> Tensor:
        """``XLNetModel``."""
        world.recording.term = "activations_encoder"
        a, (rows, length) = self.architecture, ids.shape
        if rows > 1:  # else turning it takes no copy
            ids = new((length, rows), I64)
            padding = None if padding is None else new((length, rows), I64)
        else:
            ids = seen_as(ids, (length, rows), (1, 1))
        hidden = None if padding is None else new((length, rows), F32)
        flags = mask = None
        if padding is not None:
            flags = self.as_numbers((1, length, rows))
            mask = self.between(length, rows)
        words = looked_up(self, "transformer.word_embedding", ids, self.words, hooked=True)
        x = ops.dropout(words, self.dropout)
        places = positions(rows, length, a.d_model)
        places = ops.dropout(places, self.dropout)
        for layer in self.layers:
            if not world.training and a.keeps_inputs:
                self.kept.append(x)
            x = self.layer(layer, x, mask, places)
        out = ops.dropout(x, self.dropout)
        out = ops.contiguous(ops.permute(out, (1, 0, 2)))
        del ids, padding, hidden, flags, mask, words, places
        return out

    def as_numbers(self, shape: tuple[int, ...]) -> Tensor:
        """``(mask > 0).to(dtype)``."""
        above = new(shape, BOOL)
        out = new(shape, self.words.dtype)
        del above
        return out

    def between(self, length: int, rows: int) -> Tensor:
        """Which tokens are hidden from each other: padding, but never a token from itself."""
        dtype = self.words.dtype
        own = new((length, length), dtype)
        own = new((length, length), dtype)
        both = new((length, length, rows, 1), dtype)
        above = new(both.shape, BOOL)
        del both
        out = new(above.shape, dtype)
        del above, own
        return out


def positions(rows: int, length: int, width: int) -> Tensor:
    """``relative_positional_encoding``: sines and cosines of distances, seen once for each row."""
    whole = new((width // 2,), I64)
    steps = new((width // 2,), F32)
    del whole
    shares = new((width // 2,), F32)
    powers = new((width // 2,), F32)
    del shares
    inverse = new((width // 2,), F32)
    inverse_times = new((width // 2,), F32)
    del powers, inverse
    whole = new((2 * length,), I64)
    far = new((2 * length,), F32)
    del whole
    angles = new((2 * length, width // 2), F32)
    sines, cosines = new(angles.shape, F32), new(angles.shape, F32)
    both = new((2 * length, width), F32)
    del sines, cosines, angles, steps, inverse_times, far
    return seen_as(both, (2 * length, rows, width), (width, 0, 1))
