"""What fits where: the largest batches of a model on a GPU, and the verdict by batch and length. Every model on every
GPU is computed once, for both languages and data/, on all cores, and kept until it would change.

A card decides three things: which kernels run (its generation), the CUDA context, and the limit. Without the last two
the cards of a generation share each prediction and each line of memory by batch.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from kb.advice.fit.attempts import WAYS
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.fit.recommend import alone_at_inference, base_of
from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.guide.kept import kept, mark_of
from kb.knowledge import load_catalog
from kb.memory import UnsupportedArchitectureError, predict
from kb.memory.engine.rough import generation_of, phases_by_batch
from kb.memory.process import Context, context_of, judged, usable_bytes
from kb.memory.search import LARGEST_BATCH, BatchField, largest_within, use_by_batch
from kb.report.lessons import SHOWN_WAYS

Capability = tuple[int, int]


class Curves:
    """Rough predictions of one model: for a GPU what :class:`kb.advice.fit.estimator.Estimator` answers.

    Args:
        constants: the figures of ``rules/constants.yaml`` by name.
    """

    def __init__(self, model: Model, constants: Mapping[str, float]) -> None:
        self.model = model
        self._constants = constants
        self._bare = {name: 0 if name.startswith("context_") else value for name, value in constants.items()}
        self._phases: dict[tuple[Capability, TrainingSetup], tuple[Phase, ...]] = {}
        self._trained: dict[tuple[Capability, TrainingSetup], Callable[[int], tuple[Phase, ...]]] = {}
        self._curves: dict[tuple[Capability, TrainingSetup, BatchField], Callable[[int], int]] = {}

    def phases(self, setup: TrainingSetup, gpu: Gpu) -> tuple[Phase, ...]:
        """Each phase as the process sees it on the GPU.

        Raises:
            UnsupportedArchitectureError: nothing is known of the model's family.
        """
        key = (generation_of(gpu.compute_capability), setup)
        if key not in self._phases:
            report = predict(
                setup, self.model.architecture, constants=self._bare, compute_capability=key[0], rough=True
            )
            self._phases[key] = report.phases
        context = self._context(gpu)
        phases = tuple(_with_context(phase, context) for phase in self._phases[key])
        return judged(phases, gpu.memory_total, self._constants)[0]

    def verdicts(self, setup: TrainingSetup, gpu: Gpu) -> Callable[[int], str]:
        """The verdict on training alone in a way, by its batch."""
        key = (generation_of(gpu.compute_capability), setup)
        if key not in self._trained:
            bare = context_of(self._bare, None, None)
            self._trained[key] = phases_by_batch(setup, self.model.architecture, self._bare, bare, key[0])
        context = self._context(gpu)

        def verdict(batch: int) -> str:
            phases = tuple(_with_context(phase, context) for phase in self._trained[key](batch))
            return judged(phases, gpu.memory_total, self._constants)[1].status

        return verdict

    def largest(self, setup: TrainingSetup, field: BatchField, gpu: Gpu) -> int:
        """The largest batch whose phases fit with their whole band; 0 where not even 1 does.

        0 too where the model has no such phase: an encoder generates nothing.
        """
        if field == "inference_batch_size" and self.model.architecture.family == "encoder":
            return 0
        key = (generation_of(gpu.compute_capability), setup, field)
        if key not in self._curves:
            self._curves[key] = use_by_batch(
                setup, self.model.architecture, field, constants=self._bare, compute_capability=key[0], rough=True
            )
        limit = usable_bytes(gpu.memory_total, self._constants) - self._context(gpu).high
        return largest_within(self._curves[key], limit, 1, LARGEST_BATCH)

    def _context(self, gpu: Gpu) -> Context:
        return context_of(self._constants, gpu.compute_capability, gpu)


def _with_context(phase: Phase, context: Context) -> Phase:
    return phase._replace(
        process_used_bytes=phase.process_used_bytes + context.expected,
        low_bytes=phase.low_bytes + context.low,
        high_bytes=phase.high_bytes + context.high,
    )


LENGTHS = (128, 256, 512, 1024, 2048)  # tokens of input, of the heat maps
BATCHES = (1, 2, 4, 8, 16, 32, 64)
# a map where nothing fits says nothing: the way that takes least is shown then
MAP_WAYS = ("full", "qlora_checkpointing")


class Row(NamedTuple):
    """One model on one GPU: the largest batches that fit with their whole error band; 0 where not even 1 does.

    ``train`` is by way (``full``, ``lora``, …); ``evaluation`` is beside the optimizer of full training;
    ``inference`` is generating, or the forward pass, alone. Lengths in tokens. ``peak_bytes`` is what full training
    uses at batch 1.
    """

    model: str
    gpu: str
    precision: str
    source_length: int
    target_length: int
    train: Mapping[str, int]
    evaluation: int
    inference: int
    peak_bytes: int


class Map(NamedTuple):
    """Verdicts by length and batch of training in one way."""

    way: str
    cells: list[list[str]]


def fit_of(model: Model, gpu: Gpu, constants: Mapping[str, float], curves: Curves | None = None) -> Row | None:
    """None where nothing is known of the model's type.

    ``curves`` are the model's, where it is asked about often.
    """
    curves = curves or Curves(model, constants)
    try:
        base, precision = base_of(model, Estimator(model, on_gpu(gpu), constants, rough=True))
        training = base._replace(do_eval=False)
        train = {
            way: curves.largest(training._replace(**WAYS[way]), "per_device_train_batch_size", gpu)
            for way in SHOWN_WAYS
        }
        alone = curves.phases(training._replace(per_device_train_batch_size=1), gpu)
        return Row(
            model=model.id,
            gpu=gpu.id,
            precision=precision,
            source_length=base.max_source_length,
            target_length=base.max_target_length,
            train=train,
            evaluation=curves.largest(base, "per_device_eval_batch_size", gpu),
            inference=curves.largest(alone_at_inference(base), "inference_batch_size", gpu),
            peak_bytes=next(phase.process_used_bytes for phase in alone if phase.name == "train"),
        )
    except UnsupportedArchitectureError:
        return None


def heat_map(
    model: Model, gpu: Gpu, constants: Mapping[str, float], way: str = "full", curves: Curves | None = None
) -> list[list[str]]:
    """The verdict of training in a way for each length (rows, ``LENGTHS``) and batch (columns, ``BATCHES``)."""
    curves = curves or Curves(model, constants)
    base, _ = base_of(model, Estimator(model, on_gpu(gpu), constants, rough=True))
    base = base._replace(**WAYS[way], do_eval=False)
    longest = model.max_length or model.architecture.max_positions
    rows = []
    for length in LENGTHS:
        if longest is not None and length > longest and model.architecture.max_positions:
            rows.append(["beyond"] * len(BATCHES))
            continue
        verdict = curves.verdicts(base._replace(max_source_length=length), gpu)
        rows.append([verdict(batch) for batch in BATCHES])
    return rows


def map_of(model: Model, gpu: Gpu, constants: Mapping[str, float], curves: Curves | None = None) -> Map | None:
    """The map of the first way in which anything fits; None where nothing does."""
    curves = curves or Curves(model, constants)
    for way in MAP_WAYS:
        cells = heat_map(model, gpu, constants, way, curves)
        if any("fits" in row for row in cells):
            return Map(way, cells)
    return None


# models and GPUs whose maps stand on the pages of GPUs and models
TYPICAL_MODELS = ("mt5-base", "kobart", "llama-3.2-1b", "klue-roberta-base")
PREVIEWED = ("t5-base", "kobart", "distilgpt2", "klue-roberta-base")  # one of each family
USUAL_GPUS = ("t4", "rtx-3090", "rtx-4090", "l40s", "a100-80gb")


class Fits(NamedTuple):
    """``maps`` are by model and GPU: of usual GPUs and of typical models. None where nothing fits. ``models``: all that
    were asked, whether they fit or not."""

    rows: list[Row]
    maps: Mapping[tuple[str, str], Map | None]
    models: Collection[str]


@lru_cache(maxsize=1)
def all_fits(folder: str, preview: bool = False) -> Fits:
    """Everything, from ``folder`` where models, GPUs, figures and memory model are those it was computed from.

    Args:
        preview: of :data:`PREVIEWED` alone.
    """
    name, models = ("preview-fits", PREVIEWED) if preview else ("fits", _of_kb())
    parts = kept(folder, name, _mark(), lambda: _computed(models))
    rows = [Row(*row) for part in parts for row in part["rows"]]
    maps = {(model, gpu): Map(*shown) if shown else None for part in parts for model, gpu, shown in part["maps"]}
    return Fits(rows, maps, models)


def _of_kb() -> tuple[str, ...]:
    """All models but those whose checkpoints transformers trains only after it has unpacked them."""
    return tuple(name for name, model in load_catalog().models.items() if model.packed is None)


def _computed(models: Collection[str]) -> list[dict[str, Any]]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor() as pool:
        return list(pool.map(_of_model, models, chunksize=min(4, len(models) // 2 or 1)))


_catalog = lru_cache(maxsize=1)(load_catalog)  # once in each process


def _of_model(name: str) -> dict[str, Any]:
    """One model's rows and maps, ready for JSON."""
    catalog = _catalog()
    model = catalog.models[name]
    curves = Curves(model, catalog.constants)
    # by memory, so that each card's curve lies between points that the one before has found
    gpus = sorted(catalog.gpus.values(), key=lambda gpu: gpu.memory_total)
    found = {gpu.id: fit_of(model, gpu, catalog.constants, curves) for gpu in gpus}
    rows = [row for row in (found[gpu] for gpu in catalog.gpus) if row is not None]
    shown = [name for name in catalog.gpus if rows and (model.id in TYPICAL_MODELS or name in USUAL_GPUS)]
    maps = [(model.id, name, map_of(model, catalog.gpus[name], catalog.constants, curves)) for name in shown]
    return {"rows": rows, "maps": maps}


def _mark() -> str:
    """A hash of everything that it depends on: models, GPUs, figures, and the code that computes."""
    catalog = load_catalog()
    data = (catalog.models, catalog.gpus, catalog.constants)
    return mark_of(data, ("advice", "core", "memory"), ("guide/fits.py",))
