"""Autocast's casts to 16 bits, and its cache of weights (torch/aten/src/ATen/autocast_mode.cpp)."""

from collections.abc import Iterator
from contextlib import contextmanager

from kb.memory.engine.tape import record
from kb.memory.engine.tensor import BF16, F16, F32, Tensor, like, mark
from kb.memory.engine.world import world

FLOATS = (F32, F16, BF16)


def narrowed(tensor: Tensor) -> Tensor:
    """The tensor in autocast's type, by a copy that is not kept for the next."""
    return tensor if world.autocast is None or tensor.dtype != F32 else _cast(tensor)


def half(tensor: Tensor) -> Tensor:
    """The tensor in autocast's type; copies of leaves that train are kept until autocast ends (``cached_cast``)."""
    if world.autocast is None or tensor.dtype == world.autocast or tensor.dtype not in FLOATS:
        return tensor
    if tensor.needs and tensor.node is None and tensor.dtype == F32:
        copy = world.cache.get(tensor)
        if copy is None:
            copy = world.cache[tensor] = _cast(tensor)
            mark(copy, "autocast_copies")
        return copy
    return _cast(tensor)


def _cast(tensor: Tensor) -> Tensor:
    return like(tensor, world.autocast, record(lambda node, grad: (grad,), (tensor,)))


@contextmanager
def autocast(dtype: str | None) -> Iterator[None]:
    """``torch.autocast``: inside, products are in ``dtype``; None is no autocast. Leaving it lets its copies go."""
    world.autocast = dtype
    try:
        yield
    finally:
        world.autocast, world.cache = None, {}
