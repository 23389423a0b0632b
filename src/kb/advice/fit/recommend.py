"""Model × GPU → the config to start training from (batches, accumulation, precision, workers, method), and the batch to
generate with, alone or several folds of a model at once. Pure.
"""

from collections.abc import Mapping
from typing import Literal

from kb.advice.batches import Capped, Split, Splits, evaluation_batch, inference_batch, rows_worth, splits_of
from kb.advice.fit.attempts import (
    LEAST_BATCH,
    OFFERED_ONLY,
    Attempt,
    Sought,
    attempts_of,
    choose,
    smallest_gpu,
    trainer_setup,
)
from kb.advice.fit.estimator import OVERFLOWS_IN_FP16, Estimator, Precision, on_gpu, precision_for, precision_taken
from kb.advice.question import Question, RunSettings
from kb.advice.run.row_lengths import assumed_source_length, reads_target
from kb.core.hardware import Gpu
from kb.core.memory_report import WORKING, MemoryReport, Phase, Term
from kb.core.model import Architecture, Model
from kb.core.record import NamedTuple
from kb.core.setup import Assumption, TrainingSetup, WeightType
from kb.core.text import UserError
from kb.memory import targets_for
from kb.memory.search import LARGEST_BATCH, largest_within

SEQ2SEQ = ("t5", "bart")
USUAL_BATCH = TrainingSetup().per_device_train_batch_size  # of one GPU
SHORTEST_SOURCE = 32  # tokens; below it an input holds too little to be worth a proposal
# Against fragmentation; torch 2.9 brought the name PYTORCH_ALLOC_CONF, and reads this one still (training-facts f).
ENVIRONMENT: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

WorkersReason = Literal["cores", "memory", "unknown"]
EffectiveSource = Literal["asked", "notes", "library", "whole"]


class Largest(NamedTuple):
    """The largest batches that fit with their whole error band; ``train`` without accumulation.

    0 where not even 1 does.
    """

    train: int
    evaluation: int
    inference: int


class Training(NamedTuple):
    """What to start from. ``setup`` and ``report`` are None where nothing tried fits.

    ``attempts`` are all ways, tried in order. Where none fits, ``larger_gpu`` is the smallest known GPU on which full
    training does at batch 1, ``larger_gpu_last_way`` the same for the last way, and ``shorter_source`` an input length
    with which the last way fits here. ``evaluation`` and ``inference`` are the batches taken of the largest ones, with
    the reason. ``effective_source`` is ``whole`` where the effective batch is what fits without accumulation.
    """

    attempts: tuple[Attempt, ...]
    effective_source: EffectiveSource
    precision: Precision
    chosen: Attempt | None = None
    setup: TrainingSetup | None = None
    report: MemoryReport | None = None
    largest: Largest | None = None
    splits: Splits | None = None
    split: Split | None = None
    workers_reason: WorkersReason = "unknown"
    larger_gpu: Gpu | None = None
    larger_gpu_last_way: Gpu | None = None
    shorter_source: int | None = None
    evaluation: Capped | None = None
    inference: Capped | None = None


def recommend_training(
    question: Question,
    estimator: Estimator,
    gpus: Mapping[str, Gpu],
    world: int = 1,
    *,
    noted: int | None = None,
    usual: int = USUAL_BATCH,
    accumulates: bool = True,
    all_ways: bool = True,
) -> Training:
    """The config to start from on ``world`` GPUs like the smallest of the machine.

    Args:
        noted: the effective batch of the notes' row for this model and GPU.
        usual: the library's own for one GPU. The first counts that is known of the question's, ``noted`` and this.
        accumulates: whether accumulation gives the gradients of one large batch; where it does not, no more is taken
            for an effective batch than fits without, unless one is asked for.
        all_ways: whether ways that are not needed to choose one are asked too, roughly, to be shown.

    Raises:
        UserError: an effective batch of fewer samples than there are GPUs.
        UnsupportedArchitectureError: the model's family is not known.
    """
    run, method = question.run, question.run.method or "auto"
    effective, source = _effective(question.effective_batch, noted, usual, world)
    share = None
    if question.trainer is not None:
        base, share = trainer_setup(question.trainer, run, estimator, effective, world), -(-effective // world)
    else:
        base = base_setup(run, estimator, world, evaluate=question.evaluate)
    precision = precision_taken(run.precision, estimator.gpu, estimator.model.architecture)
    sought = Sought(method, effective, world)
    attempts = attempts_of(precision.of(base), estimator, sought, question.loads, share, all_ways=all_ways)
    chosen = choose(attempts, method, effective, world)
    if chosen is None:
        last = _last(attempts, method)
        return Training(
            attempts,
            source,
            precision,
            larger_gpu=smallest_gpu(_alone(attempts[0].setup), estimator, gpus),
            larger_gpu_last_way=smallest_gpu(_alone(last), estimator, gpus),
            shorter_source=_shorter_source(last, estimator),
        )
    if not accumulates and source != "asked" and 0 < chosen.ceiling.single * world < effective:
        effective, source = chosen.ceiling.single * world, "whole"
    splits = splits_of(effective, chosen.ceiling, world)
    least = LEAST_BATCH.get(question.trainer or "", 1)
    enough = (one for one in splits.exact if one.batch >= least and _fits_at(one, chosen, estimator))
    split = next(enough, None) or splits.nearest()
    split = split or splits.exact[0]
    setup, workers_reason = _fill(chosen.setup, split, run, estimator)
    found = Training(attempts, source, precision, chosen, splits=splits, split=split, workers_reason=workers_reason)
    if question.trainer is not None:
        largest = Largest(chosen.ceiling.single, 0, 0)
        return found._replace(setup=setup, report=estimator.predict(setup), largest=largest)
    return _with_other_batches(found, setup, run, estimator, gpus)


def _with_other_batches(
    found: Training, setup: TrainingSetup, run: RunSettings, estimator: Estimator, gpus: Mapping[str, Gpu]
) -> Training:
    """With the batches of evaluation beside training, and of inference alone."""
    chosen, beside = found.chosen, 0
    assert chosen is not None  # a way was chosen
    if setup.do_eval:
        beside = estimator.largest(setup, "per_device_eval_batch_size", first=chosen.evaluation or None)
    rows = rows_worth(estimator.gpu.gpu if estimator.gpu else None, gpus.values())
    alone = alone_at_inference(setup)
    inference = estimator.largest(alone, "inference_batch_size")
    evaluated = evaluation_batch(beside, setup, rows)
    if run.eval_batch:
        evaluated = Capped(run.eval_batch, "asked", rows)
    generated = inference_batch(inference, alone, rows, estimator)
    setup = setup._replace(
        per_device_eval_batch_size=evaluated.batch or 1,
        inference_batch_size=generated.batch or None,
        do_predict=bool(inference),
    )
    return found._replace(
        setup=setup,
        report=estimator.predict(setup._replace(do_predict=False)),
        largest=Largest(chosen.ceiling.single, beside, inference),
        evaluation=evaluated,
        inference=generated,
    )


def _fits_at(split: Split, chosen: Attempt, estimator: Estimator) -> bool:
    """Whether training fits with a split's batch: a smaller batch than one that fits does, but for what a cache that is
    cut otherwise leaves."""
    found = chosen.ceiling.single if split.accumulation == 1 else chosen.ceiling.accumulated
    if split.batch == found or estimator.usable_bytes is None:
        return True
    alone = chosen.setup._replace(
        do_eval=False,
        do_predict=False,
        per_device_train_batch_size=split.batch,
        gradient_accumulation_steps=split.accumulation,
    )
    return estimator.fits(estimator.predict(alone).phases)


def _effective(asked: int | None, noted: int | None, usual: int, world: int) -> tuple[int, EffectiveSource]:
    if asked is not None:
        if asked < world:
            raise UserError("recommend.effective_below_gpus", effective=asked, gpus=world)
        return asked, "asked"
    return (noted, "notes") if noted is not None and noted >= world else (usual * world, "library")


def base_setup(run: RunSettings, estimator: Estimator, world: int = 1, *, evaluate: bool = True) -> TrainingSetup:
    """Full training without options at the asked lengths; it lists what was assumed of them."""
    model, constants = estimator.model, estimator.constants
    source, target, assumed = lengths_of(run, model, constants)
    seq2seq = generates_in_evaluation(model.architecture)
    if run.beams is None and seq2seq:
        assumed += (Assumption("training.generation_num_beams", 1, "library_default"),)
    return TrainingSetup(
        model_name=model.name,
        do_train=True,
        do_eval=evaluate,
        max_source_length=source,
        max_target_length=target,
        predict_with_generate=seq2seq,
        prediction_loss_only=not seq2seq,
        generation_max_length=run.generation_length or target,
        generation_num_beams=run.beams or 1,
        inference_max_length=run.generation_length or target,
        inference_num_beams=run.beams or 1,
        world_size=world,
        assumed=assumed,
    )


def generates_in_evaluation(architecture: Architecture) -> bool:
    """Sequence-to-sequence models are judged by what they generate; others by their loss alone."""
    return architecture.family in SEQ2SEQ


def lengths_of(
    run: RunSettings, model: Model, constants: Mapping[str, float]
) -> tuple[int, int, tuple[Assumption, ...]]:
    """Input and target lengths, as asked, else as a config that says none is read."""
    assumed: list[Assumption] = []
    source, target = run.source_length, run.target_length or run.generation_length
    if source is None or model.architecture.hears:
        source, reason = assumed_source_length(model, constants)
        assumed.append(Assumption("data.max_source_length", source, reason))
    if target is None:
        target = int(constants["assumed_target_length"])
        # what a model of one stack generates counts in inference alone; an encoder generates nothing
        name = "data.max_target_length" if reads_target(model.architecture) else "inference.max_length"
        if model.architecture.family != "encoder":
            assumed.append(Assumption(name, target, "usual_length"))
    return source, target, tuple(assumed)


# Fine-tuned already by those who published them: what suits a first fine-tuning may undo it.
FINE_TUNED = ("eenzeenee", "mt5-xlsum")


def learning_rate_for(
    model: Model, setup: TrainingSetup, constants: Mapping[str, float], form: str | None = None
) -> float | None:
    """The learning rate to write; None where the library's own suits: T5 learns too slowly at the Trainer's, and
    Axolotl has none.

    Args:
        form: the format that is written, where it is known.
    """
    if form == "axolotl":
        return constants["axolotl_learning_rate" if setup.method == "full" else "axolotl_adapter_learning_rate"]
    t5 = model.architecture.model_type in OVERFLOWS_IN_FP16
    return constants["t5_learning_rate"] if t5 and setup.method == "full" and model.id not in FINE_TUNED else None


def _fill(
    setup: TrainingSetup, split: Split, run: RunSettings, estimator: Estimator
) -> tuple[TrainingSetup, WorkersReason]:
    """Batches and workers into the chosen way."""
    setup = setup._replace(
        per_device_train_batch_size=split.batch,
        gradient_accumulation_steps=split.accumulation,
        per_device_eval_batch_size=run.eval_batch or 1,
    )
    workers, most = estimator.workers(setup), estimator.machine.most_workers
    if workers is None:
        return setup, "unknown"
    by_memory = most is None or workers < most
    return setup._replace(dataloader_num_workers=workers), "memory" if by_memory else "cores"


def _last(attempts: tuple[Attempt, ...], method: str) -> TrainingSetup:
    """The way of a method that is tried last."""
    return [one for one in attempts if one.name not in OFFERED_ONLY and method in ("auto", one.method)][-1].setup


def _shorter_source(last: TrainingSetup, estimator: Estimator) -> int | None:
    """The input length, halved as often as it takes, with which a way fits at batch 1; of answers that the run makes
    itself, and of sound, none is proposed."""
    if (last.post is not None and last.post.completion) or estimator.model.architecture.uncut:
        return None
    length = last.max_source_length // 2
    while length >= SHORTEST_SOURCE:
        setup = _alone(last._replace(max_source_length=length))
        if estimator.fits(estimator.predict(setup).phases):
            return length
        length //= 2
    return None


def _alone(setup: TrainingSetup) -> TrainingSetup:
    return setup._replace(
        do_predict=False, per_device_train_batch_size=1, per_device_eval_batch_size=1, gradient_accumulation_steps=1
    )


def alone_at_inference(setup: TrainingSetup) -> TrainingSetup:
    """The same model generating by itself: no optimizer, no autocast."""
    return setup._replace(do_train=False, do_eval=False, do_predict=True, inference_batch_size=1)


def peaks(report: MemoryReport) -> tuple[Phase, ...]:
    """The phases that a batch decides."""
    return tuple(phase for phase in report.phases if phase.name in WORKING)


def base_of(model: Model, estimator: Estimator) -> tuple[TrainingSetup, str]:
    """Full training at the usual lengths in the precision for the GPU, and that precision."""
    setup = precision_for(estimator.gpu, model.architecture).of(base_setup(RunSettings(), estimator))
    setup = setup._replace(lora_target_modules=targets_for(model.architecture))
    return setup, "bf16" if setup.bf16 else "fp16" if setup.fp16 else "fp32"


# What every fold keeps of its own while they generate together; the rest is one fold's at a time.
KEPT_BY_EACH = ("parameters", "kv_cache_self", "kv_cache_cross", "encoder_output")


class Weights(NamedTuple):
    """One type of weights: the largest batch that fits with it, and the peak of a batch of 1."""

    weights: WeightType
    largest_batch: int
    generate: Phase  # at batch 1


class Inference(NamedTuple):
    """What to generate with. ``setup``, ``report`` and ``generate`` are None where not even batch 1 fits.

    ``generate`` is the phase of all folds together, in each of ``processes`` that share the GPU; ``in_turn`` is the
    largest batch of folds one after another. ``capped`` is the batch taken of the largest, with the reason.
    """

    folds: int
    processes: int
    ways: tuple[Weights, ...]
    setup: TrainingSetup | None
    report: MemoryReport | None
    generate: Phase | None
    in_turn: int
    larger_gpu: Gpu | None = None
    capped: Capped | None = None

    @property
    def largest(self) -> int:
        """The largest batch that fits with the chosen weights; 0 where not even 1 does."""
        return max(
            (way.largest_batch for way in self.ways if self.setup and way.weights == self.setup.weights), default=0
        )

    def at(self, batch: int, estimator: Estimator) -> "Inference":
        """The same with a smaller batch."""
        assert self.setup is not None
        setup = self.setup._replace(inference_batch_size=batch)
        report = estimator.predict(setup)
        return self._replace(
            setup=setup, report=report, generate=together(_generate(report), self.folds, estimator.constants)
        )


def recommend_inference(
    run: RunSettings, estimator: Estimator, gpus: Mapping[str, Gpu], folds: int = 1, processes: int = 1
) -> Inference:
    """A batch that fits with its whole error band and keeps the GPU busy; half-width weights only where fp32 does not
    fit or the checkpoint stores them so.

    Args:
        folds: models of one shape in GPU memory at once, their caches alive together.
        processes: runs like this one that share the GPU.

    Raises:
        UserError: an encoder, which generates nothing.
    """
    if estimator.model.architecture.family == "encoder":
        raise UserError("recommend.encoder_generates_nothing", model=estimator.model.name)
    base = base_setup(run, estimator)
    base = alone_at_inference(base)._replace(
        optim="none", predict_with_generate=False, weights=weight_types(estimator)[0]
    )
    ways = tuple(
        _weights(base._replace(weights=weights), estimator, folds, processes) for weights in weight_types(estimator)
    )
    chosen = next((way for way in ways if way.largest_batch), None)
    in_turn = _weights(base, estimator, 1, processes).largest_batch
    if chosen is None:
        larger = _larger_gpu(base, estimator, gpus, folds, processes)
        return Inference(folds, processes, ways, None, None, None, in_turn, larger)
    setup = base._replace(weights=chosen.weights)
    rows = rows_worth(estimator.gpu.gpu if estimator.gpu else None, gpus.values())
    capped = inference_batch(chosen.largest_batch, setup, rows, estimator)
    setup = setup._replace(inference_batch_size=capped.batch)
    report = estimator.predict(setup)
    generate = together(_generate(report), folds, estimator.constants)
    return Inference(folds, processes, ways, setup, report, generate, in_turn, capped=capped)


def weight_types(estimator: Estimator) -> tuple[WeightType, ...]:
    """The types to try, the preferred first: a checkpoint that is stored in half gains nothing by being widened."""
    half = precision_for(estimator.gpu, estimator.model.architecture).autocast
    if half == "fp32":
        return ("fp32",)
    return (half, "fp32") if estimator.model.weights_dtype == half else ("fp32", half)


def _generate(report: MemoryReport) -> Phase:
    phase = report.phase("generate")
    assert phase is not None  # inference always generates
    return phase


def _weights(setup: TrainingSetup, estimator: Estimator, folds: int, processes: int) -> Weights:
    def phase(batch: int) -> Phase:
        return together(
            _generate(estimator.predict(setup._replace(inference_batch_size=batch))), folds, estimator.constants
        )

    usable = estimator.usable_bytes
    if usable is None:
        return Weights(setup.weights, 0, phase(1))
    largest = estimator.largest(setup, "inference_batch_size")
    if largest and (folds > 1 or processes > 1):
        first = max(largest // (folds * processes), 1)
        largest = largest_within(
            lambda batch: processes * phase(batch).high_bytes, usable, 1, LARGEST_BATCH, first=first
        )
    return Weights(setup.weights, largest, phase(1))


def together(phase: Phase, folds: int, constants: Mapping[str, float]) -> Phase:
    """One model's generation → that of ``folds`` models whose weights, caches and encoder outputs live at once.

    Their steps take turns, so that temporaries count once (04-memory: the five-fold KoBART measurement).
    """
    if folds == 1:
        return phase
    band, upper = constants["band_generate"], constants["reserved_upper"]
    terms = tuple(Term(term.name, term.bytes * (folds if term.name in KEPT_BY_EACH else 1)) for term in phase.terms)
    more = sum(term.bytes for term in terms) - sum(term.bytes for term in phase.terms)
    reserved = round(more * constants["reserved_mean"])
    return phase._replace(
        terms=terms,
        peak_allocated_bytes=phase.peak_allocated_bytes + more,
        peak_reserved_bytes=phase.peak_reserved_bytes + reserved,
        process_used_bytes=phase.process_used_bytes + reserved,
        low_bytes=phase.low_bytes + round(more * (1 - band)),
        high_bytes=phase.high_bytes + round(more * (1 + band) * upper),
    )


def _larger_gpu(
    setup: TrainingSetup, estimator: Estimator, gpus: Mapping[str, Gpu], folds: int, processes: int
) -> Gpu | None:
    for gpu in sorted(gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.id)):
        other = Estimator(estimator.model, on_gpu(gpu), estimator.constants, rough=estimator.rough)
        report = other.predict(setup._replace(inference_batch_size=1))
        needed = processes * together(_generate(report), folds, estimator.constants).high_bytes
        if needed <= (other.usable_bytes or 0):
            return gpu
    return None
