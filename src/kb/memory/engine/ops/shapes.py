"""Views, copies and look-ups: what they allocate, and what their backward does."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from kb.memory.engine.tape import Gradients, Node, record, saved
from kb.memory.engine.tensor import BOOL, I64, SHAPES, WIDTH, Shape, Tensor, like, new, packed, scratch, viewed


def passed(node: Node, grad: Tensor) -> Gradients:
    """The gradient itself: casts and sums to the input's shape are ``validate_outputs``' own."""
    return (grad,)


def cast(tensor: Tensor, dtype: str) -> Tensor:
    """``tensor.to(dtype)``; nothing where it has that type already."""
    return tensor if tensor.dtype == dtype else like(tensor, dtype, record(passed, (tensor,)))


def clone(tensor: Tensor) -> Tensor:
    return like(tensor, None, record(passed, (tensor,)))


def is_contiguous(tensor: Tensor) -> bool:
    """Dimensions of one element do not count."""
    return tensor.strides == packed(tensor.shape) or _lies_so(tensor.shape, tensor.strides)


@lru_cache(SHAPES)
def _lies_so(shape: Shape, strides: Shape) -> bool:
    return all(size <= 1 or have == want for size, have, want in zip(shape, strides, packed(shape), strict=True))


def contiguous(tensor: Tensor) -> Tensor:
    return tensor if is_contiguous(tensor) else new(tensor.shape, tensor.dtype, None, record(passed, (tensor,)))


def copied(tensor: Tensor, dtype: str | None = None) -> Tensor:
    """``torch.cat`` of nothing and ``tensor``: what an empty cache does (cache_utils.py, DynamicLayer.update); nothing
    may be of a wider type."""
    return new(tensor.shape, dtype or tensor.dtype, None, record(_passed_view, (tensor,)))


def _passed_view(node: Node, grad: Tensor) -> Gradients:
    return (Tensor(grad.shape, grad.dtype, grad.strides, grad.storage, based=True),)


def view(tensor: Tensor, shape: Shape) -> Tensor:
    strides = viewed(tensor, shape)
    assert strides is not None, "a view that takes a copy is a reshape"
    return Tensor(shape, tensor.dtype, strides, tensor.storage, record(view_back, (tensor,), (), tensor.shape))


def view_back(node: Node, grad: Tensor) -> Gradients:
    strides = viewed(grad, node.extra)
    if strides is None:
        return (new(node.extra, grad.dtype),)
    return (Tensor(node.extra, grad.dtype, strides, grad.storage, based=True),)


def reshape(tensor: Tensor, shape: Shape) -> Tensor:
    """A view, of a contiguous copy where there is none."""
    if viewed(tensor, shape) is None:
        tensor = contiguous(tensor)
    return view(tensor, shape)


@lru_cache(SHAPES)
def swapped(values: Shape, first: int, second: int) -> Shape:
    """``values`` with two of them exchanged."""
    found = list(values)
    found[first], found[second] = found[second], found[first]
    return tuple(found)


def transpose(tensor: Tensor, first: int, second: int) -> Tensor:
    node = record(_transpose_back, (tensor,), (), (first, second))
    shape, strides = swapped(tensor.shape, first, second), swapped(tensor.strides, first, second)
    return Tensor(shape, tensor.dtype, strides, tensor.storage, node)


def _transpose_back(node: Node, grad: Tensor) -> Gradients:
    shape, strides = swapped(grad.shape, *node.extra), swapped(grad.strides, *node.extra)
    return (Tensor(shape, grad.dtype, strides, grad.storage, based=True),)


def permute(tensor: Tensor, order: Shape) -> Tensor:
    node = record(_permute_back, (tensor,), (), order)
    shape, strides = _ordered(tensor.shape, order), _ordered(tensor.strides, order)
    return Tensor(shape, tensor.dtype, strides, tensor.storage, node)


@lru_cache(SHAPES)
def _ordered(values: Shape, order: Shape) -> Shape:
    return tuple(values[at] for at in order)


@lru_cache(SHAPES)
def _back_to(order: Shape) -> Shape:
    """The order that undoes another."""
    return tuple(sorted(range(len(order)), key=lambda at: order[at]))


def _permute_back(node: Node, grad: Tensor) -> Gradients:
    back = _back_to(node.extra)
    shape, strides = _ordered(grad.shape, back), _ordered(grad.strides, back)
    return (Tensor(shape, grad.dtype, strides, grad.storage, based=True),)


def expand(tensor: Tensor, shape: Shape) -> Tensor:
    """Dimensions of one element seen as many; ``shape`` may have more dimensions in front."""
    strides = _expanded(tensor.shape, tensor.strides, shape)
    return Tensor(shape, tensor.dtype, strides, tensor.storage, record(passed, (tensor,)))


@lru_cache(SHAPES)
def _expanded(own: Shape, strides: Shape, shape: Shape) -> Shape:
    more = len(shape) - len(own)
    sizes, steps = (1,) * more + own, (0,) * more + strides
    return tuple(0 if was == 1 != size else step for was, size, step in zip(sizes, shape, steps, strict=True))


def unsqueeze(tensor: Tensor, at: int) -> Tensor:
    node = record(view_back, (tensor,), (), tensor.shape)
    shape, strides = (*tensor.shape[:at], 1, *tensor.shape[at:]), (*tensor.strides[:at], 0, *tensor.strides[at:])
    return Tensor(shape, tensor.dtype, strides, tensor.storage, node)


def part(tensor: Tensor, size: int) -> Tensor:
    """``tensor[..., a:b]`` of ``size`` columns; the gradient is as wide as the whole (``slice_backward``)."""
    node = record(_part_back, (tensor,), (), tensor.shape)
    return Tensor((*tensor.shape[:-1], size), tensor.dtype, tensor.strides, tensor.storage, node)


def _part_back(node: Node, grad: Tensor) -> Gradients:
    return (new(node.extra, grad.dtype),)


def indexed(tensor: Tensor, at: int) -> Tensor:
    """``tensor.select(at, i)``: one of a dimension, which goes."""
    node = record(_part_back, (tensor,), (), tensor.shape)
    shape, strides = (*tensor.shape[:at], *tensor.shape[at + 1 :]), (*tensor.strides[:at], *tensor.strides[at + 1 :])
    return Tensor(shape, tensor.dtype, strides, tensor.storage, node)


def cut(tensor: Tensor, at: int, size: int) -> Tensor:
    """``size`` of a dimension's elements: a view, whose gradient is as wide as the whole."""
    node = record(_part_back, (tensor,), (), tensor.shape)
    shape = (*tensor.shape[:at], size, *tensor.shape[at + 1 :])
    return Tensor(shape, tensor.dtype, tensor.strides, tensor.storage, node)


def picked(tensor: Tensor, at: int) -> Tensor:
    """``tensor[..., [i], …]``: a copy, as of any list of indices; its gradient is put into zeros of the whole
    (``index_backward``, FunctionsManual.cpp)."""
    index = new((1,), I64)
    node = record(picked_back, (tensor,), (index,), tensor.shape)
    return new((*tensor.shape[:at], 1, *tensor.shape[at + 1 :]), tensor.dtype, None, node)


def picked_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    whole = new(node.extra, grad.dtype)
    del kept
    return (whole,)


def split(tensor: Tensor, sizes: Shape) -> tuple[Tensor, ...]:
    """``tensor.split(sizes, dim=-1)`` or ``chunk``: views whose gradients are joined by one ``cat``."""
    node = record(_split_back, (tensor,), (), tensor.shape)
    if node is not None:
        node.results = len(sizes)
    return tuple(
        Tensor((*tensor.shape[:-1], size), tensor.dtype, tensor.strides, tensor.storage, node and (node, at))
        for at, size in enumerate(sizes)
    )


def _split_back(node: Node, grads: list[Tensor | None]) -> Gradients:
    """What nothing reached is zeros first (``split_with_sizes_backward``)."""
    dtype = next(grad.dtype for grad in grads if grad is not None)
    return (new(node.extra, dtype),)


def unbind(tensor: Tensor, at: int) -> list[Tensor]:
    """Views of a dimension's elements, whose gradients are stacked to the whole."""
    node = record(_split_back, (tensor,), (), tensor.shape)
    if node is not None:
        node.results = tensor.shape[at]
    shape, strides = (*tensor.shape[:at], *tensor.shape[at + 1 :]), (*tensor.strides[:at], *tensor.strides[at + 1 :])
    return [
        Tensor(shape, tensor.dtype, strides, tensor.storage, node and (node, one)) for one in range(tensor.shape[at])
    ]


def pieces(tensor: Tensor, at: int, sizes: Shape) -> list[Tensor]:
    """``tensor.split(sizes, dim=at)``: views whose gradients are joined by one ``cat``."""
    node = record(_split_back, (tensor,), (), tensor.shape)
    if node is not None:
        node.results = len(sizes)
    before, behind = tensor.shape[:at], tensor.shape[at + 1 :]
    return [
        Tensor((*before, size, *behind), tensor.dtype, tensor.strides, tensor.storage, node and (node, number))
        for number, size in enumerate(sizes)
    ]


def padded_back(node: Node, grad: Tensor) -> Gradients:
    """Of what was padded: what is not padding is copied out of the gradient (``constant_pad_nd_backward``)."""
    return (new(node.extra, grad.dtype),)


def folded(tensor: Tensor, times: int) -> Tensor:
    """(1, heads, times × length, width) seen as (times, heads, length, width)."""
    node = record(_folded_back, (tensor,), (), tensor.shape)
    _, heads, length, width = tensor.shape
    _, *steps = tensor.strides
    shape, strides = (times, heads, length // times, width), (length // times * steps[1], *steps)
    return Tensor(shape, tensor.dtype, strides, tensor.storage, node)


def _folded_back(node: Node, grad: Tensor) -> Gradients:
    return (Tensor(node.extra, grad.dtype, packed(node.extra), grad.storage, based=True),)


def cat(tensors: Sequence[Tensor], at: int = -1) -> Tensor:
    """``torch.cat``, along the last dimension or another; the gradients are views of one."""
    node = record(_cat_back, tensors, (), tuple(tensor.shape for tensor in tensors))
    first = tensors[0]
    shape = list(first.shape)
    shape[at] = sum(tensor.shape[at] for tensor in tensors)
    return new(tuple(shape), first.dtype, None, node)


def _cat_back(node: Node, grad: Tensor) -> Gradients:
    return tuple(Tensor(shape, grad.dtype, grad.strides, grad.storage, based=True) for shape in node.extra)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of a table. Backward copies a gradient that is not contiguous (Embedding.cu), and makes a
    gradient of the whole table."""
    node = record(_embedding_back, (weight,), (ids,), weight.shape)
    return new((*ids.shape, weight.shape[1]), weight.dtype, None, node)


def _embedding_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    if not is_contiguous(grad):
        grad = new(grad.shape, grad.dtype)
    out = new(node.extra, grad.dtype)
    del kept
    return (out,)


def looked_up(weight: Tensor, places: Tensor) -> Tensor:
    """``weight[places]``, rows of a table by indexing it.

    Backward adds to zeros of the whole table in place (``index_backward``, FunctionsManual.cpp).
    """
    node = record(_looked_up_back, (weight,), (places,), weight.shape)
    return new((*places.shape, weight.shape[1]), weight.dtype, None, node)


def _looked_up_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = new(node.extra, grad.dtype)
    del kept
    return (out,)


def put_where(tensor: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``tensor.masked_scatter(mask, source)`` with a mask of rows: a copy, a sum of the mask that numbers
    each element, and the mask as wide as that (``masked_scatter__cuda``, ATen/native/cuda/IndexKernel.cpp and .cu)."""
    node = record(_put_back, (tensor, source), (mask,))
    out = new(tensor.shape, tensor.dtype, None, node)
    elements = prod(tensor.shape)
    scratch(elements * WIDTH[I64], elements)
    return out


def _put_back(node: Node, grad: Tensor) -> Gradients:
    """``masked_fill`` for the tensor; ``masked_select`` for what was put there, by its places
    (``masked_scatter_backward``, ATen/native/TensorAdvancedIndexing.cpp)."""
    kept = saved(node)
    tensor, source = node.edges
    by_tensor = None if tensor is None else like(grad)
    by_source = None
    if source is not None:
        wide = new(grad.shape, BOOL)
        places = new((prod(source[1]), len(grad.shape)), I64)
        del wide
        by_source = new(source[1], grad.dtype)
        by_source.based = True
        del places
    del kept
    return by_tensor, by_source


def rows(shape: Shape) -> int:
    """Rows of a tensor whose last dimension is what a linear layer multiplies."""
    return prod(shape[:-1])
