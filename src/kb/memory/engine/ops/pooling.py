"""Operators of embeddings: pooling over tokens, norms, similarities of all pairs, sums of exponentials."""

from kb.memory.engine.ops.gathers import gather
from kb.memory.engine.ops.losses import divide_back
from kb.memory.engine.ops.pointwise import mul
from kb.memory.engine.ops.shapes import cast, cat, expand, transpose
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import BOOL, F32, I32, I64, Tensor, bare, like, new
from kb.memory.engine.world import world


def averaged_squares(x: Tensor, side: int) -> Tensor:
    """``torch.nn.AvgPool2d`` of (batch, rows, height, width), whose strides are its kernel's sides."""
    node = record(_squares_back, (x,), (x,))
    return new((*x.shape[:2], x.shape[2] // side, x.shape[3] // side), x.dtype, None, node)


def _squares_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = new(kept[0].shape, grad.dtype)
    del kept
    return (out,)


def averaged(tokens: Tensor, mask: Tensor) -> Tensor:
    """``Pooling`` by ``mean``: what is no padding, summed in fp32, by its number; ``cat`` copies the one result."""
    return cat([_averaged(tokens, mask)])


def _averaged(tokens: Tensor, mask: Tensor) -> Tensor:
    seen = new((*mask.shape, 1), tokens.dtype)
    total = summed_rows(mul(tokens, seen))
    counted = new((mask.shape[0], 1), total.dtype)
    counted = new(counted.shape, counted.dtype)  # clamped
    found = new(total.shape, total.dtype, None, record(divide_back, (total,), (counted,)))
    return cast(found, tokens.dtype)


def summed_rows(tensor: Tensor) -> Tensor:
    """``sum(dim=1, dtype=torch.float32)``."""
    shape = (tensor.shape[0], tensor.shape[2])
    return new(shape, F32, None, record(_expand_back, (tensor,), (), tensor.shape))


def _expand_back(node: Node, grad: Tensor) -> Gradients:
    width = node.extra[-1]
    return (Tensor(node.extra, grad.dtype, (width, 0, 1), grad.storage, based=True),)


def first_token(tokens: Tensor, mask: Tensor) -> Tensor:
    """``Pooling`` by ``cls``: the first token that is no padding, gathered."""
    return cat([_gathered(tokens, mask)])


def _gathered(tokens: Tensor, mask: Tensor) -> Tensor:
    whole = new(mask.shape, I32)
    at = new((mask.shape[0],), I64)
    del whole
    return gather(tokens, at, (tokens.shape[0], tokens.shape[2]))


def normalized(x: Tensor) -> Tensor:
    """``torch.nn.functional.normalize``: the norm of each row, at least a little, and a quotient that keeps both."""
    norm = _norm(x)
    least = like(norm, None, record(_clamped_back, (norm,), (norm,)))
    spread = expand(least, x.shape)
    del norm, least
    node = record(_quotient_back, (x, spread), (x, spread))
    return new(x.shape, x.dtype, None, node)


def _norm(x: Tensor) -> Tensor:
    """``linalg_vector_norm``; input and result are kept."""
    node = record(_norm_back, (x,), (x,))
    out = new((*x.shape[:-1], 1), x.dtype, None, node)
    save(node, (bare(out),))
    return out


def _norm_back(node: Node, grad: Tensor) -> Gradients:
    """``linalg_vector_norm_backward`` of the second norm: x ÷ norm, zero where the norm is, times the gradient."""
    x, norm = saved(node)
    scaled = like(x)
    flags = like(norm, BOOL)
    out = like(x)
    del scaled, flags, x, norm
    return (out,)


def _clamped_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    zero = new((), grad.dtype)
    flags = like(grad, BOOL)
    out = like(grad)
    del kept, flags, zero
    return (out,)


def _quotient_back(node: Node, grad: Tensor) -> Gradients:
    """The norm's first, −gradient × ((x ÷ norm) ÷ norm) (``div_tensor_other_grad``), then the gradient ÷ norm."""
    kept = saved(node)
    once = like(grad)
    twice = like(grad)
    minus = like(grad)
    by_norm = like(grad)
    del once, twice, minus
    by_x = like(grad)
    del kept
    return by_x, by_norm


def cos_sim(first: Tensor, second: Tensor) -> Tensor:
    """Cosines of all pairs, in fp32."""
    first, second = cast(first, F32), cast(second, F32)
    one, other = normalized(first), normalized(second)
    turned = transpose(other, 0, 1)
    node = record(_mm_back, (one, turned), (turned if one.needs else None, one if other.needs else None))
    out = new((one.shape[0], other.shape[0]), F32, None, node)
    world.multiplied()
    return out


def _mm_back(node: Node, grad: Tensor) -> Gradients:
    """The second's gradient is made transposed, as its operand lies."""
    kept = saved(node)
    one, other = node.edges
    by_other = None
    if other is not None:
        width, rows = other[1]
        made = new((rows, width), grad.dtype)
        by_other = Tensor((width, rows), grad.dtype, (1, width), made.storage, based=True)
        world.multiplied()
        del made
    by_one = None if one is None else new(one[1], grad.dtype)
    world.multiplied()
    del kept
    return by_one, by_other


def rows_of(tensor: Tensor, at: Tensor) -> Tensor:
    """``tensor[at]``; gradients are put into zeros of the whole."""
    node = record(_put_back, (tensor,), (at,), tensor.shape)
    return new((at.shape[0], *tensor.shape[1:]), tensor.dtype, None, node)


def diagonal(scores: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``scores[rows, columns]``."""
    node = record(_put_back, (scores,), (rows, columns), scores.shape)
    return new((rows.shape[0],), scores.dtype, None, node)


def _put_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = new(node.extra, grad.dtype)
    del kept
    return (out,)


def logsumexp(scores: Tensor) -> Tensor:
    """``logsumexp_out_impl`` (ATen/native/ReduceOps.cpp): the largest, and the exponentials of what is left."""
    node = record(_logsumexp_back, (scores,), (scores,))
    rows = scores.shape[:1]
    maxes = new((*rows, 1), scores.dtype)
    sizes = new(rows, scores.dtype)
    flags = new(rows, BOOL)
    del sizes, flags
    apart = like(scores)
    out = new(rows, scores.dtype, None, node)
    del apart, maxes
    save(node, (bare(out),))
    return out


def _logsumexp_back(node: Node, grad: Tensor) -> Gradients:
    """gradient × exp(scores − result)."""
    kept = saved(node)
    apart = like(kept[0])
    powers = like(apart)
    out = like(powers)
    del apart, powers, kept
    return (out,)


def averaged_all(tensor: Tensor) -> Tensor:
    """``mean()``."""
    return new((), tensor.dtype, None, record(_mean_back, (tensor,), (), tensor.shape))


def _mean_back(node: Node, grad: Tensor) -> Gradients:
    return (new(node.extra, grad.dtype),)


def dot(first: Tensor, second: Tensor) -> Tensor:
    """``torch.dot`` of two tensors laid flat; the second needs no gradient."""
    node = record(_dot_back, (first,), (second,))
    return new((), first.dtype, None, node)


def _dot_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = like(kept[0])
    del kept
    return (out,)
