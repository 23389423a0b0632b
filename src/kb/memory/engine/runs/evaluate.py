"""The Trainer's evaluation: its forward passes, and what its loop keeps (``Trainer.evaluation_loop``)."""

from typing import Any

from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.modules import Model
from kb.memory.engine.runs.train import beside_logits, inputs_of, shifted_loss
from kb.memory.engine.tensor import F32, Tensor, mark, new
from kb.memory.engine.world import world

MOST_JOINS = 1000
STEPS_FOLLOWED = 6  # beyond these, predictions of the steps between are joined without their forward passes


class Kept:
    """``EvalLoopContainer``: every step's tensors joined to those before."""

    def __init__(self, term: str) -> None:
        self.term = term
        self.tensors: list[Tensor] = []

    def add(self, found: list[Tensor]) -> None:
        if not self.tensors:
            self.tensors = found
        else:
            world.recording.moment = "gathering"
            self.tensors = [
                new((old.shape[0] + tensor.shape[0], *old.shape[1:]), old.dtype)
                for old, tensor in zip(self.tensors, found, strict=True)
            ]
        for tensor in self.tensors:
            mark(tensor, self.term)


def evaluate(model: Model, setup: TrainingSetup, generate: Any = None) -> None:
    """A setup's evaluation, in the phase ``evaluate``.

    Args:
        generate: what comes before each step's forward pass, with ``predict_with_generate``; it gets the batch.
    """
    recording = world.recording
    recording.begin("evaluate")
    world.training = world.grad = False
    rows, accumulation = setup.per_device_eval_batch_size, setup.eval_accumulation_steps
    samples = setup.eval_samples or rows * (accumulation or 1)
    keeps = not (generate is not None or setup.prediction_loss_only)
    ranks = setup.data_parallel_size
    steps = -(-samples // (rows * ranks)) if setup.eval_samples else accumulation or 1
    if not keeps:
        steps = min(steps, 2)
    predictions, targets, losses = Kept("gathered"), Kept("temporaries"), Kept("temporaries")
    for step in _steps(steps, accumulation):
        if step < 0:
            _join((predictions, targets), -step)
            continue
        batch = inputs_of(model, rows, setup.max_source_length, setup.max_target_length)
        if generate is not None:
            generate(batch)
            recording.begin("evaluate")
        loss, kept = _prediction_step(model, batch, keeps=keeps, smoothed=setup.label_smoothing_factor > 0)
        labels = batch[2 : model.inputs]  # a local of the loop: the last step's live until the next has its own
        recording.term = "temporaries"
        losses.add([new((rows * ranks,), loss.dtype)])
        if ranks > 1:
            kept, labels = _from_all(kept, ranks), _from_all(labels, ranks)
        if keeps:
            predictions.add(kept)
        targets.add(labels)
        if accumulation and (step + 1) % accumulation == 0:
            for container in (predictions, targets, losses):
                container.tensors = []
            del loss, kept, batch, labels
            recording.empty_cache()


def _from_all(tensors: list[Tensor], ranks: int) -> list[Tensor]:
    """``gather_for_metrics``: every process gets what all of them found (``_gpu_gather``, accelerate 1.15.0)."""
    return [new((tensor.shape[0] * ranks, *tensor.shape[1:]), tensor.dtype) for tensor in tensors]


def _steps(steps: int, accumulation: int | None) -> list[int]:
    """The numbers of the steps to run; a negative one stands for as many whose predictions are only joined."""
    together = min(accumulation or steps, steps)
    if together <= STEPS_FOLLOWED:
        return list(range(min(steps, 2 * together if accumulation else together)))
    first, last = STEPS_FOLLOWED - 2, 2
    return [*range(first), -(together - first - last), *range(together - last, together)]


def _join(kept: tuple[Kept, ...], steps: int) -> None:
    """As if ``steps`` more had been joined, each as large as those that were; very many a few at a time."""
    together = -(-steps // MOST_JOINS)
    for container in kept:
        more = [
            new((tensor.shape[0] // (STEPS_FOLLOWED - 2) * together, *tensor.shape[1:]), tensor.dtype)
            for tensor in container.tensors
        ]
        for _ in range(steps // together if more else 0):
            container.add(more)
        del more


def _prediction_step(
    model: Model, batch: list[Any], *, keeps: bool, smoothed: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """A step's loss and predictions: the logits, and of an encoder-decoder its encoder's output."""
    recording = world.recording
    recording.moment = "forward"
    loss, outputs, release = evaluated(model, batch, smoothed=smoothed)
    recording.moment, recording.term = "loss", "loss"
    loss = ops.scale(loss)  # mean
    if release is not None:
        release()
    return loss, outputs if keeps else []


def evaluated(model: Model, batch: list[Any], *, smoothed: bool = False) -> tuple[Tensor, list[Tensor], Any]:
    """The loss, which is the label smoother's where there is one, and the outputs that the Trainer keeps: all but the
    loss and the cache, in fp32 where autocast made them."""
    from kb.memory.engine.autocast import autocast

    kind = model.options.autocast
    with autocast(kind):
        loss, logits, *kept = model.run(*batch, smoothed=smoothed)
    outputs = [tensor for tensor in (logits, *beside_logits(kept)) if tensor is not None]
    kept[:1] = [None] * len(kept[:1])
    del logits
    if kind:
        outputs = [ops.cast(tensor, F32) for tensor in outputs]  # those before live until all are there
    if smoothed and len(batch) == 3:  # labels of spans are no "labels": their loss stays the model's
        loss = shifted_loss(model, outputs[0], batch[2])
    return loss, outputs, kept[1] if len(kept) > 1 else None
