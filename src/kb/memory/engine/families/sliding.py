"""A cache some of whose layers keep a window: ``DynamicSlidingWindowLayer`` (transformers/cache_utils.py)."""

from collections.abc import Sequence

from kb.memory.engine import ops
from kb.memory.engine.families.attention import Cache, strides_of, turns
from kb.memory.engine.tensor import I64, Tensor, mark, new


class SlidingCache(Cache):
    """``DynamicCache`` of a model whose layers of ``slides`` keep ``window`` tokens less one.

    What such a layer keeps is seen in the keys and values of its last step: those are let go when both of the next
    are there.
    """

    def __init__(self, slides: Sequence[bool], window: int) -> None:
        super().__init__()
        self.slides, self.kept = slides, window - 1
        self.seen = 0
        self.windows: dict[int, Tensor] = {}  # each layer's window, a number on the GPU

    def length(self) -> int:
        return self.seen

    def update(self, at: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if at == 0:
            self.seen += key.shape[2]
        if not self.slides[at]:
            return super().update(at, key, value)
        if at not in self.windows:
            self.windows[at] = new((), I64)
        past = self.keys[at].shape[2] if at in self.keys else 0
        made = []
        for tensor in (key, value):
            batch, heads, more, width = tensor.shape
            made.append(new((batch, heads, past + more, width), ops.promoted(key, tensor)))
            mark(made[-1], self.term)
        whole_key, whole_value = made
        del made
        self.keys[at] = self._last(whole_key)
        self.values[at] = self._last(whole_value)
        return whole_key, whole_value

    def _last(self, tensor: Tensor) -> Tensor:
        batch, heads, length, width = tensor.shape
        shape = (batch, heads, min(length, self.kept), width)
        return Tensor(shape, tensor.dtype, tensor.strides, tensor.storage)

    def grow(self, tokens: int, *, reorders: bool = False) -> None:
        """As :meth:`Cache.grow`, several tokens of a long answer at once; a full window is only made anew."""
        if not self.keys:
            return
        before = self.seen
        rows = new((next(iter(self.keys.values())).shape[0],), I64)
        for at_once in strides_of(tokens):
            if reorders:
                self.reorder()
            for at in turns(list(self.keys)):
                more = at_once if not self.slides[at] else max(1, min(at_once, self.kept - self.keys[at].shape[2]))
                key, value = (
                    new((*held.shape[:2], more, held.shape[3]), held.dtype) for held in (self.keys[at], self.values[at])
                )
                self.update(at, key, value)
                del key, value
        self.seen = before + tokens
        del rows
