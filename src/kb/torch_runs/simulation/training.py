"""Training as the Trainer does it: batches, forward, backward, clipping, the optimizer, and what a checkpoint saves.

Two optimizer steps: states, and what the allocator keeps, are complete only in the second.
Import only in the simulator's process.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kb.core.setup import TrainingSetup
from kb.torch_runs.models import as_long, base_of, hears, labels_of
from kb.torch_runs.releases import decayed_names
from kb.torch_runs.simulation.job import BadJobError

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
    held: dict[str, Any] = {}
    lengths = lengths or (setup.max_source_length,) * (steps * passes)
    with paged_on_host():
        for at in range(0, len(lengths), passes):
            for number, length in enumerate(lengths[at : at + passes]):
                stale = parameters if setup.gradients_kept and number == 0 else ()
                _pass(model, as_long(setup, length), tracer, inputs, held, stale)
            tracer.phase = "train:optimizer"
            for parameter in parameters:
                if parameter.grad is not None:
                    tracer.mark(parameter.grad, "gradients")
            if optimizer is not None:
                torch.nn.utils.clip_grad_norm_(parameters, GRADIENT_NORM)
                optimizer.step()
                _mark_states(optimizer, tracer)
            for parameter in parameters if not setup.gradients_kept else ():
                parameter.grad = None
            if setup.keeps_outputs == "step":
                held.clear()
    return optimizer


def _pass(
    model: Any,
    setup: TrainingSetup,
    tracer: "Tracer",
    inputs: dict[str, Any] | None,
    held: dict[str, Any],
    stale: Sequence[Any],
) -> None:
    """One forward and backward pass; the batch lives until its end. The outputs do not outlive the loss, but where a
    loop of a program's own keeps them.

    Args:
        held: what such a loop keeps.
        stale: parameters whose gradients of the step before are let go once the loss is there.
    """
    tracer.phase = "train:inputs"
    batch = batch_of(model, setup, setup.per_device_train_batch_size, tracer.known) if inputs is None else dict(inputs)
    if not setup.padded:
        batch.pop("attention_mask", None)
    for tensor in batch.values():
        tracer.mark(tensor, "inputs")
    tracer.phase = "train:forward"
    loss, outputs = loss_of(model, setup, batch)
    if setup.keeps_outputs != "no":
        held["outputs"] = outputs
    del outputs
    if setup.gradient_accumulation_steps > 1:
        loss = loss / setup.gradient_accumulation_steps
    for parameter in stale:
        parameter.grad = None
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
    shifts = type(base_of(model)).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
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


def as_accelerate(model: "torch.nn.Module", dtype: str, *, widens: bool = True) -> "torch.nn.Module":
    """Wrap ``model.forward`` in place as ``Accelerator.prepare_model`` does: autocast inside, float outputs outside.

    ``dtype`` is ``"float16"`` or ``"bfloat16"``. What is called past ``forward`` (an encoder alone) is not wrapped.
    ``widens`` is False of a loop of a program's own, with autocast alone.
    """
    from accelerate.utils.operations import convert_to_fp32

    forward = model.forward
    cast = getattr(torch, dtype)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cuda", dtype=cast):
            outputs = forward(*args, **kwargs)
        return convert_to_fp32(outputs) if widens else outputs

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


LEARNING_RATE = 1e-4
# Settings of the Trainer that an optimizer's handler reads; none of them changes a byte.
DEFAULTS = {"learning_rate": LEARNING_RATE, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
            "weight_decay": 0.0, "optim_args": None, "optim_target_modules": None}  # fmt: skip
UNDECAYED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
OLD_NAMES = {"adamw_8bit": "adamw_bnb_8bit"}


class OwnAdamW(torch.optim.Optimizer):
    """``adamw_hf``: the AdamW that transformers had up to 4.49 (``AdamW`` of optimization.py), which went with 4.50.

    The same tensors in the same order: both moments, and of each tensor the root of the second with epsilon in it,
    whose name lives until the next tensor's takes it. Steps are counted on the host.
    """

    def __init__(self, groups: Any, lr: float) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, *_: Any) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                state["exp_avg"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["exp_avg_sq"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                denominator = state["exp_avg_sq"].sqrt().add_(1e-6)
                parameter.addcdiv_(state["exp_avg"], denominator, value=-group["lr"])


def optimizer_of(model: "torch.nn.Module", setup: TrainingSetup) -> "torch.optim.Optimizer | None":
    """None for ``none``. Two groups of parameters, as the Trainer makes them: with weight decay and without.

    Raises:
        BadJobError: the Trainer has no such optimizer, or it needs a package or setting that is not there.
    """
    if setup.optim == "none":
        return None
    kind, options = _class_and_options(OLD_NAMES.get(setup.optim, setup.optim), model)
    decayed = decayed_names(model, UNDECAYED)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for name, parameter in named if name in decayed], "weight_decay": 0.0},
        {"params": [parameter for name, parameter in named if name not in decayed], "weight_decay": 0.0},
    ]
    optimizer: torch.optim.Optimizer = kind([group for group in groups if group["params"]], **options)
    if "8bit" in setup.optim:
        _keep_embeddings_wide(model)
    return optimizer


def _class_and_options(name: str, model: "torch.nn.Module") -> tuple[Any, dict[str, Any]]:
    """As ``Trainer.get_optimizer_cls_and_kwargs``; the usual ones without the seconds that importing it takes."""
    if name in ("adamw_torch", "adamw_torch_fused"):
        return torch.optim.AdamW, {"lr": LEARNING_RATE, **({"fused": True} if name.endswith("fused") else {})}
    if name == "adamw_hf":
        return OwnAdamW, {"lr": LEARNING_RATE}
    from transformers.trainer import Trainer
    from transformers.training_args import OptimizerNames

    try:
        args = SimpleNamespace(**DEFAULTS, optim=OptimizerNames(name))
        kind, options = Trainer.get_optimizer_cls_and_kwargs(args, model)  # type: ignore[arg-type]
    except (ValueError, ImportError, AttributeError) as error:
        raise BadJobError(name="optim", value=f"{name} ({error})") from error
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise BadJobError(name="optim", value=name)
    return kind, options


def _keep_embeddings_wide(model: "torch.nn.Module") -> None:
    """The Trainer keeps the states of embeddings in 32 bits."""
    import bitsandbytes

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


@contextmanager
def paged_on_host() -> Iterator[None]:
    """bitsandbytes' paged states live in managed memory, which PyTorch's allocator never sees."""
    if "bitsandbytes" not in sys.modules:  # no optimizer of it was made
        yield
        return
    import bitsandbytes
    from bitsandbytes import functional

    replaced = {"get_paged": _host_tensor, "fill": _nothing, "prefetch_tensor": _nothing}
    before = {name: getattr(functional, name) for name in replaced}
    for name, stand_in in replaced.items():
        setattr(functional, name, stand_in)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(functional, name, original)
        bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()  # it would keep the model for ever


def _host_tensor(*shape: int, dtype: Any = None, device: Any = None) -> "torch.Tensor":
    tensor = torch.empty(*shape, dtype=dtype, device="cpu")
    tensor.is_paged = True  # type: ignore[attr-defined]
    return tensor


def _nothing(*_: Any, **__: Any) -> None:
    return None
