"""Parts that decoder-only types are put together from: linear layers, projections to queries, keys and values, rotary
positions, norms, feed-forwards. Gemma's are those of models/gemma, gemma2 and gemma3 of transformers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.families.attention import rotary, rotary_tables, rotate_half
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear, Model, RmsNorm
from kb.memory.engine.tensor import F32, Storage, Tensor, new
from kb.memory.engine.world import world

ACTIVATIONS = {
    "silu": ops.silu, "swish": ops.silu, "gelu": ops.gelu, "gelu_pytorch_tanh": ops.gelu, "gelu_fast": ops.gelu_new,
    "gelu_new": ops.gelu_new, "relu": ops.relu, "relu2": ops.relu_squared, "tanh": ops.tanh,
}  # fmt: skip


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """The function under transformers' name for it."""
    if name not in ACTIVATIONS:
        raise NotFollowedError(f"activation {name}")
    return ACTIVATIONS[name]


# --- linear layers ---------------------------------------------------------------------------------------------------

by_hand = partial(Linear, product=ops.linear_by_hand)  # Falcon's


class Conv1D(Linear):
    """``Conv1D`` (transformers/pytorch_utils.py): a linear layer whose weight is turned; bitsandbytes turns it back."""

    __slots__ = ()

    def __init__(self, model: Model, path: str, columns: int, rows: int, *, bias: bool = True) -> None:
        shape = (columns, rows) if model.options.quantization is None else (rows, columns)
        weight = model.parameter(path + ".weight", shape)
        super().__init__(model, path, columns, rows, bias=bias, weight=weight)
        self.product = ops.addmm

    @property
    def turned(self) -> bool:  # type: ignore[override]
        return self.model.options.quantization is None

    def sides(self) -> tuple[int, int]:
        rows, columns = self.weight.shape
        return (columns, rows) if self.turned else (rows, columns)


# --- rotary positions -----------------------------------------------------------------------------------------------


def rotary_part(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """GPT-NeoX: only the first dimensions of a head are turned, and the rest put behind them."""
    width = cos.shape[-1]
    q_rot, q_pass = ops.part(q, width), ops.part(q, q.shape[-1] - width)
    k_rot, k_pass = ops.part(k, width), ops.part(k, k.shape[-1] - width)
    q_embed, k_embed = rotary(q_rot, k_rot, cos, sin)
    q_embed = ops.cat((q_embed, q_pass))
    k_embed = ops.cat((k_embed, k_pass))
    return q_embed, k_embed


def rotary_part_behind(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Phi-3: the same, queries whole before keys."""
    width = cos.shape[-1]
    q_rot, q_pass = ops.part(q, width), ops.part(q, q.shape[-1] - width)
    k_rot, k_pass = ops.part(k, width), ops.part(k, k.shape[-1] - width)
    q_embed = ops.cat((ops.add(ops.mul(q_rot, cos), ops.mul(rotate_half(q_rot), sin)), q_pass))
    k_embed = ops.cat((ops.add(ops.mul(k_rot, cos), ops.mul(rotate_half(k_rot), sin)), k_pass))
    return q_embed, k_embed


def rotary_part_here(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """StableLM, Phi: the same, written out in the attention, whose names hold the parts until it returns."""
    width = cos.shape[-1]
    q_rot, q_pass = ops.part(q, width), ops.part(q, q.shape[-1] - width)
    k_rot, k_pass = ops.part(k, width), ops.part(k, k.shape[-1] - width)
    q_rot, k_rot = rotary(q_rot, k_rot, cos, sin)
    q_embed = ops.cat((q_rot, q_pass))
    k_embed = ops.cat((k_rot, k_pass))
    return q_embed, k_embed, q_rot, k_rot, q_pass, k_pass


def tables_interleaved(batch: int, length: int, width: int, dtype: str) -> tuple[Tensor, Tensor]:
    """``CohereRotaryEmbedding``: ``repeat_interleave`` instead of ``cat``."""
    return rotary_tables(batch, length, width, dtype)


def rotated_pairs(x: Tensor) -> Tensor:
    """``rotate_half`` of neighbours: every second element negated, stacked and flattened."""
    half_width = x.shape[-1] // 2
    first, second = ops.part(x, half_width), ops.part(x, half_width)
    stacked = ops.cat((ops.neg(second), first))
    return stacked


def rotary_interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Cohere: in fp32, and cast back."""
    dtype = q.dtype
    q = ops.cast(q, F32)
    k = ops.cast(k, F32)
    q_embed = ops.add(ops.mul(q, cos), ops.mul(rotated_pairs(q), sin))
    k_embed = ops.add(ops.mul(k, cos), ops.mul(rotated_pairs(k), sin))
    return ops.cast(q_embed, dtype), ops.cast(k_embed, dtype)


def tables_wide(batch: int, length: int, width: int, _: str) -> tuple[Tensor, Tensor]:
    """``Olmo2RotaryEmbedding``: left in fp32."""
    return rotary_tables(batch, length, width, F32)


def rotary_cast(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """OLMo 2: what tables in fp32 made wide is cast back."""
    q_type, k_type = q.dtype, k.dtype
    q_embed, k_embed = rotary(q, k, cos, sin)
    return ops.cast(q_embed, q_type), ops.cast(k_embed, k_type)


def rotary_of_tables(q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor], _: Tensor) -> tuple[Tensor, Tensor]:
    """Ministral 3: as Llama; beside the tables attention gets the places."""
    return rotary(q, k, *tables)


def scale_of_places(places: Tensor, dtype: str) -> Tensor:
    """``get_llama_4_attn_scale``: a number for each place, a step after the other in fp32."""
    batch, length = places.shape
    scale = new((batch, 1, length, 1), F32)
    for _ in range(5):
        scale = new(scale.shape, F32)
    return ops.cast(scale, dtype)


def rotary_pairs_part(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """GLM: neighbours of a head's first dimensions are turned; each half of the tables is put twice side by side."""
    width = cos.shape[-1]
    cos = _twice(ops.part(cos, width // 2))
    sin = _twice(ops.part(sin, width // 2))
    q_rot, q_pass = ops.part(q, width), ops.part(q, q.shape[-1] - width)
    k_rot, k_pass = ops.part(k, width), ops.part(k, k.shape[-1] - width)
    q_embed = ops.add(ops.mul(q_rot, cos), ops.mul(rotated_pairs(q_rot), sin))
    k_embed = ops.add(ops.mul(k_rot, cos), ops.mul(rotated_pairs(k_rot), sin))
    q_embed = ops.cat((q_embed, q_pass))
    k_embed = ops.cat((k_embed, k_pass))
    return q_embed, k_embed


def rotary_pairs_wide(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """ERNIE 4.5: whole heads turned as GLM's, in fp32, and cast back."""
    dtype = q.dtype
    cos, sin = _twice(ops.part(cos, cos.shape[-1] // 2)), _twice(ops.part(sin, sin.shape[-1] // 2))
    q_embed = ops.add(ops.mul(ops.cast(q, F32), cos), ops.mul(ops.cast(rotated_pairs(q), F32), sin))
    k_embed = ops.add(ops.mul(ops.cast(k, F32), cos), ops.mul(ops.cast(rotated_pairs(k), F32), sin))
    return ops.cast(q_embed, dtype), ops.cast(k_embed, dtype)


def _twice(table: Tensor) -> Tensor:
    """``repeat_interleave(2, dim=-1)`` of a table, which nothing trains."""
    return new((*table.shape[:-1], 2 * table.shape[-1]), table.dtype)


# --- norms ----------------------------------------------------------------------------------------------------------


class CohereNorm:
    """``CohereLayerNorm``: written out in fp32, without a bias."""

    def __init__(self, model: Model, path: str, width: int) -> None:
        self.path = path
        self.weight = model.parameter(path + ".weight", (width,))

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["CohereNorm"] = self.path
        dtype = x.dtype
        x = ops.cast(x, F32)
        mean = ops.mean(x)
        variance = ops.mean(ops.power(ops.sub(x, mean)))
        x = ops.mul(ops.sub(x, mean), ops.rsqrt(ops.plus(variance)))
        x = ops.mul(ops.cast(self.weight, F32), x)
        return ops.cast(x, dtype)


# --- feed-forwards --------------------------------------------------------------------------------------------------


class GatedMlp:
    """Llama: ``down(act(gate(x)) * up(x))``; ``width`` where it is not the architecture's."""

    names = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, model: Model, path: str, width: int = 0) -> None:
        a, self.path = model.architecture, path
        inner = width or a.d_ff
        gate, up, down = (f"{path}.{name}" for name in self.names)
        self.gate = Linear(model, gate, a.d_model, inner, bias=a.mlp_bias)
        self.up = Linear(model, up, a.d_model, inner, bias=a.mlp_bias)
        self.down = Linear(model, down, inner, a.d_model, bias=a.mlp_bias)
        self.act = activation_of(a.activation)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["GatedMlp"] = self.path
        return self.down(ops.mul(self.act(self.gate(x)), self.up(x)))


class ExaoneMlp(GatedMlp):
    """EXAONE 3's, under names of its own (modeling_exaone.py, which lies beside the weights)."""

    names = ("c_fc_0", "c_fc_1", "c_proj")


class Lfm2Mlp(GatedMlp):
    """LFM2's, placed in this order."""

    names = ("w1", "w3", "w2")


class FusedGatedMlp:
    """GLM: gate and up are halves of one product."""

    def __init__(self, model: Model, path: str) -> None:
        a, self.path = model.architecture, path
        self.gate_up = Linear(model, f"{path}.gate_up_proj", a.d_model, 2 * a.d_ff, bias=a.mlp_bias)
        self.down = Linear(model, f"{path}.down_proj", a.d_ff, a.d_model, bias=a.mlp_bias)
        self.act, self.width = activation_of(a.activation), a.d_ff

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["FusedGatedMlp"] = self.path
        up = self.gate_up(x)
        gate, up = ops.split(up, (self.width, self.width))
        up = ops.mul(up, self.act(gate))
        return self.down(up)


class GraniteMlp:
    """Granite 4 (``GraniteMoeHybridMLP``): gate and up are halves of one product, which loses its name."""

    def __init__(self, model: Model, path: str) -> None:
        a, self.path = model.architecture, path
        self.gate_up = Linear(model, f"{path}.input_linear", a.d_model, 2 * a.d_ff)
        self.down = Linear(model, f"{path}.output_linear", a.d_ff, a.d_model)
        self.act, self.width = activation_of(a.activation), a.d_ff

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["GraniteMlp"] = self.path
        x = self.gate_up(x)
        gate, up = ops.split(x, (self.width, self.width))
        x = ops.mul(self.act(gate), up)
        return self.down(x)


class PlainMlp:
    """Two layers with an activation between; ``dropped``: dropout behind them."""

    def __init__(self, model: Any, path: str, names: tuple[str, str], dropped: bool) -> None:
        a, self.path = model.architecture, path
        linear = model.traits.linear
        self.first = linear(model, f"{path}.{names[0]}", a.d_model, a.d_ff, bias=a.mlp_bias)
        self.second = linear(model, f"{path}.{names[1]}", a.d_ff, a.d_model, bias=a.mlp_bias)
        self.act = activation_of(a.activation)
        self.dropout = 0.1 if dropped and a.hidden_dropout else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["PlainMlp"] = self.path
        x = self.first(x)
        x = self.act(x)
        x = self.second(x)
        x = ops.dropout(x, self.dropout)
        return x


class BloomMlp:
    """BLOOM: GELU by a function of its own, and what came in is added here."""

    def __init__(self, model: Model, path: str) -> None:
        a, self.path = model.architecture, path
        self.first = Linear(model, f"{path}.dense_h_to_4h", a.d_model, a.d_ff, bias=True)
        self.second = Linear(model, f"{path}.dense_4h_to_h", a.d_ff, a.d_model, bias=True)
        self.dropout = 0.1 if a.hidden_dropout else 0.0

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        world.inside["BloomMlp"] = self.path
        x = ops.gelu_by_function(self.first(x))
        between = self.second(x)
        return ops.add(residual, ops.dropout(between, self.dropout))


def named_mlp(first: str, second: str, dropped: bool = False) -> Callable[[Model, str], PlainMlp]:
    """A plain feed-forward whose layers have these names."""
    return lambda model, path: PlainMlp(model, path, (first, second), dropped)


class WideNorm(RmsNorm):
    """``Olmo2RMSNorm``: scaled in fp32, then cast."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["RmsNorm"] = self.path
        dtype = x.dtype
        x = ops.cast(x, F32)
        variance = ops.mean(ops.power(x))
        x = ops.mul(x, ops.rsqrt(ops.plus(variance)))
        return ops.cast(ops.mul(self.weight, x), dtype)


class GemmaNorm:
    """``GemmaRMSNorm``: scaled by one plus its weight in fp32, then cast."""

    __slots__ = ("path", "weight")

    def __init__(self, model: Model, path: str, width: int) -> None:
        self.path = path
        self.weight = model.parameter(path + ".weight", (width,), decays=False)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["GemmaNorm"] = self.path
        out = _normed(ops.cast(x, F32))
        out = ops.mul(out, ops.plus(ops.cast(self.weight, F32)))
        return ops.cast(out, x.dtype)


def _normed(x: Tensor) -> Tensor:
    return ops.mul(x, ops.rsqrt(ops.plus(ops.mean(ops.power(x)))))


def scaled_words(model: Any, embeds: Tensor) -> Tensor:
    """``GemmaTextScaledWordEmbedding``: times a number that lies on the GPU in the type of loading.

    FSDP2 leaves it in that type.
    """
    units, wanted = model.units, model.embed.dtype
    made = model.options.dtype if units is None or units.flat else units.loaded
    number = new((), wanted) if made != wanted else Tensor((), made, (), Storage(0))
    return ops.mul(embeds, number)


def number_of_words(model: Any) -> Tensor:
    """That number, which is there all along."""
    return Tensor((), model.options.dtype, (), Storage(0))


def project(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Llama: each projection is seen by heads at once."""
    to_q, to_k, to_v = attention.projections
    q = attention.head(to_q(x))
    k = attention.head(to_k(x), kv=True)
    v = attention.head(to_v(x), kv=True)
    return q, k, v


def project_together(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """StableLM: all three are made before they are seen by heads."""
    to_q, to_k, to_v = attention.projections
    q = to_q(x)
    k = to_k(x)
    v = to_v(x)
    return attention.head(q), attention.head(k, kv=True), attention.head(v, kv=True)


def project_normed(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Qwen3: a norm over each head's dimensions of queries and keys."""
    to_q, to_k, to_v = attention.projections
    norm_q, norm_k = attention.norms
    batch, length, _ = x.shape
    q = ops.transpose(norm_q(ops.view(to_q(x), (batch, length, attention.heads, attention.width))), 1, 2)
    k = ops.transpose(norm_k(ops.view(to_k(x), (batch, length, attention.kv_heads, attention.width))), 1, 2)
    v = attention.head(to_v(x), kv=True)
    return q, k, v


def project_normed_whole(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """OLMo 2: a norm over all of a token's queries, and over all of its keys, before they are seen by heads."""
    to_q, to_k, to_v = attention.projections
    norm_q, norm_k = attention.norms
    q = norm_q(to_q(x))
    k = norm_k(to_k(x))
    v = to_v(x)
    return attention.head(q), attention.head(k, kv=True), attention.head(v, kv=True)


def project_fused(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """GPT-NeoX: one product, a head's query, key and value side by side; its name lives as long as attention runs."""
    batch, length, _ = x.shape
    width = attention.width
    (to_qkv,) = attention.projections
    qkv = ops.transpose(ops.view(to_qkv(x), (batch, length, attention.heads, 3 * width)), 1, 2)
    q, k, v = ops.split(qkv, (width, width, width))
    return q, k, v, qkv


def project_behind(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gemma 3, EXAONE 4: as Qwen3, but the heads come first, and then the norms."""
    norm_q, norm_k = attention.norms
    q, k, v = project(attention, x)
    q = norm_q(q)
    k = norm_k(k)
    return q, k, v


def project_cut(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Phi-3: one product, all queries first, then all keys; its name lives as long as attention runs."""
    (to_qkv,) = attention.projections
    inner, narrow = attention.heads * attention.width, attention.kv_heads * attention.width
    qkv = to_qkv(x)
    q, k, v = ops.cut(qkv, 2, inner), ops.cut(qkv, 2, narrow), ops.cut(qkv, 2, narrow)
    return attention.head(q), attention.head(k, kv=True), attention.head(v, kv=True), qkv


def project_split(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """GPT-2: the same in thirds that are split off together; queries are seen by heads last."""
    (to_qkv,) = attention.projections
    inner = attention.heads * attention.width
    q, k, v = ops.split(to_qkv(x), (inner, inner, inner))
    k = attention.head(k)
    v = attention.head(v)
    return attention.head(q), k, v


def project_scaled(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """OPT: queries are scaled here, before keys are made."""
    to_q, to_k, to_v = attention.projections
    q = attention.head(ops.scale(to_q(x)))
    k = to_k(x)
    v = to_v(x)
    return q, attention.head(k), attention.head(v)


def as_it_is(q: Tensor, k: Tensor, cos: Any, sin: Any) -> tuple[Tensor, Tensor]:
    """Of a layer that turns nothing."""
    return q, k
