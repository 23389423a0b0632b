"""What bitsandbytes' layers, kernels and loaders allocate in 4 and in 8 bits, in their order (bitsandbytes 0.50).

Sources: bitsandbytes/autograd/_functions.py, nn/modules.py, backends/cuda/ops.py and backends/default/ops.py;
transformers/integrations/bitsandbytes.py (``Bnb8bitQuantize``).

In 8 bits (LLM.int8()) no input is an outlier here: which columns hold a value of ``llm_int8_threshold`` or more only
the values say. A layer keeps of each such column a copy beside the input that it keeps whole, so that one of K columns
adds one Kth of that.
"""

import re
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from kb.memory.engine.autocast import half
from kb.memory.engine.kernel_choice import takes_one_kernel
from kb.memory.engine.ops.pointwise import plus
from kb.memory.engine.ops.shapes import cast, contiguous
from kb.memory.engine.tape import Gradients, Node, record
from kb.memory.engine.tensor import (
    BF16,
    BOOL,
    F16,
    F32,
    I8,
    I32,
    WIDTH,
    Storage,
    Tensor,
    like,
    mark,
    new,
    packed,
    viewed,
)
from kb.memory.engine.world import Recording, world

DOUBLE_BLOCK = 256
WARM_UP_LEAVES = int(1.2 * 1024**3)  # bytes of a GPU that caching_allocator_warmup does not take
CODE = (16,)
TABLE = (256,)
NARROWED = "lm_head|embed_tokens|wte|wpe"  # names in TRL's peft_module_casting_to_bf16


if TYPE_CHECKING:
    from kb.memory.engine.modules import Linear, Model
    from kb.memory.engine.options import Quantization

NF4_BLOCK = 64


class State:
    """``QuantState``: scales of 64 values each; with double quantization in 8 bits, with scales of their own."""

    __slots__ = ("code", "nested", "offset", "scales", "second", "table")

    code: Tensor
    nested: bool
    offset: Tensor
    scales: Tensor
    second: Tensor
    table: Tensor


def packed_elements(shape: tuple[int, ...], storage: str) -> int:
    """Elements of ``storage`` that hold a packed weight (``quantize_4bit``, backends/cuda/ops.py)."""
    return (prod(shape) + 1) // (2 * WIDTH[storage])


def quantize(weight: Tensor, nested: bool, storage: str = I8) -> tuple[Tensor, State]:
    """``functional.quantize_4bit``: the packed weight and its state.

    ``get_4bit_type`` keeps 512 bytes a weight and makes two temporaries; double quantization sends the table of 8-bit
    values to the GPU for each weight and keeps a second copy (``quantize_blockwise``).
    """
    count, state = prod(weight.shape), State()
    scales = new((-(-count // NF4_BLOCK),), F32)
    stored = new((packed_elements(weight.shape, storage), 1), storage)
    state.code, state.nested = new(CODE, F32), nested
    temporaries = plus(state.code), new((), F32)  # divided by its largest
    del temporaries
    if nested:
        state.offset = new((), F32)
        centred = like(scales)
        copy = new(TABLE, F32)
        state.second = new((-(-centred.shape[0] // DOUBLE_BLOCK),), F32)
        state.scales = like(centred, I8)
        del copy
        state.table = new(TABLE, F32)
        del centred, scales
        kept = [state.offset, state.second, state.scales, state.table]
    else:
        state.scales = scales
        kept = [scales]
    for tensor in (*kept, state.code):
        mark(tensor, "quantization")
    return stored, state


def natural(path: str) -> list[tuple[int, int | str]]:
    """transformers' ``dot_natural_key``: numbers by value, before words."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in path.split(".")]


def load(model: "Model") -> None:
    """``from_pretrained`` in 4 or 8 bits: in the order of names, each weight in 16 bits, let go once packed.

    One block of the loaded size comes first (``caching_allocator_warmup``). ``prepare_model_for_kbit_training`` then
    widens whatever is not packed, embeddings and output layer too (transformers core_model_loading.py,
    peft/utils/other.py). Where packed weights wait for FSDP on the host, their scales stay on the GPU
    (``_load_state_dict_into_meta_model`` of transformers 4.57: ``value.data.to(device)``).
    """
    quantization = model.options.quantization
    assert quantization is not None
    if quantization.packed_on != "gpu":
        _load_to_host(model, quantization)
        return

    packing = {id(linear.weight): linear for linear in model.linears if linear.packs}
    width = 1.0 if quantization.eight else 0.5
    size = sum(
        int(prod(t.shape) * (width if id(t) in packing else WIDTH[quantization.compute])) for _, t in model.parameters
    )
    del_later = Storage(size)
    del del_later
    for tensor in world.recording.turns(sorted(model.parameters, key=lambda entry: natural(entry[0]))):
        if id(tensor) not in packing:
            tensor.storage = Storage(prod(tensor.shape) * WIDTH[tensor.dtype])
            continue
        wide = new(tensor.shape, quantization.compute)
        stored, packing[id(tensor)].state = (
            quantize_8bit(wide) if quantization.eight else quantize(wide, quantization.double, quantization.storage)
        )
        tensor.storage = stored.storage
        del wide, stored
    model.buffers = [new(shape, dtype) for shape, dtype in model.buffers]
    _prepare(model, packing)


def _prepare(model: "Model", packing: Mapping[int, "Linear"]) -> None:
    quantization = model.options.quantization
    if quantization is not None and quantization.prepare:
        for tensor in world.recording.turns(model.parameters):
            if id(tensor) not in packing and tensor.dtype != F32:
                tensor.dtype = F32
                tensor.storage = Storage(prod(tensor.shape) * WIDTH[F32])
        world.recording.empty_cache()


def _load_to_host(model: "Model", quantization: "Quantization") -> None:
    """Each weight is packed on the GPU and leaves it; what is not packed never was there."""
    host = world.recording
    gpu: Recording = host.gpu or host
    packing = {id(linear.weight): linear for linear in model.linears if linear.packs}
    if quantization.packed_on == "warmed":
        world.recording = gpu
        room = gpu.limit
        size = sum(prod(tensor.shape) for _, tensor in model.parameters)  # a quarter of 16 bits, of 16-bit elements
        del_later = Storage(size if room is None else max(0, min(size, room - WARM_UP_LEAVES)))
        del del_later
    for _, tensor in sorted(model.parameters, key=lambda entry: natural(entry[0])):
        if id(tensor) in packing:
            world.recording = gpu
            wide = new(tensor.shape, quantization.compute)
            stored, packing[id(tensor)].state = quantize(wide, quantization.double, quantization.storage)
            del wide, stored
        world.recording = host
        tensor.storage = Storage(0)
    model.buffers = [new(shape, dtype) for shape, dtype in model.buffers]
    _prepare(model, packing)


def narrow_tables(model: "Model") -> None:
    """``peft_module_casting_to_bf16`` of TRL: what preparation made fp32 and is named so goes to bf16."""
    trained = [(linear.path, tensor) for linear in model.linears for tensor in (linear.weight, linear.bias) if tensor]
    named = [*model.parameters, *trained]
    for path, tensor in world.recording.turns((path, (path, tensor)) for path, tensor in named):
        if tensor.dtype == F32 and re.search(NARROWED, path) is not None:
            tensor.dtype, tensor.storage = BF16, Storage(prod(tensor.shape) * WIDTH[BF16])
            mark(tensor, "adapters" if tensor.needs else "parameters")


def linear(x: Tensor, layer: "Linear") -> Tensor:
    """``Linear4bit.forward``: the input is cast to the compute type, the result back; a bias is narrowed for good."""
    quantization = layer.model.options.quantization
    assert quantization is not None

    if quantization.eight:
        return linear_8bit(x, layer)
    kept = x.dtype
    x = cast(x, quantization.compute)
    if layer.bias is not None and layer.bias.dtype != quantization.compute:
        layer.bias.dtype = quantization.compute
        layer.bias.storage = Storage(prod(layer.bias.shape) * WIDTH[quantization.compute])
        mark(layer.bias, "parameters")
    return cast(_matmul(x, layer), kept)


def unpacked(layer: "Linear") -> Tensor:
    """``functional.dequantize_4bit``: the weight in the type that it was loaded in; nested scales come first."""
    quantization, state = layer.model.options.quantization, layer.state
    assert quantization is not None and isinstance(state, State)
    first = second = None
    if state.nested:
        first = new(state.scales.shape, F32)
        second = like(first)
    weight = new(layer.weight.shape, quantization.compute)
    del first, second
    return weight


def _matmul(x: Tensor, layer: "Linear") -> Tensor:
    """``MatMul4Bit``: one kernel for few rows, else a 16-bit copy of the weight and a product. x is not kept."""
    inputs = prod(x.shape[:-1])
    columns, width = layer.weight.shape
    if world.autocast is not None:
        x = half(x)
    node = record(_matmul_back, (x,), (), layer)
    out_shape = (*x.shape[:-1], columns)
    if width % NF4_BLOCK == 0 and takes_one_kernel(world.capability, x.dtype, inputs, columns, width):
        return new(out_shape, x.dtype, None, node)
    state: Any = layer.state
    first = second = None
    if state.nested:
        first = new(state.scales.shape, F32)
        second = like(first)
    weight = new(layer.weight.shape, x.dtype)
    out = new(out_shape, x.dtype, None, node)
    del weight, second, first
    return out


def _matmul_back(node: Node, grad: Tensor) -> Gradients:
    """The weight is made wide again; with nested scales these are one tensor here (backends/cuda/ops.py)."""
    layer = node.extra
    wide = new(layer.state.scales.shape, F32) if layer.state.nested else None
    weight = new(layer.weight.shape, grad.dtype)
    del wide
    world.multiplied()
    out = new((*grad.shape[:-1], layer.weight.shape[1]), grad.dtype)
    del weight
    return (out,)


# --- 8 bits -----------------------------------------------------------------------------------------------------------


def quantize_8bit(wide: Tensor) -> tuple[Tensor, Tensor]:
    """The weight in 8 bits (``CB``) and the largest of each row (``SCB``).

    What was loaded goes to the host and comes back in fp16.
    """
    again = like(wide, F16)
    scales = new((wide.shape[0],), F32)
    stored = new(wide.shape, I8)
    mark(scales, "quantization")
    del again
    return stored, scales


def linear_8bit(x: Tensor, layer: "Linear") -> Tensor:
    """``Linear8bitLt.forward``, in the input's type, which autocast leaves; a bias takes that type for good."""
    if layer.bias is not None and layer.bias.dtype != x.dtype:
        layer.bias.dtype = x.dtype
        layer.bias.storage = Storage(prod(layer.bias.shape) * WIDTH[x.dtype])
        mark(layer.bias, "parameters")
    rows, (columns, width) = prod(x.shape[:-1]), layer.weight.shape
    flat = _as_rows((rows, width), x)
    # The function's own attribute, not what autograd saves: no checkpoint takes it away, nor does the end of backward.
    node = record(_matmul_8bit_back, (x,), (), (layer, flat))
    row_scales, narrow = _rows_quantized(flat)
    product = new((rows, columns), I32)
    out = like(product, F16)
    if x.dtype != F16:
        out = like(out, x.dtype)
    del product, narrow, row_scales
    return Tensor((*x.shape[:-1], columns), x.dtype, packed((*x.shape[:-1], columns)), out.storage, node)


def _rows_quantized(x: Tensor) -> tuple[Tensor, Tensor]:
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


def _as_rows(shape: tuple[int, int], x: Tensor) -> Tensor:
    """``reshape(-1, width)``: a copy of what cannot be seen so."""
    strides = viewed(x, shape)
    return new(shape, x.dtype) if strides is None else Tensor(shape, x.dtype, strides, x.storage)


def _matmul_8bit_back(node: Node, grad: Tensor) -> Gradients:
    """The weight in the input's type, made for the product."""
    layer, flat = node.extra
    columns, width = layer.weight.shape
    grad = contiguous(_as_rows((flat.shape[0], columns), grad))
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
