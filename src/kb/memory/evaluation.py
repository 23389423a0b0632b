"""The peak of the Trainer's evaluation: forward with labels, and the predictions it keeps on the GPU."""

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.counts import count
from kb.memory.generation import encoder_transient
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.remainders import copies_of, copies_remainder, kept_states, reused_remainder
from kb.memory.shape import Shape

FP32 = 4


def evaluation_peak(setup: TrainingSetup, s: Shape, resident: Terms, cast_adapters: int, remainder: float) -> Peak:
    """Peak allocated bytes of evaluation steps with labels (04-memory, "Evaluation without generate").

    The Trainer keeps the logits and the encoder's output of every step until ``eval_accumulation_steps`` moves them to
    the host, and joining them holds both the joined and the new; the variables of the last step live on beside what was
    joined. With ``predict_with_generate`` a label forward follows generate, and only token ids are kept. T5 builds a
    cache in the label forward (the Trainer turns it off in the model's config, of which T5's stacks have copies), BART
    does not.

    Args:
        cast_adapters: adapter parameters that autocast copies.
        remainder: bytes that the allocator leaves unsplit in a block, as a rule.
    """
    arch, autocast = s.arch, s.autocast
    if arch.family == "encoder":  # imported where used, as only these models need it
        from kb.memory import encoder_evaluation

        return encoder_evaluation.evaluation_peak(setup, s, resident, cast_adapters, remainder)
    if arch.family == "decoder":
        from kb.memory import decoder_forward

        return decoder_forward.evaluation_peak(setup, s, resident, cast_adapters, remainder)
    counts = count(arch)
    logits = s.target_tokens * arch.vocab_size
    cache = s.weight_bytes if s.quantized or not autocast else 2
    kv = 2 * arch.decoder_layers * s.batch * s.inner * cache if arch.family == "t5" else 0
    copied = s.copied and not s.frozen  # autocast caches copies of weights that can train, in evaluation too
    rest = rest_encoder = 0
    states = kept_states(resident)
    if copied and setup.do_train:  # the blocks that training leaves are large: only the ends of segments do not split
        rest = reused_remainder(arch, s.weight_bytes, states, copies_of(arch))
        rest_encoder = reused_remainder(arch, s.weight_bytes, states, copies_of(arch, encoder=True))
    elif copied:
        rest = copies_remainder(arch, remainder)
        rest_encoder = rest // 3
    elif kv and not s.quantized:  # no copies have taken the ends of segments: the cache's tensors do
        cached = ((kv * s.target // (2 * arch.decoder_layers), 2 * arch.decoder_layers),)
        rest = reused_remainder(arch, s.weight_bytes, states, cached)
    width = FP32 if autocast else s.weight_bytes
    encoded = s.source_tokens * arch.d_model * width
    step = 0 if setup.prediction_loss_only or setup.predict_with_generate else width * logits + encoded
    steps = kept_steps(setup, s.batch)
    before = resident | {"gathered": (steps - 1 + (steps > 2)) * step}
    loss = (8 if autocast or s.weight_bytes == FP32 else 4) * logits
    if s.copied and s.frozen:
        loss = max(loss, 2 * (logits + counts.embedding))
    moments = {
        "label_forward" if setup.predict_with_generate else "forward_end": before
        | {
            "logits": loss,
            "kv_cache_self": kv * s.target,
            "kv_cache_cross": kv * s.source,
            "autocast_copies": 2 * (counts.block_linear + counts.embedding if copied else cast_adapters * autocast),
            "encoder_output": encoded,
            "allocator_remainders": rest,
        },
        "encoder": before
        | {
            "activations_encoder": encoder_transient(s, width, 2 if autocast else s.weight_bytes),
            "autocast_copies": 2 * counts.encoder_linear if copied else 0,
            "allocator_remainders": rest_encoder,
        },
    }
    if step:
        moments["gathering"] = resident | {"gathered": 2 * steps * step}
    return largest(moments)


def kept_steps(setup: TrainingSetup, batch: int) -> int:
    """Evaluation steps whose predictions are on the GPU together: all of them, unless they are moved to the host.

    Where the number of evaluation samples is unknown, one step is counted (the report says so), or as many as
    ``eval_accumulation_steps`` lets gather.
    """
    if not setup.eval_samples:
        return max(setup.eval_accumulation_steps or 1, 1)
    steps = -(-setup.eval_samples // batch)
    return max(min(steps, setup.eval_accumulation_steps or steps), 1)


def host_predictions(setup: TrainingSetup, arch: Architecture) -> int:
    """Bytes of predictions in host memory at the end of evaluation: fp32 logits and encoder output of all samples."""
    if not setup.eval_samples or setup.prediction_loss_only or setup.predict_with_generate:
        return 0
    if arch.family == "encoder":
        from kb.memory import encoder_evaluation

        elements = encoder_evaluation.predicted_elements(arch, setup.max_source_length)
    elif arch.family == "decoder":
        elements = setup.max_source_length * arch.vocab_size
    else:
        elements = setup.max_target_length * arch.vocab_size + setup.max_source_length * arch.d_model
    return FP32 * setup.eval_samples * elements
