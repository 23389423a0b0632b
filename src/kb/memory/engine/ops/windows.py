"""What attention over windows takes: views that overlap, parts written in place, rows that XLNet shifts."""

from math import prod

from kb.memory.engine.autocast import half
from kb.memory.engine.ops.pointwise import scale_here, seen_again
from kb.memory.engine.ops.products import bmm, einsum
from kb.memory.engine.ops.shapes import cut, permute, reshape, view, view_back
from kb.memory.engine.tape import Gradients, Node, record, saved
from kb.memory.engine.tensor import BOOL, I64, Shape, Tensor, new, viewed


def overlapping(tensor: Tensor, shape: Shape, strides: Shape) -> Tensor:
    """``tensor.as_strided(shape, strides)`` of a tensor's whole storage."""
    node = record(_overlapping_back, (tensor,), (), (tensor.shape, tensor.strides, prod(shape) > prod(tensor.shape)))
    return Tensor(shape, tensor.dtype, strides, tensor.storage, node)


def _overlapping_back(node: Node, grad: Tensor) -> Gradients:
    """``as_strided_backward`` (FunctionsManual.cpp): zeros that gradients are added to, by the number of each element
    where some are seen more than once."""
    shape, strides, overlaps = node.extra
    zeros = new((prod(shape),), grad.dtype)
    if overlaps:
        numbers = new((prod(shape),), I64)
        flat = grad if viewed(grad, (prod(grad.shape),)) is not None else new(grad.shape, grad.dtype)
        places = new(grad.shape, I64)
        del numbers, flat, places
    return (Tensor(shape, grad.dtype, strides, zeros.storage, based=True),)


def put(tensor: Tensor, shape: Shape, value: Tensor) -> Tensor:
    """``tensor[…] = value``, where what is written has this shape; the tensor as it is then."""
    return seen_again(tensor, record(_put_back, (tensor, value), (), shape))


def _put_back(node: Node, grad: Tensor) -> Gradients:
    """``CopySlices`` of ``CopyBackwards`` (autograd/functions/tensor.cpp): the gradient's copy for the base, its part,
    and zeros for what was there before."""
    base, value = node.edges
    whole = new(grad.shape, grad.dtype)
    part = new(node.extra, grad.dtype)
    zeros = None if base is None else new(node.extra, grad.dtype)
    if value is not None and value[2] != grad.dtype:  # cast as it is copied
        part = new(node.extra, value[2])
    del zeros
    return None if base is None else whole, None if value is None else part


def put_at(tensor: Tensor, places: tuple[Tensor, ...], value: Tensor) -> Tensor:
    """``tensor[places] = value`` by indices; of a value of one row its first dimension goes (``slicePrefix1sSize``)."""
    shape = value.shape
    if shape[0] == 1:
        value = view(value, shape[1:])
    return seen_again(tensor, record(_put_at_back, (tensor, value), places, (shape, value.shape)))


def _put_at_back(node: Node, grad: Tensor) -> Gradients:
    """``index_put`` of zeros into a copy, and what was put."""
    kept = saved(node)
    base, value = node.edges
    shape, given = node.extra
    by_base = None
    if base is not None:
        zeros = new(given, grad.dtype)
        by_base = new(grad.shape, grad.dtype, grad.strides)
        del zeros
    by_value = None if value is None else new(shape, grad.dtype)
    del kept
    return by_base, by_value


def number_in_view(tensor: Tensor) -> Tensor:
    """``view[places] = number``, with no places, or ``view /= number``, in place: what a view is of gets a new
    gradient."""
    return seen_again(tensor, record(_number_back, (tensor,)))


def _number_back(node: Node, grad: Tensor) -> Gradients:
    """``CopySlices``: a copy for the base, one of the part, and what the operator makes of that."""
    whole = new(grad.shape, grad.dtype)
    part = new(grad.shape, grad.dtype)
    made = new(grad.shape, grad.dtype)
    del part, made
    return (whole,)


def divided(tensor: Tensor) -> Tensor:
    """``tensor /= number``, also where the tensor is seen as another shape than what made it."""
    node = tensor.node
    if node is not None and type(node) is Node and node.run is view_back:
        return number_in_view(tensor)
    return scale_here(tensor)


def at(tensor: Tensor, places: tuple[Tensor, ...], shape: Shape) -> Tensor:
    """``tensor[places]``, a copy of this shape; its gradient is added to zeros of the whole (``index_backward``)."""
    return new(shape, tensor.dtype, None, record(_at_back, (tensor,), places, tensor.shape))


def _at_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    whole = new(node.extra, grad.dtype)
    del kept
    return (whole,)


def chosen_beside(tensor: Tensor) -> Tensor:
    """``torch.full_like(tensor, number).where(mask.bool(), tensor)``."""
    numbers = new(tensor.shape, tensor.dtype)
    flags = new(tensor.shape, BOOL)
    out = new(tensor.shape, tensor.dtype, None, record(_chosen_back, (tensor,), (flags,)))
    del numbers, flags
    return out


def _chosen_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    zero = new((), grad.dtype)
    out = new(grad.shape, grad.dtype)
    del zero, kept
    return (out,)


def blanked(tensor: Tensor, mask: Tensor) -> Tensor:
    """``tensor.masked_fill(mask, number)``; the mask is kept."""
    return new(tensor.shape, tensor.dtype, None, record(_blanked_back, (tensor,), (mask,)))


def _blanked_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = new(grad.shape, grad.dtype)
    del kept
    return (out,)


def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
    """``einsum("bcxd,bcyd->bcxy")`` of (batch, chunks, tokens, width)."""
    if queries.shape[-1] == 1:  # of numbers that nothing trains: there is nothing to sum, and elements are multiplied
        queries, keys = half(queries), half(keys)
        return new((*queries.shape[:3], keys.shape[2]), queries.dtype)
    return einsum("bcxd,bcyd->bcxy", queries, keys)


def scores_by_head(queries: Tensor, keys: Tensor) -> Tensor:
    """``einsum("blhd,bshd->blhs")``, of which some are then a number."""
    queries = half(queries)
    keys = half(keys)
    batch, length, heads, width = queries.shape
    left = reshape(permute(queries, (0, 2, 1, 3)), (batch * heads, length, width))
    right = reshape(permute(keys, (0, 2, 3, 1)), (batch * heads, width, keys.shape[1]))
    found = number_in_view(bmm(left, right))
    return permute(view(found, (batch, heads, length, keys.shape[1])), (0, 2, 1, 3))


def shifted(tensor: Tensor) -> Tensor:
    """XLNet's ``rel_shift_bnij``: as many columns as there are rows."""
    batch, heads, length, count = tensor.shape
    tensor = reshape(tensor, (batch, heads, count, length))
    tensor = cut(tensor, 2, count - 1)
    tensor = reshape(tensor, (batch, heads, length, count - 1))
    places = new((length,), I64)
    return at(tensor, (places,), (batch, heads, length, length))


def times(mask: Tensor) -> Tensor:
    """``1e30 * einsum("ijbn->bnij", mask)``."""
    mask = half(mask)
    rows, columns, batch, heads = mask.shape
    return new((batch, heads, rows, columns), mask.dtype)
