"""The functions of the flash-attn package, by PyTorch's copy of the same kernels: they keep and return the same.

Shapes are flash-attn's: (batch, length, heads, head), or (tokens, heads, head) where sequences are packed.
Import only in the simulator's process.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from kb.torch_runs.simulation.torch_modules import torch


def functions(*_: Any, **__: Any) -> tuple[Callable[..., Any] | None, ...]:
    """What transformers' ``_lazy_imports`` finds in the package: plain, packed, cached, pad and unpad."""
    from transformers import modeling_flash_attention_utils as utils

    return attend, attend_packed, None, utils._pad_input, utils._unpad_input


def attend(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> "torch.Tensor":
    query, key, value = (part.transpose(1, 2) for part in (q, k, v))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    out: torch.Tensor = kernel(query, key, value, dropout_p, causal, False, scale=softmax_scale)[0]
    return out.transpose(1, 2)


def attend_packed(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    cu_seqlens_k: "torch.Tensor",
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> "torch.Tensor":
    kernel = torch.ops.aten._flash_attention_forward
    lengths = (int(max_seqlen_q), int(max_seqlen_k))
    out: torch.Tensor = kernel(
        q, k, v, cu_seqlens_q, cu_seqlens_k, *lengths, dropout_p, causal, False, scale=softmax_scale
    )[0]
    return out
