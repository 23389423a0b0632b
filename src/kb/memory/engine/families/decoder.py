"""Decoder-only models of transformers, their blocks and attention: one class each, whose variants are rows of
``decoder_types``.

It reads as ``modeling_llama.py``: names that live on there live on here.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

from kb.core.model import Architecture
from kb.core.setup import CausalLoss, TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import adapted
from kb.memory.engine.families.attention import (
    Cache,
    SlidingCache,
    eager_forward,
    for_flash,
    heads_of,
    repeat_kv,
    sdpa_forward,
)
from kb.memory.engine.families.decoder_inputs import DROPPED, ONE, of_layer
from kb.memory.engine.families.decoder_liger import has_fused_head, with_kernels
from kb.memory.engine.families.decoder_parts import as_it_is, number_of_words, scaled_words
from kb.memory.engine.families.decoder_types import TYPES, check_run, traits_of
from kb.memory.engine.families.decoder_unsloth import with_unsloth
from kb.memory.engine.families.decoder_written import table_of_sight
from kb.memory.engine.families.recurrent import MixedCache
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.fsdp import Group
from kb.memory.engine.modules import LayerNorm, Linear, Model
from kb.memory.engine.ops.liger import fused_cross_entropy
from kb.memory.engine.ops.log_probs import without_last
from kb.memory.engine.tensor import F32, I64, Tensor, new
from kb.memory.engine.world import AMPERE, world

ROTARY_POSITIONS = 2048  # of GPT-NeoX, whose architecture says none: the default of GPTNeoXConfig


class Attention:
    """Self-attention: projections, turned queries and keys, the chosen implementation, the output layer."""

    def __init__(self, model: Any, path: str, at: int) -> None:
        a, traits = model.architecture, model.traits
        self.model, self.traits, self.at, self.path = model, traits, at, path
        self.heads, self.kv_heads, self.width = a.num_heads, a.kv_heads or a.num_heads, a.d_kv
        inner, narrow = self.heads * a.d_kv, self.kv_heads * a.d_kv
        self.dropout = DROPPED if a.attention_dropout else 0.0
        self.output_dropout = DROPPED if a.hidden_dropout else 0.0
        shapes = {"q": (a.d_model, inner), "k": (a.d_model, narrow), "v": (a.d_model, narrow), "o": (inner, a.d_model)}
        names = dict(zip("qkv", traits.qkv, strict=False)) | {"o": traits.output}
        if a.delta is not None:  # beside the queries a gate for each
            shapes["q"] = a.d_model, 2 * inner
        if a.fused_qkv:
            shapes["q"] = a.d_model, inner + 2 * narrow
        made = {
            letter: traits.linear(
                model, f"{path}.{names[letter]}", *shapes[letter], bias=a.output_bias if letter == "o" else a.qkv_bias
            )
            for letter in traits.placed
            if letter in names
        }
        self.o = made["o"]
        self.projections = [made[letter] for letter in "qkv" if letter in made]
        widths = (inner, narrow) if a.qk_norm == "whole" else (a.d_kv, a.d_kv)
        self.norms = [
            (traits.head_norm or traits.norm)(model, f"{path}.{name}", width)
            for name, width in zip(traits.qk_norms, widths, strict=False)
        ]
        self.turned = round(a.d_kv * a.rotary)
        self.turn = traits.turn if not a.turns or a.turns[at] else as_it_is
        self.table = traits.table(a)
        if self.table is None and model.options.earlier.sight_table:
            self.table = table_of_sight(a, ROTARY_POSITIONS)
        if self.table:
            model.buffer(*self.table)

    def __call__(self, x: Tensor, mask: Any, cos: Any, sin: Any, cache: Cache | None) -> tuple[Tensor, Any]:
        world.inside["Attention"] = self.path
        if self.traits.written is not None:
            found: tuple[Tensor, Any] = self.traits.written(self, x, mask, cos, sin, cache)
            return found
        batch, length, _ = x.shape
        q, k, v, *whole = self.traits.project(self, x)
        q, k, *held = self.turn(q, k, cos, sin)
        if self.traits.scales is not None:
            q = ops.mul(q, self.traits.scales(sin, q.dtype))
        if self.traits.norms_turned:
            norm_q, norm_k = self.norms
            q = norm_q(q)
            k = norm_k(k)
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
            wide, caps = self.traits.wide_shares, self.model.caps
            return eager_forward(q, k, v, mask, dropout=self.dropout, wide=wide, narrow=not wide, caps=caps)
        if self.model.options.flash:
            q, k, v = for_flash(q, k, v, self.model.options.dtype)
        if self.traits.repeats_kv and world.capability < AMPERE:
            k, v = (repeat_kv(each, self.heads // self.kv_heads) for each in (k, v))
        return sdpa_forward(q, k, v, mask, causal=True, dropout=self.dropout), None

    def head(self, x: Tensor, kv: bool = False) -> Tensor:
        """``view(batch, length, heads, width).transpose(1, 2)``."""
        return heads_of(x, self.kv_heads if kv else self.heads)


class Layer:
    """One block; its parts are placed in the order of its type, and wired as its type has it."""

    def __init__(self, model: Any, path: str, at: int) -> None:
        a, traits = model.architecture, model.traits
        mixes = bool(a.mixes) and a.mixes[at]
        self.model, self.at, self.path, self.slides = model, at, path, model.slides[at] or mixes
        self.dropout = DROPPED if a.hidden_dropout else 0.0
        for part in traits.order:
            if part == "attention":
                attention = f"{path}.{traits.attention}"
                self.attention = (
                    traits.mixer(model, f"{path}.{traits.mixer_path}", at) if mixes else Attention(model, attention, at)
                )
            elif part == "mlp":
                mlp = traits.dense_mlp if a.dense and a.dense[at] else traits.mlp
                self.mlp = mlp(model, f"{path}.{traits.mlp_path}" if traits.mlp_path else path)
            else:
                name = traits.norms[int(part[-1]) - 1]
                if int(part[-1]) <= max(a.norms, 1):
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
    filled: Cache | None = None  # by a forward pass, of whose outputs it is
    decodes = False  # whether ``generate`` has made it ready for a token at a time (``_optimize_model_for_decode``)
    forces_end = False
    embed_norm: Any = None  # a norm behind the words
    trains_rows = True
    adapted_tables = ("embed_tokens", "embed_in", "wte", "wpe", "word_embeddings", "embed_positions")

    @classmethod
    def check_type(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        check_run(architecture, setup)

    @classmethod
    def is_eager(cls, architecture: Architecture) -> bool:
        return architecture.model_type in TYPES and TYPES[architecture.model_type].eager_only

    def build(self) -> None:
        a = self.architecture
        self.traits = traits = with_kernels(
            traits_of(a.model_type, a, writes=self.options.earlier.writes_attention), a, self.options.fused
        )
        if self.options.unsloth:
            self.traits = traits = with_unsloth(traits, a)
        self.numbers, self.special_tokens = traits.numbers, traits.special_tokens
        if a.slides and traits.kinds == ONE:  # the type makes one mask for all
            raise NotFollowedError("layer_types")
        self.slides = a.slides or (a.windowed_layers > 0,) * a.decoder_layers
        self.placed = (0,) if traits.mask_by_place else ()
        self.caps = a.score_cap and traits.caps
        stem = traits.stem
        self.embed = self.table(f"{stem}.{traits.embed}", a.vocab_size, a.embedding_size or a.d_model)
        if traits.scaled_words:
            self.buffer((), self.options.dtype)
        self.positions: Tensor | None = None
        if traits.positions:
            rows = (a.max_positions or 0) + traits.position_offset
            self.positions = self.table(f"{stem}.{traits.positions}", rows, a.d_model)
        self.project_out = self.project_in = None
        if a.embedding_size:
            self.project_out = Linear(self, f"{stem}.project_out", a.d_model, a.embedding_size)
            self.project_in = Linear(self, f"{stem}.project_in", a.embedding_size, a.d_model)
        if traits.final_first:
            self.place_norm()
        self.embed_norm = traits.embed_norm and LayerNorm(self, f"{stem}.{traits.embed_norm}", a.d_model)
        self.layers = [Layer(self, f"{stem}.{traits.layers}.{at}", at) for at in range(a.decoder_layers)]
        self.rotary_width = 0 if traits.table(a) or traits.angles(a) else int(a.d_kv * a.rotary)
        if traits.rotary_first:
            self._place_rotary()
        if not traits.final_first:
            self.place_norm()
        if not traits.rotary_first:
            self._place_rotary()
        self.place_head()

    def place_norm(self) -> None:
        """The norm behind the layers."""
        a, traits = self.architecture, self.traits
        self.norm: Any = None if a.norms_sums else traits.norm(self, f"{traits.stem}.{traits.final}", a.d_model)

    def place_head(self) -> None:
        """The output layer, last."""
        a = self.architecture
        weight = self.embed if a.tied else None
        self.head = Linear(
            self,
            self.traits.head,
            a.embedding_size or a.d_model,
            a.vocab_size,
            bias=a.head_bias,
            weight=weight,
            packs=False,
            head=True,
        )

    def _place_rotary(self) -> None:
        """``inv_freq`` and ``original_inv_freq`` of the rotary embedding, of each kind of layers where they differ; or
        the table that sines and cosines are looked up in."""
        if table := self.traits.angles(self.architecture):
            self.buffer(*table)
        kinds = len(set(self.slides)) if self.traits.tables_by_kind else 1
        for _ in range(2 * kinds if self.rotary_width else 0):
            self.buffer((self.rotary_width // 2,), F32)

    @property
    def eager(self) -> bool:
        """Whether attention is computed eagerly: where the setup asks for it, or the type has nothing else."""
        by_sdpa = self.options.earlier.uncapped and bool(
            self.architecture.logit_cap
        )  # of Gemma 2, which caps scores too
        return self.options.eager or (self.traits.eager_only and not self.options.flash and not by_sdpa)

    def batch(self, rows: int, source: int, target: int = 0) -> list[Tensor]:
        return [new((rows, source), I64) for _ in range(3)]

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        ids, padding, labels = batch
        kept = self.keeps_tuples() if world.training else self.options.earlier.caches
        self.filled = cache = self.cache() if kept else None  # of the outputs
        x = self.base(ids, padding, cache=cache)
        world.recording.term = "activations_head"
        return self.loss_and_logits(x, labels, smoothed=smoothed)

    def loss_and_logits(self, x: Tensor, labels: Tensor, *, smoothed: bool) -> tuple[Any, Any]:
        """Of the last hidden states; logits are None where the loss does without them, and the loss where the Trainer
        smooths it."""
        if self.fuses and not smoothed:
            return self.fused_loss(x, labels), None
        logits = self.scores(x)
        shift = self.options.earlier.causal_loss
        if shift == "wide":
            logits = ops.cast(logits, F32)
        return None if smoothed else causal_loss(logits, labels, shift), logits

    def in_tuples(self) -> list[Tensor]:
        cache, self.filled = self.filled, None
        return [*cache.keys.values(), *cache.values.values()] if cache is not None and self.keeps_tuples() else []

    @property
    def fuses(self) -> bool:
        """Whether the loss is computed without whole logits: in training, and elsewhere where that is said."""
        fused = self.options.fused
        return fused is not None and (world.training or fused.evaluates) and has_fused_head(self.architecture, fused)

    def fused_loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """``LigerForCausalLMLoss`` (liger_kernel/transformers/model/loss_utils.py): labels get one more, and lose one.

        It is handed ``lm_head.weight``, which of a layer that PEFT adapts is the weight below (peft 0.21.2,
        ``BaseTunerLayer.weight``): the adapter is not asked, and gets no gradients. Where that is sharded it is made
        whole for the kernel.
        """
        assert self.options.fused is not None
        world.recording.term = "loss"
        batch, length, width = x.shape
        longer = new((batch, length + 1), I64)
        shifted = new((batch, length), I64) if batch > 1 else longer  # one row without its first is contiguous
        whole = self.head.weight if self.units is None else self.units.made_whole(self.head.weight)
        with nullcontext() if self.units is None else self.units.reading((whole,)):
            loss = fused_cross_entropy(ops.view(x, (batch * length, width)), whole, self.options.fused.release)
        del longer, shifted
        return loss

    def scores(self, x: Tensor) -> Tensor:
        """The head's logits, scaled or capped where the type does that."""
        logits: Tensor = self.part("head", self.head, x)
        if self.architecture.logit_cap:
            logits = ops.scale(logits)
            logits = ops.tanh(logits)
            return ops.scale(logits)
        return ops.scale(logits) if self.traits.scaled_logits else logits

    def base(
        self,
        ids: Tensor,
        padding: Any,
        positions: Any = None,
        cache: Cache | None = None,
        states: list[Tensor] | None = None,
    ) -> Any:
        """From ids to the last hidden states; ``states`` gets what goes into each layer (``output_hidden_states``)."""
        world.recording.term = "activations_decoder"
        embeds = self.part("embed", self.looked_up, ids)
        if self.traits.scaled_embeds:
            embeds = ops.scale(embeds)
        x, mask, cos, sin, positions, *held = self.traits.inputs(self, embeds, padding, positions, cache)
        if self.project_in is not None:
            embeds = self.project_in(embeds)
            x = ops.add(embeds, x)
        for layer in self.layers:
            if states is not None:
                states.append(x)
            given = (of_layer(each, slides=layer.slides) for each in (mask, cos, sin))
            outputs = self.layer(layer, x, *given, cache, positions)
            x = outputs[0] if type(outputs) is tuple else outputs
        if self.norm is not None:
            x = self.part("norm", self.norm, x)
        if self.project_out is not None:
            x = self.project_out(x)
        del held
        return x

    @property
    def words_of(self) -> tuple[str, Tensor, int]:
        """Behind the tables of what a model sees."""
        return next(each for each in self.lookups if each[1] is self.embed)

    def beside_table(self, path: str) -> list[Tensor]:
        """The number that words are scaled by, where their module has one."""
        return [new((), self.options.dtype)] if self.traits.scaled_words and path == self.words_of[0] else []

    def looked_up(self, ids: Tensor) -> Tensor:
        """The words' embeddings."""
        scale = partial(number_of_words, self) if self.traits.scaled_words else None
        return adapted(self, f"{self.traits.stem}.{self.traits.embed}", ids, self._words, scale=scale)

    def _words(self, ids: Tensor) -> Tensor:
        """As the table has them, before an adapter adds to them."""
        embeds = ops.embedding(ids, self.embed)
        if self.traits.scaled_words:
            embeds = scaled_words(self, embeds)
        self.require_input_grads(embeds)
        return embeds

    def placed_at(self, places: Tensor) -> Tensor:
        """The embeddings of learned positions."""
        assert self.positions is not None
        base = partial(ops.embedding, weight=self.positions)
        return adapted(self, f"{self.traits.stem}.{self.traits.positions}", places, base)

    def every_layer(self) -> list[Any]:
        return self.layers

    def units_of_fsdp(self, *, layers: bool) -> list[Group]:
        """As accelerate 1.15.0 wraps it: the last norm is looked for in the module that ``base_model_prefix`` names,
        which of a model that adapters wrap is another if the name is "model"."""
        traits = self.traits
        stem = traits.stem
        embed, norm = f"{stem}.{traits.embed}.", f"{stem}.{traits.final}."
        found = "." not in stem and (self.options.adapters is None or stem != "model")
        tail = ((norm, "norm"),) if found else ()
        blocks = [Group("layer", (layer.path + ".",), (layer.path,)) for layer in self.every_layer()] if layers else []
        if self.architecture.tied:
            paths, names = zip(*tail, (self.head.path + ".", "head"), strict=True)
            return [Group("tail", paths, (*names, "embed")), *blocks]
        paths, names = zip(*tail, (self.head.path + ".", "head"), strict=True)
        return [Group("embed", (embed,), ("embed",)), *blocks, Group("tail", paths, names)]

    def cache(self) -> Cache:
        """What ``generate`` keeps of this model's layers."""
        window, kind = self.architecture.window, self.options.earlier.cache
        if self.architecture.mixes:
            return MixedCache(kind=kind)
        if window and any(self.slides) and kind in ("copied", "alike"):  # DynamicSlidingWindowLayer came with 4.56
            return SlidingCache(self.slides, window, kind)
        return Cache(kind=kind)

    # What ``generate`` asks of a model that sees, whose processor says of each token of which kind it is.

    def kinds_of(self, batch: list[Any]) -> Any:
        """Of each token of the prompt, where ``generate`` is told."""
        return None

    def numbered(self, places: Any, ids: Tensor, mask: Any, kinds: Any) -> Any:
        """``_prepare_position_ids_for_generation``, from places of text on."""
        return places

    def counted(self, places: Any) -> Any:
        """``prepare_inputs_for_generation``: a step's places as the model counts them."""
        return places

    def kinds_longer(self, rows: int, length: int) -> Any:
        """``_update_model_kwargs_for_generation``: kinds of tokens with that of the next, before places and mask."""
        return None

    def named_longer(self, kinds: Any, rows: int, length: int) -> Any:
        """The same, behind places and mask."""
        return kinds

    def answered(self, ids: Tensor, padding: Any, positions: Any, kinds: Any, cache: Cache) -> Tensor:
        """A step of ``generate``."""
        return self.step(ids, padding, positions, cache)

    def step(self, ids: Tensor, padding: Any, positions: Tensor, cache: Cache) -> Tensor:
        """One step of decoding: the logits of the last token (``logits_to_keep=1``), or of all of them."""
        hidden = self.base(ids, padding, positions, cache)
        if self.options.earlier.whole_logits:
            return self.scores(hidden)
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


Decoder.scorer = Scorer


def causal_loss(logits: Tensor, labels: Tensor, shift: CausalLoss = "labels") -> Tensor:
    """``ForCausalLMLoss`` (loss/loss_utils.py): logits in fp32, labels shifted by one.

    Where they are not, as trainers of their own write it and transformers did before 4.49, it is of a contiguous copy
    of the logits without the last position.
    """
    if shift in ("copied", "wide"):
        logits = ops.cast(logits, F32)
    if shift != "labels":
        shifted = ops.contiguous(without_last(logits))
        shifted = ops.view(shifted, (shifted.shape[0] * shifted.shape[1], shifted.shape[2]))
        return ops.cross_entropy(shifted, new(shifted.shape[:1], I64))
    batch, length, vocabulary = logits.shape
    logits = ops.cast(logits, F32)
    longer = new((batch, length + 1), I64)
    labels = new((batch, length), I64) if batch > 1 else longer  # one row without its first is contiguous as it is
    logits = ops.view(logits, (batch * length, vocabulary))
    loss = ops.cross_entropy(logits, labels)
    del longer
    return loss
