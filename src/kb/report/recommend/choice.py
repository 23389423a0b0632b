"""A recommendation as the site's chooser shows it: the setting to start from, its memory, every way with its batch."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kb.advice.fit.attempts import OFFERED_ONLY
from kb.advice.fit.estimator import Estimator, on_gpu, precision_for
from kb.advice.fit.recommend_answer import Answer, answer
from kb.advice.question import Question
from kb.core.catalog import Catalog
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.report.json_parts import name_terms, prediction_object
from kb.report.recommend.formats import LOADS
from kb.report.recommend.text import config_file, config_yaml, nothing_fits
from kb.report.terminal import Style
from kb.report.words import Words

ASKED = (
    "method", "precision", "effective_batch", "source_length", "target_length", "eval_batch", "beams",
    "generation_length",
)  # fmt: skip
PLAIN = Style(width=10_000)
# A page has fields where the command has options.
ON_A_PAGE = {
    "recommend.not_in_format": "recommend.not_in_format_here",
    "recommend.no_full_fp16": "recommend.no_full_fp16_here",
}


def choice_object(asked: Mapping[str, Any], words: Words) -> dict[str, Any]:
    """The answer for ``model`` and ``gpu`` (ids); ``ASKED`` says which others count. Of ways that were not
    needed to choose the batch is ``rough``, from few layers.

    Raises:
        UserError: what is asked for cannot be used.
        KeyError: no such model or GPU.
    """
    catalog, guide = knowledge()
    model, machine = catalog.models[asked["model"]], on_gpu(catalog.gpus[asked["gpu"]])
    estimator = Estimator(model, machine, catalog.constants)
    question = Question.of(**{name: asked[name] for name in ASKED if asked.get(name)})
    form = asked.get("form") or None  # of the config; what trains from it may load weights otherwise
    question = question._replace(loads=LOADS.get(form or "", "usual"))
    found = answer("train", question, estimator, catalog, guide)
    training = found.training
    assert training is not None  # training is what was asked for
    setup = training.setup  # its batches are those of the config: no larger than the GPU gains from
    return {
        "limit_bytes": estimator.limit_bytes,
        **_config(found, form, words),
        "precision_note": _precision_note(question.run.precision, training.precision.reason, estimator, words),
        "nothing_fits": None if setup else " ".join(line.strip() for line in nothing_fits(found, words, PLAIN)),
        "batch": training.split.batch if training.split else None,
        "accumulation": training.split.accumulation if training.split else None,
        "effective": training.split.effective if training.split else None,
        "way": words.named("attempt", training.chosen.name) if training.chosen else None,
        "ways": [
            {
                "title": words.named("attempt", one.name),
                "batch": one.ceiling.single,
                "chosen": one is training.chosen,
                "offered": one.name in OFFERED_ONLY,
                "rough": one.rough,
            }
            for one in training.attempts
        ],
        "evaluation": setup.per_device_eval_batch_size if setup else None,
        "inference": setup.inference_batch_size if setup else None,
        "prediction": _prediction(found, words),
    }


def _config(found: Answer, form: str | None, words: Words) -> dict[str, Any]:
    """The config in the format asked for, or why there is none in it."""
    try:
        return {"config": config_file(found, form, words) if form else config_yaml(found, words)}
    except UserError as error:
        return {"config": None, "config_fault": words(ON_A_PAGE.get(error.key, error.key), **error.values)}


def _precision_note(asked: str | None, reason: str, estimator: Estimator, words: Words) -> str | None:
    """Why another precision than the one asked for suits the GPU and the model."""
    suits = precision_for(estimator.gpu, estimator.model.architecture).autocast
    return words(f"recommend.precision.{reason}") if asked and asked != suits else None


@lru_cache(maxsize=1)
def knowledge() -> tuple[Catalog, Mapping[str, Any]]:
    """The catalog and the guide, read once."""
    return load_catalog(), load_guide()


def _prediction(found: Answer, words: Words) -> dict[str, Any] | None:
    """The phases with the reader's names for them and their terms."""
    report = found.training.report if found.training else None
    if report is None:
        return None
    shown = prediction_object(report)
    name_terms(shown["phases"], words)
    return shown
