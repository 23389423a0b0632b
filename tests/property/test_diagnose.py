"""No log breaks kb diagnose, and what it finds does not depend on what ordinary lines stand around it."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog_sample import load_guide
from effort import examples
from kb.advice.diagnosis import Diagnosis, diagnose
from kb.advice.log_scan import LogLine, clean, is_quoted, message_start
from kb.config.files import ConfigError
from kb.config.log import pieces, read_lines
from kb.report.diagnosis_report import diagnosis_json
from report_sample import words
from yaml_file import read_yaml

pytestmark = pytest.mark.long

REMEDIES = load_guide()["remedies"]
EXCERPTS = read_yaml(Path(__file__).parent.parent / "data" / "logs" / "excerpts.yaml")
WORDS = sorted({word for data in REMEDIES.values() for row in data.get("patterns", ()) for word in row["holds"]})
PIECES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(WORDS),
    st.sampled_from(
        ["RuntimeError: ", "\x1b[31m", "\x1b[", "[rank0]: ", '{"msg": "', ' File "a.py", line 3, in <module>', "\r"]
    ),
    st.sampled_from(["1.50 GiB ", "9" * 400 + " GiB total capacity", "Tried to allocate ", "total capacity of ", "\0"]),
)
LINE = st.lists(PIECES, max_size=8).map("".join)
ORDINARY = st.lists(
    st.sampled_from(
        [
            "step {} of the run",
            "[INFO|trainer.py:3889] 2025-01-01 00:00:00,{} >> Saving model checkpoint to out/checkpoint-500",
            "Loading weights: 100%|##########| 28/28 [00:00<00:00, 5350.85it/s] {}",
            "",
        ]
    ),
    max_size=40,
)


def lines(text: str) -> Iterator[LogLine]:
    for number, line in enumerate(text.split("\n"), 1):
        yield from ((number, part) for part in line.split("\r") if part)


def of(text: str) -> Diagnosis:
    return diagnose(lines(text), REMEDIES)


@given(st.lists(LINE, max_size=30).map("\n".join))
@settings(max_examples=examples(20, 100), deadline=None)
def test_no_text_breaks_it_and_the_answer_is_always_json(text: str) -> None:
    result = of(text)
    assert "causes" in diagnosis_json(result, words("ko"))
    for cause in result.causes:
        assert 1 <= len(cause.evidence) <= 3
        assert all(1 <= line <= text.count("\n") + 1 for line, _ in cause.evidence)
        assert cause.steps


@given(st.binary(max_size=4000))
@settings(max_examples=examples(20, 100), deadline=None)
def test_no_bytes_break_the_reading(raw: bytes) -> None:
    try:
        rows = list(read_lines(io.BufferedReader(io.BytesIO(raw)), "log"))
    except ConfigError:
        return
    assert rows == list(pieces(io.BytesIO(raw)))
    diagnose(iter(rows), REMEDIES)


@given(st.sampled_from(EXCERPTS), ORDINARY)
@settings(max_examples=examples(20, 80), deadline=None)
def test_ordinary_lines_before_it_change_only_the_line_number(row: dict[str, Any], before: list[str]) -> None:
    head = "".join(line.format(at) + "\n" for at, line in enumerate(before))
    alone, behind = of(row["log"]), of(head + row["log"])
    assert [cause.id for cause in alone.causes] == [cause.id for cause in behind.causes]
    for one, other in zip(alone.causes, behind.causes, strict=True):
        assert [(line + len(before), text) for line, text in one.evidence] == list(other.evidence)


@given(ORDINARY.map(lambda rows: "".join(row.format(at) + "\n" for at, row in enumerate(rows))))
@settings(deadline=None)
def test_ordinary_lines_give_no_cause(text: str) -> None:
    assert of(text).causes == ()


@given(st.text(max_size=300))
@settings(deadline=None)
def test_cleaning_twice_changes_nothing_and_the_start_lies_in_the_line(text: str) -> None:
    once = clean(text)
    assert "\0" not in once
    assert 0 <= message_start(once) <= len(once)
    assert isinstance(is_quoted(once), bool)
