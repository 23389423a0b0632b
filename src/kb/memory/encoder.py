"""Encoder-only models: what autograd keeps.

Derived from transformers' modeling_bert, _roberta, _electra, _deberta_v2, _distilbert and _albert, checked by traces.
"""

from kb.core.record import NamedTuple
from kb.memory.encoder_attention import Core, attention
from kb.memory.encoder_head import EncoderHead, head
from kb.memory.encoder_parts import embedded, modules_of
from kb.memory.remainders import segment_remainder
from kb.memory.saved import Layer
from kb.memory.shape import Shape

MASK = 1  # dropout keeps a byte for each element
FP32, HALF, INT64 = 4, 2, 8
STATISTICS = 2 * FP32  # mean and deviation of a layer norm, for each token
WRITTEN_OUT = ("gelu_new", "gelu_fast")  # activations of several operations
REBINDING = ("distilbert", "albert")  # their feed-forward lets go of the activation once it is read
KEEPING_RESULT = ("relu",)  # activations whose gradient needs their result only


class EncoderSaved(NamedTuple):
    """A pass of an encoder-only model, in bytes.

    ``first`` is kept by the embeddings until the end of backward; ``shared`` lives as long as any layer's backward
    needs it, ``passing`` as long as the forward pass (DeBERTa holds every layer's output); ``position_rows`` are what
    DeBERTa's projections read beside the tokens.
    """

    layers: int
    layer: Layer
    first: int
    shared: int
    passing: int
    position_rows: int
    copies: int  # of all layers
    head: EncoderHead


def stream_width(s: Shape) -> int:
    """Width of the residual stream: autocast runs layer norms in fp32, whatever the weights' type."""
    return FP32 if s.autocast else s.weight_bytes


def saved(s: Shape, *, bare: bool = False) -> EncoderSaved:
    """Bytes that one training pass keeps for its backward (04-memory, "Closed forms", encoder-only).

    Each sublayer ends in a layer norm of its sum with its input: the norm keeps its input and two statistics a token, a
    dropout before it a mask, and where weights train the linear layers keep their inputs: the norm's output itself, or
    under autocast a half copy for each reader.

    Args:
        bare: a pass without labels, as measurements without an optimizer make it: the logits' sum is the loss.
    """
    core, given = attention(s), _given(s)
    return EncoderSaved(
        layers=s.arch.encoder_layers,
        layer=_layer(s, core, given),
        first=0 if s.frozen else input_embeddings(s),
        shared=core.shared,
        passing=core.passing + given * streams_alive(s),
        position_rows=core.position_rows,
        copies=layer_copies(s),
        head=head(s, bare=bare),
    )


def _given(s: Shape) -> int:
    """A norm's output: alive in the layer's own frames, even where autograd keeps casts of it or nothing."""
    kept = not s.frozen and not s.autocast
    return 0 if kept else s.source_tokens * s.arch.d_model * stream_width(s)


def _layer(s: Shape, core: Core, given: int) -> Layer:
    """One layer: the feed-forward's backward comes first, at the gradient of its activation; the core's when what the
    feed-forward kept is gone."""
    a, t = s.arch, s.source_tokens
    per_ff, ff_backward, ff_forward = _feed_forward(s)
    wide, row, narrow = t * a.d_ff, t * a.d_model * stream_width(s), t * a.d_model * s.compute_bytes
    mask_core = t * a.d_model * MASK if a.hidden_dropout and a.model_type != "distilbert" else 0
    mask_ff = t * a.d_model * MASK if a.hidden_dropout and a.model_type != "albert" else 0
    kept_core = core.kept + mask_core + t * (a.d_model * _inputs(s, 3) + STATISTICS) + row
    kept_ff = wide * per_ff + mask_ff + t * (a.d_model * _inputs(s, 1) + STATISTICS) + row
    gradient = 0 if s.frozen else a.d_model * a.d_ff * s.weight_bytes
    activated = wide * (HALF if s.compute_bytes == HALF and not s.quantized else FP32)
    lingering = activated if s.frozen and a.model_type not in REBINDING else 0
    return Layer(
        kept=kept_core + kept_ff + _own_segments(s, row, narrow, activated),
        backward=max(
            narrow - mask_ff + activated + gradient,
            wide * ff_backward - mask_ff + gradient,
            core.backward - kept_ff - mask_core + narrow + 2 * gradient,
        ),
        entry=row,
        copies=layer_copies(s) // (1 if a.shared_layers else a.encoder_layers),
        tensors=24,
        forward=max(
            given + row + narrow + lingering + core.held,
            core.forward - kept_ff + core.held,
            given + wide * ff_forward - row - mask_ff,
        ),
    )


def streams_alive(s: Shape) -> int:
    """How many states of the residual stream the forward pass holds beside the layer's own: the layer's input and the
    embeddings' output, or for DeBERTa every layer's output; ALBERT's embeddings are narrower."""
    if s.arch.model_type == "deberta-v2":
        return s.arch.encoder_layers
    return 1 if s.arch.model_type == "albert" else 2


def _own_segments(s: Shape, row: int, narrow: int, wide: int) -> int:
    """What the allocator rounds up in a layer's large tensors, each of which has a segment of its own."""
    proj = 4 if not (s.frozen and s.eager) else 3
    if s.frozen:
        sizes = ((row, 2), (narrow, proj), (wide, 1))
    elif s.autocast:
        sizes = ((row, 2), (narrow, proj + 4), (wide, 2))
    else:
        sizes = ((row, 4), (narrow, proj), (wide, 2))
    return sum(number * segment_remainder(size) for size, number in sizes)


def _inputs(s: Shape, readers: int) -> int:
    """Bytes an element that linear layers keep of what they read."""
    if s.frozen:
        return 0
    return HALF * readers if s.autocast else s.weight_bytes


def layer_copies(s: Shape) -> int:
    """Autocast's half copies of the layers' weights; 4-bit layers need none."""
    if not s.copied or s.quantized:
        return 0
    return HALF * sum(m.in_features * m.out_features * m.number for m in modules_of(s.arch) if m.stack == "encoder")


def input_embeddings(s: Shape) -> int:
    """The norm over the summed embeddings, its dropout's mask, and what a projection to the model's width reads."""
    a, t = s.arch, s.source_tokens
    width = embedded(a)
    kept = t * (width * (stream_width(s) + (MASK if a.embedding_dropout else 0)) + STATISTICS)
    if width != a.d_model:
        kept += t * width * _inputs(s, 1)
        kept -= t * a.d_model * HALF * 2 if s.autocast else 0  # what it gives out is half: one tensor for q, k and v
    if a.model_type == "deberta-v2":
        kept += t * stream_width(s)  # the padding mask that the embeddings are multiplied by
    return kept


def _feed_forward(s: Shape) -> tuple[int, int, int]:
    """Bytes kept per token and feed-forward unit, the most that its backward adds to them, and its forward holds.

    gelu keeps its input, and the linear layer after it its result where that trains. gelu_new is written out in
    Python: the input, tanh, half the input, one plus tanh; under autocast its power is in fp32.
    """
    half = s.compute_bytes == HALF and not s.quantized
    width = HALF if half else FP32
    result = 0 if s.frozen else width
    if s.arch.activation in KEEPING_RESULT:
        return width, width, width
    if s.arch.activation not in WRITTEN_OUT:
        return width + result, 2 * width - result, 0
    if half and s.autocast:
        return 3 * FP32 + HALF + result, 3 * FP32 + HALF - result, 2 * FP32
    return 4 * width + result, 3 * width - result, width
