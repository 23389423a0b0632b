"""What attention over blocks of a sequence takes: padding, repeats, products whose heads lie behind the tokens."""

from kb.memory.engine.autocast import half
from kb.memory.engine.ops.pointwise import seen_again
from kb.memory.engine.ops.products import bmm
from kb.memory.engine.ops.shapes import permute, reshape, view
from kb.memory.engine.tape import Gradients, Node, record
from kb.memory.engine.tensor import Shape, Tensor, new


def padded(tensor: Tensor, at: int, more: int) -> Tensor:
    """``torch.nn.functional.pad`` of one dimension by a number: a copy, which keeps channels last; its gradient is
    copied out of the whole (``constant_pad_nd_backward``)."""
    node = record(_padded_back, (tensor,), (), tensor.shape)
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


def _padded_back(node: Node, grad: Tensor) -> Gradients:
    return (new(node.extra, grad.dtype),)


def tiled(tensor: Tensor, at: int, times: int) -> Tensor:
    """``tensor.unsqueeze(at).repeat(…)``: ``times`` copies along a new dimension, whose gradients are summed."""
    shape = (*tensor.shape[:at], times, *tensor.shape[at:])
    return new(shape, tensor.dtype, None, record(_tiled_back, (tensor,), (), tensor.shape))


def _tiled_back(node: Node, grad: Tensor) -> Gradients:
    return (new(node.extra, grad.dtype),)


def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
    """``einsum("...qhd,...khd->...hqk")`` of (batch, blocks, tokens, heads, width): both are copied by heads.

    Autocast has ``einsum`` on its list: it casts what is given, in its order.
    """
    queries = half(queries)
    keys = half(keys)
    batch, blocks, length, heads, width = queries.shape
    count, many = keys.shape[2], batch * blocks * heads
    left = reshape(permute(queries, (0, 1, 3, 2, 4)), (many, length, width))
    right = reshape(permute(keys, (0, 1, 3, 4, 2)), (many, width, count))
    return view(bmm(left, right), (batch, blocks, heads, length, count))


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """``einsum("...hqk,...khd->...qhd")``."""
    weights = half(weights)
    values = half(values)
    batch, blocks, heads, length, count = weights.shape
    width, many = values.shape[4], batch * blocks * heads
    left = reshape(weights, (many, length, count))
    right = reshape(permute(values, (0, 1, 3, 2, 4)), (many, count, width))
    return permute(view(bmm(left, right), (batch, blocks, heads, length, width)), (0, 1, 3, 2, 4))


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
