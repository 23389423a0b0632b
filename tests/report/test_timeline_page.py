"""A run over time as a page shows it: whole without a script, the peak marked, what is alive at each moment named."""

import json
import re
from html import unescape
from typing import Any

import pytest

from kb.integrations.over_time import timeline
from kb.memory.timeline import ROLES

TRAINS = """general: {model_name: google-t5/t5-small}
training: {do_train: true, per_device_train_batch_size: 4, bf16: true}
tokenizer: {encoder_max_len: 128, decoder_max_len: 32}
"""
ASKED = json.dumps({"gpu": "rtx-3090"})


def drawn(text: str, language: str = "en") -> str:
    answer = json.loads(timeline(text, ASKED, language))
    assert "fault" not in answer, answer
    figure: str = answer["figure"]
    return figure


def given(figure: str) -> Any:
    found = re.search(r'data-given="([^"]*)"', figure)
    assert found
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize("language", ["ko", "en"])
def test_the_figure_shows_the_peak_without_a_script(language: str) -> None:
    figure = drawn(TRAINS, language)
    assert figure.count('class="kb-area') == len(ROLES)
    peak = re.search(r"◆ ([\d.]+) GiB", figure)
    assert peak
    body = figure.partition("<tbody>")[2]
    assert 5 <= body.count("<tr>") <= 10 and "encoder.<wbr>block.<wbr>*" in body and " MiB = " in body
    caption = re.search(r"<caption>(.*?)</caption>", figure)
    assert caption and peak[1] in caption[1]
    assert ("역전파" if language == "ko" else "backward") in figure


def test_every_moment_has_its_tensors_in_the_order_of_their_size() -> None:
    data = given(drawn(TRAINS))
    places = [place for place, _, _ in data["moments"]]
    assert len(places) > 40 and places == sorted(places) and places[0] >= 0 and places[-1] <= 100
    sizes = [float(row[1].partition(" MiB")[0].replace(",", "")) for row in data["rows"]]
    for _, said, shown in data["moments"]:
        assert "GiB" in said and 0 < len(shown) <= 10
        assert [sizes[row] for row in shown] == sorted((sizes[row] for row in shown), reverse=True)


@pytest.mark.long
def test_both_languages_draw_the_same() -> None:
    korean, english = drawn(TRAINS, "ko"), drawn(TRAINS, "en")
    assert re.findall(r' d="[^"]*"', korean) == re.findall(r' d="[^"]*"', english)
    assert not re.search(r"[가-힣]", english)


def test_where_evaluation_cannot_be_followed_training_alone_is_drawn() -> None:
    long = TRAINS.replace(
        "do_train: true",
        "do_train: true, do_eval: true, eval_strategy: epoch, predict_with_generate: true, "
        "generation_max_length: 20000",
    )
    assert "training alone" in drawn(long)


def test_a_run_that_is_not_followed_is_said() -> None:
    unknown = TRAINS.replace("google-t5/t5-small", "nobody/knows-this")
    assert "knows-this" in json.loads(timeline(unknown, ASKED, "en"))["fault"]
    assert "fault" in json.loads(timeline("a: 1", ASKED, "ko"))
