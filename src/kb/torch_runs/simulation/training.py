"""Training steps as the Trainer makes them: forward, backward, clipping, the optimizer, gradients let go.

Two optimizer steps: states, and what the allocator keeps, are complete only in the second.
Import only in the simulator's process.
"""

from typing import TYPE_CHECKING, Any

from kb.core.setup import TrainingSetup
from kb.torch_runs.simulation.batches import batch_of
from kb.torch_runs.simulation.faults import BadJobError
from kb.torch_runs.simulation.optimizers import optimizer_of, paged_on_host

if TYPE_CHECKING:
    import torch

    from kb.torch_runs.simulation.tracer import Tracer
else:
    from kb.torch_runs.simulation.torch_modules import torch

STEPS = 2
GRADIENT_NORM = 1.0  # the Trainer's max_grad_norm
SECOND_BACKWARD = "Trying to backward through the graph a second time"  # autograd's words


def train(
    model: "torch.nn.Module",
    setup: TrainingSetup,
    tracer: "Tracer",
    *,
    steps: int = STEPS,
    inputs: dict[str, Any] | None = None,
) -> "torch.optim.Optimizer | None":
    """Run ``steps`` optimizer steps; the phases are ``train:inputs``, ``:forward``, ``:backward`` and ``:optimizer``.

    ``inputs`` is one batch to repeat; without it a new one is made for each pass.

    Raises:
        BadJobError: the optimizer is none of the Trainer's, or checkpointing cannot be reentrant in this model.
        OutOfMemory: the run would have run out.
    """
    tracer.phase = "train:inputs"
    tracer.padded = setup.padded
    model.train()
    optimizer = optimizer_of(model, setup)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with paged_on_host():
        for _ in range(steps):
            for _ in range(setup.gradient_accumulation_steps):
                _pass(model, setup, tracer, inputs)
            tracer.phase = "train:optimizer"
            for parameter in parameters:
                if parameter.grad is not None:
                    tracer.mark(parameter.grad, "gradients")
            if optimizer is not None:
                torch.nn.utils.clip_grad_norm_(parameters, GRADIENT_NORM)
                optimizer.step()
                _mark_states(optimizer, tracer)
            for parameter in parameters:
                parameter.grad = None
    return optimizer


def _pass(model: Any, setup: TrainingSetup, tracer: "Tracer", inputs: dict[str, Any] | None) -> None:
    """One forward and backward pass; the batch lives until its end, the outputs do not outlive the loss."""
    tracer.phase = "train:inputs"
    batch = batch_of(model, setup, setup.per_device_train_batch_size) if inputs is None else dict(inputs)
    if not setup.padded:
        batch.pop("attention_mask", None)
    for tensor in batch.values():
        tracer.mark(tensor, "inputs")
    tracer.phase = "train:forward"
    loss = _loss(model, setup, batch)
    if setup.gradient_accumulation_steps > 1:
        loss = loss / setup.gradient_accumulation_steps
    tracer.phase = "train:backward"
    try:
        loss.backward()
    except RuntimeError as error:
        if setup.use_reentrant and SECOND_BACKWARD in str(error):  # DeBERTa's positions, which all layers share
            raise BadJobError(name="use_reentrant", value=f"true ({SECOND_BACKWARD})") from error
        raise


def _loss(model: Any, setup: TrainingSetup, batch: dict[str, Any]) -> Any:
    """The Trainer's ``compute_loss``: the model's own loss, or the label smoother's."""
    if not setup.label_smoothing_factor:
        return model(**batch)["loss"]
    from transformers.trainer_pt_utils import LabelSmoother

    labels = batch["labels"]
    rest = {name: tensor for name, tensor in batch.items() if name != "labels"}
    shifts = not model.config.is_encoder_decoder
    if not shifts:  # the collator has made the decoder's inputs
        rest["decoder_input_ids"] = torch.zeros_like(labels)
    outputs = model(**rest)
    return LabelSmoother(epsilon=setup.label_smoothing_factor)(outputs, labels, shift_labels=shifts)


def _mark_states(optimizer: "torch.optim.Optimizer", tracer: "Tracer") -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                tracer.mark(value, "optimizer")
