"""A chapter's table for the reader's model and GPU says what the page's own table says for the same case."""

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from kb.guide.figures import compare, drawn, drawn_server, drawn_workers
from kb.guide.lessons import (
    beam_counts,
    cache_sizes,
    effective_batches,
    input_lengths,
    mt5_hypotheses,
    precision_bytes,
    saving_options,
    serving_lengths,
    worker_counts,
)
from kb.guide.library import load_library
from kb.integrations.own_tables import own_figure, own_table
from kb.report.lessons import case_of

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
    return kept


# Each is made where its test runs: not by every worker of pytest that collects it.
TABLES: list[Callable[[], str]] = [
    lambda: effective_batches(LIBRARY, "t5-small", "t4", 16, [1, 2, 4, 8, 16]),
    lambda: beam_counts(LIBRARY, "t5-small", "t4", 4, [1, 4]),
    lambda: input_lengths(LIBRARY, "t5-small", ["t4"], "lora", [128, 256]),
    lambda: worker_counts(LIBRARY, "t5-small", "t4", "16GB", [0, 4]),
    lambda: cache_sizes(LIBRARY, "llama-3.2-1b", "t4", [1, 8], [64, 256]),
    lambda: serving_lengths(LIBRARY, "llama-3.2-1b", "t4", [2048, 8192]),
]
COMPARISONS: list[Callable[[], str]] = [
    lambda: compare(LIBRARY, "method", "t5-small", "t4", 2),
    lambda: compare(LIBRARY, "attention", "t5-small", "t4", 2),
    lambda: compare(LIBRARY, "checkpointing", "t5-small", "t4", 2),
    lambda: compare(LIBRARY, "gpus", "t5-small", "t4", 2),
    lambda: precision_bytes(LIBRARY, "t5-small", "t4", ["fp32", "fp16", "bf16_weights"], 2),
    lambda: mt5_hypotheses(LIBRARY),
]
FIGURES: list[Callable[[], str]] = [
    lambda: drawn(LIBRARY, "beams", "t5-small", "t4", [1, 4], 4),
    lambda: drawn(LIBRARY, "batch", "t5-small", "t4", [1, 4]),
    lambda: drawn_workers(LIBRARY, "t5-small", "t4", "16GB", [0, 4]),
    lambda: drawn_server(LIBRARY, "llama-3.2-1b", ["t4"], 8192),
]


@pytest.mark.parametrize("made", TABLES)
def test_the_readers_table_is_the_pages_own_for_the_same_case(made: Callable[[], str]) -> None:
    page = made()
    for own, row in zip(said(asked(**given(page))["rows"]), texts(page), strict=True):
        assert [its for mine, its in zip(own, row, strict=True) if its != mine and not mine.startswith("~")] == []


@pytest.mark.parametrize("made", COMPARISONS)
def test_a_comparison_keeps_the_pages_names_of_its_ways(made: Callable[[], str]) -> None:
    page = made()
    assert said(asked(**given(page))["rows"]) == [row[1:] for row in texts(page)]


@pytest.mark.parametrize("model", ["t5-small", "klue-roberta-base"])
def test_ways_to_save_keep_what_the_page_says_of_them_and_save_what_they_take_less(model: str) -> None:
    page = saving_options(LIBRARY, model, "t4", 4)
    rows = said(asked(**given(page))["rows"])
    assert rows == [row[1:3] for row in texts(page)]
    took = [float(row[0].split()[0]) for row in rows]
    for (_, saved), size in zip(rows[1:], took[1:], strict=True):
        assert float(saved.split()[0]) == pytest.approx(took[0] - size, abs=0.11)  # each is rounded


@pytest.mark.parametrize("made", FIGURES)
def test_the_readers_figure_is_the_pages_own_for_the_same_case(made: Callable[[], str]) -> None:
    page = made()
    answer = json.loads(own_figure(json.dumps(given(page)), "en"))
    badge = re.compile(r" <a class=\"kb-badge.*?</a>")
    assert answer["figure"] in badge.sub("", page)


def test_the_readers_own_number_of_what_a_page_varies_is_a_row_of_its_own() -> None:
    page = given(worker_counts(LIBRARY, "t5-small", "t4", "16GB", [0, 4]))
    rows = said(asked(**{**page, "workers": 6, "prefetch": 4, "batch": 64, "source_length": 1024})["rows"])
    assert [row[0] for row in rows] == ["0", "4", "6"]
    target = case_of(LIBRARY.catalog, "t5-small", "t4").setup.max_target_length
    # ids and mask of the input, labels; made ahead in shared memory and page-locked
    assert rows[-1][1] == f"{2 * 6 * 4 * 64 * (2 * 1024 + target) * 8 / 10**6:.1f} MB"
    caches = asked(**{**given(cache_sizes(LIBRARY, "t5-small", "t4", [1, 8], [64])), "target_length": 200, "batch": 3})
    assert caches["columns"] == [64, 200]
    assert [row[0] for row in said(caches["rows"])] == ["1", "3", "8"]


def test_the_cache_is_that_of_the_servers_arithmetic() -> None:
    """2 × layers × KV heads × head size × 2 bytes a token, of Llama-3.2-1B: 16 layers, 8 heads of 64."""
    row = asked(**given(cache_sizes(LIBRARY, "llama-3.2-1b", "a100-80gb", [32], [1024])))["rows"][0]
    tokens = 32 * (1024 + 1024)
    assert row[1][0][0] == f"{2 * 16 * 8 * 64 * 2 * tokens / 2**30:.2f}"


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
