"""``scaled_dot_product_attention`` with the backend that the target GPU would take.

The dispatcher asks the GPU that is there for its properties; here none is. The rules are those of
``select_sdp_backend`` (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) and what is done around the kernels
those of ``scaled_dot_product_attention`` (…/transformers/attention.cpp).
flash-attn's functions run PyTorch's copy of the same kernels, which keep and return the same.
Import only in the simulator's process.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
else:
    from kb.torch_runs.simulation.torch_modules import torch


Backend = Literal["flash", "efficient", "math"]
AMPERE = (8, 0)
FLASH_HEAD = 256  # widest head
FLASH_GRADIENT_HEAD = 192  # widest that trains on 8.6 to 8.9 and 12.x
BIAS_ALIGNMENT = 16  # elements; a mask's rows are padded to it
FLASH_ALIGNMENT = 8


class Attention:
    """Stands in for ``torch.nn.functional.scaled_dot_product_attention`` on a GPU of this compute capability.

    ``only`` pins the backend, as ``torch.nn.attention.sdpa_kernel`` does.
    """

    def __init__(self, capability: tuple[int, int], only: Backend | None = None) -> None:
        self.capability = capability
        self.only = only

    def __call__(
        self,
        query: "torch.Tensor",
        key: "torch.Tensor",
        value: "torch.Tensor",
        attn_mask: "torch.Tensor | None" = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> "torch.Tensor":
        query, key, value, mask = _autocast(query, key, value, attn_mask)
        backend = self.backend(query, key, value, mask, dropout_p, is_causal)
        with _without_autocast():
            if backend == "flash":
                return _flash(query, key, value, dropout_p, is_causal, scale)
            if backend == "efficient":
                return _efficient(query, key, value, mask, dropout_p, is_causal, scale)
            return _composite(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)

    def backend(
        self,
        query: "torch.Tensor",
        key: "torch.Tensor",
        value: "torch.Tensor",
        mask: "torch.Tensor | None",
        dropout: float,
        causal: bool,
    ) -> Backend:
        """The kernel that the GPU takes. cuDNN's, first choice on 9.0 and 10.x, counts as flash: it keeps the same."""
        if self.only is not None:
            return self.only
        if query.dim() != 4:
            return "math"
        widths = {query.shape[-1], key.shape[-1], value.shape[-1]}
        flash = mask is None and self._flash_dtype(query.dtype) and len(widths) == 1 and max(widths) <= FLASH_HEAD
        if flash and self._flash_trains(query, key, value, dropout) and not (causal and query.shape[2] != key.shape[2]):
            return "flash"
        same_heads = query.shape[1] == key.shape[1] == value.shape[1]
        if same_heads and self._efficient_dtype(query.dtype) and query.shape[-1] == key.shape[-1]:
            aligned = all(width % self._alignment(query.dtype) == 0 for width in widths)
            if aligned and not (mask is not None and mask.requires_grad and mask.dim() != 4):
                return "efficient"
        return "math"

    def _flash_dtype(self, dtype: "torch.dtype") -> bool:
        return self.capability >= AMPERE and dtype in (torch.float16, torch.bfloat16)

    def _efficient_dtype(self, dtype: "torch.dtype") -> bool:
        return self.capability >= AMPERE or dtype in (torch.float16, torch.float32)

    def _flash_trains(self, query: Any, key: Any, value: Any, dropout: float) -> bool:
        narrow = (8, 6) <= self.capability <= (8, 9) or self.capability[0] == 12
        if not (narrow and torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))):
            return True
        head = query.shape[-1]
        return bool(head <= FLASH_GRADIENT_HEAD or (not dropout and head > 224))

    def _alignment(self, dtype: "torch.dtype") -> int:
        """``minimum_gemm_alignment``: elements that a head's width must be a multiple of."""
        half = dtype != torch.float32
        tensor_cores = self.capability >= AMPERE or (self.capability >= (7, 0) and half)
        least = 4 if self.capability >= AMPERE else 1
        return max(least, 128 // (16 if half else 32)) if tensor_cores else least


def _autocast(query: Any, key: Any, value: Any, mask: Any) -> tuple[Any, Any, Any, Any]:
    """Autocast's casts (the operator is on its lower-precision list), then the mask as the kernels take it."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (part.to(dtype) if part.is_floating_point() else part for part in (query, key, value))
        if mask is not None and mask.is_floating_point():
            mask = mask.to(dtype)
    if mask is not None and mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        mask = torch.where(mask, zero, torch.full((), -math.inf, dtype=query.dtype, device=query.device))
    return query, key, value, mask


def _flash(query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: float | None) -> "torch.Tensor":
    width = query.shape[-1]
    if width % FLASH_ALIGNMENT:  # pad_last_dim
        scale = scale if scale is not None else 1 / math.sqrt(width)
        extra = FLASH_ALIGNMENT - width % FLASH_ALIGNMENT
        query, key, value = (torch.nn.functional.pad(part, (0, extra)) for part in (query, key, value))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    out: torch.Tensor = kernel(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :width] if out.shape[-1] != width else out


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None
) -> "torch.Tensor":
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
    if mask is not None:
        length = mask.shape[-1]
        if length % BIAS_ALIGNMENT:  # pad_bias
            mask = torch.nn.functional.pad(mask, (0, BIAS_ALIGNMENT - length % BIAS_ALIGNMENT))[..., :length]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    out: torch.Tensor = kernel(query, key, value, mask, keeps, dropout, causal, scale=scale)[0]
    return out


def _composite(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None, grouped: bool
) -> "torch.Tensor":
    """``_scaled_dot_product_attention_math``, which adds a mask in place; to a tensor subclass it would not."""
    kept = query.dtype
    if kept in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else abs(scale))
    times = torch.ops.aten.mul.Scalar
    scaled = times(query, -root if scale is not None and scale < 0 else root)
    if causal:
        ones = torch.ones((query.shape[-2], key.shape[-2]), dtype=torch.bool, device=query.device).tril()
        mask = _autocast(scaled, key, value, ones)[3]
        del ones
    keys, values = key, value
    if grouped and query.shape[1] != key.shape[1]:
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], -3)
        values = value.repeat_interleave(query.shape[1] // value.shape[1], -3)
    shares = torch.matmul(scaled, times(keys.transpose(-2, -1), root))
    if mask is not None:
        shares += mask
    shares = torch.ops.aten._safe_softmax(shares, -1)
    if dropout:
        shares = torch.dropout(shares, dropout, True)
    second = shares.to(kept)  # the operator's second result, made before its first
    out: torch.Tensor = torch.matmul(shares, values).to(kept)
    del second
    return out


class _without_autocast:  # noqa: N801 (used as a function)
    """Below the operator autocast is off, as in its C++ kernel."""

    def __enter__(self) -> None:
        self._was = torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled("cuda", False)

    def __exit__(self, *_: object) -> None:
        torch.set_autocast_enabled("cuda", self._was)


def flash_attn_functions(*_: Any, **__: Any) -> tuple[Callable[..., Any] | None, ...]:
    """What transformers' ``_lazy_imports`` finds in the package: plain, packed, cached, pad and unpad."""
    from transformers import modeling_flash_attention_utils as utils

    return flash_attend, flash_attend_packed, None, utils._pad_input, utils._unpad_input


def flash_attend(
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


def flash_attend_packed(
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
