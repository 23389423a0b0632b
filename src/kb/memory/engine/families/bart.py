"""BART as ``modeling_bart.py`` reads; what mBART, Pegasus, Marian and M2M100 do otherwise is a row of data."""

from functools import partial
from typing import Any

from kb.core.record import NamedTuple
from kb.memory.engine import ops
from kb.memory.engine.adapters import adapted
from kb.memory.engine.families.attention import PairedCache, eager_forward, heads_of, sdpa_forward
from kb.memory.engine.families.masks import causal_mask, counted_places, padding_mask, shifted_right
from kb.memory.engine.modules import EncoderDecoder, LayerNorm, Linear
from kb.memory.engine.tensor import F16, F32, I64, Tensor, new
from kb.memory.engine.world import world

DROPPED = 0.1


class Traits(NamedTuple):
    """What a type does differently, from its modelling file.

    ``positions``: ``learned``; ``fixed``, a table that nothing trains; ``counted``, a buffer, looked up by what is no
    padding.
    """

    norm_first: bool = False  # a norm before each sublayer, not after it
    closing_norm: bool = False  # a norm behind each stack
    embedding_norm: bool = True  # a norm over the embeddings
    positions: str = "learned"
    offset: int = 2  # rows of the table of positions before the first
    logits_bias: bool = True  # ``final_logits_bias``, added to the logits
    hook_before_scale: bool = False  # the words' embedding is scaled outside of its module
    forces_end: bool = True  # generate's last token is forced
    special_tokens: int = 4


TYPES = {
    "bart": Traits(),
    "mbart": Traits(norm_first=True, closing_norm=True),
    "pegasus": Traits(norm_first=True, closing_norm=True, embedding_norm=False, positions="fixed", offset=0,
                      hook_before_scale=True),
    "marian": Traits(embedding_norm=False, positions="fixed", offset=0, hook_before_scale=True),
    "m2m_100": Traits(norm_first=True, closing_norm=True, embedding_norm=False, positions="counted",
                      logits_bias=False, forces_end=False),
    "led": Traits(offset=0, forces_end=False),
}  # fmt: skip


class BartAttention:
    """``BartAttention``: keys, values, queries, output, in that order."""

    def __init__(self, model: Any, path: str, at: int) -> None:
        d = model.architecture.d_model
        self.model, self.at, self.path = model, at, path
        names = ("k_proj", "v_proj", "q_proj", "out_proj")
        self.k, self.v, self.q, self.o = (Linear(model, f"{path}.{name}", d, d, bias=True) for name in names)
        self.dropout = DROPPED if model.architecture.attention_dropout else 0.0

    def heads(self, x: Tensor) -> Tensor:
        return heads_of(x, self.model.architecture.num_heads)

    def __call__(self, x: Tensor, mask: Any, other: Any = None, cache: PairedCache | None = None) -> tuple[Tensor, Any]:
        world.inside["BartAttention"] = self.path
        q = self.queries(x)
        k, v = self.keys_and_values(x, other, cache)
        out, weights = self.attend(q, k, v, mask, causal=other is None and self.model.stack == "decoder")
        out = ops.reshape(out, x.shape)
        out = self.o(out)
        return out, weights

    def queries(self, x: Tensor) -> Tensor:
        return self.heads(self.q(x))

    def keys_and_values(self, x: Tensor, other: Any, cache: PairedCache | None) -> tuple[Tensor, Tensor]:
        """Of the states that are attended to; a cache's with theirs behind."""
        states = x if other is None else other
        held = None if cache is None else cache.own if other is None else cache.cross
        if other is not None and held is not None and self.at in held.keys:
            return held.keys[self.at], held.values[self.at]
        k, v = self.made_of(states)
        if held is not None:
            k, v = held.update(self.at, k, v)
        return k, v

    def made_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values by heads."""
        k = self.k(states)
        v = self.v(states)
        return self.heads(k), self.heads(v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, *, causal: bool) -> tuple[Tensor, Any]:
        """The implementation that the setup asks for."""
        if self.model.options.eager:
            return eager_forward(q, k, v, mask, dropout=self.dropout)
        return sdpa_forward(q, k, v, mask, causal=causal, dropout=self.dropout), None


class BartLayer:
    """An encoder's or a decoder's layer; norms come after the sublayers, or before them."""

    dropout = DROPPED
    clamps = False  # what an encoder's layer gives in fp16

    def __init__(self, model: Any, path: str, at: int, *, decoder: bool) -> None:
        a = model.architecture
        self.model, self.path, self.first = model, path, model.traits.norm_first
        self.attention = self.attention_of(f"{path}.self_attn", at)
        self.norm1 = LayerNorm(model, f"{path}.self_attn_layer_norm", a.d_model)
        self.cross = None
        if decoder:
            self.cross = self.attention_of(f"{path}.encoder_attn", at)
            self.norm2 = LayerNorm(model, f"{path}.encoder_attn_layer_norm", a.d_model)
        self.fc1 = Linear(model, f"{path}.fc1", a.d_model, a.d_ff, bias=True)
        self.fc2 = Linear(model, f"{path}.fc2", a.d_ff, a.d_model, bias=True)
        self.norm3 = LayerNorm(model, f"{path}.final_layer_norm", a.d_model)
        self.activation = ops.relu if a.activation == "relu" else ops.silu if a.activation == "swish" else ops.gelu

    def attention_of(self, path: str, at: int) -> Any:
        return BartAttention(self.model, path, at)

    def __call__(
        self, x: Tensor, mask: Any, other: Any = None, other_mask: Any = None, cache: PairedCache | None = None
    ) -> Tensor:
        world.inside["BartLayer"] = self.path
        a = self.model.architecture
        residual = x
        x = self.norm1(x) if self.first else x
        x, _ = self.attention(x, mask, None, cache)
        x = ops.dropout(x, self.dropout)
        x = ops.add(residual, x)
        x = x if self.first else self.norm1(x)
        if self.cross is not None:
            residual = x
            x = self.norm2(x) if self.first else x
            x, _ = self.cross(x, other_mask, other, cache)
            x = ops.dropout(x, self.dropout)
            x = ops.add(residual, x)
            x = x if self.first else self.norm2(x)
        residual = x
        x = self.norm3(x) if self.first else x
        x = self.activation(self.fc1(x))
        x = ops.dropout(x, DROPPED if a.activation_dropout else 0.0)
        x = self.fc2(x)
        x = ops.dropout(x, self.dropout)
        x = ops.add(residual, x)
        x = x if self.first else self.norm3(x)
        if self.clamps and self.cross is None and x.dtype == F16:
            x = ops.clamp(x)
        return x


class BartStack:
    """``BartEncoder`` or ``BartDecoder``."""

    def __init__(self, model: "Bart", name: str, layers: int) -> None:
        a, traits = model.architecture, model.traits
        self.model, self.decoder = model, name == "decoder"
        path = self.path = f"{model.root}.{name}"
        model.lookups.append((f"{path}.embed_tokens", model.shared, len(model.linears)))
        rows = self.rows_of_positions()
        self.positions: Any = None
        if traits.positions == "counted":
            self.buffer_at = len(model.buffers)
            model.buffer((rows, a.d_model), model.options.dtype)
        else:
            self.positions = model.table(f"{path}.embed_positions", rows, a.d_model, frozen=traits.positions == "fixed")
        self.layers = [self.layer_of(f"{path}.layers.{at}", at) for at in range(layers)]
        self.norm: Any = None
        self.closing: Any = None
        if traits.embedding_norm:
            self.norm = LayerNorm(model, f"{path}.layernorm_embedding", a.d_model)
        if traits.closing_norm:
            self.closing = LayerNorm(model, f"{path}.layer_norm", a.d_model)

    def layer_of(self, path: str, at: int) -> BartLayer:
        return BartLayer(self.model, path, at, decoder=self.decoder)

    def rows_of_positions(self) -> int:
        """Rows of the table of positions."""
        return (self.model.architecture.max_positions or 0) + self.model.traits.offset

    def __call__(self, ids: Tensor, padding: Any, other: Any = None, cache: PairedCache | None = None) -> Tensor:
        world.inside["BartStack"] = self.path
        self.model.stack = "decoder" if self.decoder else "encoder"
        world.recording.term = f"activations_{self.model.stack}"
        return self.decode(ids, padding, other, cache) if self.decoder else self.encode(ids, padding)

    def words(self, ids: Tensor) -> Tensor:
        """The words' embedding times ``embed_scale``, which a type's module of words does itself or leaves to the
        stack."""
        path, outside = f"{self.path}.embed_tokens", self.model.traits.hook_before_scale
        scale = None if outside else partial(_number, self.model)
        embeds = adapted(self.model, path, ids, self._words, scale=scale)
        return ops.scale(embeds) if outside else embeds

    def _words(self, ids: Tensor) -> Tensor:
        """What the module of words gives; a hook sees the product where it scales."""
        embeds = ops.embedding(ids, self.model.stack_words.get(self.path, self.model.shared))
        if not self.model.traits.hook_before_scale:
            embeds = ops.scale(embeds)
        self.model.require_input_grads(embeds)
        return embeds

    def placed(self, places: Tensor) -> Tensor:
        """Rows of the table of positions."""
        table: Tensor = self.model.part(f"{self.path}.embed_positions", ops.embedding, places, self.positions)
        return table

    def counted(self, ids: Tensor) -> Tensor:
        """``M2M100SinusoidalPositionalEmbedding``: rows of a buffer, by numbers that count what is no padding."""
        places = counted_places(ids)
        table = self.model.buffers[self.buffer_at]
        out = new((*ids.shape, table.shape[1]), table.dtype)
        del places
        return out

    def encode(self, ids: Tensor, padding: Any) -> Tensor:
        options, kind = self.model.options, self.model.traits.positions
        embeds = self.words(ids)
        if kind == "counted":
            positions = self.counted(ids)
        elif kind == "fixed":
            positions = self.placed(new(ids.shape[1:], I64))
        else:  # BartLearnedPositionalEmbedding: expanded, then the offset is added
            row = new(ids.shape[1:], I64)
            positions = self.placed(new(ids.shape, I64))
            del row
        x = ops.add(embeds, positions)
        x = x if self.norm is None else self.norm(x)
        x = ops.dropout(x, DROPPED)
        eager = embeds.dtype if options.eager else None
        padding = padding_mask(ids.shape[0], ids.shape[1], ids.shape[1], padding, eager=eager, padded=options.padded)
        for layer in self.layers:
            x = self.model.layer(layer, x, padding)
        if self.closing is not None:
            x = self.closing(x)
        del padding, embeds, positions
        return x

    def decode(self, ids: Tensor, encoder_mask: Any, other: Tensor, cache: PairedCache | None) -> Tensor:
        options, kind, (batch, length) = self.model.options, self.model.traits.positions, ids.shape
        embeds = self.words(ids)
        past = cache.own.length() if cache is not None else 0
        places: Any = None
        if kind != "counted":
            row = new((length,), I64)
            places = new((length,), I64)
            del row
        mask: Any = new((batch, past + length), F32)
        eager = embeds.dtype if options.eager else None
        visible = causal_mask(batch, length, past + length, mask, eager=eager, padded=options.padded)
        if kind != "fixed":  # Marian and Pegasus keep their mask's name
            mask = None
        eager = other.dtype if options.eager else None
        encoder_mask = padding_mask(batch, length, other.shape[1], encoder_mask, eager=eager, padded=options.padded)
        if kind == "counted":
            positions = self.counted(ids)
        elif kind == "fixed":
            positions = self.placed(places)
            places = None
        else:
            shifted = new((1, length), I64)
            positions = self.placed(shifted)
            del shifted
        x = ops.add(embeds, positions)
        x = x if self.norm is None else self.norm(x)
        x = ops.dropout(x, DROPPED)
        for layer in self.layers:
            x = self.model.layer(layer, x, visible, other, encoder_mask, cache)
        if self.closing is not None:
            x = self.closing(x)
        del visible, mask, encoder_mask, embeds, places, positions
        return x


def _number(model: "Bart") -> Tensor:
    """``embed_scale`` as a tensor of the table's type (``_get_embed_scale``, peft/tuners/tuners_utils.py)."""
    return new((), model.shared.dtype)


class Bart(EncoderDecoder):
    """``BartForConditionalGeneration``."""

    stack_class = BartStack
    stack = "encoder"
    root = "model"
    filled: PairedCache | None = None  # by a forward pass, of whose outputs it is, where nothing is generated

    @property
    def stack_paths(self) -> tuple[str, ...]:  # type: ignore[override]
        return f"{self.root}.encoder", f"{self.root}.decoder"

    @property
    def traits(self) -> Traits:
        """What this type does differently."""
        return TYPES[self.architecture.model_type]

    @property
    def special_tokens(self) -> int:
        """Token ids that ``generate`` sends to the GPU."""
        return self.traits.special_tokens

    @property
    def forces_end(self) -> bool:
        """Whether the last token is forced (``ForcedEOSTokenLogitsProcessor``)."""
        return self.traits.forces_end

    def build(self) -> None:
        a = self.architecture
        self.shared = self.table(f"{self.root}.shared", a.vocab_size, a.d_model)
        self.place_stacks()
        weight = self.shared if a.tied else None
        self.output = Linear(self, "lm_head", a.d_model, a.vocab_size, weight=weight, packs=False, head=True)
        self.logits_bias: Any = None
        if self.traits.logits_bias:
            self.buffer((1, a.vocab_size), self.options.dtype)

    stems = 2  # the model below the head, its encoder

    def every_layer(self) -> list[Any]:
        return [*self.encoder.layers, *self.decoder.layers]

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        ids, padding, labels = batch
        decoder_ids = self.collate(labels) if smoothed else shifted_right(labels)
        earlier = self.options.earlier
        kept = earlier.caches and (not world.training or self.keeps_tuples())
        self.filled = PairedCache(earlier.cache) if kept else None
        decoded, encoded = self.model(ids, padding, decoder_ids)
        world.recording.term = "activations_head"
        logits = self.head(decoded)
        rows, length, vocabulary = logits.shape
        loss = None if smoothed else ops.cross_entropy(ops.view(logits, (rows * length, vocabulary)), labels)
        return loss, logits, encoded, partial(setattr, self, "filled", None)

    def in_tuples(self) -> list[Tensor]:
        if self.filled is None or not self.keeps_tuples():
            return []
        held = (self.filled.own, self.filled.cross)
        self.filled = None
        return [tensor for cache in held for tensor in (*cache.keys.values(), *cache.values.values())]

    def model(self, ids: Tensor, padding: Any, decoder_ids: Tensor) -> tuple[Tensor, Tensor]:
        """``BartModel``: the decoder's and the encoder's last states."""
        encoded = self.encoder(ids, padding)
        return self.decoder(decoder_ids, padding, encoded, self.filled), encoded

    def head(self, decoded: Tensor) -> Tensor:
        """The logits, and ``final_logits_bias`` added out of place: a buffer of the weights' type."""
        logits = self.output(decoded)
        return ops.add(logits, self.buffers[-1]) if self.traits.logits_bias else logits

    def step(self, ids: Tensor, padding: Any, encoded: Tensor, cache: PairedCache) -> Tensor:
        """One step of decoding: the logits of the last tokens."""
        decoded = self.decoder(ids, padding, encoded, cache)
        return self.head(decoded)
