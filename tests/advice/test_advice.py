"""From a config's settings to a setup and its facts: defaults, assumptions, comments, models, what would fit."""

from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.advice.check import Checker
from kb.advice.run.named_model import ModelIndex
from kb.config.reader import ConfigReader
from kb.core.document import Unit, said_effective_batch
from kb.core.expression import is_unknown
from kb.core.hardware import Machine
from kb.machine.detect import detect

CATALOG = load_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)


def unit(text: str) -> Unit:
    return READER.read(text, "config.yaml")[0]


def machine(gpu: str = "rtx-3090", host_memory: str = "60GB", cpus: str = "48", count: int | None = None) -> Machine:
    return detect(CATALOG.gpus, gpu=gpu, gpu_count=count, host_memory=host_memory, cpus=cpus)


def fact(text: str, name: str, **where: Any) -> Any:
    return Checker(CATALOG, machine(**where)).facts(unit(text)).get(name)


MT5 = "general: {model_name: google/mt5-base}\ntokenizer: {encoder_max_len: 512, decoder_max_len: 64}\n"


def test_what_the_config_leaves_open_is_the_librarys_default_and_listed() -> None:
    result = Checker(CATALOG, machine()).check(
        unit("general: {model_name: facebook/bart-base}\ntraining: {bf16: true}\n")
    )
    assert result.setup is not None
    assert result.setup.per_device_train_batch_size == 8
    assumed = {assumption.name: assumption.value for assumption in result.setup.assumed}
    assert assumed["training.per_device_train_batch_size"] == 8
    assert assumed["data.max_source_length"] == 1024
    assert "training.optim" in assumed


def test_a_default_that_moved_follows_the_version() -> None:
    text = MT5 + "training: {per_device_train_batch_size: 4}\n"
    for version, optimizer in (((4, 40), "adamw_torch"), ((5, 0), "adamw_torch_fused")):
        checker = Checker(CATALOG, machine(), versions={"transformers": version}.get)
        setup = checker.check(unit(text)).setup
        assert setup is not None and setup.optim == optimizer


@pytest.mark.parametrize(
    ("qlora", "method"),
    [
        ("", "full"),
        ("qlora: {use_qlora: false, lora_rank: 8}", "full"),
        ("qlora: {use_qlora: true, lora_rank: 8}", "lora"),
        ("qlora: {use_qlora: true, load_in_4bit: true}", "qlora"),
        ("qlora: {r: 16, target_modules: [q, v], load_in_4bit: true}", "qlora"),
    ],
)
def test_the_method_is_what_the_adapter_settings_ask_for(qlora: str, method: str) -> None:
    assert fact(MT5 + f"training: {{bf16: true}}\n{qlora}\n", "method") == method


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("유효 배치 48 유지", 48),
        ("유효 배치 크기 16", 16),
        ("효과적 배치 크기 = 4", 4),
        ("effective batch size: 32", 32),
        ("Effective batch = 24", 24),
        ("배치 24→20", None),
        ("유효 배치의 50% 절약", None),
        ("유효 배치 20×2", None),
        ("누적 불필요", None),
    ],
)
def test_a_comment_about_the_effective_batch_is_understood(comment: str, said: int | None) -> None:
    text = MT5 + f"training:\n  per_device_train_batch_size: 20\n  gradient_accumulation_steps: 2  # {comment}\n"
    assert said_effective_batch(unit(text)) == said


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("google/mt5-base", "mt5-base"),
        ("Google/MT5-Base", "mt5-base"),
        ("./models/mt5-base/", "mt5-base"),
        ("csebuetnlp/mT5_multilingual_XLSum", "mt5-xlsum"),
        ("kobart", "kobart"),
        ("eenzeenee/t5-base-korean-summarization", "eenzeenee"),
        ("someone/mt5-base-finetuned", None),
        ("/cache/hub/models--google--mt5-base/snapshots/2eb15465", "mt5-base"),
        ("models--google--mt5-base/snapshots/2eb15465/", "mt5-base"),
        ("/models--google--mt5-base/finetuned", None),
        ("", None),
        (None, None),
    ],
)
def test_a_model_is_found_by_its_names_and_never_by_likeness(name: str | None, found: str | None) -> None:
    model = ModelIndex(CATALOG.models).resolve(name)
    assert (model and model.id) == found


def test_a_model_that_is_not_known_leaves_its_facts_unknown() -> None:
    text = "general: {model_name: a-team/its-own}\ntraining: {fp16: true}\n"
    for name in ("model.family", "memory.train.peak", "fit.train_batch"):
        value = fact(text, name)
        assert is_unknown(value) and value.needs
    result = Checker(CATALOG, machine()).check(unit(text))
    assert result.note == "model_not_known"


@pytest.mark.long
def test_without_a_gpu_the_gpus_facts_are_unknown_and_every_known_gpu_is_judged() -> None:
    checker = Checker(CATALOG, machine(gpu="none"))
    result = checker.check(unit(MT5 + "training: {bf16: true, per_device_train_batch_size: 8}\n"))
    assert is_unknown(checker.facts(result.unit).get("gpu.memory_total"))
    assert {fit.gpu.id for fit in result.gpu_fits} == CATALOG.gpus.keys()
    sizes = [fit.limit_bytes for fit in result.gpu_fits]
    assert sizes == sorted(sizes)


@pytest.mark.long
def test_the_batch_that_fits_holds_the_effective_batch() -> None:
    text = MT5 + "training: {bf16: true, per_device_train_batch_size: 96, gradient_accumulation_steps: 2}\n"
    batch, accumulation = fact(text, "fit.train_batch"), fact(text, "fit.accumulation")
    assert batch < 96
    assert batch * accumulation == 192
    fits = Checker(CATALOG, machine()).check(
        unit(text.replace("96", str(batch)).replace("steps: 2", f"steps: {accumulation}"))
    )
    assert fits.prediction is not None and fits.prediction.verdict.status == "fits"


def test_no_batch_fits_a_gpu_that_is_too_small() -> None:
    text = "general: {model_name: google/mt5-xl}\ntraining: {per_device_train_batch_size: 1}\n"
    assert is_unknown(fact(text, "fit.train_batch", gpu="rtx-2080-ti"))


def test_the_accumulation_that_the_comment_means() -> None:
    text = MT5 + "training:\n  per_device_train_batch_size: 12\n  gradient_accumulation_steps: 2  # 유효 배치 48\n"
    assert fact(text, "fit.accumulation_as_said") == 4
    # 48 is no multiple of 20
    assert is_unknown(fact(text.replace("size: 12", "size: 20"), "fit.accumulation_as_said"))


def test_several_gpus_multiply_the_effective_batch_only_where_they_are_named() -> None:
    text = MT5 + "training: {per_device_train_batch_size: 4, gradient_accumulation_steps: 2}\n"
    checker = Checker(CATALOG, machine(count=2))
    assert checker.facts(unit(text)).get("batch.effective") == 16
    assert fact(text, "batch.effective") == 8


def test_a_saving_is_the_difference_of_two_predictions() -> None:
    text = MT5 + "training: {bf16: true, per_device_train_batch_size: 8, optim: adamw_torch_fused}\n"
    before, saved = fact(text, "memory.train.allocated"), fact(text, "saving.gradient_checkpointing")
    after = fact(text.replace("bf16: true", "bf16: true, gradient_checkpointing: true"), "memory.train.allocated")
    assert saved == before - after > 0


def test_fewer_workers_fit_a_smaller_container() -> None:
    text = MT5 + "training: {per_device_train_batch_size: 4, dataloader_num_workers: 32}\n"
    large, small = fact(text, "fit.workers"), fact(text, "fit.workers", host_memory="40GB")
    assert large > small >= 0


@pytest.mark.long
def test_every_fact_of_the_vocabulary_has_an_answer_or_a_need() -> None:
    """No name is left without a provider that understands it."""
    for text in (
        MT5 + "training: {bf16: true}\ninference: {batch_size: 4}\n",
        "training: {fp16: true, learning_rate: 1.0e-4}\n",
    ):
        for where in ("rtx-3090", "none"):
            facts = Checker(CATALOG, machine(gpu=where)).facts(unit(text))
            for name in CATALOG.facts:
                value = facts.get(name)
                assert not is_unknown(value) or value.needs, name
