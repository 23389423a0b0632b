"""Model × GPU → the batch to generate with, alone or several folds of a model at once. Pure."""

from collections.abc import Mapping

from kb.advice.estimator import Estimator, on_gpu
from kb.advice.question import RunSettings
from kb.advice.recommend import alone_at_inference, base_setup
from kb.advice.rows_worth import Capped, inference_batch, rows_worth
from kb.advice.usual import precision_for
from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport, Phase, Term
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup, WeightType
from kb.core.text import UserError
from kb.memory.search import LARGEST_BATCH, largest_within

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
