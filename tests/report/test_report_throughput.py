"""A step's time in words and as JSON: never without its status and what it rests on."""

import io

import pytest

import memory_sample as sample
from catalog_sample import load_catalog
from kb.core.setup import TrainingSetup
from kb.knowledge import load_words
from kb.memory.throughput import Throughput, throughput_of
from kb.report.estimate_report import throughput_lines, throughput_object
from kb.report.terminal import choose_style
from kb.report.words import Words

CATALOG = load_catalog()
GPUS = CATALOG.gpus
STYLE = choose_style(io.StringIO(), environ={})


def words(language: str) -> Words:
    return Words(language, load_words(language), CATALOG.facts)


def found(gpu: str = "rtx-3090", batch: int = 8) -> Throughput:
    setup = TrainingSetup(fp16=True, per_device_train_batch_size=batch)
    made = throughput_of(setup, sample.architecture(sample.T5_BASE), GPUS[gpu], sample.CONSTANTS)
    assert made is not None
    return made


@pytest.mark.parametrize(("language", "status"), [("ko", "계산"), ("en", "computed")])
def test_the_band_says_that_it_is_computed_and_where_its_factor_was_measured(language: str, status: str) -> None:
    said, style = words(language), STYLE
    text = "\n".join(throughput_lines(found(), "rtx-3090", said, style))
    assert status in text
    assert "T4" in text
    on_t4 = "\n".join(throughput_lines(found("t4"), "t4", said, style))
    assert status in on_t4
    assert "T4" not in on_t4


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert throughput_lines(None, None, words("en"), STYLE) == []
    assert throughput_object(None) is None


def test_json_holds_both_ends_and_the_status() -> None:
    made = throughput_object(found())
    assert made is not None
    assert (made["status"], made["measured_on"]) == ("computed", "t4")
    assert made["step_seconds"]["low"] < made["step_seconds"]["high"]
    rate, step = made["samples_per_second"]["low"], made["step_seconds"]["high"]
    assert rate == pytest.approx(8 / step, rel=1e-3)


def test_large_rates_are_whole_numbers() -> None:
    text = "\n".join(throughput_lines(found("h100-80gb", 256), "h100-80gb", words("en"), STYLE))
    assert "e+" not in text
