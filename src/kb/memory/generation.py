"""The peak of transformers' ``generate`` with a cache, for encoder-decoder models (04-memory, "Generation")."""

from kb.memory.counts import count
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.remainders import copies_remainder
from kb.memory.shape import Shape

TOKEN_ID = 8  # int64
FP32 = 4


def generation_peak(
    s: Shape, resident: Terms, *, beams: int, new_tokens: int, accelerated: bool, remainder: float
) -> Peak:
    """Peak allocated bytes.

    ``resident`` is what is alive before; ``s.source`` the prompt's length; ``accelerated`` that the Trainer's wrapper
    runs the decoder under autocast and hands the logits over in fp32 (it does not under PEFT, whose generate calls the
    wrapped model's own); ``remainder`` is what the allocator leaves unsplit in a block, as a rule.
    """
    arch = s.arch
    rows = s.batch * beams
    weight, vocab, heads = s.weight_bytes, arch.vocab_size, arch.num_heads
    autocast = accelerated and s.autocast
    cache = 2 if autocast else weight
    logit = 4 if autocast else weight
    source, inner = s.source, s.inner
    layer = rows * inner * cache
    counts = count(arch)
    copies, rest = 0, 0
    if autocast and s.weight_bytes == FP32:  # the k and v of cross attention were needed for the first token only
        copies = 2 * (counts.decoder_linear - 2 * arch.decoder_layers * arch.d_model * inner + counts.embedding)
        rest = copies_remainder(arch, remainder) // 2
    encoded = rows * source * arch.d_model * weight
    ids = rows * source * TOKEN_ID + 2 * s.batch * source * TOKEN_ID
    ids += (
        rows * (new_tokens + 1) * 2 * TOKEN_ID + rows * new_tokens * 4 if beams > 1 else s.batch * new_tokens * TOKEN_ID
    )
    fixed = resident | {"encoder_output": encoded, "inputs": ids}
    per_token = 2 * arch.decoder_layers * layer
    full = {"kv_cache_self": per_token * new_tokens, "kv_cache_cross": per_token * source}
    live = (8 if beams > 1 else 4) * rows * vocab
    head = (12 + logit if beams > 1 else 8 + logit) * rows * vocab
    product = (2 if arch.family == "bart" else 1) * logit * rows * vocab
    if autocast:  # BART's output bias is fp32
        product = (6 if arch.family == "bart" and s.weight_bytes == FP32 else 2) * rows * vocab
    growth = layer * new_tokens + (3 if s.eager else 1) * rows * heads * source * cache
    reorder = layer * max(source, new_tokens) if beams > 1 else 0
    first = {"kv_cache_self": per_token, "kv_cache_cross": per_token * source}
    prefill = 2 * layer * source + max(copies - 2 * vocab * arch.d_model, 0)
    first_head = max((logit + 8) * rows * vocab, copies + product)
    return largest(
        {
            "last_token_logits": fixed | full | {"logits": head},
            "beam_reorder": fixed | full | {"logits": live, "temporaries": reorder},
            "cache_growth": fixed
            | full
            | {"logits": live, "autocast_copies": copies, "allocator_remainders": rest, "temporaries": growth},
            "last_token_product": fixed
            | full
            | {"logits": live + product, "autocast_copies": copies, "allocator_remainders": rest},
            "prefill": fixed | first | {"temporaries": prefill},
            "prefill_logits": fixed | first | {"logits": first_head},
            # the Trainer's autocast does not reach the encoder, which generate calls directly
            "encoder": resident
            | {"inputs": 2 * s.batch * source * TOKEN_ID, "activations_encoder": encoder_transient(s, s.weight_bytes)},
        }
    )


def encoder_transient(s: Shape, stream: int) -> int:
    """Temporaries of one encoder layer in forward, with a residual stream of ``stream`` bytes an element.

    T5 adds position bias and padding mask to a tensor of all scores' size, and SDPA takes a contiguous copy of it;
    eager attention holds scores twice. Otherwise the feed-forward's two widened tensors are the most.
    """
    arch = s.arch
    compute = 2 if stream != s.weight_bytes or (s.autocast and stream == FP32) else stream
    hidden = s.source_tokens * arch.d_model * stream
    projections = 3 * s.source_tokens * s.inner * compute
    scores = s.batch * arch.num_heads * s.source**2
    widened = s.source_tokens * arch.d_ff * compute
    if arch.family == "bart":
        mask = s.batch * s.source**2
        attention = (
            projections + 3 * hidden + (2 * scores * stream + mask * stream if s.eager else mask * (1 + compute))
        )
        return max(attention, 2 * widened + 4 * hidden + mask * (stream if s.eager else 1))
    bias = arch.num_heads * s.source**2 * stream
    attention = 2 * scores * stream + bias + 3 * hidden + projections + s.batch * s.source**2
    if s.eager:
        attention += hidden
    return max(attention, widened * (4 if arch.gated else 2) + 4 * hidden + bias)
