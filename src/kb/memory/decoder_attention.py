"""Decoder-only models: what the attention core keeps, by kernel."""

from typing import Literal

from kb.memory.shape import Shape

MASK = 1
FP32 = 4
FLASH_LARGEST_HEAD = 256


def kernel(s: Shape, sliding: bool = False) -> Literal["eager", "flash", "efficient", "math"]:
    """Which kernel scaled_dot_product_attention takes: flash where nothing masks, the type is half and the GPU has it;
    the memory efficient one otherwise, which knows no grouped heads: without a mask they fall to the written-out form.
    """
    if s.eager:
        return "eager"
    if not masked(s, sliding):
        if s.flash_kernel and s.compute_bytes == 2 and s.arch.d_kv <= FLASH_LARGEST_HEAD:
            return "flash"
        if grouped(s):
            return "math"
    return "efficient"


def masked(s: Shape, sliding: bool = False) -> bool:
    """Whether a mask is made: for padding, or for a sliding layer whose window is no longer than the sequence."""
    return s.padded or (sliding and s.arch.window is not None and s.source >= s.arch.window)


def grouped(s: Shape) -> bool:
    return s.arch.kv_heads not in (None, s.arch.num_heads)


def core(s: Shape, sliding: bool = False) -> tuple[int, int]:
    """Bytes that a (sliding) layer's attention core keeps, norms of q and k with it, and its backward's need above."""
    a, t, width, b = s.arch, s.source_tokens, s.compute_bytes, s.batch
    from kb.memory.decoder import linear_width, norm

    narrow = (a.kv_heads or a.num_heads) * a.d_kv
    chosen = kernel(s, sliding)
    scores = b * a.num_heads * s.source * s.source
    # heads that share keys get copies of them, but a single head is only viewed
    copied = chosen != "flash" and grouped(s) and (chosen == "eager" or a.kv_heads != 1)
    expanded = s.inner if copied else narrow
    heads = t * (s.inner + 2 * expanded) * width
    if a.kv_heads == 1 and not copied and chosen == "efficient" and s.autocast and s.weight_bytes == FP32:
        heads += t * (1 + s.quantized) * (s.inner - narrow) * width  # a cast writes out what was only viewed
    if a.fused_qkv and width == linear_width(s) and not copied:
        if not a.rotary:
            heads = heads if s.eager and b > 1 else t * (s.inner + 2 * narrow) * width
        elif not (s.eager and b > 1):  # v is a view of the fused product, which stays whole
            heads = t * (2 * s.inner + 3 * narrow) * width
    normed = 0
    if a.qk_norm == "head":
        both = a.num_heads + (a.kv_heads or a.num_heads)
        normed = t * norm(s, s.inner + narrow, 0, linear_width(s), both)
    result = t * s.inner * width
    if chosen == "eager":
        kept = heads + (0 if s.frozen else result) + scores * _score_bytes(s)
        soft = _softmax_width(s)
        # softmax's backward: gradient, product and result (in the scores' type), what followed the softmax gone
        result_width = soft if s.autocast else width
        return kept + normed, scores * (2 * soft + result_width - (_score_bytes(s) - soft))
    if chosen == "math":
        return heads + normed + result + FP32 * scores, 3 * FP32 * scores
    if chosen == "flash" and a.rotary and (a.rotary < 1 or a.fused_qkv) and not s.frozen:
        result *= 2  # turned heads are joined in another order than the output projection reads
    rows = FP32 * b * a.num_heads * (s.source if chosen == "flash" else -(-s.source // 32) * 32)
    mask = b * s.source * s.source * width if masked(s, sliding) else 0
    accumulators = FP32 * t * s.inner if width == 2 else 0
    return heads + result + rows + mask + normed, heads + accumulators


def _softmax_width(s: Shape) -> int:
    """GPT-2's softmax is in the scores' type, where autocast does not widen it; others' is in fp32."""
    return s.compute_bytes if s.arch.model_type == "gpt2" and not s.autocast else FP32


def _score_bytes(s: Shape) -> int:
    """Bytes a score of written-out attention: the softmax, a half copy, dropout's mask and result, a cap's tanh."""
    width, soft = s.compute_bytes, _softmax_width(s)
    kept = soft
    if s.arch.attention_dropout:
        kept += MASK + width
    elif width == 2 and soft == FP32:
        kept += width
    if s.arch.score_cap:
        kept += width
    return kept
