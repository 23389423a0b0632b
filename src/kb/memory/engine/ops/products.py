"""Products, with autocast's casts around them and cuBLAS's workspaces below them."""

from math import prod
from typing import Any

from kb.memory.engine.autocast import half, narrowed
from kb.memory.engine.ops.pointwise import add, add_here
from kb.memory.engine.ops.shapes import contiguous, expand, is_contiguous, permute, reshape, rows, transpose, view
from kb.memory.engine.tape import Gradients, Node, hold_sum, record, saved
from kb.memory.engine.tensor import F32, Shape, Tensor, arranged, bare, new, packed, seen_as, viewed
from kb.memory.engine.world import world


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear``: mm, or addmm with a bias, and a view of its result.

    C++ evaluates arguments last first: autocast casts bias, weight, input in that order (autocast_mode.h). A gradient
    whose batch cannot be flattened is copied at the view (ATen/native/Linear.cpp).
    """
    if bias is not None and _takes_bias(x):
        return _addmm(x, weight, bias)
    if bias is not None:  # which is then added in place behind the product
        bias = half(bias)
        return add_here(_mm(x, weight), bias)
    return _mm(x, weight)


def _takes_bias(x: Tensor) -> bool:
    """Whether what a product reads is of one piece, or has two dimensions: autocast's copy closes gaps, and keeps the
    order of the dimensions (ATen/native/Linear.cpp)."""
    if len(x.shape) == 2:
        return True
    if world.autocast is None or x.dtype != F32:
        return is_contiguous(x)
    return is_contiguous(seen_as(x, x.shape, arranged(x.shape, x.strides) or packed(x.shape)))


def _mm(x: Tensor, weight: Tensor, *, trains: bool = False) -> Tensor:
    trains, weight = trains or weight.needs, half(weight)
    given: Any
    given, x = x, half(x)  # the caller's input lives until the product is there
    if viewed(x, (rows(x.shape), x.shape[-1])) is None:
        if not trains:
            return _unfolded(x, weight)
        given, x = (given, x), contiguous(x)  # so does what autocast made of it
    kept = (weight if x.needs else None, x if weight.needs else None)
    node = record(_mm_back, (x, weight), kept, weight.strides)
    out = new((rows(x.shape), weight.shape[0]), x.dtype, None, node)
    world.multiplied()
    del given
    return view(out, (*x.shape[:-1], weight.shape[0]))


def _unfolded(x: Tensor, weight: Tensor) -> Tensor:
    """A batch of products with one frozen weight (``should_fold``, ATen/native/LinearAlgebra.cpp)."""
    rows_of, columns = weight.shape
    turned = Tensor((x.shape[0], columns, rows_of), weight.dtype, (0, 1, columns), weight.storage)
    return _bmm(view(x, x.shape), turned)


def _product(shape: Shape, dtype: str, *, flat: bool = False, strides: Shape | None = None) -> Tensor:
    """A gradient that is a product. An input's of more than two dimensions is a view of what the kernel made, as a
    weight's is, so that nothing is added to it in place."""
    out = new(shape, dtype, strides)
    out.based = not flat
    world.multiplied()
    return out


def _mm_back(node: Node, grad: Tensor) -> Gradients:
    """mm's weight comes first, laid out as it is, then its input (FunctionsManual.cpp)."""
    kept = saved(node)
    x, weight = node.edges
    by_weight = None if weight is None else _product(weight[1], grad.dtype, strides=node.extra)
    by_x = None if x is None else _product(x[1], grad.dtype, flat=len(x[1]) == 2)
    del kept
    return by_x, by_weight


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``torch.matmul(x, weight)`` of tokens, and a weight that lies as the product wants it."""
    return _mm(x, transpose(half(weight), 0, 1), trains=weight.needs)


def addmm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``torch.addmm(bias, x.view(-1, …), weight).view(…)``, as ``Conv1D`` has it (transformers/pytorch_utils.py).

    The weight lies as the product wants it; C++ evaluates arguments last first.
    """
    flat = view(x, (rows(x.shape), x.shape[-1]))
    weight, flat, bias = half(weight), half(flat), half(bias)
    kept = (flat if weight.needs else None, weight if flat.needs else None)
    node = record(_addmm_back, (bias, flat, weight), kept, True)
    out = new((flat.shape[0], weight.shape[1]), flat.dtype, None, node)
    world.multiplied(biased=True)
    return view(out, (*x.shape[:-1], weight.shape[1]))


def _addmm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    bias, weight = half(bias), half(weight)
    given, x = x, half(x)
    flat = len(x.shape) == 2  # else the input's view is made before the weight's, and its gradient comes after that
    inputs = (bias, x, weight) if flat else (bias, weight, x)
    node = record(_addmm_back, inputs, (x if weight.needs else None, weight if x.needs else None), flat)
    out = new((rows(x.shape), weight.shape[0]), x.dtype, None, node)
    world.multiplied(biased=True)
    del given
    return view(out, (*x.shape[:-1], weight.shape[0]))


def _addmm_back(node: Node, grad: Tensor) -> Gradients:
    """Input, then weight; the bias's sum is ``validate_outputs``' own, after both products."""
    kept, flat = saved(node), node.extra
    bias, x, weight = node.edges if flat else (node.edges[0], node.edges[2], node.edges[1])
    by_x = None if x is None else _product(x[1], grad.dtype, flat=flat)
    by_weight = None if weight is None else _product(weight[1], grad.dtype)
    del kept
    by_bias = grad if bias is not None else None
    return (by_bias, by_x, by_weight) if flat else (by_bias, by_weight, by_x)


def linear_by_function(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``LinearFunctionForZeroStage3`` (deepspeed/runtime/zero/linear.py 0.19.8): the weight itself is kept, no view.
    Of two dimensions product and bias are one (``addmm``)."""
    trained = (x, weight) if bias is None else (x, weight, bias)
    node = record(_function_back, trained, (x, weight))
    out = new((*x.shape[:-1], weight.shape[0]), x.dtype, None, node)
    world.multiplied(biased=bias is not None and len(x.shape) == 2)
    return out


def linear_by_hand(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``FalconLinear``: ``x @ weight.T + bias``. Autocast's copy of a transposed weight is not kept in its cache."""
    out = _by_transposed(x, weight)
    return out if bias is None else add(out, bias)


def _by_transposed(x: Tensor, weight: Tensor) -> Tensor:
    weight = narrowed(weight)
    given, x = x, half(x)
    node = record(_mm_back, (x, weight), (bare(weight) if x.needs else None, x if weight.needs else None))
    out = new((rows(x.shape), weight.shape[0]), x.dtype, None, node)
    world.multiplied()
    del given
    return view(out, (*x.shape[:-1], weight.shape[0]))


def _function_back(node: Node, grad: Tensor) -> Gradients:
    """By the input first, then by the weight, then the bias's sum."""
    kept = saved(node)
    found = []
    for edge in node.edges:
        found.append(None if edge is None else new(edge[1], grad.dtype))
        if edge is not None and len(found) < 3:
            world.multiplied()
        elif edge is not None:
            hold_sum(grad, edge[1])
    del kept
    return found


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """Of four dimensions: a batch of products, each side copied where its batch cannot be flattened."""
    second_half, first_half = half(second), half(first)
    heads = max(first.shape[1], second.shape[1])
    out = _bmm(_flat(_of_heads(first_half, heads)), _flat(_of_heads(second_half, heads)))
    return view(out, (first.shape[0], heads, first.shape[2], second.shape[3]))


def matmul_of_batches(first: Tensor, second: Tensor) -> Tensor:
    """Of any dimensions before the last two, the same of both."""
    second_half, first_half = half(second), half(first)
    out = _bmm(_flattened(first_half), _flattened(second_half))
    return view(out, (*first.shape[:-1], second.shape[-1]))


def _flattened(tensor: Tensor) -> Tensor:
    return reshape(tensor, (prod(tensor.shape[:-2]), *tensor.shape[-2:]))


def _of_heads(tensor: Tensor, heads: int) -> Tensor:
    """One head's seen as those of all."""
    if tensor.shape[1] == heads:
        return tensor
    return expand(tensor, (tensor.shape[0], heads, *tensor.shape[2:]))


def _flat(tensor: Tensor) -> Tensor:
    return reshape(tensor, (tensor.shape[0] * tensor.shape[1], *tensor.shape[2:]))


def _bmm(first: Tensor, second: Tensor) -> Tensor:
    node = record(_bmm_back, (first, second), (second if first.needs else None, first if second.needs else None))
    out = new((*first.shape[:-1], second.shape[-1]), first.dtype, None, node)
    world.multiplied()
    del second  # temporaries of C++: the last goes first
    return out


def bmm(first: Tensor, second: Tensor) -> Tensor:
    """A batch of products, in autocast's type; what the caller gave lives until the product is there."""
    given, second = second, half(second)
    out = _bmm(half(first), second)
    del given
    return out


def einsum(letters: str, first: Tensor, second: Tensor) -> Tensor:
    """``torch.einsum`` of two tensors as a batch of products (``sumproduct_pair``, aten/src/ATen/native/Linear.cpp).

    Autocast has it on its list: it casts what is given, in its order. What is summed goes in the order of the letters.
    """
    given, _, out = letters.partition("->")
    one, _, other = given.partition(",")
    batch = "".join(each for each in out if each in one and each in other)
    rows = "".join(each for each in out if each not in other)
    columns = "".join(each for each in out if each not in one)
    summed = "".join(sorted(set(one) - set(out)))
    left, right = half(first), half(second)  # what was given and what was cast live until the product is there
    sizes = dict(zip(one + other, first.shape + second.shape, strict=True))
    by_rows = _grouped(left, one, (batch, rows, summed))
    by_columns = _grouped(right, other, (batch, summed, columns))
    made = batch + rows + columns
    return _in_order(view(bmm(by_rows, by_columns), tuple(sizes[each] for each in made)), made, out)


def _grouped(tensor: Tensor, letters: str, groups: tuple[str, ...]) -> Tensor:
    """The tensor's dimensions in the order of the groups, each of which becomes one."""
    sizes = dict(zip(letters, tensor.shape, strict=True))
    shape = tuple(prod(sizes[each] for each in group) for group in groups)
    return reshape(_in_order(tensor, letters, "".join(groups)), shape)


def _in_order(tensor: Tensor, have: str, want: str) -> Tensor:
    return tensor if have == want else permute(tensor, tuple(map(have.index, want)))


def baddbmm(bias: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A batch of products, scaled and added to ``bias``, which nothing trains."""
    second, first = half(second), half(first)
    kept = (second if first.needs else None, first if second.needs else None)
    bias = half(bias)
    node = record(_baddbmm_back, (first, second), kept)
    out = new((*first.shape[:-1], second.shape[-1]), first.dtype, None, node)
    world.multiplied()
    del bias
    return out


def _baddbmm_back(node: Node, grad: Tensor) -> Gradients:
    """Each product is scaled behind (``maybe_multiply``, FunctionsManual.cpp)."""
    kept = saved(node)
    outs: list[Tensor | None] = []
    for edge in node.edges:
        outs.append(None)
        if edge is not None:
            product = new(edge[1], grad.dtype)
            world.multiplied()
            outs[-1] = new(edge[1], grad.dtype)
            del product
    del kept
    return outs


def _bmm_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    first, second = node.edges
    by_second = None if second is None else new(second[1], grad.dtype)
    by_first = None if first is None else new(first[1], grad.dtype)
    del kept
    return by_first, by_second


def conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, longer: int = 0) -> Tensor:
    """``torch.nn.functional.conv1d`` of (batch, rows, length), padded so that only ``stride`` shortens it; ``longer``
    is by how much it is padded more, or less.

    cuDNN's workspace, which it picks as it runs, is not booked. Source: ``convolution`` (ATen/native/Convolution.cpp);
    autocast casts bias, weight, input in that order.
    """
    biases = () if bias is None else (half(bias),)
    weight = half(weight)
    given, x = x, half(x)
    node = record(_conv_back, (x, weight, *biases), (x, weight))
    out = new((x.shape[0], weight.shape[0], -(-x.shape[2] // stride) + longer), x.dtype, None, node)
    del given
    return out


def patches(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.conv2d`` and ``conv3d`` whose strides are their kernel."""
    biases = () if bias is None else (half(bias),)
    weight = half(weight)
    given, x = x, half(x)
    node = record(_conv_back, (x, weight, *biases), (x, weight))
    sides = (size // step for size, step in zip(x.shape[2:], weight.shape[2:], strict=True))
    out = new((x.shape[0], weight.shape[0], *sides), x.dtype, None, node)
    del given
    return out


def _conv_back(node: Node, grad: Tensor) -> Gradients:
    """Input's, weight's and bias's gradient at once, only those wanted (``convolution_backward``)."""
    kept = saved(node)
    outs = [None if edge is None else new(edge[1], grad.dtype) for edge in node.edges]
    del kept
    return outs
