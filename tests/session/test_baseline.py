"""Baselines: a known finding stays known when its line moves, and no longer."""

import json

import pytest

from kb.config.files import ConfigError
from kb.core.finding import Finding, Span, Suppression
from kb.core.text import Text
from kb.session.baseline import Fingerprint, compare, count, fingerprint, prune, read_baseline, write_baseline


def finding(rule: str = "t5-fp16-overflow", line: int = 4, suppressed: Suppression | None = None) -> Finding:
    span = Span(line, 3, line, 7)
    return Finding(
        rule=rule, severity="error", confidence="high", message=Text("", ""), span=span, suppressed=suppressed
    )


def known_as(found: Finding, path: str = "configs/a.yaml", line: str = "  fp16: true") -> Fingerprint:
    return fingerprint(found, path=path, setting="training.fp16", line=line)


def pair(found: Finding, path: str = "configs/a.yaml", line: str = "  fp16: true") -> tuple[Fingerprint, Finding]:
    return known_as(found, path, line), found


def test_a_finding_is_the_same_on_another_line_and_with_other_blanks() -> None:
    assert known_as(finding(line=4)) == known_as(finding(line=40), line="fp16:   true \r")
    assert known_as(finding(), path="./configs/a.yaml") == known_as(finding(), path="configs\\a.yaml")


def test_a_finding_is_another_with_another_rule_file_setting_or_text() -> None:
    one = known_as(finding())
    others = [
        known_as(finding("fp16-and-bf16")),
        known_as(finding(), path="configs/b.yaml"),
        known_as(finding(), line="  fp16: yes"),
        fingerprint(finding(), path="configs/a.yaml", setting="training.bf16", line="  fp16: true"),
    ]
    assert len({one.hash, *(other.hash for other in others)}) == 5


def test_a_known_finding_is_suppressed_and_a_new_one_is_not() -> None:
    baseline = count([known_as(finding())])
    result = compare([pair(finding(line=9)), pair(finding("fp16-and-bf16"))], baseline, {"configs/a.yaml"})
    assert [found.suppressed and found.suppressed.kind for found in result.findings] == ["baseline", None]
    assert result.gone == {}


def test_a_second_finding_of_the_same_content_is_new() -> None:
    baseline = count([known_as(finding())])
    result = compare([pair(finding(line=4)), pair(finding(line=9))], baseline, {"configs/a.yaml"})
    assert [found.suppressed is not None for found in result.findings] == [True, False]


def test_a_finding_that_a_comment_suppresses_keeps_its_reason() -> None:
    comment = Suppression(kind="comment", reason="reason")
    result = compare([pair(finding(suppressed=comment))], count([known_as(finding())]), {"configs/a.yaml"})
    assert result.findings[0].suppressed == comment
    assert result.gone == {known_as(finding()): 1}


def test_only_what_was_looked_at_can_be_gone() -> None:
    here, there = known_as(finding()), known_as(finding(), path="configs/b.yaml")
    baseline = count([here, here, there])
    result = compare([pair(finding())], baseline, {"configs/a.yaml"})
    assert result.gone == {here: 1}
    assert prune(baseline, result.gone) == {here: 1, there: 1}


def test_it_reads_back_what_it_wrote_and_writes_the_same_in_any_order() -> None:
    prints = [known_as(finding()), known_as(finding()), known_as(finding(), path="설정/가.yaml")]
    text = write_baseline(count(prints))
    assert read_baseline(text) == count(prints)
    assert write_baseline(count(prints[::-1])) == text
    assert text.endswith("\n") and "설정/가.yaml" in text
    assert read_baseline(write_baseline({})) == {}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "config.baseline.json"),
        ("{", "config.baseline.json"),
        ("[" * 100_000, "config.baseline.json"),
        ("[]", "config.baseline.shape"),
        ('{"version": 1}', "config.baseline.shape"),
        ('{"version": 2, "findings": []}', "config.baseline.version"),
        ('{"version": 1, "findings": [3]}', "config.baseline.entry"),
        ('{"version": 1, "findings": [{"path": "a", "rule": "r", "setting": ""}]}', "config.baseline.entry"),
    ],
)
def test_a_malformed_baseline_is_a_clear_error(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_baseline(text)
    assert caught.value.key in (key, "config.baseline.shape")


def test_a_fault_of_its_json_is_said_at_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        read_baseline('{"version": 1,\n "findings": [}')
    assert (caught.value.line, caught.value.column) == (2, 15)


@pytest.mark.parametrize("number", [0, -1, True, "2", 1.5])
def test_a_count_is_a_whole_number_from_one(number: object) -> None:
    row = {"path": "a", "rule": "r", "setting": "", "hash": "h", "count": number}
    with pytest.raises(ConfigError) as caught:
        read_baseline(json.dumps({"version": 1, "findings": [row]}))
    assert caught.value.values == {"number": 1, "field": "count"}
