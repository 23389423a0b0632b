"""The peak of transformers' ``generate`` with a cache (04-memory, "Generation"): encoder-decoder models here."""

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
    if s.arch.family == "decoder":  # imported where used, as only these models need it
        from kb.memory import decoder_forward

        return decoder_forward.generation_peak(
            s, resident, beams=beams, new_tokens=new_tokens, accelerated=accelerated, remainder=remainder
        )
    arch, batch, source, beams = s.arch, s.batch, s.source, max(beams, 1)
    rows, autocast = batch * beams, accelerated and s.autocast
    cache = 2 if autocast else s.weight_bytes
    ids = TOKEN_ID * source * (rows + 2 * batch)
    ids += rows * (2 * TOKEN_ID * (new_tokens + 1) + FP32 * new_tokens) if beams > 1 else batch * new_tokens * TOKEN_ID
    per_token = 2 * arch.decoder_layers * rows * s.inner * cache  # keys and values of every layer
    fixed = resident | {
        "encoder_output": rows * source * arch.d_model * s.weight_bytes,  # expanded by the beams
        "inputs": ids,
        "kv_cache_cross": per_token * source,
    }
    moments = _last_token(s, rows, cache, new_tokens, beams > 1, autocast, remainder)
    moments |= _first_token(s, rows, cache, autocast)
    moments = {
        name: fixed | {"kv_cache_self": per_token * (1 if name.startswith("prefill") else new_tokens)} | terms
        for name, terms in moments.items()
    }
    # the Trainer's autocast does not reach the encoder, which generate calls directly
    moments["encoder"] = resident | {
        "inputs": 2 * batch * source * TOKEN_ID,
        "activations_encoder": encoder_transient(s, s.weight_bytes, s.weight_bytes),
    }
    return largest(moments)


def _last_token(
    s: Shape, rows: int, cache: int, new_tokens: int, searching: bool, autocast: bool, remainder: float
) -> dict[str, Terms]:
    """The last token's moments: the logits' processing, beam reordering, the cache's growth, the output layer."""
    arch, counts = s.arch, count(s.arch)
    logits, layer, scores = rows * arch.vocab_size, rows * s.inner * cache, rows * arch.num_heads * s.source * cache
    width = FP32 if autocast else s.weight_bytes
    live = (8 if searching else 4) * logits  # of the step before: fp32 scores, and log-probabilities of a search
    working: Terms = {"logits": live}
    if autocast and s.weight_bytes == FP32:
        # the k and v of cross attention were needed for the first token only
        decoder = counts.decoder_linear - 2 * arch.decoder_layers * arch.d_model * s.inner
        working["autocast_copies"] = 2 * (decoder + counts.embedding)
        working["allocator_remainders"] = copies_remainder(arch, remainder) // 2
    product = (2 if arch.family == "bart" else 1) * width * logits  # BART adds a bias
    if autocast:
        product = (6 if arch.family == "bart" and s.weight_bytes == FP32 else 2) * logits
    growth = layer * new_tokens + (3 if s.eager else 1) * scores
    return {
        "last_token_logits": {"logits": (12 + width if searching else 8 + width) * logits},
        "beam_reorder": {"logits": live, "temporaries": layer * max(s.source, new_tokens) if searching else 0},
        "cache_growth": working | {"temporaries": growth},
        "last_token_product": working | {"logits": live + product},
    }


def _first_token(s: Shape, rows: int, cache: int, autocast: bool) -> dict[str, Terms]:
    """The first token's: the last layer's cross-attention keys and values beside the cache, and the logits."""
    arch, counts = s.arch, count(s.arch)
    logits = rows * arch.vocab_size
    copies = 2 * counts.decoder_linear if autocast and s.weight_bytes == FP32 else 0
    width = FP32 if autocast else s.weight_bytes
    product = 6 * logits if autocast else 0
    last = 2 * rows * s.inner * cache * s.source
    if s.lora_cross and s.weight_bytes != FP32 and not autocast:
        # an adapter reads an fp32 copy of the encoder's output; its result, and that scaled
        last = FP32 * rows * s.source * (arch.d_model + 2 * s.inner)
    return {
        "prefill": {"temporaries": last, "autocast_copies": copies},
        "prefill_logits": {"logits": max((width + 8) * logits, product)},
    }


def encoder_transient(s: Shape, stream: int, compute: int) -> int:
    """Temporaries of one encoder layer in forward, in bytes.

    ``stream`` is the width of the residual stream, ``compute`` that of matrix products. T5 adds position bias and
    padding mask to a tensor of all scores' size, and SDPA takes a contiguous copy of it; eager attention holds scores
    twice. Otherwise the feed-forward's two widened tensors are the most.
    """
    arch = s.arch
    hidden = s.source_tokens * arch.d_model * stream
    projections = 3 * s.source_tokens * s.inner * compute
    scores = s.batch * arch.num_heads * s.source**2
    widened = s.source_tokens * arch.d_ff * compute
    if arch.family == "bart":
        mask = s.batch * s.source**2
        core = 2 * scores * stream + mask * stream if s.eager else mask * (1 + compute)
        return max(projections + 3 * hidden + core, 2 * widened + 4 * hidden + mask * (stream if s.eager else 1))
    bias = arch.num_heads * s.source**2 * stream
    core = 2 * scores * stream + bias + s.batch * s.source**2
    attention = core + (4 if s.eager else 3) * hidden + projections
    return max(attention, widened * (4 if arch.gated else 2) + 4 * hidden + bias)
