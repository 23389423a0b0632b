"""Qwen3.5's layers without attention: the gated delta rule over chunks of tokens as torch's own code in transformers
has it (``torch_chunk_gated_delta_rule``, models/qwen3_5/modeling_qwen3_5.py), and its attention, whose result is gated.

The kernels of ``flash-linear-attention`` and ``causal-conv1d``, which transformers takes where they are installed, keep
less: ``Delta.least`` is what they keep at least.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.families.decoder_inputs import ByKind, masked, numbered_from, padding_of_mixing
from kb.memory.engine.families.decoder_parts import rotary_part
from kb.memory.engine.families.picture_places import among_first, tables_of_places
from kb.memory.engine.families.recurrent import MixedCache, as_it_is, convolved, kept, updated
from kb.memory.engine.modules import Linear
from kb.memory.engine.ops.products import matmul_of_batches
from kb.memory.engine.ops.windows import blanked, put
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import BOOL, F32, Tensor, bare, like, new, packed
from kb.memory.engine.world import world

CHUNK = 64


class GatedDelta:
    """``Qwen3_5GatedDeltaNet``."""

    def __init__(self, model: Any, path: str, at: int) -> None:
        a = model.architecture
        d = a.delta
        self.path, self.at, self.kernel, self.least = path, at, a.conv, d.least
        self.keys, self.values, self.dk, self.dv = d.key_heads, d.value_heads, d.key_width, d.value_width
        self.widths = (self.keys * self.dk,) * 2 + (self.values * self.dv,)
        wide, first = sum(self.widths), len(model.parameters)
        self.weight = model.parameter(f"{path}.conv1d.weight", (wide, 1, a.conv))
        self.norm = model.parameter(f"{path}.norm.weight", (self.dv,), decays=False)
        self.out = Linear(model, f"{path}.out_proj", self.values * self.dv, a.d_model)
        self.qkv = Linear(model, f"{path}.in_proj_qkv", a.d_model, wide)
        self.z = Linear(model, f"{path}.in_proj_z", a.d_model, self.values * self.dv)
        self.b = Linear(model, f"{path}.in_proj_b", a.d_model, self.values)
        self.a = Linear(model, f"{path}.in_proj_a", a.d_model, self.values)
        self.bias = model.parameter(f"{path}.dt_bias", (self.values,))
        self.rate = model.parameter(f"{path}.A_log", (self.values,))
        own = [model.parameters.pop() for _ in range(2)]
        model.parameters[first:first] = reversed(own)  # named before the layers, placed behind them

    def __call__(self, x: Tensor, padding: Any, _: Any, __: Any, cache: MixedCache | None) -> tuple[Tensor, None]:
        world.inside["GatedDelta"] = self.path
        if padding is not None:
            x = ops.mul(x, ops.unsqueeze(padding, 2))
        batch, length, _width = x.shape
        states = None if cache is None else cache.states.get(self.at)
        mixed = self.qkv(x)
        mixed = ops.transpose(mixed, 1, 2)
        z = self.z(x)
        z = ops.view(z, (batch, length, self.values, self.dv))
        b = self.b(x)
        a = self.a(x)
        weight = ops.view(self.weight, (self.weight.shape[0], self.kernel))
        act = as_it_is if self.least else ops.silu  # a kernel makes both in one
        if states and length == 1:
            mixed = updated(mixed, states[0], weight, act)
        else:
            if cache is not None:
                mixed = kept(mixed, cache, self.at, self.kernel)
            mixed = convolved(mixed, weight, act)
            if cache is not None:
                mixed = ops.cut(mixed, 2, length)
        mixed = ops.transpose(mixed, 1, 2)
        query, key, value = ops.split(mixed, self.widths)
        query = ops.view(query, (batch, length, self.keys, self.dk))
        key = ops.view(key, (batch, length, self.keys, self.dk))
        value = ops.view(value, (batch, length, self.values, self.dv))
        beta = sigmoid(b)
        steep = ops.neg(ops.tanh(ops.cast(self.rate, F32)))  # as of a tanh, the result of an exp is kept
        g = ops.mul(steep, softplus(ops.add(ops.cast(a, F32), self.bias)))
        del steep
        if self.least:
            out, state = by_kernel(query, key, value, g, beta, asked=cache is not None)
        elif states and length == 1:
            out, state = stepped(query, key, value, g, beta, states[1])
        else:
            out, state = chunked(query, key, value, g, beta, asked=cache is not None)
        if cache is not None and len(cache.states[self.at]) == 1:
            assert state is not None
            cache.keep(self.at, like(state, None, record(_cast_back, (state,))))  # what made it lives as long
        out = ops.reshape(out, (batch * length * self.values, self.dv))
        z = ops.reshape(z, (batch * length * self.values, self.dv))
        out = self.normed(out, z)
        out = ops.reshape(out, (batch, length, self.values * self.dv))
        output = self.out(out)
        del state
        return output, None

    def normed(self, x: Tensor, gate: Tensor) -> Tensor:
        """``Qwen3_5RMSNormGated``."""
        dtype = x.dtype
        x = ops.cast(x, F32)
        variance = ops.mean(ops.power(x))
        x = ops.mul(x, ops.rsqrt(ops.plus(variance)))
        x = ops.mul(self.norm, ops.cast(x, dtype))
        x = ops.mul(x, ops.silu(ops.cast(gate, F32)))
        return ops.cast(x, dtype)


def by_kernel(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *, asked: bool
) -> tuple[Tensor, Tensor | None]:
    """The rule in one step of the tape, of which nothing is counted but what goes in, what comes out and gradients."""
    node = record(_by_kernel_back, (query, key, value, g, beta), (query, key, value, g, beta))
    batch, _, heads, width = value.shape
    state = new((batch, heads, key.shape[3], width), F32) if asked else None
    return new(value.shape, query.dtype, None, node), state


def _by_kernel_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    found = [None if edge is None else new(edge[1], edge[2]) for edge in node.edges]
    del kept
    return found


def readied(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """What both rules begin with: as many heads of keys as of values, heads first, in fp32, of length one."""
    heads = value.shape[2]
    if query.shape[2] != heads:
        query = repeated(query, heads // query.shape[2])
        key = repeated(key, heads // key.shape[2])
    query, key, value, beta, decay = (*[wide(each) for each in (query, key, value, beta, decay)],)
    query = unit(query)
    key = unit(key)
    query = ops.scale(query)
    return query, key, value, decay, beta


def stepped(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """``torch_recurrent_gated_delta_rule`` of one token."""
    dtype = query.dtype
    query, key, value, decay, beta = readied(query, key, value, g, beta)
    batch, heads, _, width = value.shape
    del decay
    out, row = like(value), (batch, heads, width)
    steps = new((batch, heads), F32)
    state = new(state.shape, F32)
    of_state = new(state.shape, F32)
    memory = new(row, F32)
    del of_state
    less = new(row, F32)
    delta = new(row, F32)
    del less
    more = new(state.shape, F32)
    state = new(state.shape, F32)
    del more
    of_state = new(state.shape, F32)
    found = new(row, F32)
    del of_state, found
    out = wide(out, dtype)
    del steps, memory, delta
    return out, state


def chunked(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *, asked: bool
) -> tuple[Tensor, Tensor | None]:
    """``torch_chunk_gated_delta_rule`` from no state on; ``asked``: the last state is given too."""
    dtype, (batch, length, heads, width) = query.dtype, value.shape
    query, key, value, decay, beta = readied(query, key, value, g, beta)
    more = -length % CHUNK
    query, key, value = (*[padded(each, 2, more) for each in (query, key, value)],)
    beta, decay = (*[padded(each, 2, more) for each in (beta, decay)],)
    chunks = (length + more) // CHUNK
    v_beta = ops.mul(value, ops.unsqueeze(beta, 3))
    k_beta = ops.mul(key, ops.unsqueeze(beta, 3))
    shape = (batch, heads, chunks, CHUNK)
    query, key, k_beta, v_beta = (
        *[ops.reshape(each, (*shape, each.shape[3])) for each in (query, key, k_beta, v_beta)],
    )
    decay = ops.reshape(decay, shape)
    ones = new((CHUNK, CHUNK), BOOL)
    mask = new((CHUNK, CHUNK), BOOL)
    del ones
    summed = cumulated(decay)
    pairwise = ops.sub(ops.unsqueeze(summed, 4), ops.unsqueeze(summed, 3))
    pairwise = blanked(pairwise, mask)
    pairwise = ops.tanh(pairwise)
    system = ops.mul(product(k_beta, ops.transpose(key, 3, 4)), pairwise)
    intra = ops.mul(product(query, ops.transpose(key, 3, 4)), pairwise)
    decayed = ops.mul(k_beta, ops.unsqueeze(ops.tanh(summed), 4))
    new_values = solved(system, v_beta)
    k_cumulated = solved(system, decayed)
    state = new((batch, heads, key.shape[4], width), F32)
    out = like(new_values)
    query = ops.mul(query, ops.unsqueeze(ops.tanh(summed), 4))
    key = ops.mul(key, ops.unsqueeze(ops.tanh(ops.sub(ops.part(summed, 1), summed)), 4))
    steps = ops.unsqueeze(ops.unsqueeze(ops.tanh(ops.indexed(summed, 3)), 3), 4)
    for at in range(chunks):
        v_new = ops.sub(ops.indexed(new_values, 2), product(ops.indexed(k_cumulated, 2), state))
        inter = product(ops.indexed(query, 2), state)
        found = ops.add(inter, product(ops.indexed(intra, 2), v_new))
        out = put(out, found.shape, found)
        del found
        with unread() if at == chunks - 1 else nullcontext():
            state = ops.add(
                ops.mul(state, ops.indexed(steps, 2)), product(ops.transpose(ops.indexed(key, 2), 2, 3), v_new)
            )
    last = state if asked else None
    del state
    out = ops.reshape(out, (batch, heads, length + more, width))
    if more:
        out = ops.cut(out, 2, length)
    out = wide(out, dtype)
    return out, last


@contextmanager
def unread() -> Iterator[None]:
    """What is made inside is gone before anything asks a checkpointed call for it: neither pass keeps it."""
    before, again = world.grad, world.recomputed
    world.grad, world.recomputed = before and world.frame is None, None
    yield
    world.grad, world.recomputed = before, again


def wide(x: Tensor, dtype: str = F32) -> Tensor:
    """``x.transpose(1, 2).to(dtype, memory_format=torch.contiguous_format)``: a view where it has that type already,
    and does not lie with its channels last (``to_will_alias``, ATen/native/TensorConversions.cpp)."""
    x = ops.transpose(x, 1, 2)
    if x.dtype == dtype and not channels_last(x):
        return x
    return new(x.shape, dtype, None, record(_cast_back, (x,)))


def channels_last(x: Tensor) -> bool:
    """``is_channels_last_strides_2d`` (c10/core/MemoryFormat.h)."""
    least = 0
    if len(x.shape) != 4 or not x.strides[1]:
        return False
    for at in (1, 3, 2, 0):
        if x.strides[at] < least or (at == 0 and least == x.strides[1]):
            return False
        least = x.strides[at] * x.shape[at]
    return True


def _cast_back(node: Node, grad: Tensor) -> Gradients:
    return (grad,)


def repeated(x: Tensor, times: int) -> Tensor:
    """``x.repeat_interleave(times, dim=2)``."""
    batch, length, heads, width = x.shape
    whole = ops.expand(ops.unsqueeze(x, 3), (batch, length, heads, times, width))
    whole = new(whole.shape, whole.dtype, None, record(_cast_back, (whole,)))
    return ops.view(whole, (batch, length, heads * times, width))


def unit(x: Tensor) -> Tensor:
    """``l2norm``."""
    inverse = ops.rsqrt(ops.plus(summed_last(ops.mul(x, x))))
    return ops.mul(x, inverse)


def summed_last(x: Tensor) -> Tensor:
    """``x.sum(dim=-1, keepdim=True)``."""
    return new((*x.shape[:-1], 1), x.dtype, None, record(_summed_back, (x,), (), x.shape))


def _summed_back(node: Node, grad: Tensor) -> Gradients:
    return (Tensor(node.extra, grad.dtype, (*grad.strides[:-1], 0), grad.storage, based=True),)


def padded(x: Tensor, at: int, more: int) -> Tensor:
    """``F.pad`` behind a dimension: a copy in any case."""
    shape = (*x.shape[:at], x.shape[at] + more, *x.shape[at + 1 :])
    node = record(_padded_back, (x,), (), (x.shape, more))
    return new(shape, x.dtype, None, node) if more else like(x, None, node)


def _padded_back(node: Node, grad: Tensor) -> Gradients:
    shape, _ = node.extra
    return (new(shape, grad.dtype),)


def cumulated(x: Tensor) -> Tensor:
    """``x.cumsum(dim=-1)``."""
    return new(x.shape, x.dtype, None, record(_cumulated_back, (x,)))


def _cumulated_back(node: Node, grad: Tensor) -> Gradients:
    """Turned round, summed and turned back (``cumsum_backward``)."""
    turned, summed, found = (new(grad.shape, grad.dtype) for _ in range(3))
    del turned, summed
    return (found,)


def sigmoid(x: Tensor) -> Tensor:
    """The result is kept; the gradient lies as what comes back does."""
    node = record(_sigmoid_back, (x,))
    out = like(x, None, node)
    save(node, (bare(out),))
    return out


def _sigmoid_back(node: Node, grad: Tensor) -> Gradients:
    (out,) = saved(node)
    return (like(grad, out.dtype),)


def softplus(x: Tensor) -> Tensor:
    """One kernel each way; the input is kept."""
    return ops.silu(ops.cast(x, F32))


def product(first: Tensor, second: Tensor) -> Tensor:
    """``first @ second`` of any number of batches."""
    return matmul_of_batches(first, second)


def solved(system: Tensor, values: Tensor) -> Tensor:
    """``torch.linalg.solve_triangular``: the result lies by columns, and is kept with the system."""
    node = record(_solved_back, (system, values))
    shape = values.shape
    strides = (*packed((*shape[:-2], shape[-1], shape[-2]))[:-2], 1, shape[-2])
    out = new(shape, values.dtype, strides, node)
    save(node, (system, bare(out)))
    return out


def _solved_back(node: Node, grad: Tensor) -> Gradients:
    """``linalg_solve_triangular_backward``: solved again for the gradient; the system's is a product, cut."""
    kept = saved(node)
    shape = grad.shape
    strides = (*packed((*shape[:-2], shape[-1], shape[-2]))[:-2], 1, shape[-2])
    by_values = new(shape, grad.dtype, strides)
    by_system = None
    if node.edges[0] is not None:
        _, wanted, dtype = node.edges[0]
        made = new(wanted, dtype)
        made = new(wanted, dtype)  # negative
        by_system = new(wanted, dtype)
        del made
    del kept
    return by_system, by_values


def gated(attention: Any, x: Tensor, mask: Any, cos: Any, sin: Any, cache: Any) -> tuple[Tensor, Any]:
    """``Qwen3_5Attention``: queries beside the gate that the result goes through."""
    batch, length, _ = x.shape
    (to_q, to_k, to_v), (norm_q, norm_k) = attention.projections, attention.norms
    heads, width = attention.heads, attention.width
    q, gate = ops.split(ops.view(to_q(x), (batch, length, heads, 2 * width)), (width, width))
    gate = ops.reshape(gate, (batch, length, heads * width))
    q = ops.transpose(norm_q(q), 1, 2)
    k = ops.transpose(norm_k(ops.view(to_k(x), (batch, length, attention.kv_heads, width))), 1, 2)
    v = ops.transpose(ops.view(to_v(x), (batch, length, attention.kv_heads, width)), 1, 2)
    q, k = rotary_part(q, k, cos, sin)
    if cache is not None:
        k, v = cache.update(attention.at, k, v)
    out, weights = attention.attend(q, k, v, mask)
    out = ops.reshape(out, (batch, length, heads * width))
    out = ops.mul(out, ops.tanh(gate))
    out = attention.o(out)
    return out, weights


def turned_beside_delta(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """Places of three numbers, and the padding itself for layers without attention."""
    positions = numbered_from(embeds, positions)
    mask = ByKind((masked(model, embeds, padding, cache), padding_of_mixing(model, embeds, padding)))
    cos, sin = model.part("turn", tables, embeds.shape[0], embeds.shape[1], model.rotary_width, embeds.dtype)
    return embeds, mask, cos, sin, positions


def tables(batch: int, length: int, width: int, dtype: str) -> tuple[Tensor, Tensor]:
    """``Qwen3_5TextRotaryEmbedding``: angles of three places, put among those of the first."""
    return tables_of_places(batch, length, width, dtype, among_first)
