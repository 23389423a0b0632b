"""Encoder-only models: the peak of the Trainer's evaluation, forward with labels and the logits it keeps on the GPU."""

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.encoder import layer_copies, streams_alive
from kb.memory.encoder_attention import attention, half_stream
from kb.memory.encoder_head import head
from kb.memory.encoder_parts import embedded, relative_rows
from kb.memory.evaluation import kept_steps
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.remainders import copies_of, kept_states, reused_remainder
from kb.memory.shape import Shape

FP32, HALF, TOKEN_ID = 4, 2, 8
REBINDING = ("distilbert", "albert")  # their feed-forward lets go of the activation once it is read
WRITTEN_OUT = ("gelu_new", "gelu_fast")


def stream_row(s: Shape) -> int:
    """Bytes of the residual stream: autocast runs layer norms in fp32, whatever the weights' type."""
    return s.source_tokens * s.arch.d_model * (FP32 if s.autocast else s.weight_bytes)


def layer_transient(s: Shape) -> int:
    """The most that one layer's forward pass holds beside its input where nothing is kept for a backward."""
    return max(_attention(s), _feed_forward(s))


def _feed_forward(s: Shape) -> int:
    """At the activation, or at the layer's last norm. Eager attention's scores are alive in the layer's frame."""
    a, t, row = s.arch, s.source_tokens, stream_row(s)
    half = s.compute_bytes == HALF and not s.quantized
    wide, narrow = t * a.d_ff * (HALF if half else FP32), t * a.d_model * s.compute_bytes
    # gelu_new: half the input, the power and its product, in fp32 under autocast
    written_out = t * a.d_ff * 2 * (FP32 if s.autocast or not half else HALF) if a.activation in WRITTEN_OUT else 0
    activation = row + 2 * wide + written_out
    last_norm = 3 * row + narrow + (0 if a.model_type in REBINDING else wide)
    scores = s.batch * a.num_heads * s.source**2 if s.eager and a.model_type != "deberta-v2" else 0
    product = 0  # the last layer's, where its weight is made half for this product alone, and what it reads
    if s.frozen and (s.quantized or s.copied):
        product = row + wide + HALF * (a.d_ff * a.d_model + t * a.d_model + (t * a.d_ff if s.quantized else 0))
    return max(activation, last_norm, product) + scores * (FP32 if s.autocast else s.compute_bytes)


def _attention(s: Shape) -> int:
    a, compute = s.arch, s.compute_bytes
    projections = s.source_tokens * s.inner * (s.weight_bytes if s.quantized else compute)
    scores = s.batch * a.num_heads * s.source**2
    soft = FP32 if s.autocast else compute
    if a.model_type == "deberta-v2":
        kinds, rows = len(a.relative.split("|")) if a.relative else 0, relative_rows(a)
        raw = s.batch * a.num_heads * s.source * rows * compute
        repeated = kinds * s.batch * rows * s.inner * compute
        # with both relative attentions the last product by position is gathered and let go, then divided
        last = max(raw, scores * compute) if kinds > 1 else raw
        by_position = last + repeated + (2 + kinds) * scores * compute
        return 3 * projections + max(by_position, scores * (2 * soft + 2 * compute if s.autocast else 3 * compute))
    if s.eager:
        return 3 * projections + scores * _widened(s, soft)
    return 4 * projections + (s.batch * s.source**2 * compute if s.padded else 0)


def _widened(s: Shape, soft: int) -> int:
    """Bytes of a score at eager attention's softmax. Under autocast the scores are half, unless a mask in fp32 was
    added; then they are there beside what the softmax makes of them."""
    if not s.autocast or (s.padded and not half_stream(s)):
        return 2 * soft
    return HALF + (soft if s.fp16 else 2 * soft)


def _streams(s: Shape) -> int:
    """The states of the residual stream that are alive beside a layer's own."""
    a, t = s.arch, s.source_tokens
    found = streams_alive(s) * stream_row(s)
    if a.model_type == "albert":
        found += t * embedded(a) * (FP32 if s.autocast else s.weight_bytes)
    return found - (t * a.d_model * HALF if half_stream(s) else 0)


def evaluation_peak(setup: TrainingSetup, s: Shape, resident: Terms, cast_adapters: int, remainder: float) -> Peak:
    """Peak allocated bytes of evaluation steps with labels.

    The Trainer keeps the logits of every step until ``eval_accumulation_steps`` moves them to the host, and joining
    them holds both the joined and the new. The embeddings' output stays alive beside the stream; DeBERTa holds every
    layer's.

    Args:
        cast_adapters: adapter parameters that autocast copies.
        remainder: bytes that the allocator leaves unsplit in a block, as a rule.
    """
    a, t, row = s.arch, s.source_tokens, stream_row(s)
    logits = s.batch * predicted_elements(a, s.source)
    width = FP32 if s.autocast else s.weight_bytes
    step = 0 if setup.prediction_loss_only else width * logits
    steps = kept_steps(setup, s.batch)
    before = resident | {"gathered": (steps - 1 + (steps > 2)) * step, "inputs": 4 * TOKEN_ID * t}
    copied = s.copied and not s.frozen  # autocast caches copies of weights that can train, in evaluation too
    copies = (layer_copies(s) if copied else 0) + cast_adapters * HALF * s.autocast
    states = kept_states(resident)
    rest = reused_remainder(a, s.weight_bytes, states, copies_of(a)) if copied else 0
    held: Terms = {"activations_encoder": _streams(s) + attention(s).passing}
    to_come = HALF * a.d_model * (2 * a.d_ff + s.inner) if copies and copied else 0  # the last layer's own, then
    moments: dict[str, Terms] = {
        "encoder": before
        | held
        | {"temporaries": _feed_forward(s), "autocast_copies": copies, "allocator_remainders": rest},
        "encoder_forward": before
        | held
        | {"temporaries": _attention(s), "autocast_copies": copies - to_come, "allocator_remainders": rest},
    }
    if a.head == "masked":
        moments["forward_end"] = before | {
            "logits": (8 if s.autocast or s.weight_bytes == FP32 else 4) * logits,
            "encoder_output": row,
            "autocast_copies": copies + (head(s).copies if copied else 0),
            "allocator_remainders": rest,
        }
    if step:
        moments["gathering"] = resident | {"gathered": 2 * steps * step}
    return largest(moments)


def predicted_elements(arch: Architecture, source: int) -> int:
    """Elements of the logits that evaluation keeps for one sample of ``source`` tokens."""
    if arch.head == "masked":
        return source * arch.vocab_size
    return arch.labels if arch.head == "sequence" else source * arch.labels
