"""Layers that mix tokens without attention, as torch's own code in transformers does it, and the cache of their states.

The kernels of ``causal-conv1d``, which transformers takes from the hub where ``kernels`` is installed and asked for,
are not followed.
"""

from typing import Any

from kb.core.setup import CacheKind
from kb.memory.engine import ops
from kb.memory.engine.families.attention import Cache, turns
from kb.memory.engine.modules import Linear
from kb.memory.engine.tensor import Tensor, mark, new
from kb.memory.engine.world import world


def as_it_is(x: Tensor) -> Tensor:
    """No activation."""
    return x


class MixedCache(Cache):
    """``DynamicCache`` of a model some of whose layers keep a state of one size in the place of keys and values."""

    def __init__(self, kind: CacheKind = "copied") -> None:
        super().__init__(kind=kind)
        self.states: dict[int, list[Tensor]] = {}  # by layer, in the order in which they are made

    def keep(self, at: int, *states: Tensor) -> None:
        """Of a layer's first pass: what is written over from then on (``LinearAttentionLayer``)."""
        for state in states:
            mark(state, self.term)
        self.states.setdefault(at, []).extend(states)

    def clear(self) -> None:
        """All of it goes."""
        for held in (self.keys, self.values, self.states):
            held.clear()

    def reorder(self) -> None:
        """Beam search's ``index_select``, layer by layer."""
        layers = sorted({*self.keys, *self.states})
        for at in turns(dict.fromkeys(layers)):
            states = self.states.get(at, [])
            for _ in range(len(states)):
                self.keep(at, new(states[0].shape, states[0].dtype))
                del states[0]
            for held in (self.keys, self.values) if at in self.keys else ():
                held[at] = new(held[at].shape, held[at].dtype)
                mark(held[at], self.term)


class HeldMixed(MixedCache):
    """The same in training, through which gradients go (``Held``)."""

    def update(self, at: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        wide = ops.promoted(key, value) if self.kind == "alike" else value.dtype
        self.keys[at] = key = ops.copied(key)
        self.values[at] = value = ops.copied(value, wide)
        return key, value


class ShortConv:
    """``Lfm2ShortConv``: gates before and behind a convolution over the last few tokens, each row by itself."""

    def __init__(self, model: Any, path: str, at: int) -> None:
        a = model.architecture
        self.path, self.at, self.width, self.kernel = path, at, a.d_model, a.conv
        self.weight = model.parameter(f"{path}.conv.weight", (a.d_model, 1, a.conv))
        self.into = Linear(model, f"{path}.in_proj", a.d_model, 3 * a.d_model)
        self.out = Linear(model, f"{path}.out_proj", a.d_model, a.d_model)

    def __call__(self, x: Tensor, padding: Any, _: Any, __: Any, cache: MixedCache | None) -> tuple[Tensor, None]:
        world.inside["ShortConv"] = self.path
        length = x.shape[1]
        if padding is not None:
            x = ops.mul(x, ops.unsqueeze(padding, 2))
        parts = ops.transpose(self.into(x), 2, 1)
        before, behind, rows = ops.pieces(parts, 1, (self.width,) * 3)
        x = ops.mul(before, rows)
        weight = ops.view(self.weight, (self.width, self.kernel))
        if cache is not None and length == 1 and self.at in cache.states:
            x = updated(x, cache.states[self.at][0], weight)
        elif cache is not None:
            x = kept(x, cache, self.at, self.kernel)
            x = ops.cut(convolved(x, weight), 2, length)
        else:
            x = convolved(x, weight)
        y = ops.mul(behind, x)
        y = ops.contiguous(ops.transpose(y, 2, 1))
        y = self.out(y)
        return y, None


def kept(x: Tensor, cache: MixedCache, at: int, kernel: int) -> Tensor:
    """``update_conv_state`` of a first pass: the last tokens, and what came in, padded where it is shorter."""
    cache.keep(at, new((*x.shape[:2], kernel), x.dtype))
    return new((*x.shape[:2], kernel), x.dtype) if x.shape[2] < kernel else x


def convolved(x: Tensor, weight: Tensor, act: Any = as_it_is) -> Tensor:
    """``causal_conv1d_fn``: padded on both sides, and cut behind."""
    length, padding = x.shape[2], weight.shape[1] - 1
    out = ops.conv1d(ops.cast(x, weight.dtype), ops.unsqueeze(weight, 1), None, 1, padding)
    out = ops.cut(out, 2, length)
    out = act(out)
    return ops.cast(out, x.dtype)


def updated(x: Tensor, state: Tensor, weight: Tensor, act: Any = as_it_is) -> Tensor:
    """``causal_conv1d_update``: of one token behind those of the state."""
    both = ops.cast(ops.cat((state, x)), weight.dtype)
    out = ops.conv1d(both, ops.unsqueeze(weight, 1), None, 1, 1 - weight.shape[1])
    out = ops.cut(out, 2, x.shape[2])
    out = act(out)
    return ops.cast(out, x.dtype)
