"""The peak of transformers' ``generate`` with a cache, for encoder-decoder models (04-memory, "Generation")."""

from kb.memory.counts import count
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.shape import Shape

TOKEN_ID = 8  # int64


def generation_peak(s: Shape, resident: Terms, *, beams: int, new_tokens: int, accelerated: bool) -> Peak:
    """Peak allocated bytes.

    ``resident`` is what is alive before; ``s.source`` the prompt's length; ``accelerated`` that the Trainer's wrapper
    runs the decoder under autocast and hands the logits over in fp32.
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
    copies = 2 * (counts.decoder_linear + vocab * arch.d_model) if autocast else 0
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
    product = 6 * rows * vocab if autocast else (2 if arch.family == "bart" else 1) * logit * rows * vocab
    growth = layer * new_tokens + (3 if s.eager else 1) * rows * heads * source * cache
    reorder = layer * max(source, new_tokens) if beams > 1 else 0
    first = {"kv_cache_self": per_token, "kv_cache_cross": per_token * source}
    prefill = 2 * layer * source + max(copies - 2 * vocab * arch.d_model, 0)
    first_head = max((logit + 8) * rows * vocab, copies + product)
    return largest(
        {
            "last_token_logits": fixed | full | {"logits": head},
            "beam_reorder": fixed | full | {"logits": live, "temporaries": reorder},
            "cache_growth": fixed | full | {"logits": live, "autocast_copies": copies, "temporaries": growth},
            "last_token_product": fixed | full | {"logits": live + product, "autocast_copies": copies},
            "prefill": fixed | first | {"temporaries": prefill},
            "prefill_logits": fixed | first | {"logits": first_head},
            # the Trainer's autocast does not reach the encoder, which generate calls directly
            "encoder": resident | {"inputs": 2 * s.batch * source * TOKEN_ID, "activations_encoder": encoder_transient(s, s.weight_bytes)},
        }
    )


def encoder_transient(s: Shape, weight: int) -> int:
    """Temporaries of one encoder layer in forward, in a type of ``weight`` bytes.

    T5 adds position bias and padding mask to a tensor of all scores' size, and SDPA takes a contiguous copy of it.
    """
    arch = s.arch
    stream = s.source_tokens * arch.d_model * weight
    scores = s.batch * arch.num_heads * s.source**2 * weight
    widened = s.source_tokens * arch.d_ff * weight
    if arch.family == "bart":
        mask = s.batch * s.source**2 * (weight if s.eager else 1)
        product = 4 * s.source_tokens * s.inner * weight + 3 * stream + (2 * scores if s.eager else 0)
        product += s.batch * s.source**2 * (weight if s.eager else 1 + weight)
        return max(product, 2 * widened + 4 * stream + mask)
    bias = arch.num_heads * s.source**2 * weight
    product = 2 * scores + bias + 8 * s.source**2 + 7 * stream
    return max(product, widened * (4 if arch.gated else 2) + 4 * stream + bias)
