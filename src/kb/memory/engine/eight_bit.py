"""LLM.int8(): what bitsandbytes' 8-bit layers allocate, in their order (bitsandbytes 0.50).

Sources: bitsandbytes/autograd/_functions.py (``MatMul8bitLt``), nn/modules.py (``Linear8bitLt``), backends/cuda/ops.py
and backends/default/ops.py; transformers/integrations/bitsandbytes.py (``Bnb8bitQuantize``).

No input is an outlier here: which columns hold a value of ``llm_int8_threshold`` or more only the values say. A layer
keeps of each such column a copy beside the input that it keeps whole, so that one of K columns adds one Kth of that.
"""

from math import prod
from typing import TYPE_CHECKING

from kb.memory.engine.ops.shapes import contiguous
from kb.memory.engine.tape import Gradients, Node, record
from kb.memory.engine.tensor import BOOL, F16, F32, I8, I32, WIDTH, Storage, Tensor, like, mark, new, packed, viewed
from kb.memory.engine.world import world

if TYPE_CHECKING:
    from kb.memory.engine.modules import Linear


def quantize(wide: Tensor) -> tuple[Tensor, Tensor]:
    """The weight in 8 bits (``CB``) and the largest of each row (``SCB``).

    What was loaded goes to the host and comes back in fp16.
    """
    again = like(wide, F16)
    scales = new((wide.shape[0],), F32)
    stored = new(wide.shape, I8)
    mark(scales, "quantization")
    del again
    return stored, scales


def linear(x: Tensor, layer: "Linear") -> Tensor:
    """``Linear8bitLt.forward``, in the input's type, which autocast leaves; a bias takes that type for good."""
    if layer.bias is not None and layer.bias.dtype != x.dtype:
        layer.bias.dtype = x.dtype
        layer.bias.storage = Storage(prod(layer.bias.shape) * WIDTH[x.dtype])
        mark(layer.bias, "parameters")
    rows, (columns, width) = prod(x.shape[:-1]), layer.weight.shape
    flat = _seen((rows, width), x)
    # The function's own attribute, not what autograd saves: no checkpoint takes it away, nor does the end of backward.
    node = record(_back, (x,), (), (layer, flat))
    row_scales, narrow = _quantized(flat)
    product = new((rows, columns), I32)
    out = like(product, F16)
    if x.dtype != F16:
        out = like(out, x.dtype)
    del product, narrow, row_scales
    return Tensor((*x.shape[:-1], columns), x.dtype, packed((*x.shape[:-1], columns)), out.storage, node)


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """``int8_vectorwise_quant`` of an input in fp16, with a look for outliers."""
    half = x if x.dtype == F16 else like(x, F16)
    row_scales = new((x.shape[0],), F32)
    narrow = new(x.shape, I8)
    size = like(half)
    outliers = like(size, BOOL)
    del size
    any_of_them = new((), BOOL)
    del any_of_them, outliers, half
    return row_scales, narrow


def _seen(shape: tuple[int, int], x: Tensor) -> Tensor:
    """``reshape(-1, width)``: a copy of what cannot be seen so."""
    strides = viewed(x, shape)
    return new(shape, x.dtype) if strides is None else Tensor(shape, x.dtype, strides, x.storage)


def _back(node: Node, grad: Tensor) -> Gradients:
    """The weight in the input's type, made for the product."""
    layer, flat = node.extra
    columns, width = layer.weight.shape
    grad = contiguous(_seen((flat.shape[0], columns), grad))
    wide = new((columns, width), flat.dtype)
    scales = new((columns, 1), F32)
    del scales
    if grad.dtype != flat.dtype:
        grad = like(grad, flat.dtype)
    world.multiplied()
    out = new((flat.shape[0], width), flat.dtype)
    del wide
    shape = node.edges[0][1]  # type: ignore[index]
    return (Tensor(shape, flat.dtype, packed(shape), out.storage, based=True),)
