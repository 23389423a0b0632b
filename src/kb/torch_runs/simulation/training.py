"""Training as the Trainer does it: batches, forward, backward, clipping, the optimizer, and what a checkpoint saves.

Two optimizer steps: states, and what the allocator keeps, are complete only in the second.
Import only in the simulator's process.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kb.core.setup import TrainingSetup
from kb.torch_runs.models import as_long, hears, labels_of
from kb.torch_runs.simulation.job import BadJobError
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
    lengths: Sequence[int] = (),
) -> "torch.optim.Optimizer | None":
    """Run ``steps`` optimizer steps; the phases are ``train:inputs``, ``:forward``, ``:backward`` and ``:optimizer``.

    ``inputs`` is one batch to repeat; without it a new one is made for each pass. ``lengths`` are the padded lengths of
    those batches in tokens, targets in their share, and take the place of ``steps``.

    Raises:
        BadJobError: the optimizer is none of the Trainer's, or checkpointing cannot be reentrant in this model.
        OutOfMemory: the run would have run out.
    """
    tracer.phase = "train:inputs"
    tracer.padded = setup.padded and not hears(model)
    model.train()
    optimizer = optimizer_of(model, setup)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    passes = setup.gradient_accumulation_steps
    lengths = lengths or (setup.max_source_length,) * (steps * passes)
    with paged_on_host():
        for at in range(0, len(lengths), passes):
            for length in lengths[at : at + passes]:
                _pass(model, as_long(setup, length), tracer, inputs)
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
    batch = batch_of(model, setup, setup.per_device_train_batch_size, tracer.known) if inputs is None else dict(inputs)
    if not setup.padded:
        batch.pop("attention_mask", None)
    for tensor in batch.values():
        tracer.mark(tensor, "inputs")
    tracer.phase = "train:forward"
    loss = loss_of(model, setup, batch)[0]
    if setup.gradient_accumulation_steps > 1:
        loss = loss / setup.gradient_accumulation_steps
    tracer.phase = "train:backward"
    try:
        loss.backward()
    except RuntimeError as error:
        if setup.use_reentrant and SECOND_BACKWARD in str(error):  # DeBERTa's positions, which all layers share
            raise BadJobError(name="use_reentrant", value=f"true ({SECOND_BACKWARD})") from error
        raise


def loss_of(model: Any, setup: TrainingSetup, batch: dict[str, Any]) -> tuple[Any, Any]:
    """The Trainer's ``compute_loss``: the model's own loss, or the label smoother's; and the model's outputs."""
    if not setup.label_smoothing_factor or "labels" not in batch:
        outputs = model(**batch)
        return outputs["loss"], outputs
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.trainer_pt_utils import LabelSmoother

    labels = batch["labels"]
    rest = {name: tensor for name, tensor in batch.items() if name != "labels"}
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    shifts = type(inner).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    if model.config.is_encoder_decoder:  # the collator has made the decoder's inputs
        rest["decoder_input_ids"] = torch.zeros_like(labels)
    outputs = model(**rest)
    return LabelSmoother(epsilon=setup.label_smoothing_factor)(outputs, labels, shift_labels=shifts), outputs


def _mark_states(optimizer: "torch.optim.Optimizer", tracer: "Tracer") -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                tracer.mark(value, "optimizer")


def batch_of(model: Any, setup: TrainingSetup, rows: int, known: Any = None) -> dict[str, Any]:
    """Token ids, mask and labels for ``rows`` samples, on the fake GPU; of sound its features and no mask.

    ``known`` remembers the sizes of pictures (:class:`known.Known`), where samples have them.
    """

    def numbers(*shape: int, value: int = 0) -> Any:
        return torch.full((rows, *shape), value, dtype=torch.long, device="cuda")

    labels = labels_of(model, setup)
    if hears(model):
        batch = {"input_features": _features(model, setup, rows)}
    elif setup.images is not None and setup.images.number:
        batch = known.pictured(model, setup.max_source_length, setup.images, rows)
    else:
        source = setup.max_source_length
        batch = {"input_ids": numbers(source), "attention_mask": numbers(source, value=1)}
        if known is not None:
            known.forget(batch["attention_mask"])
    return batch | {name: numbers(*labels.shape) for name in labels.names}


def _features(model: Any, setup: TrainingSetup, rows: int) -> Any:
    """Log-mel features as the feature extractor gives them, padded to what the encoder takes: two frames a position.

    They are fp32, which only autocast takes for weights of 16 bits; without it a program casts them.
    """
    config = model.config
    dtype = torch.float32 if setup.autocast else next(model.parameters()).dtype
    return torch.zeros((rows, config.num_mel_bins, 2 * config.max_source_positions), dtype=dtype, device="cuda")


def as_accelerate(model: "torch.nn.Module", dtype: str) -> "torch.nn.Module":
    """Wrap ``model.forward`` in place as ``Accelerator.prepare_model`` does: autocast inside, float outputs outside.

    ``dtype`` is ``"float16"`` or ``"bfloat16"``. What is called past ``forward`` (an encoder alone) is not wrapped.
    """
    from accelerate.utils.operations import convert_to_fp32

    forward = model.forward
    cast = getattr(torch, dtype)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cuda", dtype=cast):
            outputs = forward(*args, **kwargs)
        return convert_to_fp32(outputs)

    model.forward = functools.update_wrapper(wrapped, forward)
    return model


def save(model: Any, optimizer: Any) -> int:
    """Collect what a checkpoint writes, under the tracer's current phase; its bytes in host memory.

    The model's part is transformers' or PEFT's own choice of tensors, each written once however often it is shared.
    """
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        tensors = list(get_peft_model_state_dict(model).values())
    else:
        tensors = list(model.state_dict().values())
    return _bytes(tensors) + (_bytes(_states(optimizer)) if optimizer is not None else 0)


def _states(optimizer: Any) -> list[Any]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


def _bytes(tensors: list[Any]) -> int:
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}.values())
