"""The heads of encoder-only models and their losses: what they keep, and what their passes hold on top."""

from kb.core.record import NamedTuple
from kb.memory.encoder_parts import embedded, head_layers
from kb.memory.saved import Loss
from kb.memory.shape import Shape

MASK = 1
FP32, HALF = 4, 2
STATISTICS = 2 * FP32
NOTHING = Loss(kept=0, inside=0, forward=0, backward=0, gradient=0)


class EncoderHead(NamedTuple):
    """``kept`` is what the head keeps of all tokens below its output layer; ``copies`` autocast's copies of its
    weights; ``entering`` the gradient that its backward hands to the layers; ``handed`` the logits that
    the caller holds through the backward pass."""

    kept: int
    copies: int
    entering: int
    loss: Loss
    handed: int = 0


def head(s: Shape, *, bare: bool = False) -> EncoderHead:
    """A head over the vocabulary, over each token, or over the first one (of a size that does not count)."""
    a, t = s.arch, s.source_tokens
    stream = FP32 if s.autocast else s.weight_bytes
    entering = t * a.d_model * stream
    weights = sum(x.in_features * x.out_features for x in head_layers(a) if x.kept or not s.frozen)
    copies = HALF * weights if s.copied else 0
    if a.head == "masked":
        width = embedded(a)
        return EncoderHead(
            kept=_transform(s),
            copies=copies + (HALF * width * a.vocab_size if s.copied else 0),
            entering=entering,
            loss=_sum_of_logits(s) if bare else _masked_loss(s),
            handed=s.source_tokens * a.vocab_size * s.compute_bytes if bare else 0,
        )
    reads = HALF if s.autocast else s.weight_bytes
    if a.head == "sequence":
        return EncoderHead(_first_token(s), copies, entering, NOTHING)
    dropped = MASK if a.hidden_dropout and (a.head == "token" or a.model_type == "distilbert") else 0
    return EncoderHead(t * a.d_model * (reads + dropped), copies, entering, NOTHING)


def _first_token(s: Shape) -> int:
    """A dense layer over the first token reads a view of the last norm's output, which keeps all of it; a dropout or a
    cast in between makes a copy of that token alone. Beside adapters only a classifier's own layers train."""
    a = s.arch
    copied = s.autocast or (a.hidden_dropout and a.model_type not in ("bert", "albert", "deberta-v2", "distilbert"))
    trains = not s.frozen or a.model_type not in ("bert", "albert", "deberta-v2")
    return 0 if copied or not trains else s.source_tokens * a.d_model * s.weight_bytes


def _transform(s: Shape) -> int:
    """Dense, activation and norm before the output layer, of the embeddings' width. Its norm runs in fp32 under
    autocast, and the output layer reads a half copy."""
    a, t, width = s.arch, s.source_tokens, embedded(s.arch)
    compute, stream = s.compute_bytes, FP32 if s.autocast else s.weight_bytes
    kept = width * (compute + stream) + STATISTICS
    if s.frozen:
        return t * kept
    reads = HALF if s.autocast else s.weight_bytes
    written_out = 3 * (FP32 if s.autocast else compute) if a.activation in ("gelu_new", "gelu_fast") else 0
    return t * (kept + a.d_model * reads + width * (reads + written_out))


def _masked_loss(s: Shape) -> Loss:
    """Cross entropy in the logits' type: log-softmax keeps its result; under autocast the loss keeps an fp32 copy too,
    and accelerate hands the logits over in fp32. Label smoothing works on fp32 logits and negates the log-softmax."""
    logits, compute = s.source_tokens * s.arch.vocab_size, s.compute_bytes
    if s.smoothing:
        kept = (FP32 if s.autocast else compute) * logits
        return Loss(
            kept=kept,
            inside=0,
            forward=2 * kept,
            backward=kept * (3 if s.autocast or compute == FP32 else 4),
            gradient=compute * logits,
        )
    if s.autocast:
        return Loss(kept=6 * logits, inside=2 * logits, forward=6 * logits, backward=4 * logits, gradient=2 * logits)
    kept = compute * logits
    return Loss(kept=kept, inside=kept, forward=kept, backward=2 * kept, gradient=kept)


def _sum_of_logits(s: Shape) -> Loss:
    """Keeps nothing; its gradient is one number, spread over all logits once the output layer's backward reads it."""
    logits = s.source_tokens * s.arch.vocab_size * s.compute_bytes
    return Loss(kept=0, inside=0, forward=0, backward=0, gradient=logits)
