"""One block of a decoder-only model, and its attention: variants are rows of ``decoder_types``.

It reads as ``modeling_llama.py``: names that live on there live on here.
"""

from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.families.attention import Cache, eager_forward, for_flash, heads_of, sdpa_forward
from kb.memory.engine.families.decoder_inputs import DROPPED
from kb.memory.engine.families.decoder_projections import as_it_is
from kb.memory.engine.families.decoder_written import table_of_sight
from kb.memory.engine.tensor import Tensor
from kb.memory.engine.world import world

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
        self.norms = [(traits.head_norm or traits.norm)(model, f"{path}.{name}", a.d_kv) for name in traits.qk_norms]
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
        return sdpa_forward(q, k, v, mask, causal=True, dropout=self.dropout), None

    def head(self, x: Tensor, kv: bool = False) -> Tensor:
        """``view(batch, length, heads, width).transpose(1, 2)``."""
        return heads_of(x, self.kv_heads if kv else self.heads)


class Layer:
    """One block; its parts are placed in the order of its type, and wired as its type has it."""

    def __init__(self, model: Any, path: str, at: int) -> None:
        a, traits = model.architecture, model.traits
        self.model, self.at, self.path, self.slides = model, at, path, model.slides[at]
        self.dropout = DROPPED if a.hidden_dropout else 0.0
        for part in traits.order:
            if part == "attention":
                self.attention = Attention(model, f"{path}.{traits.attention}", at)
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
