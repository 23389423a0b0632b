"""What attention over blocks of a sequence takes: padding, repeats, products whose heads lie behind the tokens."""

from math import prod

from kb.memory.engine.autocast import FLOATS, half
from kb.memory.engine.ops.pointwise import promoted, seen_again
from kb.memory.engine.ops.products import bmm
from kb.memory.engine.ops.shapes import padded_back, permute, reshape, view
from kb.memory.engine.tape import Gradients, Node, record
from kb.memory.engine.tensor import F32, Shape, Tensor, new


def padded(tensor: Tensor, at: int, more: int) -> Tensor:
    """``torch.nn.functional.pad`` of one dimension by a number: a copy, which keeps channels last; its gradient is
    copied out of the whole (``constant_pad_nd_backward``)."""
    node = record(padded_back, (tensor,), (), tensor.shape)
    shape = (*tensor.shape[:at], tensor.shape[at] + more, *tensor.shape[at + 1 :])
    return new(shape, tensor.dtype, _channels_last(tensor, shape), node)


def _channels_last(tensor: Tensor, shape: Shape) -> Shape | None:
    """Strides of ``shape`` where ``tensor`` of four dimensions has its second innermost (suggest_memory_format)."""
    if len(shape) != 4:
        return None
    _, channels, height, width = tensor.shape
    if tensor.strides != (height * width * channels, 1, width * channels, channels):
        return None
    _, channels, height, width = shape
    return (height * width * channels, 1, width * channels, channels)


def tiled(tensor: Tensor, at: int, times: int) -> Tensor:
    """``tensor.unsqueeze(at).repeat(…)``: ``times`` copies along a new dimension, whose gradients are summed."""
    shape = (*tensor.shape[:at], times, *tensor.shape[at:])
    return new(shape, tensor.dtype, None, record(_tiled_back, (tensor,), (), tensor.shape))


def _tiled_back(node: Node, grad: Tensor) -> Gradients:
    return (new(node.extra, grad.dtype),)


def summed_by(tensor: Tensor, groups: Tensor) -> Tensor:
    """``einsum("...nd,...ng->...gd")``: rows summed by group; the groups are the product's first side."""
    rows, by_group = half(tensor), half(groups)  # what was given lives until the product is there
    return bmm(permute(by_group, (0, 2, 1)), rows)


def add_to_view(view_of: Tensor, more: Tensor) -> Tensor:
    """``view += more``, where the left is a view of another result."""
    return seen_again(view_of, record(_copy_slices_back, (view_of, more)))


def _copy_slices_back(node: Node, grad: Tensor) -> Gradients:
    """``CopySlices`` (autograd/functions/tensor.cpp): a copy of the gradient for the base, one of its part."""
    whole = new(grad.shape, grad.dtype)
    part = new(grad.shape, grad.dtype)
    return whole, part if node.edges[1] is not None else None


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """``torch.matmul`` of alike batches in any number of dimensions: each side is copied where they cannot be one."""
    second_half, first_half = half(second), half(first)
    left = reshape(first_half, (prod(first.shape[:-2]), *first.shape[-2:]))
    right = reshape(second_half, (prod(second.shape[:-2]), *second.shape[-2:]))
    return view(bmm(left, right), (*first.shape[:-1], second.shape[-1]))


def outer(own: Tensor, others: Tensor, shape: Shape) -> Tensor:
    """``einsum`` of masks where there is nothing to sum: their product, of numbers in autocast's type."""
    own = half(own)
    others = half(others)
    return new(shape, others.dtype)


def as_type(tensor: Tensor, dtype: str) -> Tensor:
    """``tensor.to(dtype)`` of a mask."""
    return tensor if tensor.dtype == dtype else new(tensor.shape, dtype)


def penalty(mask: Tensor) -> Tensor:
    """``(1.0 - mask) * number``."""
    shape, dtype = mask.shape, mask.dtype if mask.dtype in FLOATS else F32
    turned = new(shape, dtype)
    del mask  # which nobody else may hold
    found = new(shape, dtype)
    del turned
    return found


def smaller(first: Tensor, second: Tensor) -> Tensor:
    """``torch.minimum`` of masks."""
    whole = second.dtype not in FLOATS
    return new(second.shape, first.dtype if whole else promoted(first, second))
