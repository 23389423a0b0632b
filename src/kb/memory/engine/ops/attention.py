"""``scaled_dot_product_attention``: which kernel a GPU takes, what the kernels keep and their scratch.

Sources: ``select_sdp_backend`` (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp), transformers/attention.cpp (the
mask and what is padded), attention_backward.cu, mem_eff_attention/kernel_forward.h and kernel_backward.h,
flash_attn/flash_api.cpp.
"""

from kb.memory.engine.autocast import half
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.ops.pointwise import add_here, safe_softmax, scale
from kb.memory.engine.ops.pointwise import dropout as drop_out
from kb.memory.engine.ops.products import matmul
from kb.memory.engine.ops.shapes import cast, clone, expand, padded_back, swapped, transpose, unsqueeze, view
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import BOOL, F16, F32, I64, Shape, Tensor, bare, like, new, scratch, seen_as
from kb.memory.engine.world import AMPERE, world

FLOAT = 4
BIAS_ALIGNMENT = 16  # elements; a mask's rows are padded to it
FLASH_HEAD = 256  # widest head
FLASH_GRADIENT_HEAD = 192  # widest that trains on 8.6 to 8.9 and 12.x
NARROW_HEAD, WIDE_HEAD = 64, 128
TILE_COLUMNS = 64
TILE_LOCK = 16
MOST_SPLITS = 200


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    grouped: bool = False,
) -> Tensor:
    """Attention of (batch, heads, length, width); ``mask`` is bool or added numbers, ``grouped`` is ``enable_gqa``.

    Raises:
        NotFollowedError: flash attention would pad the heads.
    """
    q, k, v = half(q), half(k), half(v)
    bias = None
    if mask is not None:
        if mask.dtype == BOOL:
            zero, low = new((), q.dtype), new((), q.dtype)
            bias = new(mask.shape, q.dtype)
            del zero, low
        else:
            bias = half(mask)
    if _takes_flash(q, k, v, bias, causal, dropout):
        return _flash(q, k, v)
    if not _takes_efficient(q, k, v):
        return _composite(q, k, v, bias, causal=causal, dropout=dropout, grouped=grouped)
    if bias is None:
        return _efficient(q, k, v, None)
    aligned = expand(_aligned(bias), (*q.shape[:3], k.shape[2]))  # level 1 keeps both; attention.cpp lets bias go
    return _efficient(q, k, v, aligned)


def _takes_flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> bool:
    capability, head = world.capability, q.shape[-1]
    if mask is not None or capability < AMPERE or q.dtype == F32 or head > FLASH_HEAD:
        return False
    if not head == k.shape[-1] == v.shape[-1] or (causal and q.shape[2] != k.shape[2]):
        return False
    narrow = (8, 6) <= capability <= (8, 9) or capability[0] == 12
    if not (narrow and world.grad and (q.needs or k.needs or v.needs)):
        return True
    return head <= FLASH_GRADIENT_HEAD or (not dropout and head > 224)


def _takes_efficient(q: Tensor, k: Tensor, v: Tensor) -> bool:
    capability, narrow = world.capability, q.dtype != F32
    if not q.shape[1] == k.shape[1] == v.shape[1]:
        return False
    if capability < AMPERE and q.dtype not in (F16, F32):
        return False
    tensor_cores = capability >= AMPERE or (capability >= (7, 0) and narrow)
    least = 4 if capability >= AMPERE else 1
    step = max(least, 128 // (16 if narrow else 32)) if tensor_cores else least
    return not (q.shape[-1] % step or v.shape[-1] % step)


def _composite(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, dropout: float, grouped: bool
) -> Tensor:
    """``_scaled_dot_product_attention_math``: in fp32, with all scores; the mask is added in place.

    It is below autocast, and so makes no copies of its own.
    """
    kept, before = q.dtype, world.autocast
    world.autocast = None
    wide_q, wide_k, wide_v = cast(q, F32), cast(k, F32), cast(v, F32)
    scaled = scale(wide_q)
    if causal:
        seen = new((q.shape[2], k.shape[2]), BOOL)
        seen = new(seen.shape, BOOL)  # tril
        zero, low = new((), F32), new((), F32)
        mask = new(seen.shape, F32)
        del seen, zero, low
    keys, values = wide_k, wide_v
    if grouped and q.shape[1] != k.shape[1]:
        keys = _repeated(keys, q.shape[1])
        values = _repeated(values, q.shape[1])
    shares = matmul(scaled, scale(transpose(keys, 2, 3)))
    if mask is not None:
        shares = add_here(shares, mask)
    shares = safe_softmax(shares)
    shares = drop_out(shares, dropout)
    second = cast(shares, kept)  # the operator's second result, made before its first
    out = cast(matmul(shares, values), kept)
    world.autocast = before
    del second, wide_q, wide_k, wide_v, keys, values, scaled, shares, mask
    return out


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    """``repeat_interleave`` of heads: a copy."""
    batch, few, length, width = tensor.shape
    tensor = expand(unsqueeze(tensor, 2), (batch, few, heads // few, length, width))
    return view(clone(tensor), (batch, heads, length, width))


def _aligned(mask: Tensor) -> Tensor:
    """``pad_bias``: rows of the mask in whole 16 elements."""
    more = -mask.shape[-1] % BIAS_ALIGNMENT
    if not more:
        return mask
    node = record(padded_back, (mask,), (), mask.shape)
    longer = new((*mask.shape[:-1], mask.shape[-1] + more), mask.dtype, None, node)
    node = record(padded_back, (longer,), (), longer.shape)
    return Tensor(mask.shape, mask.dtype, longer.strides, longer.storage, node)


def _efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The memory-efficient kernel keeps its inputs, its result and a log-sum-exp in whole 32 rows."""
    inputs = (q, k, v) if mask is None else (q, k, v, mask)
    node = record(_efficient_back, inputs, (mask, k, q, v))
    batch, heads, length, _ = q.shape
    out = new((batch, length, heads, v.shape[-1]), q.dtype)
    sums = new((batch, heads, -(-length // 32) * 32), F32) if node is not None else None
    seed = new((), I64)
    offset = new((), I64)
    if q.dtype != F32 and v.shape[-1] > WIDE_HEAD:  # kNeedsOutputAccumulatorBuffer
        scratch(batch * heads * length * v.shape[-1] * FLOAT)
    shape = (batch, heads, length, v.shape[-1])
    out = Tensor(shape, out.dtype, swapped(out.strides, 1, 2), out.storage, node)
    save(node, (sums, bare(out), offset, seed))
    del offset, seed, sums
    return out


def _by_heads(tensor: Tensor, dtype: str) -> Tensor:
    """A gradient laid out as (batch, length, heads, width)."""
    batch, heads, length, width = tensor.shape
    made = new((batch, length, heads, width), dtype)
    return seen_as(made, tensor.shape, swapped(made.strides, 1, 2))


def _efficient_back(node: Node, grad: Tensor) -> Gradients:
    mask, k, q, v, *kept = saved(node)
    outs: list[Tensor | None] = [_by_heads(tensor, grad.dtype) for tensor in (q, k, v)]
    batch, heads, length, _ = q.shape
    if len(node.edges) == 4:
        by_mask = None
        if node.edges[3] is not None:
            keys, aligned = k.shape[2], -(-k.shape[2] // BIAS_ALIGNMENT) * BIAS_ALIGNMENT
            whole = new((batch, heads, length, aligned), grad.dtype)
            shape = (batch, heads, length, keys)
            by_mask = Tensor(shape, grad.dtype, whole.strides, whole.storage, based=keys != aligned)
            del whole
        outs.append(by_mask)
        del by_mask
    _efficient_backward_scratch(q, k)
    del mask, k, q, v, kept
    return outs


def _efficient_backward_scratch(q: Tensor, k: Tensor) -> None:
    for stage in efficient_backward_bytes(q.shape, k.shape[2], world.capability, narrow=q.dtype != F32):
        scratch(*stage)


def efficient_backward_bytes(
    shape: Shape, keys: int, capability: tuple[int, int], *, narrow: bool
) -> tuple[tuple[int, ...], ...]:
    """What backward of queries of ``shape`` holds beside its results, one stage after another.

    Delta, from a float product outside half precision, and float tiles of the query's gradient, each with a lock;
    those of key and value too where a head is wider than the kernel's registers.
    """
    batch, heads, length, head = shape
    delta = batch * heads * length * FLOAT
    rows, in_registers = _tile(head, narrow, capability)
    elements = -(-length // rows) * -(-head // TILE_COLUMNS) * (rows * TILE_COLUMNS + TILE_LOCK // FLOAT)
    if narrow and not in_registers:
        splits = max(1, min(-(-keys // TILE_COLUMNS), MOST_SPLITS // (batch * heads)))
        elements += 2 * splits * TILE_COLUMNS * -(-head // rows) * rows
    workspace = batch * heads * -(-elements // 4) * 4 * FLOAT
    return ((delta, workspace),) if narrow else ((delta * head, delta, delta), (delta, workspace))


def _tile(head: int, narrow: bool, capability: tuple[int, int]) -> tuple[int, bool]:
    """Rows of the kernel's tile, and whether it keeps the gradients of key and value in registers."""
    if head <= NARROW_HEAD or not narrow:
        return 64, narrow
    ampere = capability >= AMPERE
    return (128 if ampere else 64), ampere and head <= WIDE_HEAD


def flash_backward_bytes(heads: int, rows: int, head: int) -> tuple[int, int]:
    """Softmax sums and the float accumulator of the query's gradient, of all heads of the batch."""
    return heads * rows * FLOAT, heads * rows * -(-head // 32) * 32 * FLOAT


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The flash kernel keeps its inputs, its result and a log-sum-exp a row; grouped heads stay grouped.

    A width that is no multiple of 8 is padded (``pad_last_dim``): three copies, and a part of the result.
    """
    width = q.shape[-1]
    if width % 8:
        raise NotFollowedError("flash attention: padded heads")
    node = record(_flash_back, (q, k, v), (k, q, v))
    batch, heads, length, _ = q.shape
    out = like(q, None, node)
    sums = new((batch, heads, length), F32)
    seed, offset = new((2,), I64), new((), I64)
    save(node, (sums, bare(out), seed, offset))
    del sums, seed, offset
    return out


def _flash_back(node: Node, grad: Tensor) -> Gradients:
    """Softmax sums and the float accumulator of the query's gradient; where heads are grouped, key's and value's
    gradients for every query head (``mha_bwd``)."""
    k, q, v, *kept = saved(node)
    outs = [_like_query(tensor, grad.dtype) for tensor in (q, k, v)]
    batch, heads, length, head = q.shape
    expanded = batch * heads * k.shape[2] * head * 2 if k.shape[1] != heads else 0
    scratch(*flash_backward_bytes(batch * heads, -(-length // 128) * 128, head), expanded, expanded)
    del k, q, v, kept
    return outs


def flash_packed(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor) -> Tensor:
    """``_flash_attention_forward`` of stretches one behind the other, between ``bounds``: (tokens, heads, width).

    Sources: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (``mha_varlen_fwd``, ``mha_varlen_bwd``).
    """
    if q.shape[-1] % 8:
        raise NotFollowedError("flash attention: padded heads")
    node = record(_flash_packed_back, (q, k, v), (bounds, k, q, v), bounds.shape[0] - 1)
    tokens, heads, _ = q.shape
    out = like(q, None, node)
    sums = new((heads, tokens), F32)
    seed, offset = new((2,), I64), new((), I64)
    save(node, (sums, bare(out), seed, offset))
    del sums, seed, offset
    return out


def _flash_packed_back(node: Node, grad: Tensor) -> Gradients:
    """As :func:`_flash_back`, with a tile more for each stretch."""
    bounds, k, q, v, *kept = saved(node)
    outs = [_like_query(tensor, grad.dtype) for tensor in (q, k, v)]
    tokens, heads, head = q.shape
    scratch(*flash_backward_bytes(heads, tokens + 128 * node.extra, head))
    del bounds, k, q, v, kept
    return outs


def _like_query(tensor: Tensor, dtype: str) -> Tensor:
    return like(tensor, dtype)
