"""Every family of models, in every precision and method, through every command that predicts: an answer or a reason."""

import itertools
import json
import math
from collections.abc import Callable, Iterator

import pytest

from catalog_sample import load_catalog, load_guide, soon_followed
from kb.advice.estimate import estimate
from kb.advice.fit.estimator import Estimator
from kb.advice.fit.plan import steps_from
from kb.advice.fit.plan_unit import plan_unit
from kb.advice.fit.recommend_answer import answer
from kb.advice.question import PRECISIONS, Question, RunSettings
from kb.advice.run.question_settings import assumed_of, unit_of
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.core.text import UserError
from kb.memory import UnsupportedArchitectureError, architecture_from_config, modules, parameter_count
from kb.memory.throughput import work_of
from kb.report.check.json_report import json_report
from kb.report.check.text import text_report
from kb.report.estimate_report import estimate_json, estimate_text
from kb.report.plan_report import Faults, plan_text
from kb.report.recommend.text import recommend_text
from kb.report.terminal import Style
from kb.report.words import Words
from kb.session import cli
from kb.session.file import FileChecker
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Run

pytestmark = pytest.mark.long

CATALOG = load_catalog()
GUIDE = load_guide()
STEPS = steps_from(load_guide(), CATALOG.facts)
WORDS = Words("en", cli.load_words_or_none("en"), CATALOG.facts)
METHODS = ("full", "lora", "qlora", "dora")
STYLE = Style(width=88)
# What says how it is that nothing is predicted; anything else is a fault.
REASONS = ("estimate.encoder_generates_nothing", "estimate.too_long", "note.engine_not_followed")


# Types of which a batch of words alone is followed: what they see is no pictures' stand-in.
OF_WORDS = ("gemma4", "gemma4_unified", "mistral3", "qwen3_5")


def models() -> Iterator[Model]:
    """The smallest model of each type in the catalogue, of each head of an encoder, and of the types that it lacks."""
    seen: dict[str, Model] = {}
    for model in sorted(
        CATALOG.models.values(), key=lambda one: (one.architecture.model_type in OF_WORDS, one.parameters)
    ):
        seen.setdefault(model.architecture.model_type, model)
    yield from (soon_followed(model)._replace(packed=None) for model in seen.values())
    bert = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2}
    bert |= {"vocab_size": 1000, "max_position_embeddings": 128}
    heads = [
        ("bert", f"BertFor{head}") for head in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
    ]
    for model_type, head in [*heads, ("albert", "AlbertForMaskedLM"), ("camembert", "CamembertForMaskedLM")]:
        arch = architecture_from_config({**bert, "model_type": model_type, "architectures": [head]})
        yield Model(id=head, name=head, architecture=arch, parameters=parameter_count(arch))


MODELS = {model.id: model for model in models()}
PLACES = {name: place for place, name in enumerate(MODELS)}


def kind_of(model: Model) -> tuple[object, ...]:
    """What of a model commands and reports tell apart; what the memory engine follows, each type, its own tests do."""
    arch = model.architecture
    return (
        arch.family,
        arch.head,
        arch.engine,
        arch.hears,
        arch.vision is not None,
        arch.experts > 0,
        bool(arch.window),
    )


def of_each(kind: Callable[[Model], object]) -> pytest.MarkDecorator:
    """One model of each kind; all with --exhaustive."""
    first = {kind(model): name for name, model in reversed(MODELS.items())}.values()
    names = [name if name in first else pytest.param(name, marks=pytest.mark.exhaustive) for name in MODELS]
    return pytest.mark.parametrize("name", names)


@pytest.fixture(scope="module")
def checkers() -> dict[str, FileChecker]:
    wanted = Question.of(gpu="rtx-3090", gpus=1, host_memory="60GB", cpus="8")
    return {name: file_checker(CATALOG, Project(facts=said_of(model)), wanted, model=model)
            for name, model in MODELS.items()}  # fmt: skip


def said_of(model: Model) -> dict[str, int]:
    """What a project says of the images of a model that sees; tiles are more tokens than a sample usually has. Of some
    models a batch of words alone is followed."""
    vision = model.architecture.vision
    if model.architecture.model_type in OF_WORDS:
        return {"data.images_per_sample": 0}
    tiled = vision is not None and bool(vision.tilings)
    return {"data.image_max_pixels": 100_352, **({"data.max_source_length": 2048} if tiled else {})}


def finite(data: object) -> bool:
    if isinstance(data, dict):
        return all(map(finite, data.values()))
    if isinstance(data, list):
        return all(map(finite, data))
    return not isinstance(data, float) or math.isfinite(data)


@of_each(kind_of)
def test_an_estimate_is_an_answer_or_a_reason(name, checkers):
    checker = checkers[name]
    tasks = ("train", "evaluate", "generate")
    target = next(module.leaf for module in modules(MODELS[name].architecture) if module.kind == "linear")
    told = 0
    ways = itertools.product(enumerate(PRECISIONS), enumerate(METHODS), tasks)
    for (row, precision), (column, method), task in ways:
        # half of the pairs of precision and method, as on a board of two colours; the next model has the others
        if (row + column + PLACES[name]) % 2 or (task != "train" and method in ("qlora", "dora")):
            continue
        flags = RunSettings(model=name, task=task, precision=precision, method=method, batch=4, eval_batch=2)
        flags = flags._replace(lora_targets=None if method == "full" else (target,))
        try:
            one = estimate(checker.prepare(unit_of(flags)), CATALOG, assumed_of(flags))
        except UserError as fault:
            assert fault.key in REASONS, (precision, method, task, fault)
            continue
        assert estimate_text([one], CATALOG.constants, WORDS, STYLE)
        assert finite(json.loads(estimate_json([one], WORDS, "0", "0")))
        told += 1
    assert told >= len(PRECISIONS)  # of no model is every answer a reason


@of_each(lambda model: (model.architecture.family, model.architecture.vision is None))
def test_a_check_a_recommendation_and_a_plan_are_made(name, checkers):
    checker = checkers[name]
    model = MODELS[name]
    estimator = Estimator(model, checker.machine, CATALOG.constants)
    encoder = model.architecture.family == "encoder"
    batch = 64 if model.architecture.vision is None else 8  # too many either way
    turns = ("fp16: true", "bf16: true", "torch_dtype: bfloat16")
    for precision in (turns[PLACES[name] % 3], turns[(PLACES[name] + 1) % 3]):
        text = f"model_name_or_path: {name}\nper_device_train_batch_size: {batch}\noutput_dir: o\ndo_eval: true\n"
        text += f"{precision}\n"
        file = checker.check(text.encode(), "train.yaml")
        (result,) = file.results
        assert result.prediction is not None
        whole = Run((file,), ()).result(checker)
        assert text_report(whole, WORDS, STYLE) and finite(json.loads(json_report(whole, WORDS)))
    assert plan_text([plan_unit(result, estimator, CATALOG.gpus, STEPS)], Faults(), WORDS, STYLE)
    if model.architecture.vision is not None:  # nothing is recommended of images that nobody describes
        with pytest.raises(UnsupportedArchitectureError, match="images of unknown size"):
            answer("train", Question.of(), estimator, CATALOG, GUIDE)
        return
    for task in ("train",) if encoder else ("train", "inference"):
        assert recommend_text(answer(task, Question.of(), estimator, CATALOG, GUIDE), WORDS, STYLE)


def test_a_masked_model_s_step_costs_more_than_a_classifier_s_and_albert_s_layer_runs_many_times():
    setup = TrainingSetup(bf16=True, max_source_length=128)
    classifier = MODELS["BertForSequenceClassification"].architecture
    masked = classifier._replace(head="masked")
    assert work_of(setup, masked).operations > work_of(setup, classifier).operations
    assert work_of(setup, masked).bytes > work_of(setup, classifier).bytes
    albert = MODELS["AlbertForMaskedLM"].architecture
    twice = albert._replace(encoder_layers=2 * albert.encoder_layers)
    assert work_of(setup, twice).operations > 1.3 * work_of(setup, albert).operations
