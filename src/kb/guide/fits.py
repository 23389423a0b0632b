"""What fits where: the largest batches of a model on a GPU, and the verdict by batch and length."""

from collections.abc import Mapping

from kb.advice.attempts import WAYS
from kb.advice.estimator import Estimator, on_gpu
from kb.advice.recommend import alone_at_inference, base_of
from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.guide.curves import Curves
from kb.memory import UnsupportedArchitectureError
from kb.report.lessons import SHOWN_WAYS

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
