"""Decoder-only models without gradients: the peak of evaluation and of generation."""

from kb.core.setup import TrainingSetup
from kb.memory.counts import count
from kb.memory.decoder_attention import grouped, kernel, masked
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.remainders import copies_remainder
from kb.memory.shape import Shape

TOKEN_ID = 8  # int64
FP32 = 4


def layer_transient(s: Shape, rows: int, autocast: bool) -> int:
    """Bytes that one layer's forward pass holds at most, over ``rows`` sequences, embeddings and residual included.

    The feed-forward's gate, other factor and product stand together with four tensors of the stream (embeddings,
    residual, norm, and what the norm read); written-out attention holds the scores before and after their softmax.
    """
    a, tokens, width = s.arch, rows * s.source, s.weight_bytes
    inner = 2 if autocast and not s.quantized else width
    stream = tokens * a.d_model * width
    wide, streams = a.d_ff, 4
    if a.experts:  # rows chosen for each expert, its two projections, activation and product
        wide = a.experts_per_token * (4 * a.expert_ff + a.d_model) + a.shared_ff
        factors = width
    elif a.activation == "gelu_new":  # halves, powers and sums of its own
        factors = 12 if autocast and inner == 2 else 4 * inner
    else:
        factors = (4 if a.fused_gates else 3 if a.gated else 2) * inner
    mask = rows * s.source**2 * (width if s.eager else 1) if s.eager or masked(s, a.windowed_layers > 0) else 0
    if a.model_type == "gpt2":  # its block's inputs and both kinds of embeddings live on
        streams = 5 if autocast else 6
    forward = tokens * wide * factors + streams * stream
    chosen = kernel(s, sliding=a.windowed_layers > 0)
    compute = 2 if autocast else width
    held = s.inner  # queries; keys and values are the cache's own, but for copies that heads share
    if grouped(s) and chosen != "flash" and (s.eager or a.kv_heads != 1):
        held += 2 * s.inner
    if a.fused_qkv:
        held += s.inner + 2 * (a.kv_heads or a.num_heads) * a.d_kv
    scores = rows * a.num_heads * s.source**2
    if chosen == "eager":
        forward += scores * width  # a layer holds its attention's weights to its end
        # softmax in fp32 of fp32; bf16 is widened first
        core = scores * (2 * FP32 if width == FP32 else 2 * FP32 + 2 if a.model_type != "gpt2" else 6)
    elif chosen == "math":
        core = scores * 3 * FP32
    else:
        held += s.inner
        core = rows * s.source**2 * compute if masked(s, a.windowed_layers > 0) else 0
    heads = tokens * held * width
    attention = heads + core + 3 * stream
    return max(forward, attention) + mask


def evaluation_peak(setup: TrainingSetup, s: Shape, resident: Terms, cast_adapters: int, remainder: float) -> Peak:
    """Peak allocated bytes of evaluation steps with labels.

    The Trainer keeps every step's logits until ``eval_accumulation_steps`` moves them; it turns the cache off. The loss
    widens the logits to fp32 and takes their log-softmax, beside the logits themselves.

    Args:
        cast_adapters: adapter parameters that autocast copies.
        remainder: bytes that the allocator leaves unsplit in a block, as a rule.
    """
    from kb.memory.evaluation import kept_steps

    arch, autocast, counts = s.arch, s.autocast, count(s.arch)
    logits = s.source_tokens * arch.vocab_size
    width = FP32 if autocast else s.weight_bytes
    compute = s.compute_bytes
    step = 0 if setup.prediction_loss_only or setup.predict_with_generate else width * logits
    steps = kept_steps(setup, s.batch)
    copied = s.copied and not s.frozen  # autocast caches copies of weights that can train, in evaluation too
    copies = 2 * counts.block_linear if copied and not s.quantized else 2 * cast_adapters * autocast
    head = 2 * arch.vocab_size * (arch.embedding_size or arch.d_model) if copied else 0
    widened = 2 * FP32 + (compute if compute != FP32 else 0)
    loss = (4 * width if s.smoothing else widened) * logits
    if setup.fused_evaluation and not step:
        loss = 0
    elif s.copied and s.frozen:  # a head that does not train is copied for its product alone
        loss = max(loss, 2 * (logits + arch.vocab_size * (arch.embedding_size or arch.d_model)))
    before = resident | {
        "gathered": (steps - 1 + (steps > 2)) * step,
        "inputs": TOKEN_ID * (3 if s.padded else 2) * s.source_tokens,
        "allocator_remainders": copies_remainder(arch, remainder, quantized=s.quantized) if copied else 0,
    }
    moments = {
        "forward_end": before
        | {
            "logits": loss,
            "autocast_copies": copies + head,
            "activations_decoder": s.source_tokens * arch.d_model * s.weight_bytes,
        },
        "decoder_forward": before
        | {"activations_decoder": layer_transient(s, s.batch, autocast), "autocast_copies": copies},
    }
    if step:
        moments["gathering"] = resident | {"gathered": 2 * steps * step}
    return largest(moments)


def generation_peak(
    s: Shape, resident: Terms, *, beams: int, new_tokens: int, accelerated: bool, remainder: float
) -> Peak:
    """Peak allocated bytes of ``generate`` with a growing cache.

    Beams are copies of the prompt from the start, so its first pass usually decides; logits are those of one token.
    ``s.source`` is the prompt's length; ``accelerated`` that autocast runs the passes (the Trainer's wrapper).
    """
    arch, rows, counts = s.arch, s.batch * max(beams, 1), count(s.arch)
    autocast, searching = accelerated and s.autocast, beams > 1
    width = s.weight_bytes
    narrow = (arch.kv_heads or arch.num_heads) * arch.d_kv
    # turned keys are as wide as the tables that turn them, which autocast leaves in the stream's type; and the cache
    # takes values in the keys' type
    cached = width if arch.rotary or not autocast or s.quantized else 2
    token = 2 * rows * narrow * cached
    ids = TOKEN_ID * s.source * (rows + 2 * s.batch)
    searched = rows * (2 * TOKEN_ID * (new_tokens + 1) + FP32 * new_tokens)
    ids += searched if searching else s.batch * new_tokens * TOKEN_ID
    copies = autocast and width == FP32 and not s.quantized
    given = FP32 if autocast else width
    logits = rows * arch.vocab_size
    all_tokens = s.source + new_tokens
    live = (8 if searching else 4) * logits
    decoder_copies = 2 * counts.decoder_linear if copies else 0
    head_copies = 2 * arch.vocab_size * (arch.embedding_size or arch.d_model) if copies else 0
    last = resident | {"inputs": ids, "kv_cache_self": token * _cached(s, all_tokens)}
    grown = rows * narrow * cached * all_tokens
    widened = 2 * rows * s.inner * cached * all_tokens if s.eager and grouped(s) else 0
    moments: dict[str, Terms] = {
        "prefill": resident
        | {
            "inputs": ids,
            "kv_cache_self": token * _cached(s, s.source),
            "activations_decoder": layer_transient(s, rows, autocast),
            "autocast_copies": decoder_copies,
            "allocator_remainders": copies_remainder(arch, remainder) // 2 if copies else 0,
        },
        "prefill_logits": resident
        | {
            "inputs": ids,
            "kv_cache_self": token * _cached(s, s.source),
            "activations_decoder": rows * s.source * arch.d_model * width,
            "autocast_copies": decoder_copies + head_copies,
            "logits": (6 if autocast else 2 * width) * logits,
        },
        "last_token_logits": last | {"logits": (12 + given if searching else 8 + given) * logits},
        "cache_growth": last | {"logits": live, "temporaries": grown + widened, "autocast_copies": decoder_copies},
        "last_token_product": last
        | {
            "logits": live + (6 if autocast else width) * logits,
            "autocast_copies": decoder_copies + head_copies,
        },
    }
    if searching:
        moments["beam_reorder"] = last | {"logits": live, "temporaries": grown}
    return largest(moments)


def _cached(s: Shape, tokens: int) -> int:
    """Tokens that the caches of all layers hold together: sliding layers keep their window."""
    arch = s.arch
    window = min(tokens, arch.window) if arch.window else tokens
    return arch.windowed_layers * window + (arch.decoder_layers - arch.windowed_layers) * tokens
