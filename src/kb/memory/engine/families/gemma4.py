"""Gemma 4's language model as ``modeling_gemma4.py`` reads: layers that slide between those that see everything, whose
heads are wider; the last layers attend to the keys and values of earlier ones; and a table that gives each layer an
input of its own for every token.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.families.attention import Cache, eager_forward, rotary_tables, rotate_half, sdpa_forward
from kb.memory.engine.families.decoder import Decoder
from kb.memory.engine.families.decoder_inputs import DROPPED, ByKind, masked, numbered_from, of_layer
from kb.memory.engine.families.decoder_parts import GatedMlp, activation_of
from kb.memory.engine.families.decoder_types import traits_of
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear, Model
from kb.memory.engine.tensor import F32, Storage, Tensor, new
from kb.memory.engine.world import world

OWN_TABLE = "embed_tokens_per_layer"
Shared = dict[bool, tuple[Tensor, Tensor]]  # keys and values of the last layer of each kind that makes some


class Norm:
    """``Gemma4RMSNorm``: in fp32, then cast; ``scaled`` by a weight or not."""

    def __init__(self, model: Model, path: str, width: int, *, scaled: bool = True) -> None:
        self.path = path
        self.weight = model.parameter(path + ".weight", (width,), decays=False) if scaled else None

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Norm"] = self.path
        normed = _normed(ops.cast(x, F32))
        if self.weight is not None:
            normed = ops.mul(normed, ops.cast(self.weight, F32))
        return ops.cast(normed, x.dtype)


def _normed(x: Tensor) -> Tensor:
    squared = ops.plus(ops.mean(ops.power(x)))
    return ops.mul(x, ops.power(squared))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``apply_rotary_pos_emb`` of one, before the heads are put first."""
    return ops.add(ops.mul(x, cos), ops.mul(rotate_half(x), sin))


def angles(batch: int, length: int, width: int, dtype: str) -> tuple[Tensor, Tensor]:
    """``Gemma4TextRotaryEmbedding.forward``, seen with a dimension for heads behind the tokens."""
    tables = rotary_tables(batch, length, width, dtype)
    return tuple(  # type: ignore[return-value]
        Tensor((batch, length, 1, width), each.dtype, (length * width, width, width, 1), each.storage)
        for each in tables
    )


class Attention:
    """``Gemma4TextAttention``."""

    def __init__(self, model: "Gemma4", path: str, at: int) -> None:
        a, self.model, self.at, self.path = model.architecture, model, at, path
        self.slides, self.reuses, self.stores = a.slides[at], model.reuses[at], at in model.stores
        self.heads, self.kv_heads, self.width = a.num_heads, a.kv_heads or a.num_heads, a.d_kv
        if not self.slides:
            self.kv_heads, self.width = a.wide_kv_heads or self.kv_heads, a.wide_d_kv or a.d_kv
        self.dropout = DROPPED if a.attention_dropout else 0.0
        inner, narrow = self.heads * self.width, self.kv_heads * self.width
        self.q = Linear(model, f"{path}.q_proj", a.d_model, inner, bias=a.qkv_bias)
        self.q_norm = Norm(model, f"{path}.q_norm", self.width)
        if not self.reuses:
            self.k_norm = Norm(model, f"{path}.k_norm", self.width)
            self.v_norm = Norm(model, f"{path}.v_norm", self.width, scaled=False)
            self.k = Linear(model, f"{path}.k_proj", a.d_model, narrow, bias=a.qkv_bias)
            self.v: Linear | None = None
            if self.slides or not a.keys_are_values:
                self.v = Linear(model, f"{path}.v_proj", a.d_model, narrow, bias=a.qkv_bias)
        self.o = Linear(model, f"{path}.o_proj", inner, a.d_model, bias=a.output_bias)

    def __call__(
        self, x: Tensor, mask: Any, cos: Tensor, sin: Tensor, shared: Shared, cache: Cache | None
    ) -> tuple[Tensor, Tensor | None]:
        world.inside["Attention"] = self.path
        batch, length, _ = x.shape
        q = ops.view(self.q(x), (batch, length, self.heads, self.width))
        q = self.q_norm(q)
        q = turned(q, cos, sin)
        q = ops.transpose(q, 1, 2)
        if self.reuses:
            k, v = shared[self.slides]
        else:
            k = ops.view(self.k(x), (batch, length, self.kv_heads, self.width))
            v = k if self.v is None else ops.view(self.v(x), (batch, length, self.kv_heads, self.width))
            k = self.k_norm(k)
            k = turned(k, cos, sin)
            k = ops.transpose(k, 1, 2)
            v = self.v_norm(v)
            v = ops.transpose(v, 1, 2)
            if cache is not None:
                k, v = cache.update(self.at, k, v)
        if self.stores:
            shared[self.slides] = k, v
        out, weights = self.attend(q, k, v, mask)
        out = ops.reshape(out, (batch, length, self.heads * self.width))
        out = self.o(out)
        return out, weights

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, Tensor | None]:
        """The implementation that the setup asks for."""
        if self.model.eager:
            return eager_forward(q, k, v, mask, dropout=self.dropout, wide=True)
        return sdpa_forward(q, k, v, mask, causal=True, dropout=self.dropout), None


class Layer:
    """``Gemma4TextDecoderLayer``."""

    def __init__(self, model: "Gemma4", path: str, at: int) -> None:
        a, self.path, self.slides = model.architecture, path, model.architecture.slides[at]
        self.attention = Attention(model, f"{path}.self_attn", at)
        self.mlp = GatedMlp(model, f"{path}.mlp", a.d_ff * (2 if model.reuses[at] and a.wide_reusing else 1))
        self.norm1, self.norm3, self.norm2, self.norm4 = (
            Norm(model, f"{path}.{name}_layernorm", a.d_model)
            for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        )
        self.gate: Linear | None = None
        if a.layer_inputs:
            self.gate = Linear(model, f"{path}.per_layer_input_gate", a.d_model, a.layer_inputs)
            self.projection = Linear(model, f"{path}.per_layer_projection", a.layer_inputs, a.d_model)
            self.norm5 = Norm(model, f"{path}.post_per_layer_input_norm", a.d_model)
        self.act = activation_of(a.activation)
        model.buffer((1,), model.options.dtype)
        self.scalar = Tensor((1,), model.options.dtype, (1,), Storage(0))

    def __call__(
        self, x: Tensor, own: Any, mask: Any, cos: Tensor, sin: Tensor, shared: Shared, cache: Any, positions: Any
    ) -> Tensor:
        world.inside["Layer"] = self.path
        residual = x
        x = self.norm1(x)
        x, _ = self.attention(x, mask, cos, sin, shared, cache)
        x = self.norm3(x)
        x = ops.add(residual, x)
        residual = x
        x = self.norm2(x)
        x = self.mlp(x)
        x = self.norm4(x)
        x = ops.add(residual, x)
        if self.gate is not None:
            residual = x
            x = self.gate(x)
            x = self.act(x)
            x = ops.mul(x, own)
            x = self.projection(x)
            x = self.norm5(x)
            x = ops.add(residual, x)
        return ops.mul_here(x, self.scalar)


class Gemma4(Decoder):
    """``Gemma4ForCausalLM``."""

    flattens = shards = gathers = False
    last_alone = False  # whether the scores of the last token alone are asked for

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        wrapped = (*(setup.lora_target_modules or ()), *(setup.modules_to_save or ()))
        hands_on = bool(architecture.reuses or architecture.layer_inputs)  # its blocks get more than states
        reenters = setup.do_train and setup.gradient_checkpointing and setup.use_reentrant
        refused = {
            # Unsloth's, whose loss of so many words takes less than the low end that its plain run would have
            "offloaded checkpoints": reenters and setup.offloads_checkpoints,
            "use_reentrant": reenters and hands_on,
            OWN_TABLE: any(name.endswith(OWN_TABLE) for name in wrapped),
            "flash_attention_2": setup.attn_implementation == "flash",
            "use_liger_kernel": setup.liger_kernels is not None,
            f"{setup.post and setup.post.kind}": setup.post is not None and setup.post.kind != "sft",
        }
        for name, refuses in refused.items():
            if refuses:
                raise NotFollowedError(f"{name} of {architecture.model_type}")

    def build(self) -> None:
        a = self.architecture
        self.traits = traits = traits_of(a.model_type, a)
        self.numbers, self.special_tokens = traits.numbers, traits.special_tokens
        self.slides, self.reuses = a.slides, a.reuses or (False,) * a.decoder_layers
        made = [at for at, reused in enumerate(self.reuses) if not reused]
        self.stores = {max(at for at in made if a.slides[at] == kind) for kind in {*a.slides}} if a.reuses else set()
        self.place_before()
        self.embed = self.table(f"{traits.stem}.{traits.embed}", a.vocab_size, a.d_model)
        self.buffer((), self.options.dtype)
        self.layers: Any = [Layer(self, f"{traits.stem}.layers.{at}", at) for at in range(a.decoder_layers)]
        self.norm = Norm(self, f"{traits.stem}.norm", a.d_model)
        self.widths = {kind: a.d_kv if kind or not a.wide_d_kv else a.wide_d_kv for kind in sorted({*a.slides})}
        for width in self.widths.values():
            for _ in range(2):
                self.buffer((width // 2,), F32)
        self.own: Tensor | None = None
        if a.layer_inputs:
            whole = a.decoder_layers * a.layer_inputs
            self.own = self.table(f"{traits.stem}.{OWN_TABLE}", a.layer_vocab, whole)
            self.buffer((), self.options.dtype)
            self.own_projection = Linear(self, f"{traits.stem}.per_layer_model_projection", a.d_model, whole)
            self.own_norm = Norm(self, f"{traits.stem}.per_layer_projection_norm", a.layer_inputs)
        self.place_behind()
        self.place_head()

    def place_before(self) -> None:
        """What is placed before the language model: nothing of it alone."""

    def place_behind(self) -> None:
        """And behind it."""

    def own_inputs(self, ids: Tensor) -> Any:
        """``get_per_layer_inputs``: of each token a row, which is cut into one piece for every layer."""
        if self.own is None:
            return None
        shape = (*ids.shape, self.architecture.decoder_layers, self.architecture.layer_inputs)
        found = ops.embedding(ids, self.own)
        narrow = self.options.dtype == self.own.dtype  # the number lies in the type of loading
        number = Tensor((), self.own.dtype, (), Storage(0)) if narrow else new((), self.own.dtype)
        return ops.view(ops.mul(found, number), shape)

    def inputs_of_layers(self, embeds: Tensor, own: Any) -> Any:
        """``project_per_layer_inputs``: each layer's with a share of the words' embedding."""
        if own is None:
            return None
        projected = ops.scale(self.own_projection(embeds))
        projected = ops.view(projected, own.shape)
        projected = self.own_norm(projected)
        return ops.scale(ops.add(projected, own))

    def base(
        self,
        ids: Tensor,
        padding: Any,
        positions: Any = None,
        cache: Cache | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """From ids to the last hidden states."""
        world.recording.term = "activations_decoder"
        embeds = self.looked_up(ids)
        own = self.inputs_of_layers(embeds, self.own_inputs(ids))
        positions = numbered_from(embeds, positions)
        return self.passed(embeds, own, masked(self, embeds, padding, cache), positions, cache)

    def passed(self, embeds: Tensor, own: Any, masks: Any, positions: Tensor, cache: Any) -> Tensor:
        """The layers, and the norm behind them."""
        x = embeds
        shape = positions.shape[0], embeds.shape[1]
        tables = {kind: angles(*shape, width, x.dtype) for kind, width in self.widths.items()}
        shared: Shared = {}
        for at, layer in enumerate(self.layers):
            if self.last_alone and self.reuses[at] and x.shape[1] > 1:  # only the last token's are asked for from here
                x, own, masks, tables = last_of(x, own, masks, tables)
            own_input = None if own is None else ops.indexed(own, 2)
            mask, (cos, sin) = of_layer(masks, slides=layer.slides), tables[layer.slides]
            x = self.layer(layer, x, own_input, mask, cos, sin, shared, cache, positions)
        found: Tensor = self.norm(x)
        return found

    def step(self, ids: Tensor, padding: Any, positions: Tensor, cache: Cache) -> Tensor:
        """As of every decoder; layers that reuse keys and values are passed by the prompt's last token alone."""
        self.last_alone = True
        found = super().step(ids, padding, positions, cache)
        self.last_alone = False
        return found


def last_of(x: Tensor, own: Any, masks: Any, tables: Any) -> tuple[Any, ...]:
    """``_maybe_slice_kv_shared_inputs``: views."""
    x = ops.cut(x, 1, 1)
    own = None if own is None else ops.cut(own, 1, 1)
    if type(masks) is ByKind:
        masks = ByKind(each and ops.cut(each, 2, 1) for each in masks)
    else:
        masks = masks and ops.cut(masks, 2, 1)
    return x, own, masks, {kind: tuple(ops.cut(each, 1, 1) for each in both) for kind, both in tables.items()}
