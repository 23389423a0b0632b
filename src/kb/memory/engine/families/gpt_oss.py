"""gpt-oss as ``modeling_gpt_oss.py`` reads: attention with a sink for each head, every other layer's in a window, and
experts whose rows are multiplied group by group (``grouped_mm_experts_forward``, integrations/moe.py).

Weights are as training has them: MXFP4 made 16 bits wide. Attention has no other implementation that is followed.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.families.attention import Cache, heads_of, repeat_kv
from kb.memory.engine.families.decoder import Decoder
from kb.memory.engine.families.decoder_inputs import DROPPED, masked, of_layer
from kb.memory.engine.families.decoder_parts import WideNorm
from kb.memory.engine.families.decoder_types import traits_of
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear, Model
from kb.memory.engine.ops import gathers as by_expert
from kb.memory.engine.tensor import F16, F32, I32, I64, Tensor, like, new
from kb.memory.engine.world import AMPERE, world


class Norm(WideNorm):
    """``GptOssRMSNorm``, whose weight stays in fp32 where the others are fp16."""

    def __init__(self, model: Model, path: str, width: int) -> None:
        self.path = path
        wide = F32 if model.options.dtype == F16 else None
        self.weight = model.parameter(path + ".weight", (width,), decays=False, dtype=wide)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``_apply_rotary_emb``: the first half of each head's dimensions with the second."""
    half = x.shape[-1] // 2
    first, second = ops.split(x, (half, half))
    one = ops.sub(ops.mul(first, cos), ops.mul(second, sin))
    other = ops.add(ops.mul(second, cos), ops.mul(first, sin))
    return ops.cat((one, other))


def angles(batch: int, length: int, width: int, dtype: str) -> tuple[Tensor, Tensor]:
    """``GptOssRotaryEmbedding.forward``: half as wide as a head, for all samples where their places are the same."""
    places = new((batch, length), F32)
    freqs = new((batch, length, width // 2), F32)
    del places
    cos = ops.scale(like(freqs))
    sin = ops.scale(like(freqs))
    out = ops.cast(cos, dtype), ops.cast(sin, dtype)
    del freqs, cos, sin
    return ops.unsqueeze(out[0], 1), ops.unsqueeze(out[1], 1)


class Attention:
    """``GptOssAttention``."""

    def __init__(self, model: "GptOss", path: str, at: int) -> None:
        a, self.at = model.architecture, at
        self.path, self.heads, self.kv_heads = path, a.num_heads, a.kv_heads or a.num_heads
        self.dropout = DROPPED if a.attention_dropout else 0.0
        inner, narrow = self.heads * a.d_kv, self.kv_heads * a.d_kv
        first = len(model.parameters)
        self.q, self.k, self.v = (
            Linear(model, f"{path}.{name}_proj", a.d_model, rows, bias=a.qkv_bias)
            for name, rows in (("q", inner), ("k", narrow), ("v", narrow))
        )
        self.o = Linear(model, f"{path}.o_proj", inner, a.d_model, bias=a.output_bias)
        self.sinks = model.parameter(f"{path}.sinks", (self.heads,))
        model.parameters.insert(first, model.parameters.pop())  # named before the layers, placed behind them

    def __call__(self, x: Tensor, mask: Any, cos: Tensor, sin: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        world.inside["Attention"] = self.path
        q = heads_of(self.q(x), self.heads)
        k = heads_of(self.k(x), self.kv_heads)
        v = heads_of(self.v(x), self.kv_heads)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        if cache is not None:
            k, v = cache.update(self.at, k, v)
        out, weights = self.attend(q, k, v, mask)
        out = ops.reshape(out, (*x.shape[:2], self.heads * q.shape[3]))
        out = self.o(out)
        return out, weights

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        """``eager_attention_forward``: the sinks are one more column of scores, which softmax sees."""
        groups = self.heads // self.kv_heads
        keys = repeat_kv(k, groups)
        values = repeat_kv(v, groups)
        weights = ops.scale(ops.matmul(q, ops.transpose(keys, 2, 3)))
        if mask is not None:
            weights = ops.add(weights, mask)
        rows, heads, length, _ = q.shape
        sinks = ops.expand(ops.view(self.sinks, (1, heads, 1, 1)), (rows, heads, length, 1))
        scores = ops.cat((_wide(weights, sinks), _wide(sinks, weights)), -1)
        scores = ops.sub(scores, by_expert.largest(scores))
        shares = ops.softmax(scores, scores.dtype)
        seen = ops.part(shares, shares.shape[-1] - 1)
        weights = ops.cast(ops.dropout(seen, self.dropout), values.dtype)
        out = ops.matmul(weights, values)
        out = ops.contiguous(ops.transpose(out, 1, 2))
        return out, weights


def _wide(tensor: Tensor, other: Tensor) -> Tensor:
    """In the type of the two together, as ``torch.cat`` has it."""
    return ops.cast(tensor, ops.promoted(tensor, other))


class Experts:
    """``GptOssMLP``: a router, and experts that are parameters of three dimensions."""

    def __init__(self, model: "GptOss", path: str) -> None:
        a, self.model = model.architecture, model
        self.path, self.number, self.each = path, a.experts, a.experts_per_token
        self.router = model.parameter(f"{path}.router.weight", (a.experts, a.d_model))
        self.router_bias = model.parameter(f"{path}.router.bias", (a.experts,))
        own = f"{path}.experts"
        self.up = model.parameter(f"{own}.gate_up_proj", (a.experts, a.d_model, 2 * a.expert_ff))
        self.up_bias = model.parameter(f"{own}.gate_up_proj_bias", (a.experts, 2 * a.expert_ff))
        self.down = model.parameter(f"{own}.down_proj", (a.experts, a.expert_ff, a.d_model))
        self.down_bias = model.parameter(f"{own}.down_proj_bias", (a.experts, a.d_model))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        world.inside["Experts"] = self.path
        shape = x.shape
        x = ops.view(x, (shape[0] * shape[1], shape[2]))
        logits, scores, at = self.route(x)
        x = self.batched(x, scores) if self.model.decodes else self.forward(x, scores, at)
        del logits
        return ops.view(x, shape), scores

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``GptOssTopKRouter``."""
        logits = ops.linear(x, self.router, self.router_bias)
        values, at = by_expert.most_likely(logits, self.each)
        scores = ops.softmax(values, values.dtype)
        return logits, scores, at

    def forward(self, x: Tensor, scores: Tensor, at: Tensor) -> Tensor:
        """``grouped_mm_experts_forward``."""
        pairs = (x.shape[0] * self.each,)
        weights = ops.view(scores, pairs)
        sorted_ids, order = new(pairs, I64), new(pairs, I64)
        rows = by_expert.rows_at(x, new(pairs, I64))
        weights_by_expert = by_expert.rows_at(weights, order)
        whole = new(pairs, I32)
        counted = new((self.number,), I32)
        offsets = new((self.number,), I32)
        biases = by_expert.rows_at(self.up_bias, sorted_ids)
        out = self.multiplied(rows, self.up, offsets, biases)
        out = gated(out)
        biases = by_expert.rows_at(self.down_bias, sorted_ids)
        out = self.multiplied(out, self.down, offsets, biases)
        weighted = ops.mul(out, ops.unsqueeze(weights_by_expert, 1))
        back = new(pairs, I64)
        places = new(pairs, I64)
        del places
        weighted = by_expert.rows_at(weighted, back)
        found = ops.cast(by_expert.summed_over(weighted, self.each), x.dtype)
        del whole, counted, rows, biases
        return found

    def batched(self, x: Tensor, scores: Tensor) -> Tensor:
        """``batched_mm_experts_forward``: each pair of a token and an expert gets a copy of the expert's weights."""
        pairs = (x.shape[0] * self.each,)
        repeated = new((*pairs, x.shape[1]), x.dtype)
        weights = new((*pairs, *self.up.shape[1:]), self.up.dtype)
        biases = new((*pairs, *self.up_bias.shape[1:]), self.up_bias.dtype)
        out = added(ops.bmm(ops.unsqueeze(repeated, 1), weights), biases)
        out = gated(out)
        weights = new((*pairs, *self.down.shape[1:]), self.down.dtype)
        biases = new((*pairs, *self.down_bias.shape[1:]), self.down_bias.dtype)
        out = added(ops.bmm(ops.unsqueeze(out, 1), weights), biases)
        weighted = ops.mul(out, ops.unsqueeze(ops.view(scores, pairs), 1))
        found = ops.cast(by_expert.summed_over(weighted, self.each), x.dtype)
        del repeated, weights, biases
        return found

    def multiplied(self, rows: Tensor, weights: Tensor, offsets: Tensor, biases: Tensor) -> Tensor:
        """``_grouped_linear``: autocast has no list for it, so that rows come in the weights' type."""
        out = by_expert.grouped(ops.cast(rows, weights.dtype), weights, offsets)
        return ops.add_here(out, biases)


def added(out: Tensor, biases: Tensor) -> Tensor:
    """``_batched_linear``: one row for each pair, and its expert's bias, in place."""
    return ops.add_here(ops.view(out, (out.shape[0], out.shape[2])), biases)


def gated(both: Tensor) -> Tensor:
    """``_apply_gate``: gate and up lie column by column."""
    gate, up = by_expert.every_other(both), by_expert.every_other(both)
    gate = by_expert.below(gate)
    up = ops.clamp(up)
    glu = ops.mul(gate, ops.tanh(ops.scale(gate)))  # as of a tanh, the result of a sigmoid is kept
    out = ops.mul(ops.plus(up), glu)
    del up
    return out


class Layer:
    """``GptOssDecoderLayer``."""

    def __init__(self, model: "GptOss", path: str, at: int, *, slides: bool) -> None:
        a = model.architecture
        self.path, self.slides = path, slides
        self.attention = Attention(model, f"{path}.self_attn", at)
        self.mlp = Experts(model, f"{path}.mlp")
        self.norm1 = Norm(model, f"{path}.input_layernorm", a.d_model)
        self.norm2 = Norm(model, f"{path}.post_attention_layernorm", a.d_model)

    def __call__(self, x: Tensor, mask: Any, cos: Tensor, sin: Tensor, cache: Any, positions: Any) -> Tensor:
        world.inside["Layer"] = self.path
        residual = x
        x = self.norm1(x)
        x, _ = self.attention(x, mask, cos, sin, cache)
        x = ops.add(residual, x)
        residual = x
        x = self.norm2(x)
        x, _ = self.mlp(x)
        return ops.add(residual, x)


class GptOss(Decoder):
    """``GptOssForCausalLM``."""

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        refused = {
            "flash_attention_2": setup.attn_implementation == "flash",
            f"{setup.post and setup.post.kind}": setup.post is not None,
        }
        for name, refuses in refused.items():
            if refuses:
                raise NotFollowedError(f"{name} of gpt_oss")

    def build(self) -> None:
        a = self.architecture
        if world.capability < AMPERE:  # whose experts are multiplied one by one
            raise NotFollowedError("gpt_oss before compute capability 8.0")
        self.traits = traits_of(a.model_type, a)
        self.numbers, self.special_tokens = self.traits.numbers, self.traits.special_tokens
        self.slides = a.slides
        self.embed = self.table("model.embed_tokens", a.vocab_size, a.d_model)
        self.layers: Any = [Layer(self, f"model.layers.{at}", at, slides=slides) for at, slides in enumerate(a.slides)]
        self.rotary_width = a.d_kv
        self.norm = Norm(self, "model.norm", a.d_model)
        self._place_rotary()
        self.place_head()

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
        embeds = self.part("embed", self.looked_up, ids)
        if positions is None:
            plain = new((ids.shape[1],), I64)
            positions = new((1, ids.shape[1]), I64)
            del plain
        masks = masked(self, embeds, padding, cache, looks=False)
        x = embeds
        cos, sin = self.part("turn", angles, positions.shape[0], ids.shape[1], self.architecture.d_kv, x.dtype)
        for layer in self.layers:
            x = self.layer(layer, x, of_layer(masks, slides=layer.slides), cos, sin, cache, positions)
        out: Tensor = self.part("norm", self.norm, x)
        return out
