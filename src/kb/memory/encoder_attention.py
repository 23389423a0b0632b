"""The attention of encoder-only models: what its core keeps, and what its passes hold on top."""

from kb.core.record import NamedTuple
from kb.memory.encoder_parts import relative_rows
from kb.memory.shape import Shape

MASK = 1
FP32, HALF, INT64 = 4, 2, 8
ROWS = 32  # memory-efficient attention keeps its log-sum-exp in rows of 32


class Core(NamedTuple):
    """Bytes of one layer's attention core: ``kept``; the most its ``backward`` and its ``forward`` hold above that;
    what all layers share until the end of backward where checkpointing keeps it (``shared``), or through the forward
    pass (``passing``); how many rows of positions DeBERTa's projections read; and what lives to the layer's end beside
    ``kept`` (``held``): eager attention hands its probabilities over."""

    kept: int
    backward: int
    forward: int
    shared: int
    passing: int
    position_rows: int = 0
    held: int = 0


def attention(s: Shape) -> Core:
    """SDPA, eager attention, or DeBERTa's attention by content and position (which knows no other form)."""
    if s.arch.model_type == "deberta-v2":
        return _disentangled(s)
    return _eager(s) if s.eager else _fused(s)


def _projections(s: Shape, number: int) -> int:
    return number * s.source_tokens * s.inner * s.compute_bytes


def _fused(s: Shape) -> Core:
    """q, k, v and the result; a log-sum-exp for each query; and the padding mask, made anew by every layer."""
    pairs, compute = s.batch * s.source**2, s.compute_bytes
    mask = pairs * compute if s.padded else 0
    rows = FP32 * s.batch * s.arch.num_heads * (-(-s.source // ROWS) * ROWS)
    work = s.source_tokens * s.inner * FP32 if compute == HALF else 0  # the gradient of q is summed in fp32
    return Core(
        kept=_projections(s, 4) + mask + rows,
        backward=_projections(s, 3) + work + rows,
        forward=0,
        shared=pairs * MASK if s.padded else 0,
        passing=pairs * MASK if s.padded else 0,
    )


def half_stream(s: Shape) -> bool:
    """Whether the embeddings' output is half: ELECTRA's projection of narrow embeddings runs under autocast."""
    return s.autocast and s.arch.model_type == "electra" and s.arch.embedding_size is not None


def _softmax(s: Shape) -> tuple[int, int]:
    """Bytes kept for each score, and of the softmax alone: in fp32 under autocast, with a half copy where weights are
    cast; dropout keeps a mask and its result."""
    soft = FP32 if s.autocast else s.compute_bytes
    if s.arch.attention_dropout:
        return soft + MASK + s.compute_bytes, soft
    return soft + (HALF if s.autocast and soft != s.compute_bytes else 0), soft


def _eager(s: Shape) -> Core:
    """q, k, v, the result (for the output's weights only), and the scores."""
    scores = s.batch * s.arch.num_heads * s.source**2
    kept, soft = _softmax(s)
    mask = s.batch * s.source**2 * (HALF if half_stream(s) else s.weight_bytes) if s.padded else 0
    return Core(
        kept=_projections(s, 3 if s.frozen else 4) + scores * kept,
        backward=scores * (3 * soft - (kept - soft)),
        forward=0,
        shared=mask,
        passing=mask,
        held=scores * (soft if s.autocast and s.arch.attention_dropout else 0),
    )


def _disentangled(s: Shape) -> Core:
    """DeBERTa: scores of content with content, and of content with each kind of position, gathered by distance.

    For each kind it keeps the scores before gathering (as many as there are rows of positions), the distances, and the
    projected positions, repeated for every sample.
    """
    a, compute, width = s.arch, s.compute_bytes, s.arch.num_heads * s.arch.d_kv
    scores = s.batch * a.num_heads * s.source**2
    rows = relative_rows(a)
    kinds = len(a.relative.split("|")) if a.relative else 0
    raw = s.batch * a.num_heads * s.source * rows * compute
    kept, soft = _softmax(s)
    by_position = kinds * (raw + s.batch * rows * width * compute + INT64 * s.source**2)
    read = 0
    if rows and not s.frozen:
        inputs = HALF * kinds if s.autocast else s.weight_bytes * a.hidden_dropout
        read = rows * a.d_model * (inputs + (MASK if a.hidden_dropout else 0))
    half = scores * compute
    table = rows * a.d_model * s.weight_bytes
    held = s.batch * s.source**2 * INT64 + (INT64 * s.source**2 + table if rows else 0)
    return Core(
        kept=_projections(s, 4 if s.frozen else 5) + scores * kept + s.batch * s.source**2 * MASK + by_position + read,
        backward=max(scores * (3 * soft - (kept - soft)), 2 * half + raw - scores * kept),
        forward=scores * (soft if s.autocast else compute),
        shared=held,
        passing=held,
        position_rows=rows,
    )
