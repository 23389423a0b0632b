"""Lengths, targets and precision that are taken for models of one stack, where nothing says one."""

from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide, shallow_catalog, soon_followed
from effort import EXHAUSTIVE, few
from kb.advice.check import Checker
from kb.advice.fit.estimator import Estimator, on_gpu, precision_for
from kb.advice.fit.recommend_answer import Answer, answer
from kb.advice.question import Question
from kb.advice.run.row_lengths import assumed_source_length, longest_input, reads_target
from kb.config.reader import ConfigReader
from kb.core.hardware import Machine
from kb.core.setup import Images, TrainingSetup
from kb.core.text import UserError
from kb.knowledge import load_words
from kb.memory import match_targets, predict, targets_for
from kb.memory.engine.report import why_not
from kb.report.recommend.text import config_yaml
from kb.report.words import Words

CATALOG, GUIDE = load_catalog(), load_guide()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)
MODELS = CATALOG.models
ONE_OF_EACH_TYPE = {model.architecture.model_type: model for model in MODELS.values()}
each_type = pytest.mark.parametrize("model", ONE_OF_EACH_TYPE.values(), ids=ONE_OF_EACH_TYPE)


def recommended(model: str, gpu: str, **asked: object) -> Answer:
    estimator = Estimator(soon_followed(MODELS[model]), on_gpu(CATALOG.gpus[gpu]), CATALOG.constants)
    return answer("train", Question.of(**asked), estimator, CATALOG, GUIDE)


def setup_of(text: str) -> TrainingSetup:
    (unit,) = READER.read(text, "train.yaml")
    found = Checker(shallow_catalog(), Machine()).check(unit).setup
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "length"),
    [
        ("klue-roberta-base", (512, "longest_of_model")),
        ("gpt2", (1024, "longest_of_model")),
        ("llama-3.1-8b", (1024, "usual_length")),
        ("mt5-base", (1024, "usual_length")),
        ("kobart", (1026, "longest_of_model")),
    ],
)
def test_input_nobody_measured_is_as_long_as_the_model_takes_but_not_longer_than_usual_in_a_decoder(
    model: str, length: tuple[int, str]
) -> None:
    assert assumed_source_length(MODELS[model], CATALOG.constants) == length


def test_positions_kept_for_padding_hold_no_tokens() -> None:
    assert longest_input(MODELS["klue-roberta-base"]) == 512
    assert longest_input(MODELS["klue-bert-base"]) == 512
    assert longest_input(MODELS["llama-3.1-8b"]) is None


@pytest.mark.long
def test_one_row_of_tokens_has_no_target_length() -> None:
    assert not reads_target(MODELS["gpt2"].architecture)
    setup = setup_of("model_name_or_path: klue/bert-base\ndo_train: true\noutput_dir: out\n")
    assert "data.max_target_length" not in {each.name for each in setup.assumed}
    setup = setup_of("model_name_or_path: google/mt5-base\ndo_train: true\noutput_dir: out\n")
    assert "data.max_target_length" in {each.name for each in setup.assumed}


@pytest.mark.parametrize("key", ["max_seq_length", "block_size", "max_length", "max_source_length"])
def test_length_under_the_name_of_any_script_counts(key: str) -> None:
    text = f"model_name_or_path: Qwen/Qwen2.5-7B\n{key}: 2048\nper_device_train_batch_size: 2\noutput_dir: out\n"
    assert setup_of(text).max_source_length == 2048


def test_bare_max_length_of_a_summarizer_is_not_its_input() -> None:
    text = "model_name_or_path: google/mt5-base\nmax_length: 200\nper_device_train_batch_size: 2\noutput_dir: out\n"
    assert setup_of(text).max_source_length == 1024


@pytest.mark.long
def test_config_for_an_encoder_has_one_length_and_no_generation() -> None:
    found = recommended("klue-roberta-base", "rtx-3090")
    text = config_yaml(found, Words("en", load_words("en"), CATALOG.facts))
    assert text is not None and found.training is not None and found.training.largest is not None
    assert "max_length: 512" in text
    assert not any(word in text for word in ("decoder_max_len", "encoder_max_len", "inference", "generat"))
    assert found.training.largest.inference == 0
    assert setup_of(text).max_source_length == 512


@pytest.mark.long
def test_config_for_a_decoder_names_what_it_generates() -> None:
    text = config_yaml(recommended("llama-3.2-1b", "a100-80gb"), Words("ko", load_words("ko"), CATALOG.facts))
    assert text is not None
    assert "max_length: 1024" in text and "generate_max_length: 128" in text
    assert "decoder_max_len" not in text


def test_encoder_is_not_asked_to_generate() -> None:
    estimator = Estimator(MODELS["klue-bert-base"], on_gpu(CATALOG.gpus["t4"]), CATALOG.constants)
    with pytest.raises(UserError) as caught:
        answer("inference", Question.of(), estimator, CATALOG, GUIDE)
    assert caught.value.key == "recommend.encoder_generates_nothing"


def test_no_config_is_written_for_a_checkpoint_that_has_to_be_unpacked() -> None:
    estimator = Estimator(MODELS["gpt-oss-20b"], on_gpu(CATALOG.gpus["h200"]), CATALOG.constants)
    with pytest.raises(UserError, match=r"recommend\.packed"):
        answer("train", Question.of(), estimator, CATALOG, GUIDE)


@each_type
def test_adapters_are_put_on_modules_that_the_model_has(model) -> None:
    targets = targets_for(model.architecture)
    assert targets is not None
    found, missing = match_targets(model.architecture, targets)
    assert found and not missing


def test_family_without_a_record_in_fp16_is_not_called_safe() -> None:
    t4 = on_gpu(CATALOG.gpus["t4"]).gpus[0]
    assert precision_for(t4, MODELS["klue-bert-base"].architecture).reason == "no_bf16_fp16"
    assert precision_for(t4, MODELS["gemma-3-1b"].architecture).reason == "no_bf16_untested"
    assert precision_for(t4, MODELS["mt5-base"].architecture).autocast == "fp32"


@pytest.mark.parametrize("name", few(ONE_OF_EACH_TYPE, 20))
def test_every_moment_and_term_of_a_prediction_has_words(name: str) -> None:
    model, words = soon_followed(ONE_OF_EACH_TYPE[name]), load_words("en")
    base = TrainingSetup(
        model_name=model.name, do_train=True, do_eval=True, max_source_length=128, max_target_length=32, bf16=True,
        do_predict=model.architecture.family != "encoder", inference_batch_size=4,
        lora_target_modules=targets_for(model.architecture),
    )  # fmt: skip
    if model.architecture.vision is not None:
        length = 1280 if model.architecture.vision.image else 128  # a picture of LLaVA's is at least 576 tokens
        base = base._replace(
            images=Images(1, 16, 16), do_predict=False, prediction_loss_only=True, max_source_length=length
        )
        if why_not(base, model.architecture) == f"images of {model.architecture.model_type}":  # of words alone, then
            base = base._replace(images=Images(0, 16, 16))
    ways: list[dict[str, Any]] = [{}, {"method": "lora"}, {"attn_implementation": "eager"}]
    if model.architecture.model_type not in ("mpnet", "xlnet"):  # which transformers cannot checkpoint
        ways.append({"gradient_checkpointing": True})
    runs = [(changes, batch) for batch in (1, 64) for changes in ways]
    if not EXHAUSTIVE:  # the types share these ways among them
        at = list(ONE_OF_EACH_TYPE).index(model.architecture.model_type)
        runs = [runs[at % len(runs)], runs[(at + 3) % len(runs)]]
    for changes, batch in runs:
        setup = base._replace(per_device_train_batch_size=batch, **changes)
        for phase in predict(setup, model.architecture, constants=CATALOG.constants).phases:
            assert not phase.moment or f"moment.{phase.moment}" in words
            assert {f"term.{term.name}" for term in phase.terms} <= set(words)
