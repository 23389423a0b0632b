"""T5, mT5 and UMT5: what autograd keeps, derived from transformers' modeling_t5 and checked against traces."""

from kb.memory.saved import Layer, Loss, Saved
from kb.memory.shape import Shape

MASK = 1  # dropout keeps a byte for each element
FP32, INT64 = 4, 8


def saved(s: Shape) -> Saved:
    """Bytes that one training pass keeps for its backward (04-memory, "Closed forms", T5/mT5).

    A sublayer keeps its input (the residual sum), what its norm and linear layers need for the gradients of their
    weights (nothing where those are frozen), and a dropout mask; the attention core its four projections and scores.
    """
    arch, te, td, d = s.arch, s.source_tokens, s.target_tokens, s.arch.d_model
    width, compute, inner, vocab = s.weight_bytes, s.compute_bytes, s.inner, arch.vocab_size
    gates = 2 if arch.gated else 1
    per_ff, ff_backward = _feed_forward(s)
    self_e, self_e_backward = _core(s, s.source, s.source, te, masked=s.padded)
    self_d, self_d_backward = _core(s, s.target, s.target, td, masked=False)
    cross, cross_backward = _core(s, s.target, s.source, te, masked=s.padded)
    ff_e, ff_d = te * arch.d_ff * per_ff + _norm(s, te, gates), td * arch.d_ff * per_ff + _norm(s, td, gates)
    # the encoder's output is cast anew for the k and the v of every decoder layer
    cross += _norm(s, td, 1) + (4 * te * d if s.copied and not s.frozen else 0)
    attention, feed_forward = 4 * d * inner, (gates + 1) * d * arch.d_ff
    stream_e, stream_d = te * d * width, td * d * width
    products = d * arch.d_ff if s.quantized else attention + feed_forward  # wo is never quantized (kept in fp32)
    products_d = d * arch.d_ff if s.quantized else 2 * attention + feed_forward
    # gradients of a layer's own weights: the last projection's is there when the feed-forward's backward needs most
    one = 0 if s.frozen else width * d * arch.d_ff
    done, cross_done = (gates + 1) * one, 0 if s.frozen else width * attention
    encoder = Layer(
        kept=ff_e + self_e + _norm(s, te, 3),
        backward=max(te * arch.d_ff * ff_backward + one, self_e_backward - ff_e + done) + 2 * stream_e,
        entry=stream_e,
        copies=2 * products if s.copied else 0,
        tensors=24 + 6 * gates,
        forward=_made_again(s, te, s.source**2),
    )
    decoder = Layer(
        kept=ff_d + cross + self_d + _norm(s, td, 3),
        backward=max(
            td * arch.d_ff * ff_backward + one,
            cross_backward - ff_d + done,
            self_d_backward - ff_d - cross + done + cross_done,
        )
        + 2 * stream_d,
        entry=stream_d,
        copies=2 * products_d if s.copied else 0,
        tensors=40 + 6 * gates,
        forward=_made_again(s, td, s.target**2 + s.target * s.source),
    )
    tail = (1 if s.frozen else 2) * width + 2 * MASK
    heads = arch.num_heads
    tables = 0 if s.frozen else INT64 * (s.source**2 + s.target**2)
    return Saved(
        encoder=encoder,
        decoder=decoder,
        encoder_tail=te * d * tail + tables + s.batch * s.source**2,
        decoder_tail=td * d * (tail + (0 if s.frozen else compute)),
        encoder_mask=te * d * MASK,
        decoder_mask=td * d * MASK,
        encoder_output=stream_e,
        unneeded=(te + td) * d * (width + MASK),
        bias=FP32 * heads * (s.source**2 + s.target**2 + s.target * s.source),
        head_copies=2 * vocab * d if s.copied else 0,
        loss=_loss(s),
    )


def _made_again(s: Shape, tokens: int, pairs: int) -> int:
    """What a layer that checkpointing makes again holds at its end, its output's gradient included: eager attention
    hands its probabilities over, which autocast leaves in fp32, and the input of ``wo`` is widened."""
    held = s.batch * s.arch.num_heads * pairs * FP32 if s.eager and s.autocast else 0
    widened = tokens * s.arch.d_ff * FP32 if s.copied and not s.quantized else 0
    return held + widened + tokens * s.arch.d_model * (2 * s.weight_bytes + s.compute_bytes)


def _norm(s: Shape, tokens: int, readers: int) -> int:
    """A sublayer's input, its norm (T5LayerNorm: scale only, statistics in fp32) and its dropout mask.

    ``readers`` linear layers take the norm's output: under autocast each casts it for itself.
    """
    width = s.weight_bytes
    kept = width + MASK + (FP32 if width == 2 else 0)  # half weights: the norm keeps an fp32 copy of its input
    if not s.frozen:
        kept += width + (2 * readers if s.copied else width)
    return tokens * (s.arch.d_model * kept + FP32)


def _feed_forward(s: Shape) -> tuple[int, int]:
    """Bytes kept per token and feed-forward unit, and the most that its backward adds to them.

    relu keeps its output, a mask and the input of ``wo``. gelu_new is written out in Python: it keeps its input, tanh,
    half the input, one plus tanh, its result, and the product's other factor; under autocast its power is in fp32.
    """
    half = s.compute_bytes == 2 and not s.quantized
    if not s.arch.gated:
        if s.frozen:
            return (3, 6 if s.copied else 4) if half else (5, 8)
        return (5, 4 if s.copied else 2) if half else (9, 4)
    if s.autocast and not s.quantized:
        return (21, 11) if s.frozen else (23, 9)
    if half:
        return (13, 5) if s.frozen else (15, 3)
    return (25, 11) if s.frozen else (29, 7)


def _core(s: Shape, queries: int, keys: int, key_tokens: int, *, masked: bool) -> tuple[int, int]:
    """The attention core: q, k, v, result and scores kept; and what its backward needs above that.

    Eager keeps the softmax (in fp32 under autocast), a dropout mask and the dropped probabilities. SDPA keeps the
    position bias, one for each sample where a padding mask is added to it, and a log-sum-exp for each query (in rows of
    32).
    """
    compute, b, heads = s.compute_bytes, s.batch, s.arch.num_heads
    scores = b * heads * queries * keys
    projections = (2 * b * queries + 2 * key_tokens) * s.inner * compute
    if s.eager:
        if s.frozen:
            projections -= b * queries * s.inner * compute  # the result is kept for the weights of `o` only
        # softmax's backward: gradient, product and result in its type, the dropped probabilities gone
        soft = FP32 if s.autocast else compute
        return projections + scores * (soft + MASK + compute), scores * (3 * soft - MASK - compute)
    rows = FP32 * b * heads * (-(-queries // 32) * 32)
    bias = (scores if masked else heads * queries * keys) * compute
    gradients = projections - b * queries * s.inner * compute
    if not s.frozen:
        # the bias's gradient, then the same once more through the mask's `where` and as the sum over the batch,
        # when what the core kept is gone
        summed = 2 * FP32 * heads * queries * keys
        after = gradients + 2 * scores * max(FP32, compute) + summed - projections - bias
        gradients = max(gradients + scores * compute, after if masked else 0)
    return projections + bias + rows, gradients


def _loss(s: Shape) -> Loss:
    """Cross entropy in the logits' type: log-softmax keeps its result; under autocast the loss keeps an fp32 copy too,
    and accelerate hands the logits over in fp32. Label smoothing works on fp32 logits and negates the log-softmax."""
    logits = s.target_tokens * s.arch.vocab_size
    compute = s.compute_bytes
    product = 3 * compute * logits if s.lora_head else 0  # base, adapter and sum
    if s.smoothing:
        kept = (FP32 if s.autocast else compute) * logits
        return Loss(
            kept=kept,
            inside=product - kept,
            forward=2 * kept,
            backward=kept * (3 if s.autocast or s.weight_bytes == FP32 else 4),
            gradient=compute * logits,
        )
    if s.autocast:
        kept = 6 * logits
        return Loss(kept=kept, inside=max(2 * logits, product - kept), forward=6 * logits, backward=4 * logits,
                    gradient=2 * logits)  # fmt: skip
    kept = compute * logits
    forward = max(kept, product - kept)
    return Loss(kept=kept, inside=forward, forward=forward, backward=2 * kept, gradient=kept)
