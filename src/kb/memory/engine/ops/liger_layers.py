"""Liger's norm, gated activation and rotary embedding: each one Triton kernel, which keeps what it read.

Sources: liger_kernel/ops/rms_norm.py, swiglu.py, geglu.py and rope.py of liger-kernel 0.6.4 to 0.8.5. Each is a
``torch.autograd.Function``: inside of it nothing is recorded, and what is not contiguous is copied first.
"""

from math import prod

from kb.memory.engine.kernel_choice import MULTIPROCESSORS
from kb.memory.engine.ops.shapes import is_contiguous
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import F32, Tensor, bare, like, new, packed
from kb.memory.engine.world import world


def _contiguous(tensor: Tensor) -> Tensor:
    return bare(tensor) if is_contiguous(tensor) else new(tensor.shape, tensor.dtype)


SPARES = (0, 8, 5)  # from here a frozen norm's gradient is not made (``needs_dw``)


def rms_norm(x: Tensor, weight: Tensor, release: tuple[int, ...], *, in_place: bool) -> Tensor:
    """``LigerRMSNormFunction``: in the input's type; a number in fp32 for each row is kept beside it.

    Args:
        release: liger-kernel's, as numbers.
        in_place: the input's gradient is written over the result's.
    """
    node = record(_rms_norm_back, (x, weight), (), (in_place, release < SPARES))
    read = _contiguous(x)
    out = new(x.shape, x.dtype, None, node)
    save(node, (read, weight, new((prod(x.shape[:-1]),), F32)))
    return out


def _rms_norm_back(node: Node, grad: Tensor) -> Gradients:
    """The weight's gradient is summed by every multiprocessor for itself, and then over them."""
    kept = saved(node)
    weight, (in_place, always) = kept[1], node.extra
    grad = _contiguous(grad)
    shares = by_weight = None
    if always or node.edges[1] is not None:
        processors = MULTIPROCESSORS.get(world.capability, MULTIPROCESSORS[(8, 0)])
        shares = new((processors, *weight.shape), F32)
    out = _over(grad if in_place else like(grad))
    if shares is not None:
        by_weight = new(weight.shape, F32)
        by_weight = by_weight if weight.dtype == F32 else like(weight)
    del shares, kept
    return out, by_weight


def _over(tensor: Tensor) -> Tensor:
    """What was written in a tensor's place: a view of it, made in backward."""
    return Tensor(tensor.shape, tensor.dtype, packed(tensor.shape), tensor.storage, based=True)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """``LigerSiLUMulFunction``, ``LigerGELUMulFunction``: only both inputs are kept, over which backward writes."""
    node = record(_gated_back, (gate, up))
    read = _contiguous(gate), _contiguous(up)
    out = new(gate.shape, gate.dtype, None, node)
    save(node, read)
    return out


def _gated_back(node: Node, grad: Tensor) -> Gradients:
    grad = _contiguous(grad)
    gate, up = saved(node)
    return _over(gate), _over(up)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """``LigerRopeFunction``: queries and keys are turned where they lie, in their own type."""
    node = record(_rotary_back, (q, k))
    if node is not None:
        node.results = 2
    q, k = (_turned(each) for each in (q, k))
    save(node, (cos, sin))
    for at, each in enumerate((q, k)):
        each.node, each.needs = node and (node, at), node is not None
    return q, k


def _turned(heads: Tensor) -> Tensor:
    """Heads (batch, heads, length, width), of a layout in which a token's heads lie side by side."""
    batch, count, length, width = heads.shape
    strides = heads.strides[0], heads.strides[2], heads.strides[1], heads.strides[3]
    tokens = _contiguous(Tensor((batch, length, count, width), heads.dtype, strides, heads.storage))
    a, b, c, d = tokens.strides
    return Tensor(heads.shape, heads.dtype, (a, c, b, d), tokens.storage, based=True)


def _rotary_back(node: Node, grads: list[Tensor | None]) -> Gradients:
    kept = saved(node)
    out = [None if grad is None else _turned(grad) for grad in grads]
    del kept
    return out
