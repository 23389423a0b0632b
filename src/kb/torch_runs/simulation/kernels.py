"""What CUDA kernels allocate and the shapes of their results do not show: scratch, workspaces, dequantized copies.

Each entry names its source in PyTorch or bitsandbytes. Sizes in bytes.
Import only in the simulator's process.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kb.memory.engine.kernel_choice import summed_buffers

if TYPE_CHECKING:
    import torch

    from kb.torch_runs.simulation.tracer import Tracer
else:
    from kb.torch_runs.simulation.torch_modules import torch

Stages = Sequence[Sequence[int]]  # what is held together, one after another
aten = torch.ops.aten
FLOAT = 4
WIDE_INTEGER = 8
TILE_COLUMNS = 64
TILE_LOCK = 16
MOST_SPLITS = 200
ALIGNMENT_BYTES = 16
NARROW_HEAD, WIDE_HEAD = 64, 128
# at::cuda::getChosenWorkspaceSize (aten/src/ATen/cuda/CublasHandlePool.cpp): ":4096:2:16:8", or 32 MiB.
WORKSPACE_BYTES = (2 * 4096 + 8 * 16) << 10
WIDE_WORKSPACE_BYTES = 32 << 20
WIDE_WORKSPACE_MAJORS = (9, 10, 12)
# A product with a bias goes through cuBLASLt, whose own workspace comes on top: 2 × 1 MiB in the runs measured on a T4
# with torch 2.10 and 2.14, for models with biases only.
LT_WORKSPACE_BYTES = 1 << 20


def install(tracer: "Tracer") -> None:
    """Teach the tracer the kernels' own allocations."""
    wide = tracer.capability[0] in WIDE_WORKSPACE_MAJORS
    size = WIDE_WORKSPACE_BYTES if wide else WORKSPACE_BYTES
    for product in (aten.mm, aten.bmm, aten.baddbmm):
        for overload in (product.default, product.out):
            tracer.workspaces[overload] = lambda *_: (size,)
    both = (size, LT_WORKSPACE_BYTES)  # the handle is cuBLAS's, which takes its own first
    for added in (aten.addmm.default, aten.addmm.out, aten.addmm_.default):
        tracer.workspaces[added] = lambda bias, *_: both if bias.dim() == 1 else (size,)
    tracer.scratch |= {
        aten._softmax.default: softmax_scratch,
        aten._softmax_backward_data.default: softmax_backward_scratch,
        aten._scaled_dot_product_efficient_attention.default: efficient_scratch,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward_scratch,
        aten._scaled_dot_product_flash_attention_backward.default: flash_backward_scratch,
        aten._flash_attention_backward.default: packed_flash_backward_scratch,
        aten.multinomial.default: multinomial_scratch,
        aten.logsumexp.default: logsumexp_scratch,
        aten.native_layer_norm.default: layer_norm_scratch,
        aten.native_layer_norm_backward.default: layer_norm_backward_scratch,
        aten.sum.dim_IntList: summed_scratch,
        aten.mean.dim: summed_scratch,
    }
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
    """A fused optimizer kernel: everything happens in the tensors that it is given (FusedAdamKernel.cu)."""


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


def softmax_scratch(tracer: "Tracer", tensor: "torch.Tensor", *rest: Any) -> Stages:
    """What is not contiguous is copied first (``host_softmax``, aten/src/ATen/native/cuda/SoftMax.cu)."""
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


def layer_norm_scratch(tracer: "Tracer", tensor: "torch.Tensor", *rest: Any) -> Stages:
    """What is not contiguous is copied first (``expect_contiguous``, aten/.../cuda/layer_norm_kernel.cu)."""
    return () if tensor.is_contiguous() else ((tensor.numel() * tensor.element_size(),),)


def layer_norm_backward_scratch(tracer: "Tracer", grad: "torch.Tensor", tensor: "torch.Tensor", *rest: Any) -> Stages:
    """The same of the norm's input."""
    return layer_norm_scratch(tracer, tensor)


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
    (mem_eff_attention/kernel_backward.h).

    Half kernels compute delta themselves, the others from a float product. The query's gradient is accumulated in
    float tiles, each with a lock; those of key and value too where a head is wider than the kernel's registers.
    """
    batch, heads, length, head = query.shape
    half = query.dtype != torch.float32
    delta = batch * heads * length * FLOAT
    rows, in_registers = _tile(head, half, tracer.capability)
    tiles = -(-length // rows) * -(-head // TILE_COLUMNS)
    elements = tiles * (rows * TILE_COLUMNS + TILE_LOCK // FLOAT)
    if half and not in_registers:
        splits = max(1, min(-(-key.shape[2] // TILE_COLUMNS), MOST_SPLITS // (batch * heads)))
        elements += 2 * splits * TILE_COLUMNS * _up(head, rows)
    workspace = batch * heads * _up(elements, 4) * FLOAT
    if half:
        return ((delta, workspace),)
    return ((delta * head, delta, delta), (delta, workspace))


def _tile(head: int, half: bool, capability: tuple[int, int]) -> tuple[int, bool]:
    """Rows of the kernel's tile, and whether it keeps the gradients of key and value in registers."""
    if head <= NARROW_HEAD or not half:
        return 64, half
    if head > WIDE_HEAD:
        return (128 if capability >= (8, 0) else 64), False
    return (128, True) if capability >= (8, 0) else (64, False)


def flash_backward_scratch(
    tracer: "Tracer", grad: "torch.Tensor", query: "torch.Tensor", key: "torch.Tensor", *rest: Any, **named: Any
) -> Stages:
    """Softmax sums and the float accumulator of the query's gradient; where heads are grouped, the gradients of key and
    value for every query head (aten/.../flash_attn/flash_api.cpp, ``mha_bwd``)."""
    batch, heads, length, head = query.shape
    rows = _up(length, 128)
    expanded = batch * heads * key.shape[2] * head * key.element_size() if key.shape[1] != heads else 0
    return ((batch * heads * rows * FLOAT, batch * heads * rows * _up(head, 32) * FLOAT, expanded, expanded),)


def packed_flash_backward_scratch(
    tracer: "Tracer", grad: "torch.Tensor", query: "torch.Tensor", key: "torch.Tensor", *rest: Any, **named: Any
) -> Stages:
    """The same for packed sequences (``mha_varlen_bwd``): a tile more for each sequence."""
    tokens, heads, head = query.shape
    starts: torch.Tensor = rest[3]
    rows = tokens + 128 * (starts.numel() - 1)
    expanded = key.shape[0] * heads * head * key.element_size() if key.shape[1] != heads else 0
    return ((heads * rows * FLOAT, heads * rows * _up(head, 32) * FLOAT, expanded, expanded),)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
