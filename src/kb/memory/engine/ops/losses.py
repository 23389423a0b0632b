"""Losses: cross-entropy as the models compute it, and the Trainer's label smoother."""

from kb.memory.engine.ops.gathers import filled_back, gather
from kb.memory.engine.ops.pointwise import add, neg, scale
from kb.memory.engine.ops.shapes import cast
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, bare, like, new
from kb.memory.engine.world import world


def log_softmax(tensor: Tensor) -> Tensor:
    """The result is kept."""
    node = record(_log_softmax_back, (tensor,))
    out = like(tensor, None, node)
    save(node, (bare(out),))
    return out


def _log_softmax_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = like(grad)
    del kept
    return (out,)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """log_softmax, an fp32 copy of 16-bit results under autocast (nll_loss is on its fp32 list), nll_loss.

    Source: torch/nn/functional.py cross_entropy, LossNLL.cpp; the narrow result lives until the loss is there.
    """
    logs = log_softmax(logits)
    narrow = logs
    if world.autocast is not None:
        logs = cast(logs, F32)
    node = record(_nll_back, (logs,), (logs, labels), logs.shape)  # self, target, total_weight
    loss = new((), logs.dtype, None, node)
    total = new((), logs.dtype)
    save(node, (total,))
    del narrow
    return loss


def _nll_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = new(node.extra, grad.dtype)
    del kept
    return (out,)


def smoothed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """``LabelSmoother`` (trainer_pt_utils.py), outside autocast, on the outputs that accelerate has made fp32.

    log_softmax, its negative (kept by gather, for its shape); in backward gather's gradient, its sum with the other's,
    neg, log_softmax's.
    """
    log_probs = neg(log_softmax(logits))
    padding_mask = new((*labels.shape, 1), BOOL)
    labels = new((*labels.shape, 1), I64)  # clamp
    nll_loss = gather(log_probs, labels, labels.shape)
    smoothed = _sum_last(log_probs)
    _masked_fill(nll_loss, padding_mask)
    _masked_fill(smoothed, padding_mask)
    counted = new(labels.shape, I64)
    total = new((), I64)
    del counted
    denominator = new((), I64)
    del total
    nll_loss = _divide(_sum(nll_loss), denominator)
    summed = _sum(smoothed)
    classes = new((), I64)
    smoothed = _divide(summed, classes)
    del summed, classes
    return add(scale(nll_loss), scale(smoothed))


def _sum_last(tensor: Tensor) -> Tensor:
    return new((*tensor.shape[:-1], 1), F32, None, record(_expand_back, (tensor,), (), tensor.shape))


def _sum(tensor: Tensor) -> Tensor:
    return new((), tensor.dtype, None, record(_expand_back, (tensor,), (), tensor.shape))


def _expand_back(node: Node, grad: Tensor) -> Gradients:
    return (Tensor(node.extra, grad.dtype, (0,) * len(node.extra), grad.storage, based=True),)


def _masked_fill(tensor: Tensor, mask: Tensor) -> None:
    """In place: only the tape notices."""
    tensor.node = record(filled_back, (tensor,), (mask,)) or tensor.node


def _divide(tensor: Tensor, by: Tensor) -> Tensor:
    return new((), tensor.dtype, None, record(divide_back, (tensor,), (by,)))


def divide_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = like(grad)
    del kept
    return (out,)


def row_sums(tensor: Tensor) -> Tensor:
    """A sum for each row."""
    return new((tensor.shape[0],), tensor.dtype, None, record(_expand_back, (tensor,), (), tensor.shape))


def averaged_rows(tensor: Tensor, mask: Tensor) -> Tensor:
    """``(x * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)``: a row's average of what is no padding.

    Sums are on autocast's fp32 list (autocast_mode.h); the mask is of whole numbers and changes no type.
    """
    rows, _, width = tensor.shape
    masked = new(tensor.shape, tensor.dtype, None, record(_masked_back, (tensor,), (mask,)))
    if world.autocast is not None:
        masked = cast(masked, F32)
    total = new((rows, width), masked.dtype, None, record(_expand_back, (masked,), (), masked.shape))
    del masked
    counted = new((rows, 1), I64)
    return new((rows, width), total.dtype, None, record(divide_back, (total,), (counted,)))


def _masked_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = new(grad.shape, grad.dtype)
    del kept
    return (out,)


def scalar_of(tensor: Tensor) -> Tensor:
    """What a loss makes of a number for each row, down to one."""
    return _sum(tensor)


def summed(tensor: Tensor) -> Tensor:
    """The sum as a loss: its gradient is one number, spread over all elements once a product reads it (cuBLAS knows no
    strides of zero)."""
    return new((), tensor.dtype, None, record(_spread_back, (tensor,), (), tensor.shape))


def _spread_back(node: Node, grad: Tensor) -> Gradients:
    return (new(node.extra, grad.dtype),)
