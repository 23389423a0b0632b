"""BART, mBART and Pegasus: what autograd keeps, derived from transformers' modeling_bart and checked against traces."""

from kb.memory.saved import Layer, Loss, Saved
from kb.memory.shape import Shape

MASK = 1  # dropout keeps a byte for each element
FP32 = 4


def saved(s: Shape) -> Saved:
    """Bytes that one training pass keeps for its backward (04-memory, "Closed forms", BART).

    A sublayer keeps its norm's input and two statistics a token, a dropout mask, and, where weights train, the inputs
    of its linear layers: the norm's output itself in fp32, a half copy for each reader under autocast.
    """
    arch, te, td, d = s.arch, s.source_tokens, s.target_tokens, s.arch.d_model
    width, inner, vocab = _stream(s), s.inner, arch.vocab_size
    cast = s.autocast and not s.frozen
    per_ff, ff_backward = _feed_forward(s)
    self_e, self_e_backward = _core(s, s.source, s.source, te, masked=s.padded)
    self_d, self_d_backward = _core(s, s.target, s.target, td, masked=False)
    cross, cross_backward = _core(s, s.target, s.source, te, masked=s.padded)
    ff_e, ff_d = te * arch.d_ff * per_ff + _norm(s, te, 1), td * arch.d_ff * per_ff + _norm(s, td, 1)
    cross += _norm(s, td, 1) + (4 * te * d if cast else 0)
    attention, feed_forward = 4 * d * inner, 2 * d * arch.d_ff
    stream_e, stream_d = te * d * width, td * d * width
    copied = 2 if s.copied and not s.quantized else 0
    # gradients of a layer's own weights: the last projection's is there when the feed-forward's backward needs most
    one = 0 if s.frozen else s.weight_bytes * d * arch.d_ff
    done, cross_done = 2 * one, 0 if s.frozen else s.weight_bytes * attention
    encoder = Layer(
        kept=ff_e + self_e + _norm(s, te, 3),
        backward=max(te * arch.d_ff * ff_backward + one, self_e_backward - ff_e + done) + stream_e,
        entry=stream_e,
        copies=copied * (attention + feed_forward),
        tensors=24,
        forward=_made_again(s, te, s.source**2),
    )
    decoder = Layer(
        kept=ff_d + cross + self_d + _norm(s, td, 3),
        backward=max(
            td * arch.d_ff * ff_backward + one,
            cross_backward - ff_d + done,
            self_d_backward - ff_d - cross + done + cross_done,
        )
        + stream_d,
        entry=stream_d,
        copies=copied * (2 * attention + feed_forward),
        tensors=40,
        forward=_made_again(s, td, s.target**2 + s.target * s.source),
    )
    tail = width + MASK
    return Saved(
        encoder=encoder,
        decoder=decoder,
        encoder_tail=te * d * tail,
        decoder_tail=td * d * (tail + (2 if cast else 0 if s.frozen else width)),
        encoder_mask=te * d * MASK,
        decoder_mask=td * d * MASK,
        encoder_output=stream_e,
        unneeded=(te + td) * d * tail,
        bias=0,
        head_copies=2 * vocab * d if s.copied else 0,
        loss=_loss(s),
    )


def _made_again(s: Shape, tokens: int, pairs: int) -> int:
    """What a layer that checkpointing makes again holds at its end, its output's gradient included: eager attention
    hands its probabilities over, which autocast leaves in fp32."""
    held = s.batch * s.arch.num_heads * pairs * FP32 if s.eager and s.autocast and s.arch.attention_dropout else 0
    return held + tokens * s.arch.d_model * (2 * _stream(s) + s.compute_bytes)


def _stream(s: Shape) -> int:
    """Width of the residual stream: autocast runs layer norms in fp32, whatever the weights' type."""
    return FP32 if s.autocast else s.weight_bytes


def _norm(s: Shape, tokens: int, readers: int) -> int:
    """A sublayer's norm (input, mean and deviation), its dropout mask, and what the linear layers after it keep."""
    kept = _stream(s) + MASK
    if not s.frozen:
        kept += 2 * readers if s.autocast else s.weight_bytes
    return tokens * (s.arch.d_model * kept + 2 * FP32)


def _feed_forward(s: Shape) -> tuple[int, int]:
    """Bytes kept per token and feed-forward unit (gelu's input, the input of fc2), and what its backward adds."""
    half = s.compute_bytes == 2 and not s.quantized
    width = 2 if half else FP32
    mask = MASK if s.arch.activation_dropout else 0
    return (width + mask, 2 * width) if s.frozen else (2 * width + mask, width)


def _core(s: Shape, queries: int, keys: int, key_tokens: int, *, masked: bool) -> tuple[int, int]:
    """The attention core: q, k, v, result and scores kept; and what its backward needs above that.

    Eager keeps the softmax (and a half copy under autocast; with attention dropout a mask and the dropped result);
    SDPA keeps the padding mask, one for all heads, and a log-sum-exp for each query (in rows of 32).
    """
    compute, b, heads = s.compute_bytes, s.batch, s.arch.num_heads
    scores = b * heads * queries * keys
    projections = (2 * b * queries + 2 * key_tokens) * s.inner * compute
    if s.eager:
        if s.frozen:
            projections -= b * queries * s.inner * compute  # the result is kept for the weights of out_proj only
        soft = FP32 if s.autocast else compute
        kept = soft + (MASK + compute if s.arch.attention_dropout else 2 if s.copied else 0)
        return projections + scores * kept, scores * (3 * soft - (kept - soft))
    mask = b * queries * keys * compute if masked else 0
    rows = FP32 * b * heads * (-(-queries // 32) * 32)
    return projections + mask + rows, projections - b * queries * s.inner * compute


def _loss(s: Shape) -> Loss:
    """Cross entropy. The bias of the output layer is an fp32 buffer, so the logits are fp32 under autocast too."""
    logits = s.target_tokens * s.arch.vocab_size
    compute = s.compute_bytes
    product = 3 * compute * logits if s.lora_head else 0
    if s.autocast and s.loaded_half and not s.smoothing:  # the buffer is half too: as T5
        return Loss(kept=6 * logits, inside=2 * logits, forward=6 * logits, backward=4 * logits, gradient=2 * logits)
    kept = (FP32 if s.autocast else compute) * logits
    if s.smoothing:
        return Loss(
            kept=kept,
            inside=kept,
            forward=2 * kept,
            backward=kept * (3 if s.autocast or s.weight_bytes == FP32 else 4),
            gradient=compute * logits,
        )
    forward = max(kept, product - kept)
    return Loss(kept=kept, inside=forward, forward=forward, backward=2 * kept, gradient=compute * logits)
