"""DoRA: LoRA whose matrices keep their columns' lengths (peft/tuners/lora/dora.py, variants.py of PEFT 0.21)."""

from typing import TYPE_CHECKING

from kb.memory.engine import ops, quantized
from kb.memory.engine.tape import Gradients, Node, record, saved
from kb.memory.engine.tensor import Storage, Tensor, bare, like, new
from kb.memory.engine.world import world

if TYPE_CHECKING:
    from kb.memory.engine.modules import Linear


def magnitude_of(linear: "Linear") -> Tensor:
    """``DoraLinearLayer.update_layer``: the lengths of the weight with its adapters, as a parameter."""
    copy = None if linear.state is None else Storage(linear.weight.storage.size)  # of the layer, lest FSDP fail
    weight = _wide(linear)
    product = new(linear.sides(), weight.dtype)
    world.multiplied()
    found = _norm(upright(linear, weight), product)
    del copy
    return found


def _wide(linear: "Linear") -> Tensor:
    """``dequantize_module_weight``: packed weights are made whole for each call (peft/utils/integrations.py)."""
    return linear.weight if linear.state is None else quantized.unpacked(linear)


def upright(linear: "Linear", weight: Tensor) -> Tensor:
    """``transpose`` (peft/utils/other.py) where the layer's weight is turned: of the weight itself a parameter of its
    own, which wants a gradient."""
    if not linear.turned:
        return weight
    rows, columns = linear.sides()
    seen = Tensor((rows, columns), weight.dtype, (1, rows), weight.storage)
    seen.needs = weight is linear.weight
    return seen


def forward(linear: "Linear", x: Tensor, result: Tensor) -> Tensor:
    """``DoraLinearVariant.forward``: beside a dropout the base layer is asked again, for what the dropout left."""
    base: Tensor | None = result
    dropped = linear.model.adapter_dropout
    if dropped and world.training:
        x = ops.dropout(x, dropped)
        base = None
    return ops.add(result, _layer(linear, x, base))


def _layer(linear: "Linear", x: Tensor, base: Tensor | None) -> Tensor:
    """``DoraLinearLayer.forward``: the product of both matrices, made whole for its lengths alone."""
    a, b, magnitude = linear.a, linear.b, linear.magnitude
    assert a is not None
    assert b is not None
    assert magnitude is not None
    whole = _whole(a, b)
    whole = ops.cast(whole, x.dtype)
    weight = ops.cast(_wide(linear), x.dtype)
    norm = _norm(upright(linear, weight), bare(whole))
    scaled = ops.view(_divide(magnitude, norm), (1, magnitude.shape[0]))
    adapted = ops.linear(ops.linear(x, a), b)
    if base is None:
        base = ops.linear(x, upright(linear, weight))
    elif linear.bias is not None:
        base = ops.sub(base, linear.bias)
    first = ops.mul(ops.plus(scaled), base)
    out = ops.add(first, ops.scale(ops.mul(scaled, adapted)))
    del first, whole, weight, norm
    return out


def _whole(a: Tensor, b: Tensor) -> Tensor:
    """``get_lora_weight``: both layers' answer to an identity.

    Nothing runs back through it. A checkpoint keeps nothing of what is gone by the end of the call: not in the first
    forward, and in the second only as long as the call lasts (``weak_holders`` of torch/utils/checkpoint.py).
    """
    identity = new((a.shape[1], a.shape[1]), a.dtype)
    frame, again, world.recomputed = world.frame, world.recomputed, None
    count = frame.count if frame is not None else 0
    whole = ops.transpose(ops.linear(ops.linear(identity, a), b), 0, 1)
    world.recomputed = again
    if frame is not None:
        frame.count = count
    return whole


def _norm(weight: Tensor, whole: Tensor) -> Tensor:
    """``get_weight_norm``: a length for each row of the sum."""
    weight = ops.add(weight, ops.scale(whole))
    return ops.cast(new((weight.shape[0],), weight.dtype), weight.dtype)


def _divide(tensor: Tensor, by: Tensor) -> Tensor:
    return like(tensor, None, record(_divide_back, (tensor,), (by,)))


def _divide_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = like(grad)
    del kept
    return (out,)
