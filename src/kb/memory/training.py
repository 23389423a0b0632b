"""The peak of a training step: the largest of the moments at which it can lie."""

from kb.core.setup import TrainingSetup
from kb.memory import bart, t5
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.shape import Shape, shape_of
from kb.memory.states import States


def training_peak(setup: TrainingSetup, states: States, s: Shape, workspace: int) -> Peak:
    """Peak allocated bytes of a step after the first, when the optimizer states exist."""
    saved = (t5 if s.arch.family == "t5" else bart).saved(s)
    base: Terms = {
        "parameters": states.parameters,
        "adapters": states.adapters,
        "quantization": states.quantization,
        "optimizer": states.optimizer,
        "buckets": states.buckets,
        "workspace": 2 * workspace,
    }
    held = states.gradients if setup.gradient_accumulation_steps > 1 else 0
    logits = s.target_tokens * s.arch.vocab_size
    loss = (6 if s.arch.family == "t5" and s.autocast else 8) * logits
    activations: Terms = {
        "activations_encoder": saved.encoder,
        "activations_decoder": saved.decoder + saved.tail,
        "activations_head": saved.head,
        "autocast_copies": saved.weight_copies,
    }
    if setup.gradient_checkpointing:
        layers = s.arch.encoder_layers * s.source_tokens + s.arch.decoder_layers * s.target_tokens
        activations["activations_encoder"] = 4 * layers * s.arch.d_model
        activations["activations_decoder"] = saved.tail
        activations["autocast_copies"] = 0
    forward = base | activations | {"gradients": held, "loss": loss}
    end = base | {"gradients": states.gradients + held, "temporaries": 4 * s.arch.vocab_size * s.arch.d_model}
    step = base | {"gradients": states.gradients, "temporaries": states.step_temporaries}
    return largest({"forward_end": forward, "backward_end": end, "optimizer_step": step})


def training_shape(setup: TrainingSetup, arch: object) -> Shape:
    return shape_of(
        setup,
        arch,  # type: ignore[arg-type]
        batch=setup.per_device_train_batch_size,
        source=setup.max_source_length,
        target=setup.max_target_length,
    )
