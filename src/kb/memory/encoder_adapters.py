"""What LoRA adapters keep in an encoder-only model, and what its first layer leaves out beside them."""

from kb.core.record import NamedTuple
from kb.memory.adapters import DROPOUT_MASK, dora_bytes, input_bytes, shared_inputs, shares_inputs
from kb.memory.linear import LinearModule
from kb.memory.shape import Shape

FP32, HALF = 4, 2


class EncoderAdapters(NamedTuple):
    """Bytes, for all layers: ``kept`` from forward to backward, ``copies`` of the adapters' weights under autocast.

    ``forward`` is the most that the wrapped feed-forward of a layer holds above what the layer keeps; ``unneeded`` is
    what the first layer leaves out, whose input needs no gradient; ``outside`` is kept above the layers.
    """

    kept: int
    copies: int
    forward: int
    unneeded: int
    outside: int


NONE = EncoderAdapters(0, 0, 0, 0, 0)


def adapters(s: Shape, targets: tuple[LinearModule, ...], rank: int, position_rows: int) -> EncoderAdapters:
    """A wrapped linear layer keeps its input, dropped out or cast for it alone, and the product of the rank's width.

    Adapters are fp32, so they keep 4 bytes an element, or 2 under autocast. DeBERTa's projections of q and k read the
    positions too, whose table needs no gradient and so no mask.
    """
    if not s.frozen:
        return NONE
    width, tokens = HALF if s.autocast else FP32, s.source_tokens
    repeats = s.arch.encoder_layers if s.arch.shared_layers else 1
    inner = [m for m in targets if m.stack == "encoder"]
    shared = shares_inputs(s)
    each = 0 if shared else input_bytes(s)
    kept = repeats * tokens * width * shared_inputs(targets, s.arch, s.eager).encoder_features if shared else 0
    copies = 0
    for module in inner:
        number = module.number * repeats
        kept += number * tokens * (module.in_features * each + rank * width)
        kept += repeats * tokens * dora_bytes(s, module) if s.dora else 0
        if s.arch.relative and module.leaf in ("query_proj", "key_proj") and s.arch.share_att_key:
            kept += number * position_rows * (module.in_features + rank) * width
        copies += module.number * rank * (module.in_features + module.out_features) * HALF
    above = [m for m in targets if m.stack == "head" and s.arch.head == "masked"]
    outside = sum(tokens * (m.in_features * input_bytes(s) + rank * width) for m in above)
    embeddings = [m for m in targets if m.kind == "embedding"]
    outside += len(embeddings) * rank * FP32 * tokens
    return EncoderAdapters(
        kept=kept,
        copies=copies if s.autocast else 0,
        forward=_wrapped_down(s) if any(m.in_features == s.arch.d_ff for m in inner) else 0,
        unneeded=0 if embeddings else _unneeded(s, {m.leaf for m in inner}, position_rows),
        outside=outside,
    )


def _wrapped_down(s: Shape) -> int:
    """Where the second feed-forward layer is wrapped: the activation, and under autocast the adapter's fp32 copy of it
    before and after its dropout; the last norm is still to come."""
    a, tokens = s.arch, s.source_tokens
    row = tokens * a.d_model * (FP32 if s.autocast else s.weight_bytes)
    activated = HALF if s.compute_bytes == HALF and not s.quantized else FP32
    copies = (2 if s.lora_dropout else 1) * FP32 if s.autocast else 0
    return (
        tokens * a.d_ff * (activated + copies) + tokens * a.d_model * s.compute_bytes + (row if s.frozen else 0) - row
    )


def _unneeded(s: Shape, leaves: set[str], position_rows: int) -> int:
    """Of the first layer: masks over the input of q, k and v, their weights' copies, and, where k is not wrapped, what
    the gradient of k would need: q, and DeBERTa's projected positions."""
    a, tokens = s.arch, s.source_tokens
    first = {"query", "key", "value", "query_proj", "key_proj", "value_proj", "q_lin", "k_lin", "v_lin"}
    found = len(leaves & first) * tokens * a.d_model * DROPOUT_MASK if s.lora_dropout else 0
    if s.copied and not s.quantized:
        found += 3 * HALF * a.d_model * s.inner
    if not leaves & {"key", "key_proj", "k_lin"} and (s.eager or a.model_type == "deberta-v2"):
        found += tokens * s.inner * s.compute_bytes
        if "p2c" in a.relative:
            found += s.batch * position_rows * s.inner * s.compute_bytes
    return found
