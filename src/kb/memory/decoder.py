"""Decoder-only models: what autograd keeps, derived from transformers' modelling code and checked against traces."""

from kb.memory.counts import count
from kb.memory.decoder_attention import core, masked
from kb.memory.saved import Layer, Loss, StackSaved
from kb.memory.shape import Shape

MASK = 1  # dropout keeps a byte for each element
FP32, INT64 = 4, 8


def saved(s: Shape) -> StackSaved:
    """Bytes that one training pass keeps for its backward.

    A norm keeps its input (RMS norms in fp32), statistics, and, where weights train, its scaled result, which the
    linear layers after it read: each casts it for itself under autocast. The feed-forward keeps its activation's input
    and the factors of its product.
    """
    a, t, d = s.arch, s.source_tokens, s.arch.d_model
    width, layers = s.weight_bytes, a.decoder_layers
    inner, inner_backward = feed_forward(s)
    norms = _norms(s)
    dropped = MASK * d if a.hidden_dropout else 0
    stream = t * d * width
    # gradients of this layer's own weights that exist by then: the last projection's; all of the feed-forward's
    one = 0 if s.frozen else width * d * a.d_ff
    all_inner = one * (3 if a.gated else 2)
    if a.experts:
        one = 0 if s.frozen else width * d * a.experts * a.expert_ff
        all_inner = 3 * one
    outside = t * (norms + 2 * dropped + inner)
    plain, plain_backward = core(s)
    sliding, sliding_backward = core(s, sliding=True) if a.windowed_layers else (0, 0)
    freed = t * (inner + (0 if a.parallel else norms // 2))
    attention_backward = max(plain_backward, sliding_backward) - freed + all_inner
    kept = outside + (max(plain, sliding) if a.windowed_layers < layers else sliding)
    layer = Layer(
        kept=kept,
        backward=max(t * inner_backward + one, attention_backward) + stream,
        entry=stream,
        copies=_copies(s),
        tensors=20,
    )
    return StackSaved(
        layers=layers,
        layer=layer,
        kept=layers * outside + a.windowed_layers * sliding + (layers - a.windowed_layers) * plain,
        first=t * d * MASK if a.embedding_dropout else 0,
        last=t * norm(s, d, 1, width),
        shared=_rotary_tables(s),
        arguments=_mask(s),
        head=a.vocab_size * d if not s.frozen else 0,
        head_copies=2 * a.vocab_size * d if s.copied else 0,
        loss=_loss(s),
    )


def linear_width(s: Shape) -> int:
    """Width of a linear layer's output: 4-bit layers return to the type of their input."""
    return s.weight_bytes if s.quantized else s.compute_bytes


def norm(s: Shape, size: int, readers: int, given: int, rows: int = 1) -> int:
    """Bytes a token that a norm over ``size`` elements keeps, its result for ``readers`` linear layers included.

    ``given`` is the width of what comes in, ``rows`` the statistics a token (heads, where each is normed).
    """
    trains, a = not s.frozen, s.arch
    if a.norm == "layer":
        kept = (FP32 if s.autocast else given) * size + 2 * FP32 * rows
    elif a.norm == "rms":
        kept = (FP32 + given * trains) * size + FP32 * rows
    else:
        kept = (FP32 + FP32 * trains) * size + FP32 * rows
    if trains and readers:
        half = s.copied or (s.autocast and a.norm == "layer")
        kept += (2 * readers if half else s.weight_bytes) * size
    return kept


def _norms(s: Shape) -> int:
    """Bytes a token that a layer's norms keep, with the inputs of the linear layers that read them."""
    a, d, width = s.arch, s.arch.d_model, s.weight_bytes
    attention_readers = 1 if a.fused_qkv else 3
    forward_readers = 2 if a.gated and not a.fused_gates else 1
    if a.experts:  # the router reads it, and a shared expert with its gate; the others take rows of it
        forward_readers = 4 if a.shared_ff else 1
    if a.norm_after:
        reads = 0 if s.frozen else d * (2 * (attention_readers + forward_readers) if s.copied else 2 * width)
        return reads + 2 * norm(s, d, 0, linear_width(s))
    if a.parallel and a.norms == 1:
        return norm(s, d, attention_readers + forward_readers, width)
    both = norm(s, d, attention_readers, width) + norm(s, d, forward_readers, width)
    if a.parallel:
        both -= d * (FP32 if s.autocast and s.weight_bytes == FP32 else 0 if s.autocast else width)  # of one input
    if a.norms == 4:
        both += 2 * norm(s, d, 0, linear_width(s))
    return both


def feed_forward(s: Shape) -> tuple[int, int]:
    """Bytes a token that the feed-forward keeps, and the most that its backward adds."""
    a, width, trains = s.arch, linear_width(s), not s.frozen
    if a.experts:
        return _experts(s)
    mixed = s.autocast and width == 2
    product = width if trains else 0
    if a.activation == "relu" and not a.gated:  # keeps its output, which is the next layer's input
        return width * a.d_ff, 2 * width * a.d_ff
    kept, backward = width, 2 * width
    if a.activation == "gelu_new":  # written out in Python; under autocast its power is in fp32
        kept, backward = (14, 12) if mixed else (4 * width, 3 * width)
    if a.gated:
        kept, backward = kept + 2 * width, max(backward, 3 * width)
    return (kept + product) * a.d_ff, (backward - product) * a.d_ff


def _experts(s: Shape) -> tuple[int, int]:
    """Bytes a token that a mixture of experts keeps, and the most that its backward adds.

    Grouped products run in the weights' type, outside autocast: rows chosen for each expert, both projections' results,
    the activation and its product; the order of the rows, and the router's softmax in fp32.
    """
    a, width, trains = s.arch, s.weight_bytes, not s.frozen
    each = width * (3 * a.expert_ff + a.d_model) + (width * (a.expert_ff + a.d_model) if trains else 0)
    orders = 3 * INT64 + width
    kept = a.experts_per_token * (each + orders + INT64) + FP32 * a.experts
    backward = a.experts_per_token * width * (3 * a.expert_ff + a.d_model)
    if a.shared_ff:
        inner = linear_width(s)
        kept += inner * ((4 if trains else 3) * a.shared_ff + a.d_model)
        backward = max(backward, 3 * inner * a.shared_ff)
    return kept, backward


def _copies(s: Shape) -> int:
    """Autocast's half copies of one layer's weights."""
    if not s.copied or s.quantized:
        return 0
    counts = count(s.arch)
    return 2 * (counts.decoder_linear + counts.biases) // s.arch.decoder_layers


def _rotary_tables(s: Shape) -> int:
    """Cosines and sines, which every layer keeps (two kinds of them where some layers slide, Gemma 3)."""
    a = s.arch
    tables = 2 if a.window and a.qk_norm == "head" and a.norms == 4 else 1
    return 2 * tables * s.weight_bytes * s.source * round(a.d_kv * a.rotary)


def _mask(s: Shape) -> int:
    """The mask that every layer takes: of bools, or of scores' type where attention is written out."""
    if not (s.eager or masked(s, s.arch.windowed_layers > 0)):
        return 0
    return s.batch * s.source**2 * (s.weight_bytes if s.eager else 1)


def _loss(s: Shape) -> Loss:
    """Cross entropy on fp32 logits: log-softmax keeps its result, its backward needs two more of them. Label smoothing
    works on a copy of the logits without the last token, in their own type, and keeps it beside the result."""
    logits, compute = s.source_tokens * s.arch.vocab_size, s.compute_bytes
    if s.smoothing:
        width = FP32 if s.autocast else compute
        both = 2 * width * logits
        backward = both if width == FP32 else (FP32 + width) * logits
        return Loss(kept=both, inside=both, forward=0, backward=backward, gradient=compute * logits)
    kept = FP32 * logits + (compute * logits if s.arch.logit_cap else 0)
    given = compute * logits
    inside = FP32 * logits + (given if compute != FP32 else 0)
    handed = FP32 * logits if s.autocast else given
    return Loss(kept=kept, inside=inside, forward=handed, backward=2 * FP32 * logits, gradient=given)
