"""The peak of the Trainer's evaluation: forward with labels, and the predictions it keeps on the GPU."""

from kb.core.setup import TrainingSetup
from kb.memory.counts import count
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.shape import Shape


def evaluation_peak(setup: TrainingSetup, s: Shape, resident: Terms) -> Peak:
    """Peak allocated bytes of evaluation steps with labels (04-memory, "Evaluation without generate").

    The Trainer keeps the logits and the encoder's output of every step until ``eval_accumulation_steps`` moves them to
    the host; with ``predict_with_generate`` a label forward follows generate, and only token ids are kept.
    """
    arch = s.arch
    autocast = s.autocast
    cache = 2 if autocast else s.weight_bytes
    logits = s.target_tokens * arch.vocab_size
    product = (8 if autocast or s.weight_bytes == 4 else 4) * logits
    kv = 2 * arch.decoder_layers * s.batch * s.inner * cache * (s.source + s.target) if arch.family == "t5" else 0
    copies = 2 * (count(arch).block_linear + arch.vocab_size * arch.d_model) if autocast else 0
    width = 4 if autocast else s.weight_bytes
    encoded = s.source_tokens * arch.d_model * width
    step = 0 if setup.prediction_loss_only or setup.predict_with_generate else width * logits + encoded
    steps = kept_steps(setup, s.batch)
    forward = resident | {
        "logits": product,
        "kv_cache_cross": kv,
        "autocast_copies": copies,
        "encoder_output": encoded,
        "gathered": (steps - 1) * step,
    }
    moments = {"label_forward" if setup.predict_with_generate else "forward_end": forward}
    if step:
        moments["gathering"] = resident | {"gathered": 2 * steps * step}
    return largest(moments)


def kept_steps(setup: TrainingSetup, batch: int) -> int:
    """Evaluation steps whose predictions are on the GPU together: all of them, unless they are moved to the host.

    Where the number of evaluation samples is unknown, one step is counted; the report says so.
    """
    steps = -(-setup.eval_samples // batch) if setup.eval_samples else 1
    if setup.eval_accumulation_steps:
        steps = min(steps, setup.eval_accumulation_steps) if setup.eval_samples else setup.eval_accumulation_steps
    return max(steps, 1)
