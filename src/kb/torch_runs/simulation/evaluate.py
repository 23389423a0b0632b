"""The Trainer's evaluation on fake tensors: what its loop keeps, in the container that it keeps it in.

The loop's own variables are part of the peak: the last step's predictions are alive beside the joined ones until the
next step has made its own (transformers 5.23: ``Trainer.evaluation_loop``, ``prediction_step``).
Import only in the simulator's process.
"""

from collections.abc import Callable
from typing import Any

from kb.core.record import NamedTuple
from kb.torch_runs.simulation.generate import mark_cache
from kb.torch_runs.simulation.torch_modules import torch

MOST_JOINS = 1000
SPANS = ("start_positions", "end_positions")  # labels of question answering
STEPS_TRACED = 6  # beyond these, predictions of the steps between are joined without their forward passes


class Evaluation(NamedTuple):
    """How evaluation goes. ``steps`` batches, moved to the host every ``accumulation`` of them where that is set.

    ``keeps``: the predictions are kept; without, only the loss (``prediction_loss_only``, or generated tokens).
    """

    steps: int
    accumulation: int | None = None
    keeps: bool = True


def evaluate(
    model: Any,
    batch: Callable[[], dict[str, Any]],
    evaluation: Evaluation,
    tracer: Any,
    before_forward: Callable[[dict[str, Any]], None] | None = None,
    *,
    compute_loss: Callable[[Any, dict[str, Any]], tuple[Any, Any]],
) -> int:
    """Run the steps, under the tracer's current phase; bytes of predictions that one step keeps.

    Args:
        batch: makes one step's inputs, with labels.
        before_forward: what comes before a step's forward pass: generation, with ``predict_with_generate``.
        compute_loss: gives the loss and the model's outputs.
    """
    from transformers.trainer_pt_utils import EvalLoopContainer

    kept = 0
    predictions, targets, losses = (EvalLoopContainer(True, padding_index=-100) for _ in range(3))
    for step in _steps(evaluation):
        if step < 0:
            _join(predictions, targets, -step)
            continue
        inputs = batch()
        if before_forward is not None:
            before_forward(inputs)
        loss, logits, labels = _prediction_step(model, inputs, evaluation.keeps, tracer, compute_loss)
        losses.add(loss.repeat(len(next(iter(inputs.values())))))
        if logits is not None:
            kept = sum(tensor.untyped_storage().nbytes() for tensor in _leaves(logits))
            predictions.add(logits)
            _mark(tracer, predictions.tensors)
        targets.add(labels)
        if evaluation.accumulation and (step + 1) % evaluation.accumulation == 0:
            predictions.tensors = targets.tensors = losses.tensors = None
            del loss, logits, labels, inputs
            tracer.allocator.empty_cache()
    return kept


def _steps(evaluation: Evaluation) -> list[int]:
    """The numbers of the steps to run; a negative one stands for as many steps whose predictions are only joined."""
    together = min(evaluation.accumulation or evaluation.steps, evaluation.steps)
    if together <= STEPS_TRACED:
        return list(range(min(evaluation.steps, 2 * together if evaluation.accumulation else together)))
    first, last = STEPS_TRACED - 2, 2
    return [*range(first), -(together - first - last), *range(together - last, together)]


def _prediction_step(
    model: Any,
    inputs: dict[str, Any],
    keeps: bool,
    tracer: Any,
    compute_loss: Callable[[Any, dict[str, Any]], tuple[Any, Any]],
) -> tuple[Any, Any, Any]:
    """One step's loss, predictions and labels, as ``Trainer.prediction_step`` returns them."""
    from transformers.trainer_pt_utils import nested_detach

    ignored = [*getattr(model.config, "keys_to_ignore_at_inference", ["past_key_values"]), "loss"]
    with torch.no_grad():
        loss, outputs = compute_loss(model, inputs)
        mark_cache(tracer, outputs.get("past_key_values"))
        loss = loss.detach().mean()
        kept = tuple(value for name, value in outputs.items() if name not in ignored) if keeps else ()
    logits = nested_detach(kept)
    labels = tuple(inputs[name] for name in (*SPANS, "labels") if name in inputs)
    found = nested_detach(labels[0] if len(labels) == 1 else labels)
    return loss, (logits[0] if len(logits) == 1 else logits) if keeps else None, found


def _join(predictions: Any, targets: Any, steps: int) -> None:
    """As if ``steps`` more had been joined, each as large as those that were; very many are joined a few at a time."""
    from torch.utils._pytree import tree_map

    together = -(-steps // MOST_JOINS)
    for container in (predictions, targets):
        joined = container.tensors
        if joined is None:
            continue

        def some(tensor: Any) -> Any:
            return tensor.new_empty((tensor.shape[0] // (STEPS_TRACED - 2) * together, *tensor.shape[1:]))

        more = tree_map(some, joined)
        del joined
        for _ in range(steps // together):
            container.add(more)


def _leaves(tensors: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    leaves: list[Any] = tree_leaves(tensors)
    return leaves


def _mark(tracer: Any, tensors: Any) -> None:
    for tensor in _leaves(tensors):
        tracer.mark(tensor, "gathered")
