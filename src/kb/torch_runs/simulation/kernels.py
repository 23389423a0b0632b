"""What CUDA kernels allocate and the shapes of their results do not show: scratch, workspaces, dequantized copies;
those of PyTorch, then those of bitsandbytes, whose own layers run unmodified on fake tensors.

Each entry names its source in PyTorch. That of bitsandbytes is ``bitsandbytes/backends/cuda/ops.py`` (0.50), a module
that needs a CUDA build to be imported: its order of allocations is repeated here, and its choice of the 4-bit kernel is
taken from its text. Sizes in bytes. Import only in the simulator's process.

The scratch of attention's backward, long sums and cuBLAS's workspace are the engine's own formulas: a comparison of the
engine with the simulation does not test them; tests of their figures do.
"""

import ast
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kb.memory.engine.kernel_choice import FLOOR_ROWS, MOST_ROWS, MULTIPROCESSORS, summed_buffers
from kb.memory.engine.ops.attention import FLOAT, WIDE_HEAD, efficient_backward_bytes, flash_backward_bytes
from kb.memory.engine.world import workspace_bytes

if TYPE_CHECKING:
    import torch

    from kb.torch_runs.simulation.tracer import Tracer
else:
    from kb.torch_runs.simulation.torch_modules import torch

Stages = Sequence[Sequence[int]]  # what is held together, one after another
aten = torch.ops.aten
WIDE_INTEGER = 8
ALIGNMENT_BYTES = 16
# A product with a bias goes through cuBLASLt, whose own workspace comes on top: 2 × 1 MiB in the runs measured on a T4
# with torch 2.10 and 2.14, for models with biases only.
LT_WORKSPACE_BYTES = 1 << 20


def install(tracer: "Tracer") -> None:
    """Teach the tracer the kernels' own allocations."""
    size = workspace_bytes(tracer.capability)
    for product in (aten.mm, aten.bmm, aten.baddbmm):
        for overload in (product.default, product.out):
            tracer.workspaces[overload] = lambda *_: (size,)
    both = (size, LT_WORKSPACE_BYTES)  # the handle is cuBLAS's, which takes its own first
    for added in (aten.addmm.default, aten.addmm.out, aten.addmm_.default):
        tracer.workspaces[added] = lambda bias, *_: both if bias.dim() == 1 else (size,)
    tracer.scratch |= {
        aten._softmax.default: copied_scratch,
        aten._softmax_backward_data.default: softmax_backward_scratch,
        aten._scaled_dot_product_efficient_attention.default: efficient_scratch,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward_scratch,
        aten._scaled_dot_product_flash_attention_backward.default: flash_backward_scratch,
        aten._flash_attention_backward.default: packed_flash_backward_scratch,
        aten.multinomial.default: multinomial_scratch,
        aten.logsumexp.default: logsumexp_scratch,
        aten.native_layer_norm.default: copied_scratch,
        aten.sum.dim_IntList: summed_scratch,
        aten.mean.dim: summed_scratch,
    }
    tracer.replaced[aten.native_layer_norm_backward.default] = layer_norm_backward
    tracer.replaced[aten.nonzero.default] = every_element
    tracer.replaced[aten.index_put.default] = put_in
    tracer.replaced[aten.masked_scatter.default] = masked_scatter
    tracer.replaced[aten.masked_scatter_backward.default] = masked_scatter_backward
    tracer.replaced[aten.embedding_dense_backward.default] = embedding_backward
    tracer.replaced[aten._grouped_mm.default] = grouped_product
    tracer.replaced[aten._safe_softmax.default] = safe_softmax
    for name in ("_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_fused_adagrad_"):
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            tracer.replaced[getattr(packet, overload)] = in_place


def in_place(tracer: "Tracer", *args: Any, **kwargs: Any) -> None:
    """An optimizer's kernel: everything happens in the tensors that it is given (FusedAdamKernel.cu)."""


def grouped_product(
    tracer: "Tracer",
    left: "torch.Tensor",
    right: "torch.Tensor",
    offsets: "torch.Tensor | None" = None,
    bias: "torch.Tensor | None" = None,
    out_dtype: "torch.dtype | None" = None,
) -> "torch.Tensor":
    """One output, its rows padded to 16 bytes, in any float type: PyTorch's fake kernel knows bf16 alone, where the
    real one multiplies group by group into the same output (aten/src/ATen/native/cuda/GroupedBlas.cpp)."""
    dtype = out_dtype or left.dtype
    shape: tuple[int, ...]
    if left.dim() == 2 and right.dim() == 2:
        assert offsets is not None, "two flat operands are told apart by their offsets"
        shape = (offsets.shape[0], left.shape[0], right.shape[1])
    elif left.dim() == 2 or right.dim() == 2:
        shape = (left.shape[-2], right.shape[-1])
    else:
        shape = (left.shape[0], left.shape[1], right.shape[2])
    width = _up(shape[-1], ALIGNMENT_BYTES // dtype.itemsize)
    strides = (shape[-2] * width, width, 1)[-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=dtype, device=left.device)


def safe_softmax(
    tracer: "Tracer", tensor: "torch.Tensor", dim: int, dtype: "torch.dtype | None" = None
) -> "torch.Tensor":
    """Rows without any key are made zeros, where the fake kernel has one output (``_safe_softmax``,
    aten/src/ATen/native/transformers/attention.cpp)."""
    out = torch.ops.aten._softmax(tensor if dtype is None else tensor.to(dtype), dim, False)
    lowest = torch.full((), -math.inf, dtype=out.dtype, device=out.device)
    masked = tensor.eq(lowest)
    rows = masked.all(dim, keepdim=True)
    zero = torch.full((), 0.0, dtype=out.dtype, device=out.device)
    return torch.where(rows, zero, out)


def embedding_backward(
    tracer: "Tracer", grad: "torch.Tensor", indices: "torch.Tensor", rows: int, *rest: Any
) -> "torch.Tensor":
    """A gradient that is not contiguous (that of T5's position biases) is copied first, and the copy let go
    (embedding_dense_backward_cuda, aten/src/ATen/native/cuda/Embedding.cu)."""
    copy = grad.contiguous()
    out = torch.empty((rows, copy.shape[-1]), dtype=grad.dtype, device=grad.device)
    del copy
    return out


def put_in(
    tracer: "Tracer", zeros: "torch.Tensor", places: Any, values: "torch.Tensor", accumulate: bool = False
) -> "torch.Tensor":
    """A gradient of what was indexed is added to its zeros in place; only fake tensors get a copy (``index_backward``,
    torch/csrc/autograd/FunctionsManual.cpp)."""
    return zeros if accumulate else zeros.clone()


def masked_scatter(
    tracer: "Tracer", tensor: "torch.Tensor", mask: "torch.Tensor", source: "torch.Tensor"
) -> "torch.Tensor":
    """A copy, into which elements are put by the places that a sum of the mask tells: a number for each element, beside
    the mask as wide as the tensor (``masked_scatter__cuda``, aten/src/ATen/native/cuda/IndexKernel.cpp and .cu)."""
    out = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    tracer._book_scratch(
        ((out.numel() * WIDE_INTEGER, 0 if mask.shape == out.shape else out.numel()),), "masked_scatter"
    )
    return out


def masked_scatter_backward(
    tracer: "Tracer", grad: "torch.Tensor", mask: "torch.Tensor", sizes: Sequence[int]
) -> "torch.Tensor":
    """``masked_select``: the mask as wide as the gradient, the places of what it picks, and what is there
    (``masked_scatter_backward_symint``, TensorAdvancedIndexing.cpp; ``nonzero``, cuda/Nonzero.cu)."""
    elements = math.prod(sizes)
    copy = 0 if mask.shape == grad.shape else tracer.hold(grad.numel(), "masked_scatter_backward", "workspace")
    places = tracer.hold(elements * grad.dim() * WIDE_INTEGER, "masked_scatter_backward", "workspace")
    if copy:
        tracer.release(copy)
    out = torch.empty(elements, dtype=grad.dtype, device=grad.device)
    tracer.release(places)
    return out.view(tuple(sizes))


def every_element(tracer: "Tracer", tensor: "torch.Tensor") -> "torch.Tensor":
    """The indices of what is not zero, where nobody can look: of every element, as in a mask without padding."""
    return torch.empty((tensor.numel(), tensor.dim()), dtype=torch.int64, device=tensor.device)


def copied_scratch(tracer: "Tracer", tensor: "torch.Tensor", *rest: Any) -> Stages:
    """What is not contiguous is copied first (``host_softmax``, aten/src/ATen/native/cuda/SoftMax.cu;
    ``expect_contiguous``, aten/.../cuda/layer_norm_kernel.cu)."""
    return () if tensor.is_contiguous() else ((tensor.numel() * tensor.element_size(),),)


def softmax_backward_scratch(tracer: "Tracer", grad: "torch.Tensor", output: "torch.Tensor", *rest: Any) -> Stages:
    """``grad * output`` is materialized first (softmax_backward_cuda_out in aten/.../cuda/SoftMax.cu)."""
    return ((grad.numel() * max(grad.element_size(), output.element_size()),),)


def multinomial_scratch(tracer: "Tracer", shares: "torch.Tensor", count: int, *rest: Any, **named: Any) -> Stages:
    """One sample is drawn by as many random numbers, divided in place (aten/src/ATen/native/Distributions.cpp)."""
    return ((shares.numel() * shares.element_size(),),) if count == 1 else ()


def logsumexp_scratch(tracer: "Tracer", tensor: "torch.Tensor", *rest: Any, **named: Any) -> Stages:
    """Exponentials of what is below the maximum are as large as the input (aten/src/ATen/native/ReduceOps.cpp)."""
    return ((tensor.numel() * tensor.element_size(),),)


def summed_scratch(
    tracer: "Tracer", tensor: "torch.Tensor", dimensions: Sequence[int] | None = None, *rest: Any, **named: Any
) -> Stages:
    """What a sum over many rows holds: see :mod:`kb.memory.engine.kernel_choice`."""
    gone = {at % tensor.dim() for at in dimensions or range(tensor.dim())} if tensor.dim() else set()
    kept = tuple(at not in gone for at in range(tensor.dim()))
    return (summed_buffers(tuple(tensor.shape), tensor.stride(), kept, tracer.capability),)


def layer_norm_backward(
    tracer: "Tracer", grad: "torch.Tensor", tensor: "torch.Tensor", shape: Any, mean: Any, deviation: Any,
    weight: "torch.Tensor | None", bias: "torch.Tensor | None", wanted: Sequence[bool],
) -> "tuple[torch.Tensor | None, ...]":  # fmt: skip
    """Gradients are contiguous, where fake ones lie as the gradient does that they are made of; the norm's input is
    copied where it is not contiguous (``layer_norm_backward_cuda``, aten/.../cuda/layer_norm_kernel.cu)."""
    outs = tuple(
        torch.empty(each.shape, dtype=each.dtype, device=each.device) if needed and each is not None else None
        for each, needed in zip((tensor, weight, bias), wanted, strict=True)
    )
    copy = tensor.contiguous()
    del copy
    return outs


def efficient_scratch(
    tracer: "Tracer", query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor", *rest: Any, **named: Any
) -> Stages:
    """Half kernels of heads wider than their registers hold add up in a float buffer of the output's shape
    (``kNeedsOutputAccumulatorBuffer`` of mem_eff_attention/kernel_forward.h)."""
    if query.dtype == torch.float32 or value.shape[-1] <= WIDE_HEAD:
        return ()
    return ((query.shape[0] * query.shape[1] * query.shape[2] * value.shape[-1] * FLOAT,),)


def efficient_backward_scratch(
    tracer: "Tracer", grad: "torch.Tensor", query: "torch.Tensor", key: "torch.Tensor", *rest: Any, **named: Any
) -> Stages:
    """``_efficient_attention_backward`` (aten/.../transformers/cuda/attention_backward.cu) and its kernels' workspace
    (mem_eff_attention/kernel_backward.h)."""
    narrow = query.dtype != torch.float32
    return efficient_backward_bytes(tuple(query.shape), key.shape[2], tracer.capability, narrow=narrow)


def flash_backward_scratch(
    tracer: "Tracer", grad: "torch.Tensor", query: "torch.Tensor", key: "torch.Tensor", *rest: Any, **named: Any
) -> Stages:
    """Softmax sums and the float accumulator of the query's gradient; where heads are grouped, the gradients of key and
    value for every query head (aten/.../flash_attn/flash_api.cpp, ``mha_bwd``)."""
    batch, heads, length, head = query.shape
    expanded = batch * heads * key.shape[2] * head * key.element_size() if key.shape[1] != heads else 0
    return ((*flash_backward_bytes(batch * heads, _up(length, 128), head), expanded, expanded),)


def packed_flash_backward_scratch(
    tracer: "Tracer", grad: "torch.Tensor", query: "torch.Tensor", key: "torch.Tensor", *rest: Any, **named: Any
) -> Stages:
    """The same for packed sequences (``mha_varlen_bwd``): a tile more for each sequence."""
    tokens, heads, head = query.shape
    starts: torch.Tensor = rest[3]
    expanded = key.shape[0] * heads * head * key.element_size() if key.shape[1] != heads else 0
    return ((*flash_backward_bytes(heads, tokens + 128 * (starts.numel() - 1), head), expanded, expanded),)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def install_bits_and_bytes(tracer: "Tracer") -> None:
    """Teach the tracer bitsandbytes' operators."""
    import bitsandbytes  # noqa: F401  (defines them)

    operators = torch.ops.bitsandbytes
    tracer.replaced |= {
        operators.quantize_4bit.default: quantize_4bit,
        operators.quantize_blockwise.default: quantize_blockwise,
        operators.gemm_4bit.default: gemm_4bit,
        operators.dequantize_4bit.default: dequantize_4bit,
        operators.int8_vectorwise_quant.default: int8_vectorwise_quant,
        operators.int8_scaled_mm.default: int8_scaled_mm,
        operators.int8_mixed_scaled_mm.default: int8_mixed_scaled_mm,
    }
    for name in ("optimizer_update_8bit_blockwise", "optimizer_update_32bit"):
        if hasattr(operators, name):
            tracer.replaced[getattr(operators, name).default] = in_place


@functools.cache
def packed_class(fake: type) -> type:
    """PEFT and accelerate know a packed weight by its class's name, whatever type it is stored in."""
    return type("Params4bit", (fake,), {"__deepcopy__": _copied})


def _copied(packed: Any, memo: dict[int, Any]) -> Any:
    """A copy of a packed weight, as PEFT makes one of a module to save; torch asks for a class that clones itself."""
    memo[id(packed)] = torch.nn.Parameter(packed.detach().clone(), requires_grad=False)
    return memo[id(packed)]


def quantize_4bit(
    tracer: "Tracer", weight: "torch.Tensor", blocksize: int, quant_type: str, quant_storage: "torch.dtype"
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Scales first, then the packed weight: the order decides which holes remain after loading."""
    weight = weight.contiguous()
    count = weight.numel()
    scales = torch.empty((-(count // -blocksize),), device=weight.device, dtype=torch.float32)
    packed = torch.empty(((count + 1) // (quant_storage.itemsize * 2), 1), device=weight.device, dtype=quant_storage)
    return packed, scales


def quantize_blockwise(
    tracer: "Tracer", values: "torch.Tensor", code: "torch.Tensor", blocksize: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    scales = torch.empty((-(values.numel() // -blocksize),), device=values.device, dtype=torch.float32)
    return torch.empty_like(values, dtype=torch.uint8), scales


def dequantize_4bit(
    tracer: "Tracer",
    packed: "torch.Tensor",
    absmax: "torch.Tensor",
    blocksize: int,
    quant_type: str,
    shape: Sequence[int],
    dtype: "torch.dtype",
) -> "torch.Tensor":
    return torch.empty(tuple(shape), dtype=dtype, device=packed.device)


def int8_vectorwise_quant(
    tracer: "Tracer", inputs: "torch.Tensor", threshold: float = 0.0
) -> tuple["torch.Tensor", "torch.Tensor", "torch.Tensor | None"]:
    """Nothing counts as an outlier: which columns would is known only from the values."""
    stats = torch.empty(inputs.numel() // inputs.shape[-1], device=inputs.device, dtype=torch.float32)
    out = torch.empty(inputs.shape, device=inputs.device, dtype=torch.int8)
    if threshold <= 0.0:
        return out, stats, None
    outliers = inputs.abs() >= threshold
    outliers.any()
    return out, stats, torch.empty(0, device=inputs.device, dtype=torch.int64)


def int8_scaled_mm(
    tracer: "Tracer",
    inputs: "torch.Tensor",
    weight: "torch.Tensor",
    row_stats: "torch.Tensor",
    col_stats: "torch.Tensor",
    bias: "torch.Tensor | None" = None,
    dtype: "torch.dtype | None" = None,
) -> "torch.Tensor":
    """The product in int32 first, then its copy in fp16 (``int8_mm_dequant``), then that in ``dtype``.

    The first has a name in its caller (``int8_scaled_mm``, backends/default/ops.py): it lives until the last is there.
    """
    shape = (*inputs.shape[:-1], weight.shape[0])
    product = torch.empty(shape, device=inputs.device, dtype=torch.int32)
    out = torch.empty_like(product, dtype=torch.float16)
    return out.to(dtype or torch.float16)


def int8_mixed_scaled_mm(
    tracer: "Tracer",
    inputs: "torch.Tensor",
    rows: "torch.Tensor",
    weight: "torch.Tensor",
    row_stats: "torch.Tensor",
    col_stats: "torch.Tensor",
    outlier_cols: "torch.Tensor | None" = None,
    bias: "torch.Tensor | None" = None,
) -> tuple["torch.Tensor", "torch.Tensor | None"]:
    """Without outliers the int8 product is all there is."""
    return int8_scaled_mm(tracer, rows, weight, row_stats, col_stats, bias, inputs.dtype), None


def gemm_4bit(
    tracer: "Tracer",
    inputs: "torch.Tensor",
    packed: "torch.Tensor",
    shape: Sequence[int],
    absmax: "torch.Tensor",
    blocksize: int,
    quant_type: str,
    bias: "torch.Tensor | None" = None,
    absmax_8bit: "torch.Tensor | None" = None,
    absmax_code: "torch.Tensor | None" = None,
    absmax_offset: "torch.Tensor | None" = None,
) -> "torch.Tensor":
    """One fused kernel, or a 16-bit copy of the weight and a product, by the library's own choice."""
    width = inputs.shape[-1]
    rows = inputs.numel() // width
    short = rows <= MOST_ROWS and not width % blocksize
    if short and _fused(tracer.capability)(inputs.dtype, rows, shape[0], width):
        return torch.empty((*inputs.shape[:-1], shape[0]), dtype=inputs.dtype, device=inputs.device)
    held: tuple[torch.Tensor, ...] = ()
    if absmax_8bit is not None and absmax_offset is not None:
        scales = torch.empty(absmax_8bit.shape, dtype=torch.float32, device=inputs.device)
        held = (scales, scales + absmax_offset)  # both live until the product is done
    weight = torch.empty(tuple(shape), dtype=inputs.dtype, device=inputs.device)
    out = torch.nn.functional.linear(inputs, weight, bias)
    del held
    return out


@functools.cache
def _fused(capability: tuple[int, int]) -> Callable[["torch.dtype", int, int, int], bool]:
    """``_gemm_4bit_use_custom_cuda`` of the installed bitsandbytes, told which GPU there is."""
    import bitsandbytes

    path = os.path.join(os.path.dirname(bitsandbytes.__file__), "backends", "cuda", "ops.py")
    with open(path, encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    name = "_gemm_4bit_use_custom_cuda"
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:  # an older version has no fused kernel for more than one row
        return lambda dtype, rows, out, width: False
    found[0].decorator_list = []  # a cache of its own
    multiprocessors = MULTIPROCESSORS.get(capability, MULTIPROCESSORS[(8, 0)])
    names: dict[str, Any] = {
        "torch": torch,
        "_GEMM_4BIT_CUSTOM_FLOOR_M": FLOOR_ROWS,
        "_gpu_dispatch_props": lambda index: (multiprocessors, *capability),
    }
    exec(compile(ast.Module(body=list(found), type_ignores=[]), path, "exec"), names)
    return lambda dtype, rows, out, width: bool(names[name](0, dtype, rows, out, width))
