"""Elementwise operators, and reductions over the last dimension. Sources: ATen's derivatives.yaml for what is saved."""

from functools import lru_cache
from math import prod

from kb.memory.engine.ops.shapes import is_contiguous, passed
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import (
    BF16,
    BOOL,
    F16,
    F32,
    SHAPES,
    WIDTH,
    Shape,
    Tensor,
    arranged,
    bare,
    like,
    new,
    scratch,
)
from kb.memory.engine.world import world

HALF = (F16, BF16)


def _new_one(node: Node, grad: Tensor) -> Gradients:
    return (like(grad),)


def widened(tensor: Tensor) -> Tensor:
    """In fp32, where autocast has an operator on its fp32 list."""
    if world.autocast is None or tensor.dtype == F32:
        return tensor
    return like(tensor, F32, record(passed, (tensor,)))


def neg(tensor: Tensor) -> Tensor:
    return like(tensor, None, record(_new_one, (tensor,)))


def scale(tensor: Tensor) -> Tensor:
    """Times, or divided by, a number."""
    return like(tensor, None, record(_new_one, (tensor,)))


def plus(tensor: Tensor) -> Tensor:
    """Plus a number."""
    return like(tensor, None, record(passed, (tensor,)))


def broadcast(first: Tensor, second: Tensor) -> tuple[Shape, Shape | None]:
    """The shape of the two together, and its strides where they follow those of one of them."""
    return _broadcast(first.shape, first.strides, second.shape, second.strides)


@lru_cache(SHAPES)
def _broadcast(first: Shape, first_strides: Shape, second: Shape, second_strides: Shape) -> tuple[Shape, Shape | None]:
    missing = len(first) - len(second)
    a, b = (1,) * -missing + first, (1,) * missing + second
    shape = tuple(max(x, y) for x, y in zip(a, b, strict=True))
    base, strides = (first, first_strides) if first == shape else (second, second_strides)
    return shape, arranged(base, strides) if base == shape else None


def promoted(first: Tensor, second: Tensor) -> str:
    """The type of the two together: fp32 where one is, and of the two half types."""
    one, other = first.dtype, second.dtype
    if one == other:
        return one
    return F32 if F32 in (one, other) or (one in HALF and other in HALF) else one


def add(first: Tensor, second: Tensor) -> Tensor:
    shape, strides = broadcast(first, second)
    return new(shape, promoted(first, second), strides, record(_add_back, (first, second)))


def _add_back(node: Node, grad: Tensor) -> Gradients:
    return grad, grad


def add_here(first: Tensor, second: Tensor) -> Tensor:
    """``first += second``."""
    return seen_again(first, record(_add_back, (first, second)))


def scale_here(tensor: Tensor) -> Tensor:
    """``tensor *= number``."""
    return seen_again(tensor, record(_new_one, (tensor,)))


def seen_again(tensor: Tensor, node: Node | None) -> Tensor:
    """What an operator made of a tensor in its place."""
    return Tensor(tensor.shape, tensor.dtype, tensor.strides, tensor.storage, node)


def sub(first: Tensor, second: Tensor) -> Tensor:
    shape, strides = broadcast(first, second)
    return new(shape, promoted(first, second), strides, record(_sub_back, (first, second)))


def _sub_back(node: Node, grad: Tensor) -> Gradients:
    return grad, None if node.edges[1] is None else like(grad)


def mul(first: Tensor, second: Tensor) -> Tensor:
    """Each is kept where the other needs a gradient."""
    kept = (second if first.needs else None, first if second.needs else None)
    node = record(_mul_back, (first, second), kept)
    shape, strides = broadcast(first, second)
    return new(shape, promoted(first, second), strides, node)


def mul_here(first: Tensor, second: Tensor) -> Tensor:
    """``first *= second`` of what needs no gradient."""
    return seen_again(first, record(_mul_back, (first, second), (second, None)))


def _mul_back(node: Node, grad: Tensor) -> Gradients:
    second, first = saved(node)
    by_second = _times(grad, first) if node.edges[1] is not None else None
    return _times(grad, second) if node.edges[0] is not None else None, by_second


def _times(grad: Tensor, tensor: Tensor) -> Tensor:
    shape, strides = broadcast(grad, tensor)
    return new(shape, promoted(grad, tensor), strides)


def power(tensor: Tensor) -> Tensor:
    """To a whole power, in fp32 under autocast (``pow`` is on its fp32 list, as ``rsqrt`` is; autocast_mode.h).

    Backward: the power below, times the exponent, times the gradient (``pow_backward``).
    """
    tensor = widened(tensor)
    return like(tensor, None, record(_power_back, (tensor,), (tensor,)))


def _power_back(node: Node, grad: Tensor) -> Gradients:
    (tensor,) = saved(node)
    below = like(tensor)
    times = like(below)
    out = like(grad)
    del below, times
    return (out,)


def mean(tensor: Tensor) -> Tensor:
    """Over the last dimension, kept. Backward expands and divides."""
    return new((*tensor.shape[:-1], 1), tensor.dtype, None, record(whole_back, (tensor,), (), tensor.shape))


def whole_back(node: Node, grad: Tensor) -> Gradients:
    return (new(node.extra, grad.dtype),)


def rsqrt(tensor: Tensor) -> Tensor:
    """Backward: the result cubed, times −1/2, times the gradient."""
    tensor = widened(tensor)
    node = record(_rsqrt_back, (tensor,))
    out = like(tensor, None, node)
    save(node, (bare(out),))
    return out


def _rsqrt_back(node: Node, grad: Tensor) -> Gradients:
    (out,) = saved(node)
    cube = like(out)
    times = like(grad)
    found = like(grad)
    del cube, times
    return (found,)


def _kept_back(node: Node, grad: Tensor) -> Gradients:
    (kept,) = saved(node)
    return (like(kept),)


def silu(tensor: Tensor) -> Tensor:
    """One kernel each way; the input is kept."""
    return like(tensor, None, record(_kept_back, (tensor,), (tensor,)))


gelu = silu  # both forms of torch.nn.functional.gelu: one kernel each way, the input is kept


def relu(tensor: Tensor) -> Tensor:
    """The result is kept."""
    node = record(_kept_back, (tensor,))
    out = like(tensor, None, node)
    save(node, (bare(out),))
    return out


def clamp(tensor: Tensor, *limits: Tensor) -> Tensor:
    """Between two numbers, or tensors of one; the input is kept, and so are they."""
    return like(tensor, None, record(_clamp_back, (tensor,), (tensor, *limits)))


def _clamp_back(node: Node, grad: Tensor) -> Gradients:
    """The gradient where two comparisons hold, laid out as they are (``clamp_backward``, FunctionsManual.cpp)."""
    tensor, *limits = saved(node)
    zero = new((), grad.dtype)
    above, below = like(tensor, BOOL), like(tensor, BOOL)
    both = like(above) if limits else above
    out = like(both, grad.dtype)
    del above, below, both, zero, tensor, limits
    return (out,)


tanh = relu  # tanh, too, keeps its result


def gelu_new(tensor: Tensor) -> Tensor:
    """``NewGELUActivation`` (transformers/activations.py), written out in elementwise operators, in its order."""
    return mul(scale(tensor), plus(tanh(scale(add(tensor, scale(power(tensor)))))))


def quick_gelu(tensor: Tensor) -> Tensor:
    """``QuickGELUActivation`` (transformers/activations.py), as it is written; the sigmoid's result is kept."""
    return mul(tensor, tanh(scale(tensor)))  # as of a tanh, the result of a sigmoid is kept


def gelu_by_function(tensor: Tensor) -> Tensor:
    """``GeLUFunction`` (models/bloom/modeling_bloom.py): elementwise operators, of which only the input is kept."""
    node = record(_gelu_back, (tensor,), (tensor,))
    halved = like(tensor)
    bent = _bent(tensor)
    bent = like(tensor)  # tanh
    bent = like(tensor)
    out = like(tensor, None, node)
    del halved, bent
    return out


def _bent(tensor: Tensor) -> Tensor:
    """``0.79788456 * x * (1 + 0.044715 * x * x)``."""
    scaled = like(tensor)
    squared = like(tensor)
    squared = like(tensor)
    squared = like(tensor)
    out = like(tensor)
    del scaled, squared
    return out


def _gelu_back(node: Node, grad: Tensor) -> Gradients:
    """``bloom_gelu_back``, in its order."""
    (tensor,) = saved(node)
    bent = _bent(tensor)
    bent = like(tensor)  # tanh
    halved = like(tensor)
    flat = like(tensor)
    flat = like(tensor)
    steep = like(tensor)
    steep = like(tensor)
    steep = like(tensor)
    inner = like(tensor)
    del flat, steep
    left = like(tensor)
    del halved, inner
    right = like(tensor)
    right = like(tensor)
    slope = like(tensor)
    del left, right
    out = like(grad)
    del slope, bent, tensor
    return (out,)


def relu_squared(tensor: Tensor) -> Tensor:
    """``ReLUSquaredActivation`` (transformers/activations.py)."""
    return power(relu(tensor))


def dropout(tensor: Tensor, p: float) -> Tensor:
    """A result and a bool mask (native_dropout, ATen/native/cuda/Dropout.cu); nothing in evaluation or with p = 0."""
    if not (p and world.training):
        return tensor
    node = record(_dropout_back, (tensor,))
    out, mask = like(tensor, None, node), like(tensor, BOOL)
    save(node, (mask,))
    return out


def _dropout_back(node: Node, grad: Tensor) -> Gradients:
    mask = saved(node)
    out = like(grad)
    del mask
    return (out,)


def where(mask: Tensor, tensor: Tensor) -> Tensor:
    """``torch.where(mask, tensor, number)``: laid out as ``tensor``, also where its batch is 1."""
    node = record(_where_back, (tensor,), (mask,))
    shape = tuple(max(x, y) for x, y in zip(mask.shape, tensor.shape, strict=True))
    number = new((), tensor.dtype)
    strides, step = [0] * len(shape), 1
    for at in sorted(range(1, len(shape)), key=lambda at: (tensor.strides[at], -at)):
        strides[at] = step
        step *= shape[at]
    strides[0] = step
    out = new(shape, tensor.dtype, tuple(strides), node)
    del number
    return out


def chosen(tensor: Tensor) -> Tensor:
    """``torch.where`` of a mask and a number that are there already; the mask, a buffer's part, is kept."""
    node = record(_where_back, (tensor,), (new((0,), BOOL),))
    return like(tensor, None, node)


def _where_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    zero = new((), grad.dtype)
    out = like(grad)
    del kept, zero
    return (out,)


def softmax(tensor: Tensor, dtype: str | None = None) -> Tensor:
    """In the type ``dtype``, where it is asked for, or in fp32 under autocast (autocast_mode.h). The result is kept.

    The kernel widens fp16 itself (``half_to_float``, ATen/native/SoftMax.cpp); else there is a copy before it.
    """
    dtype = dtype or (F32 if world.autocast is not None else tensor.dtype)
    if tensor.dtype != dtype and not (tensor.dtype == F16 and dtype == F32):
        tensor = like(tensor, dtype, record(passed, (tensor,)))
    node = record(_softmax_back, (tensor,), (), tensor.dtype)
    out = new(tensor.shape, dtype, None, node)
    save(node, (bare(out),))
    _copied_for_kernel(tensor)
    return out


def safe_softmax(tensor: Tensor) -> Tensor:
    """``_safe_softmax``: rows without any key become zeros (ATen/native/transformers/attention.cpp)."""
    node = record(_softmax_back, (tensor,), (), tensor.dtype)
    plain, lowest = new(tensor.shape, tensor.dtype), new((), tensor.dtype)
    masked = new(tensor.shape, BOOL)
    rows, zero = new((*tensor.shape[:-1], 1), BOOL), new((), tensor.dtype)
    out = new(tensor.shape, tensor.dtype, None, node)
    save(node, (bare(out),))
    del plain, lowest, masked, rows, zero
    return out


def _softmax_back(node: Node, grad: Tensor) -> Gradients:
    """The kernel makes gradient × result first (softmax_backward_cuda_out, ATen/native/cuda/SoftMax.cu)."""
    kept = saved(node)
    out = like(grad, node.extra)
    product = like(grad)
    del kept, product
    return (out,)


def layer_norm(tensor: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Mean and deviation are kept in fp32, a row each; under autocast the input is cast to fp32 first.

    Source: ATen/native/cuda/layer_norm_kernel.cu, autocast_mode.h.
    """
    bias = bias and widened(bias)  # C++ evaluates arguments last first
    weight = weight and widened(weight)
    tensor = widened(tensor)
    inputs = [t for t in (tensor, weight, bias) if t is not None]
    node = record(_layer_norm_back, inputs, (tensor, weight, bias))
    out = new(tensor.shape, tensor.dtype, None, node)
    rows = (*tensor.shape[:-1], 1)
    averages, deviations = new(rows, F32), new(rows, F32)
    save(node, (averages, deviations))
    _copied_for_kernel(tensor)
    return out


def _copied_for_kernel(tensor: Tensor) -> None:
    """The kernels' own copy of what is not contiguous (``expect_contiguous``; ``host_softmax`` of SoftMax.cu), as
    convolutions and transposes leave it."""
    if not is_contiguous(tensor):
        scratch(prod(tensor.shape) * WIDTH[tensor.dtype])


def _layer_norm_back(node: Node, grad: Tensor) -> Gradients:
    """Input's, weight's and bias's gradient at once, only those wanted."""
    kept = saved(node)
    outs = [None if edge is None else new(edge[1], edge[2]) for edge in node.edges]
    _copied_for_kernel(kept[0])
    del kept
    return outs
