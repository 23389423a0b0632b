"""A chapter's table for the reader's model and GPU says what the page's own table says for the same case."""

import json
import re
from html import unescape
from typing import Any

import pytest

from kb.guide.compare import compare
from kb.guide.lessons import beam_counts, effective_batches, input_lengths
from kb.guide.library import load_library
from kb.integrations.own_tables import own_table

LIBRARY = load_library("en")


def asked(**wanted: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(own_table(json.dumps(wanted), "en"))
    return answer


def texts(html: str) -> list[list[str]]:
    """The table's cells as text."""
    body = html.partition("<tbody>")[2]
    rows = re.findall(r"<tr>(.*?)</tr>", body)
    return [
        [unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in rows
    ]


def said(rows: list[Any]) -> list[list[str]]:
    return [["".join(text for text, _ in cell) for cell in row] for row in rows]


def given(html: str) -> dict[str, Any]:
    """What the page keeps for its script."""
    found = re.search(r'data-given="([^"]*)"', html)
    assert found
    kept: dict[str, Any] = json.loads(unescape(found[1]))
    return {name: value for name, value in kept.items() if name != "words"}


@pytest.mark.parametrize(
    "page",
    [
        effective_batches(LIBRARY, "t5-small", "t4", 16, [1, 2, 4, 8, 16]),
        beam_counts(LIBRARY, "t5-small", "t4", 4, [1, 4]),
        input_lengths(LIBRARY, "t5-small", ["t4"], "lora", [128, 256]),
    ],
)
def test_the_readers_table_is_the_pages_own_for_the_same_case(page: str) -> None:
    assert said(asked(**given(page), model="t5-small", gpu="t4")["rows"]) == texts(page)


@pytest.mark.parametrize("what", ["method", "attention", "checkpointing", "gpus"])
def test_a_comparison_keeps_the_pages_names_of_its_ways(what: str) -> None:
    page = compare(LIBRARY, what, "t5-small", "t4", 2)
    assert said(asked(**given(page), model="t5-small", gpu="t4")["rows"]) == [row[1:] for row in texts(page)]


def test_a_longer_input_takes_more() -> None:
    def used(length: int) -> float:
        rows = asked(table="effective", effective_batch=4, model="t5-small", gpu="t4", source_length=length)["rows"]
        return float(said(rows)[-1][3].split()[0])

    assert used(1024) > used(128)


def test_what_the_model_cannot_do_is_said() -> None:
    beams = asked(table="beams", batch=4, counts=[1], model="klue-roberta-base", gpu="t4")
    assert "klue/roberta-base" in beams["fault"]
    post = asked(table="ways", what="post", batch=1, model="t5-small", gpu="t4")
    assert "t5-small" in post["fault"]
    assert "t5-bas" in asked(table="effective", effective_batch=4, model="t5-bas", gpu="t4")["fault"]
