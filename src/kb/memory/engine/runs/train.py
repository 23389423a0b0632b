"""Training and evaluation as the Trainer does them: batches, forward, backward, clipping, the optimizer
(transformers/trainer.py), and what the loop of evaluation keeps (``Trainer.evaluation_loop``).
"""

from collections.abc import Callable, Sequence
from typing import Any

from kb.core.setup import KeepsOutputs, TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.autocast import autocast
from kb.memory.engine.ddp import reducer_of, through_sink
from kb.memory.engine.deepspeed import Unshared, Zero
from kb.memory.engine.modules import Model
from kb.memory.engine.ops import losses
from kb.memory.engine.ops.log_probs import without_last
from kb.memory.engine.optimizers import Optimizer
from kb.memory.engine.options import unshared
from kb.memory.engine.tape import backward
from kb.memory.engine.tensor import F32, I64, Tensor, mark, new
from kb.memory.engine.world import world
from kb.memory.engine.zero3 import Zero3

MOST_PASSES = 2  # of one step: the second finds the gradients of the first, and so does every later one
STEPS = 2  # states, and what the allocator keeps, are complete only in the second
MOST_JOINS = 1000
STEPS_FOLLOWED = 6  # beyond these, predictions of the steps between are joined without their forward passes


def train(
    model: Model,
    setup: TrainingSetup,
    sources: Sequence[int] | None = None,
    loss: Callable[[int], Any] | None = None,
    before: Callable[[], None] | None = None,
) -> Any:
    """Optimizer steps of a setup on ``model``, in the phase ``train``; the optimizer, whose states stay.

    Args:
        sources: the padded lengths of the batches, targets in their share; without them all are at the maximum.
        loss: a trainer's own loss of samples of so many tokens; None is the model's.
        before: what each step does before its passes.

    Raises:
        NotFollowedError: an optimizer that the engine does not follow.
    """
    world.recording.begin("train")
    world.training = True
    model.reducer = reducer = _reducer_of(model, setup)
    units = model.units if setup.zero_stage < 3 else None
    model.zero = zero = _zero_of(model, setup)
    foreach = units is None or units.flat  # none of sharded tensors
    optimizer = zero or Optimizer(units or model, setup.optim, foreach=foreach, keeps=setup.gradients_kept)
    passes, recording = min(setup.gradient_accumulation_steps, MOST_PASSES), world.recording
    start = recording.here()
    may_repeat = recording.repeats and sources is None
    steps_alike = may_repeat and _steps_alike(setup, reducer, units)
    plain = setup.keeps_outputs == "no" and not setup.gradients_kept
    passes_alike = may_repeat and plain and reducer is zero is units is None and passes > 1
    # of a trainer's own loss, what it asks beside the model is gathered by itself
    gathers = steps_alike and loss is None and setup.zero_stage == 3
    outputs = Outputs(setup.keeps_outputs)
    lengths = sources or (setup.max_source_length,) * (STEPS * passes)
    for at in range(0, len(lengths), passes):
        if at and steps_alike and optimizer.alike:
            recording.repeat_step(start, model.replaced())
            break
        recording.moment, recording.term = "forward", "temporaries"
        if before is not None:
            before()
        begun = recording.here()
        recording.gradients = {} if passes_alike else None
        settled = zero.settled if gathers else None
        for number, source in enumerate(lengths[at : at + passes], 1):
            if number > 1 and passes_alike and recording.repeat_pass(begun, model.replaced()):
                break
            if number > 1 and settled and zero.settled == settled and recording.repeat_whole(begun):
                break
            for each in (reducer, units):
                if each is not None:
                    each.reduces = number == passes
            one_pass(model, setup, source, loss, outputs, stale=setup.gradients_kept and number == 1)
            if zero is not None:
                zero.after_pass(last=number == passes)
        optimizer.step()
        outputs.step_ends()
    outputs.let_go()
    recording.gradients = world.ready = None
    return optimizer


def _steps_alike(setup: TrainingSetup, reducer: Any, units: Any) -> bool:
    """Whether the second step asks what the first did, but for the optimizer's states."""
    same = reducer is None or reducer.finds_unused  # else buckets are made again after the first
    same = same and (units is None or not units.flat)  # FSDP1 tries its buffers before the first
    # the first step has no outputs and no gradients of a step before it
    return same and setup.keeps_outputs == "no" and not setup.gradients_kept


def of_steps(model: Model, setup: TrainingSetup) -> Any:
    """What steps put beside the model: the optimizer, whose states stay, and its gradients. Of what shares them out it
    is the states alone, since gradients may come and go there; nothing where that is a part of DeepSpeed's, or where
    not all parameters need get a gradient.

    Raises:
        NotFollowedError: an optimizer that the engine does not follow.
    """
    zero: Any = _zero_of(model, setup) if setup.zero_stage == 3 else None
    if zero is not None:
        zero.step()
        return zero
    if setup.zero_stage or unshared(setup) or setup.offload_optimizer:
        return None
    if not model.reaches_all or model.architecture.vision is not None:  # a tower's last layers may be read by nobody
        return None
    optimizer = Optimizer(model.units or model, setup.optim)
    trained: list[Tensor] = optimizer.model.trained()
    for tensor in trained if model.units is None else ():
        tensor.grad = new(tensor.shape, tensor.dtype)
    optimizer.begin([tensor for tensor in trained if tensor.storage is not None])
    return optimizer


def _reducer_of(model: Model, setup: TrainingSetup) -> Any:
    """DDP's, where a run on several GPUs has one."""
    if setup.data_parallel_size < 2:
        return None
    return reducer_of(model, setup)


def _zero_of(model: Model, setup: TrainingSetup) -> Any:
    """DeepSpeed's optimizer, where a run has one."""
    if setup.zero_stage == 3:
        return Zero3(model, setup)
    if not (setup.zero_stage or unshared(setup)):
        return None
    return Unshared(model, setup) if unshared(setup) else Zero(model, setup)


class Outputs:
    """What a loop of its own keeps of a forward pass: all that the model gave, until the next forward pass is over
    (``loop``), or where a function makes the step, to its end (``step``). A Trainer keeps nothing."""

    def __init__(self, keeps: KeepsOutputs) -> None:
        self.keeps = keeps
        self._held: tuple[Any, Any] | None = None  # outputs, and what lets go of a cache that is among them

    def take(self, outputs: Any, release: Callable[[], None] | None) -> None:
        """A forward pass is over, and its outputs replace the last one's."""
        self.let_go()
        self._held = outputs, release

    def step_ends(self) -> None:
        if self.keeps == "step":
            self.let_go()

    def let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None and held[1] is not None:
            held[1]()


def one_pass(
    model: Model,
    setup: TrainingSetup,
    source: int,
    own: Callable[[int], Any] | None = None,
    outputs: Outputs | None = None,
    *,
    stale: bool = False,
) -> None:
    """One forward and backward pass over samples of ``source`` tokens; the batch lives until its end.

    Args:
        stale: gradients of the step before are let go once the loss is there.
    """
    target = max(1, setup.max_target_length * source // setup.max_source_length)
    if own is None:
        batch = inputs_of(model, setup.per_device_train_batch_size, source, target, masked=setup.padded)
        _wrapper_begins(model)
        if setup.optim == "none" and model.architecture.head == "masked":
            loss = summed_logits(model, batch)
        else:
            loss = loss_of(model, batch, smoothed=setup.label_smoothing_factor > 0, outputs=outputs)
    else:
        _wrapper_begins(model)
        loss, *batch = own(source)
    if setup.gradient_accumulation_steps > 1:
        loss = ops.scale(loss)
    for tensor in model.trained() if stale else ():
        tensor.grad = None
    recording = world.recording
    recording.moment, recording.term = "backward", "temporaries"
    backward(loss, None if model.units is None else model.units.finish)


def _wrapper_begins(model: Model) -> None:
    for wrapper in (model.reducer, model.zero):
        if wrapper is not None:
            wrapper.before_pass()


def inputs_of(model: Model, rows: int, source: int, target: int, *, masked: bool = True) -> list[Any]:
    """One step's tensors; the attention mask is taken out where nothing is padded in training."""
    recording = world.recording
    recording.moment, recording.term = "forward", "inputs"
    batch: list[Any] = list(model.batch(rows, source, target))
    for tensor in batch:
        if tensor is not None:
            mark(tensor, "inputs")
    if not masked:
        batch[1] = None
    return batch


def loss_of(model: Model, batch: list[Any], *, smoothed: bool = False, outputs: Outputs | None = None) -> Any:
    """``Trainer.compute_loss``: the model's forward under autocast, its outputs in fp32 after it.

    accelerate wraps the model's forward (``convert_to_fp32``); a label smoother comes behind that.
    """
    recording = world.recording
    recording.moment = "forward"
    loss, logits, release, *held = outputs_of(model, batch, smoothed=smoothed)
    recording.moment, recording.term = "loss", "loss"
    if smoothed and len(batch) == 3:  # labels of spans are no "labels": their loss stays the model's
        loss = shifted_loss(model, logits, batch[2])
    if outputs is not None and outputs.keeps != "no":
        outputs.take((loss, logits, *held), release)
        return loss
    del logits, held
    if release is not None:
        release()
    return loss


def shifted_loss(model: Model, logits: Tensor, labels: Tensor) -> Tensor:
    """The smoother's loss; a causal model's tokens are compared with those behind them (``shift_labels``)."""
    if model.encodes or not model.generates:
        loss = ops.smoothed_loss(logits, labels)
        model.collated = None
        return loss
    logits = ops.contiguous(without_last(logits))
    rows, length, _ = logits.shape
    seen = Tensor((rows, length), I64, labels.strides, labels.storage)  # one row without its first needs no copy
    return ops.smoothed_loss(logits, new((rows, length), I64) if rows > 1 else seen)


def summed_logits(model: Model, batch: list[Any]) -> Any:
    """A pass without labels, as measurements without an optimizer make it: the logits' sum is the loss.

    Who measures holds the logits through backward: they stay with the batch.
    """
    world.recording.moment = "forward"
    _, logits, *_ = outputs_of(model, batch, smoothed=True)
    world.recording.moment, world.recording.term = "loss", "loss"
    batch.append(logits)
    return losses.summed(logits)


def outputs_of(model: Model, batch: list[Any], *, smoothed: bool = False) -> tuple[Any, ...]:
    """Loss, logits, what lets go of a cache that the outputs hold, and what else they hold: an encoder's states. They
    are made fp32 where accelerate wraps the model."""
    kind = model.options.autocast
    with autocast(kind):
        loss, logits, *kept = model.run(*batch, smoothed=smoothed)
    more = beside_logits(kept)
    tuples = model.in_tuples()
    if kind and model.options.widened:
        behind = 1 + len(tuples)  # those before live until all are there
        wide = [tensor and ops.cast(tensor, F32) for tensor in (logits, *tuples, *more)]
        logits, tuples, more = wide[0], wide[1:behind], wide[behind:]
        del wide
    if model.reducer is not None:
        loss, logits, *more = through_sink(model, (loss, logits, *more))
    del tuples
    return loss, logits, kept[1] if len(kept) > 1 else None, *more


def beside_logits(kept: Sequence[Any]) -> list[Tensor]:
    """The tensors that outputs hold beside loss and logits: one, several or none, the first of what a model gives."""
    found = kept[0] if kept else None
    return [tensor for tensor in (found if isinstance(found, tuple) else (found,)) if tensor is not None]


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
