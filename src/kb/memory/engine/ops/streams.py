"""What XLNet's attention takes, whose tensors have the length before the batch (``einsum`` of modeling_xlnet.py)."""

from kb.memory.engine.autocast import half
from kb.memory.engine.ops.products import bmm
from kb.memory.engine.ops.shapes import cut, permute, reshape, view
from kb.memory.engine.tape import Gradients, Node, record, saved
from kb.memory.engine.tensor import I64, Tensor, new


def projected(tensor: Tensor, weight: Tensor) -> Tensor:
    """``einsum("ibh,hnd->ibnd")``; what the caller gave lives until the product is there."""
    x, kind = half(tensor), half(weight)
    length, batch, wide = x.shape
    _, heads, width = weight.shape
    out = bmm(reshape(x, (1, length * batch, wide)), reshape(kind, (1, wide, heads * width)))
    return view(out, (length, batch, heads, width))


def scores(queries: Tensor, keys: Tensor) -> Tensor:
    """``einsum("ibnd,jbnd->bnij")``."""
    left, right = half(queries), half(keys)
    length, batch, heads, width = left.shape
    many, count = batch * heads, right.shape[0]
    left = reshape(permute(left, (1, 2, 0, 3)), (many, length, width))
    right = reshape(permute(right, (1, 2, 3, 0)), (many, width, count))
    return view(bmm(left, right), (batch, heads, length, count))


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """``einsum("bnij,jbnd->ibnd")``."""
    left, right = half(weights), half(values)
    batch, heads, length, count = left.shape
    many, width = batch * heads, right.shape[3]
    left = reshape(left, (many, length, count))
    right = reshape(permute(right, (1, 2, 0, 3)), (many, count, width))
    return permute(view(bmm(left, right), (batch, heads, length, width)), (2, 0, 1, 3))


def combined(tensor: Tensor, weight: Tensor) -> Tensor:
    """``einsum("ibnd,hnd->ibh")``: what is summed is put in the order of its letters, so that both are copied."""
    left, right = half(tensor), half(weight)
    length, batch, heads, width = left.shape
    wide, inner = weight.shape[0], heads * width
    rows = reshape(permute(left, (0, 1, 3, 2)), (1, length * batch, inner))
    columns = reshape(permute(right, (2, 1, 0)), (1, inner, wide))
    return view(bmm(rows, columns), (length, batch, wide))


def shifted(tensor: Tensor) -> Tensor:
    """``rel_shift_bnij``: as many columns as there are rows."""
    batch, heads, length, count = tensor.shape
    tensor = reshape(tensor, (batch, heads, count, length))
    tensor = cut(tensor, 2, count - 1)
    tensor = reshape(tensor, (batch, heads, length, count - 1))
    places = new((length,), I64)
    node = record(_selected_back, (tensor,), (places,), tensor.shape)
    return new((batch, heads, length, length), tensor.dtype, None, node)


def _selected_back(node: Node, grad: Tensor) -> Gradients:
    """Gradients are added to zeros in place (``index_select_backward``, FunctionsManual.cpp)."""
    kept = saved(node)
    whole = new(node.extra, grad.dtype)
    del kept
    return (whole,)


def times(mask: Tensor) -> Tensor:
    """``1e30 * einsum("ijbn->bnij", mask)``."""
    mask = half(mask)
    rows, columns, batch, heads = mask.shape
    return new((batch, heads, rows, columns), mask.dtype)
