"""Tensors without numbers: shape, type, strides and a storage whose bytes the allocator's model holds."""

from functools import lru_cache
from math import prod
from typing import Any

from kb.memory.engine.world import world

F32, F16, BF16, I64, I32, BOOL, I8 = "f32", "f16", "bf16", "i64", "i32", "bool", "i8"
WIDTH = {F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, BOOL: 1, I8: 1}
Shape = tuple[int, ...]


class Storage:
    """A block of memory, given back when its last holder lets go. Nothing is asked for no bytes."""

    __slots__ = ("log", "number", "recording", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        if size:
            self.recording = recording = world.recording
            self.log = log = recording.log  # as Recording.ask, without the call: there are thousands
            self.number = len(log)
            log.append(size)
            if recording.watches:
                recording.watch(self.number)

    def __del__(self) -> None:
        if self.size:
            self.log.append(~self.number)


class Tensor:
    """A view of a storage.

    ``node`` is what made it on the tape, ``needs`` whether a gradient reaches it, ``grad`` a leaf's gradient. ``based``
    marks a view that was made in backward: it keeps its base, so that nothing is added to it in place.
    """

    __slots__ = ("based", "dtype", "grad", "needs", "node", "shape", "storage", "strides")

    def __init__(
        self, shape: Shape, dtype: str, strides: Shape, storage: Any, node: Any = None, *, based: bool = False
    ) -> None:
        self.shape, self.dtype, self.strides, self.storage = shape, dtype, strides, storage
        self.node, self.needs, self.based = node, node is not None, based
        self.grad: Tensor | None = None


SHAPES = (
    1 << 12
)  # remembered by each of the functions of shapes alone: a run has a few dozen, asked for thousands of times


@lru_cache(SHAPES)
def packed(shape: Shape) -> Shape:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(strides[::-1])


def dense(tensor: Tensor) -> bool:
    """Non-overlapping and dense: the strides are those of some order of the dimensions, without gaps."""
    return is_dense(tensor.shape, tensor.strides)


@lru_cache(SHAPES)
def is_dense(shape: Shape, strides: Shape) -> bool:
    """:func:`dense` of a shape with its strides."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


@lru_cache(SHAPES)
def arranged(shape: Shape, strides: Shape) -> Shape | None:
    """Strides of a result that an operator lays out as its operand: the same order of dimensions, without gaps.

    None, which is contiguous, where dimensions are expanded. Source: ATen/TensorIterator.cpp (reorder_dimensions),
    ATen/ExpandUtils.cpp (infer_dense_strides).
    """
    if is_dense(shape, strides):
        return strides
    if any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)):
        return None
    found, step = [0] * len(shape), 1
    for at in sorted(range(len(shape)), key=lambda at: (strides[at], -at)):
        found[at] = step
        step *= shape[at]
    return tuple(found)


def new(shape: Shape, dtype: str, strides: Shape | None = None, node: Any = None) -> Tensor:
    """A tensor with a storage of its own; contiguous unless ``strides`` say otherwise."""
    size, in_order = _laid(shape, dtype)
    storage: Storage = _Made()
    tensor: Tensor = _Whole()
    storage.size = size
    if size:
        storage.recording = recording = world.recording
        storage.log = log = recording.log
        storage.number = len(log)
        log.append(size)
        if recording.watches:
            recording.watch(storage.number)
    tensor.shape, tensor.dtype, tensor.strides, tensor.storage = shape, dtype, strides or in_order, storage
    tensor.node, tensor.needs, tensor.based, tensor.grad = node, node is not None, False, None
    return tensor


class _Made(Storage):
    """One that :func:`new` fills itself: there are thousands, and a call less for each."""

    __slots__ = ()
    __init__ = object.__init__


class _Whole(Tensor):
    """As :class:`_Made`."""

    __slots__ = ()
    __init__ = object.__init__


@lru_cache(SHAPES)
def _laid(shape: Shape, dtype: str) -> tuple[int, Shape]:
    """The bytes of a contiguous tensor, and its strides."""
    return prod(shape) * WIDTH[dtype], packed(shape)


def like(tensor: Tensor, dtype: str | None = None, node: Any = None) -> Tensor:
    """``empty_like``: the order of the dimensions is kept."""
    return new(tensor.shape, dtype or tensor.dtype, arranged(tensor.shape, tensor.strides), node)


def bare(tensor: Tensor) -> Tensor:
    """The same storage off the tape: what autograd saves of a result."""
    seen: Tensor = _Whole()
    seen.shape, seen.dtype, seen.strides, seen.storage = tensor.shape, tensor.dtype, tensor.strides, tensor.storage
    seen.node, seen.needs, seen.based, seen.grad = None, False, False, None
    return seen


def seen_as(tensor: Tensor, shape: Shape, strides: Shape) -> Tensor:
    """A view off the tape, with given strides."""
    return Tensor(shape, tensor.dtype, strides, tensor.storage)


def viewed(tensor: Tensor, shape: Shape) -> Shape | None:
    """Strides of ``tensor`` seen as ``shape``; None where that takes a copy (at::detail::computeStride)."""
    return _viewed(tensor.shape, tensor.strides, shape)


@lru_cache(SHAPES)
def _viewed(own: Shape, own_strides: Shape, shape: Shape) -> Shape | None:
    strides: list[int] = []
    at = len(shape) - 1
    base, count = (own_strides[-1] if own else 1), 1
    for d in range(len(own) - 1, -1, -1):
        count *= own[d]
        if d == 0 or (own[d - 1] != 1 and own_strides[d - 1] != count * base):
            seen = 1
            while at >= 0 and (seen < count or shape[at] == 1):
                strides.append(seen * base)
                seen *= shape[at]
                at -= 1
            if seen != count:
                return None
            if d > 0:
                base, count = own_strides[d - 1], 1
    return tuple(strides[::-1])


def mark(tensor: Tensor, term: str, path: str = "") -> None:
    """Say what the storage under ``tensor`` holds, for its whole life: a term of the report's ledger.

    ``path`` is the parameter's that it is, or is of.
    """
    storage = tensor.storage
    if storage.size:
        storage.recording.terms[storage.number] = term
        if path:
            storage.recording.paths[storage.number] = path


def stays(tensor: Tensor, *, alone: bool) -> None:
    """A tensor is a leaf's gradient from here on; ``alone``: nothing else holds its storage."""
    storage = tensor.storage
    if storage.size:
        storage.recording.stays(storage.number, alone=alone)


def scratch(*sizes: int) -> None:
    """What a kernel holds while it runs, in bytes."""
    recording = world.recording
    before, recording.term = recording.term, "temporaries"
    held = [Storage(size) for size in sizes]
    recording.term = before
    while held:
        held.pop(0)
