"""bitsandbytes' operators on fake tensors: its own layers run unmodified, and here is what their kernels allocate.

Source: ``bitsandbytes/backends/cuda/ops.py`` (0.50). That module needs a CUDA build to be imported, so its order of
allocations is repeated here, and its choice of the 4-bit kernel is taken from its text.
Import only in the simulator's process.
"""

import ast
import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from kb.torch_runs.simulation.tracer import Tracer
else:
    from kb.torch_runs.simulation.torch_modules import torch

# Multiprocessors of the usual GPU of a compute capability: they shift which kernel a short input takes.
MULTIPROCESSORS = {
    (7, 0): 80,
    (7, 5): 40,
    (8, 0): 108,
    (8, 6): 82,
    (8, 9): 128,
    (9, 0): 132,
    (10, 0): 148,
    (12, 0): 170,
}
FUSED_FLOOR_ROWS = 4
FUSED_MOST_ROWS = 1536


def install(tracer: "Tracer") -> None:
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
            tracer.replaced[getattr(operators, name).default] = _in_place


@functools.cache
def packed_class(fake: type) -> type:
    """PEFT and accelerate know a packed weight by its class's name, whatever type it is stored in."""
    return type("Params4bit", (fake,), {"__deepcopy__": _copied})


def _copied(packed: Any, memo: dict[int, Any]) -> Any:
    """A copy of a packed weight, as PEFT makes one of a module to save; torch asks for a class that clones itself."""
    import torch

    memo[id(packed)] = torch.nn.Parameter(packed.detach().clone(), requires_grad=False)
    return memo[id(packed)]


def _in_place(tracer: "Tracer", *args: Any, **kwargs: Any) -> None:
    """The optimizer kernels change what they are given."""


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
    short = rows <= FUSED_MOST_ROWS and not width % blocksize
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
        "_GEMM_4BIT_CUSTOM_FLOOR_M": FUSED_FLOOR_ROWS,
        "_gpu_dispatch_props": lambda index: (multiprocessors, *capability),
    }
    exec(compile(ast.Module(body=list(found), type_ignores=[]), path, "exec"), names)
    return lambda dtype, rows, out, width: bool(names[name](0, dtype, rows, out, width))
