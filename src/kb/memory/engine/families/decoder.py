"""Decoder-only models of transformers: one class, whose variants are rows of ``decoder_types``.

It reads as ``modeling_llama.py``: names that live on there live on here.
"""

from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.families.attention import Cache, eager_forward, heads_of, sdpa_forward
from kb.memory.engine.families.decoder_inputs import DROPPED
from kb.memory.engine.families.decoder_types import traits_of
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.fsdp import Group
from kb.memory.engine.modules import LayerNorm, Linear, Model
from kb.memory.engine.ops.log_probs import without_last
from kb.memory.engine.tensor import F32, I64, Tensor, new
from kb.memory.engine.world import world


class Attention:
    """Self-attention: projections, turned queries and keys, the chosen implementation, the output layer."""

    def __init__(self, model: "Decoder", path: str, at: int) -> None:
        a, traits = model.architecture, model.traits
        self.model, self.traits, self.at, self.path = model, traits, at, path
        self.heads, self.kv_heads, self.width = a.num_heads, a.kv_heads or a.num_heads, a.d_kv
        inner, narrow = self.heads * a.d_kv, self.kv_heads * a.d_kv
        self.dropout = DROPPED if a.attention_dropout else 0.0
        self.output_dropout = DROPPED if a.hidden_dropout else 0.0
        if a.fused_qkv:
            rows = inner + 2 * narrow
            self.projections = [
                Linear(model, f"{path}.{traits.qkv[0]}", a.d_model, rows, bias=a.qkv_bias, product=traits.product)
            ]
        else:
            sizes = {"q": inner, "k": narrow, "v": narrow}
            self.projections = [
                Linear(model, f"{path}.{name}", a.d_model, sizes[letter], bias=a.qkv_bias)
                for letter, name in zip("qkv", traits.qkv, strict=True)
            ]
        self.o = Linear(model, f"{path}.{traits.output}", inner, a.d_model, bias=a.output_bias, product=traits.product)
        self.norms = [traits.norm(model, f"{path}.{name}", a.d_kv) for name in traits.qk_norms]
        self.turned = round(a.d_kv * a.rotary)
        self.table = traits.table(a)
        if self.table:
            model.buffer(*self.table)

    def __call__(self, x: Tensor, mask: Any, cos: Any, sin: Any, cache: Cache | None) -> tuple[Tensor, Any]:
        world.inside["Attention"] = self.path
        if self.traits.written is not None:
            found: tuple[Tensor, Any] = self.traits.written(self, x, mask, cos, sin, cache)
            return found
        batch, length, _ = x.shape
        q, k, v, *whole = self.traits.project(self, x)
        q, k, *held = self.traits.turn(q, k, cos, sin)
        if cache is not None:
            k, v = cache.update(self.at, k, v)
        out, weights = self.attend(q, k, v, mask)
        out = ops.reshape(out, (batch, length, self.heads * self.width))
        out = self.o(out)
        if self.traits.dropped_output:
            out = ops.dropout(out, self.output_dropout)
        del held, whole
        return out, weights

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, Any]:
        """The implementation that the setup asks for."""
        if self.model.eager:
            return eager_forward(q, k, v, mask, dropout=self.dropout, wide=True)
        return sdpa_forward(q, k, v, mask, causal=True, dropout=self.dropout), None

    def head(self, x: Tensor, kv: bool = False) -> Tensor:
        """``view(batch, length, heads, width).transpose(1, 2)``."""
        return heads_of(x, self.kv_heads if kv else self.heads)


class Layer:
    """One block; its parts are placed in the order of its type, and wired as its type has it."""

    def __init__(self, model: "Decoder", path: str, at: int) -> None:
        a, traits = model.architecture, model.traits
        self.model, self.at, self.path = model, at, path
        self.dropout = DROPPED if a.hidden_dropout else 0.0
        for part in traits.order:
            if part == "attention":
                self.attention = Attention(model, f"{path}.{traits.attention}", at)
            elif part == "mlp":
                self.mlp = traits.mlp(model, f"{path}.{traits.mlp_path}" if traits.mlp_path else path)
            else:
                name = traits.norms[int(part[-1]) - 1]
                if a.norms > 1 or part == "norm1":
                    setattr(self, part, traits.norm(model, f"{path}.{name}", a.d_model))

    def __call__(self, x: Tensor, mask: Any, cos: Any, sin: Any, cache: Cache | None, positions: Any) -> Any:
        """``positions`` are only held: a checkpointed layer keeps its arguments.

        Older types give the attention's weights back too, which their caller holds until the next block is done.
        """
        world.inside["Layer"] = self.path
        return self.model.traits.wiring(self, x, mask, cos, sin, cache)

    def drop(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.dropout)


class Decoder(Model):
    """A causal language model with its head."""

    flattens = shards = True

    def build(self) -> None:
        a = self.architecture
        self.traits = traits = traits_of(a.model_type, a)
        self.numbers, self.special_tokens = traits.numbers, traits.special_tokens
        if a.windowed_layers not in (0, a.decoder_layers):
            raise NotFollowedError("layer_types")
        stem = traits.stem
        self.embed = self.table(f"{stem}.{traits.embed}", a.vocab_size, a.d_model)
        self.positions: Tensor | None = None
        if traits.positions:
            rows = (a.max_positions or 0) + traits.position_offset
            self.positions = self.table(f"{stem}.{traits.positions}", rows, a.d_model)
        self.embed_norm = traits.embed_norm and LayerNorm(self, f"{stem}.{traits.embed_norm}", a.d_model)
        self.layers = [Layer(self, f"{stem}.{traits.layers}.{at}", at) for at in range(a.decoder_layers)]
        self.rotary_width = 0 if traits.table(a) else int(a.d_kv * a.rotary)
        if traits.rotary_first:
            self._place_rotary()
        self.norm = traits.norm(self, f"{stem}.{traits.final}", a.d_model)
        if not traits.rotary_first:
            self._place_rotary()
        self.place_head()

    def place_head(self) -> None:
        """The output layer, last."""
        a = self.architecture
        weight = self.embed if a.tied else None
        self.head = Linear(
            self, self.traits.head, a.d_model, a.vocab_size, bias=a.head_bias, weight=weight, packs=False, head=True
        )

    def _place_rotary(self) -> None:
        """``inv_freq`` and ``original_inv_freq`` of the rotary embedding."""
        if self.rotary_width:
            self.buffer((self.rotary_width // 2,), F32)
            self.buffer((self.rotary_width // 2,), F32)

    @property
    def eager(self) -> bool:
        """Whether attention is computed eagerly: where the setup asks for it, or the type has nothing else."""
        return self.options.eager or self.traits.eager_only

    def batch(self, rows: int, source: int, target: int = 0) -> list[Tensor]:
        return [new((rows, source), I64) for _ in range(3)]

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        ids, padding, labels = batch
        x = self.base(ids, padding)
        world.recording.term = "activations_head"
        logits = self.scores(x)
        return None if smoothed else causal_loss(logits, labels), logits

    def scores(self, x: Tensor) -> Tensor:
        """The head's logits, scaled where the type scales them."""
        logits = self.part("head", self.head, x)
        return ops.scale(logits) if self.traits.scaled_logits else logits

    def base(
        self,
        ids: Tensor,
        padding: Any,
        positions: Any = None,
        cache: Cache | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """From ids to the last hidden states; ``states`` gets what goes into each layer (``output_hidden_states``)."""
        world.recording.term = "activations_decoder"
        embeds = self.part("embed", self.looked_up, ids)
        x, mask, cos, sin, positions, *held = self.traits.inputs(self, embeds, padding, positions, cache)
        for layer in self.layers:
            if states is not None:
                states.append(x)
            outputs = self.layer(layer, x, mask, cos, sin, cache, positions)
            x = outputs[0] if type(outputs) is tuple else outputs
        out: Tensor = self.part("norm", self.norm, x)
        del held
        return out

    def looked_up(self, ids: Tensor) -> Tensor:
        """The words' embeddings."""
        embeds = ops.embedding(ids, self.embed)
        self.require_input_grads(embeds)
        return embeds

    def layer_paths(self) -> list[str]:
        return [layer.path for layer in self.layers]

    def units_of_fsdp(self, *, layers: bool) -> list[Group]:
        """As accelerate 1.15.0 wraps it: where adapters wrap the model, its last norm is not found."""
        traits = self.traits
        stem = traits.stem
        embed, norm = f"{stem}.{traits.embed}.", f"{stem}.{traits.final}."
        found = self.options.adapters is None and "." not in stem
        tail = ((norm, "norm"),) if found else ()
        blocks = [Group("layer", (layer.path + ".",), (layer.path,)) for layer in self.layers] if layers else []
        if self.architecture.tied:
            paths, names = zip(*tail, (self.head.path + ".", "head"), strict=True)
            return [Group("tail", paths, (*names, "embed")), *blocks]
        paths, names = zip(*tail, (self.head.path + ".", "head"), strict=True)
        return [Group("embed", (embed,), ("embed",)), *blocks, Group("tail", paths, names)]

    def step(self, ids: Tensor, padding: Any, positions: Tensor, cache: Cache) -> Tensor:
        """One step of decoding: the logits of the last token (``logits_to_keep=1``)."""
        hidden = self.base(ids, padding, positions, cache)
        last = Tensor((hidden.shape[0], 1, hidden.shape[2]), hidden.dtype, hidden.strides, hidden.storage)
        del hidden
        return self.scores(last)


class Scorer(Decoder):
    """``…ForSequenceClassification`` with one label, as rewards are trained: a layer of one row instead of the words'.

    Source: ``GenericForSequenceClassification`` (transformers/modeling_layers.py).
    """

    generates = False

    def place_head(self) -> None:
        self.head = Linear(self, "score", self.architecture.d_model, 1, bias=False, packs=False, head=True)


def causal_loss(logits: Tensor, labels: Tensor, *, copies: bool = False) -> Tensor:
    """``ForCausalLMLoss`` (loss/loss_utils.py): logits in fp32, labels shifted by one.

    ``copies``: as trainers of their own write it, on a contiguous copy without the last position.
    """
    if copies:
        logits = ops.contiguous(without_last(logits))
        logits = ops.view(logits, (logits.shape[0] * logits.shape[1], logits.shape[2]))
        return ops.cross_entropy(logits, new(logits.shape[:1], I64))
    batch, length, vocabulary = logits.shape
    logits = ops.cast(logits, F32)
    longer = new((batch, length + 1), I64)
    labels = new((batch, length), I64) if batch > 1 else longer  # one row without its first is contiguous as it is
    logits = ops.view(logits, (batch * length, vocabulary))
    loss = ops.cross_entropy(logits, labels)
    del longer
    return loss
