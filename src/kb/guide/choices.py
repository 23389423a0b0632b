"""What is recommended for the models and GPUs of the first page, computed once for both languages, on all cores."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from kb.advice.fit.attempts import OFFERED_ONLY
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.fit.recommend_answer import answer
from kb.advice.question import Question
from kb.core.record import NamedTuple
from kb.guide.kept import kept, mark_of
from kb.report.recommend.choice import knowledge

MODELS = (
    "t5-base", "kobart", "mt5-base", "mt5-large", "mt5-xl", "klue-roberta-base", "llama-3.2-1b", "qwen2.5-7b",
    "llama-3.1-8b",
)  # fmt: skip
GPUS = ("t4", "v100-16gb", "rtx-3090", "rtx-4090", "a100-40gb", "a100-80gb")
PREVIEWED = ("t5-base", "klue-roberta-base"), ("rtx-3090",)


class Way(NamedTuple):
    """A way to train with the largest batch that fits in it; ``name`` is a key of i18n under ``attempt.``. ``rough``:
    it was not needed to choose, so that its batch is from few layers."""

    name: str
    batch: int
    rough: bool


class Choice(NamedTuple):
    """The way that is recommended, and the way that fits most; None where nothing fits."""

    own: Way | None
    most: Way | None


@lru_cache(maxsize=1)
def choices(folder: str, preview: bool = False) -> Mapping[tuple[str, str], Choice]:
    """By model and GPU; from ``folder`` where all that it rests on is as it was.

    Args:
        preview: of few.
    """
    name, shown = ("preview-choices", PREVIEWED) if preview else ("choices", (MODELS, GPUS))
    parts = kept(folder, name, _mark(), lambda: _computed(*shown))
    return {(model, gpu): Choice(own and Way(*own), most and Way(*most)) for model, gpu, own, most in parts}


def choice_of(model: str, gpu: str) -> Choice:
    """What ``kb recommend`` says of a model on a GPU without more being asked."""
    catalog, guide = knowledge()
    estimator = Estimator(catalog.models[model], on_gpu(catalog.gpus[gpu]), catalog.constants)
    training = answer("train", Question(), estimator, catalog, guide).training
    assert training is not None  # training is what was asked for
    if training.chosen is None:
        return Choice(None, None)
    ways = [one for one in training.attempts if one.name not in OFFERED_ONLY]
    own, most = (
        Way(one.name, one.ceiling.single, one.rough)
        for one in (training.chosen, max(ways, key=lambda one: one.ceiling.single))
    )
    return Choice(own, most)


def _computed(models: Sequence[str], gpus: Sequence[str]) -> list[Any]:
    from concurrent.futures import ProcessPoolExecutor

    pairs = [(model, gpu) for model in models for gpu in gpus]
    with ProcessPoolExecutor() as pool:
        found = pool.map(choice_of, *zip(*pairs, strict=True), chunksize=len(gpus))
        return [(*pair, *choice) for pair, choice in zip(pairs, found, strict=True)]


def _mark() -> str:
    """A hash of everything that it depends on: models, GPUs, figures, presets, and the code that computes."""
    catalog, guide = knowledge()
    data = (MODELS, GPUS, catalog.models, catalog.gpus, catalog.constants, guide["presets"])
    return mark_of(data, ("advice", "core", "memory"), ("guide/choices.py",))
