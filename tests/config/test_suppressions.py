"""Suppression comments: what they cover, and what is wrong with them."""

import datetime

import pytest

from config_sample import EVENTS
from kb.config.suppressions import Suppressed, read_suppressions, suppress
from kb.core.finding import Finding, Span
from kb.core.text import Text

TODAY = datetime.date(2026, 6, 15)
KNOWN = {"t5-fp16-overflow", "host-memory-over", "fp16-and-bf16"}
CONFIG = """\
general:
  model_name: google/mt5-base
training:
  fp16: true
  per_device_train_batch_size: 8

inference:
  batch_size: 4
"""


def finding(rule: str, line: int) -> Finding:
    span = Span(line, 3, line, 7)
    return Finding(rule=rule, severity="error", confidence="high", message=Text("", ""), span=span)


def run(text: str, *places: tuple[str, int], decided: set[str] = KNOWN) -> Suppressed:
    findings = [finding(rule, line) for rule, line in places]
    return suppress(findings, read_suppressions(text), today=TODAY, known=KNOWN, decided=decided)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def kinds(result: Suppressed) -> list[str]:
    return [event.kind for event in result.events]


def test_a_comment_on_the_line_sets_the_finding_aside_with_its_reason_and_date() -> None:
    text = CONFIG.replace("fp16: true", "fp16: true  # kb: ignore[t5-fp16-overflow] 곧 바꾼다; until 2027-01-31")
    result = run(text, ("t5-fp16-overflow", 4))
    suppressed = result.findings[0].suppressed
    assert suppressed is not None
    assert (suppressed.kind, suppressed.reason, suppressed.until, suppressed.line) == (
        "comment",
        "곧 바꾼다",
        "2027-01-31",
        4,
    )
    assert result.events == ()


def test_a_comment_counts_for_its_own_rule_and_line_only() -> None:
    text = CONFIG.replace("fp16: true", "fp16: true  # kb: ignore[t5-fp16-overflow] reason")
    result = run(text, ("t5-fp16-overflow", 4), ("fp16-and-bf16", 4), ("t5-fp16-overflow", 8))
    assert [finding.suppressed is not None for finding in result.findings] == [True, False, False]


def test_a_comment_may_name_several_rules() -> None:
    text = CONFIG.replace("fp16: true", "fp16: true # kb:ignore[t5-fp16-overflow, fp16-and-bf16] tried on this card")
    result = run(text, ("t5-fp16-overflow", 4), ("fp16-and-bf16", 4))
    assert all(finding.suppressed for finding in result.findings)


def test_a_comment_alone_counts_for_the_line_below_it() -> None:
    text = CONFIG.replace("  fp16", "  # kb: ignore[t5-fp16-overflow] reason\n  # another note\n\n  fp16")
    result = run(text, ("t5-fp16-overflow", line_of(text, "fp16: true")), ("t5-fp16-overflow", 1))
    assert [finding.suppressed is not None for finding in result.findings] == [True, False]


def test_a_comment_above_a_section_counts_for_all_of_it() -> None:
    text = CONFIG.replace("training:", "# kb: ignore[t5-fp16-overflow] reason\ntraining:")
    lines = [line_of(text, part) for part in ("training:", "fp16: true", "per_device", "inference:", "general")]
    result = run(text, *(("t5-fp16-overflow", line) for line in lines))
    assert [finding.suppressed is not None for finding in result.findings] == [True, True, True, False, False]


def test_a_comment_above_a_list_counts_for_its_items() -> None:
    text = "target_modules:\n- q\n- v\nr: 8\n"
    result = run("# kb: ignore[fp16-and-bf16] reason\n" + text, *(("fp16-and-bf16", line) for line in (2, 3, 4, 5)))
    assert [finding.suppressed is not None for finding in result.findings] == [True, True, True, False]


def test_a_comment_above_a_command_counts_for_its_continued_lines() -> None:
    text = "# kb: ignore[fp16-and-bf16] reason\npython x.py \\\n  --fp16 \\\n  --bf16\npython y.py\n"
    result = run(text, *(("fp16-and-bf16", line) for line in (2, 3, 4, 5)))
    assert [finding.suppressed is not None for finding in result.findings] == [True, True, True, False]


def test_a_comment_for_the_file_counts_everywhere() -> None:
    text = CONFIG + "# kb: ignore-file[t5-fp16-overflow] an old config, kept for reference\n"
    result = run(text, ("t5-fp16-overflow", 4), ("t5-fp16-overflow", 8))
    assert all(finding.suppressed for finding in result.findings)


@pytest.mark.parametrize("reason", ["", "  ", "; until 2027-01-31"])
def test_without_a_reason_it_counts_for_nothing(reason: str) -> None:
    text = CONFIG.replace("fp16: true", f"fp16: true  # kb: ignore[t5-fp16-overflow]{reason}")
    result = run(text, ("t5-fp16-overflow", 4))
    assert result.findings[0].suppressed is None
    assert kinds(result) == ["suppression-without-reason"]


def test_it_counts_on_its_last_day_and_not_the_day_after() -> None:
    text = CONFIG.replace("fp16: true", "fp16: true  # kb: ignore[t5-fp16-overflow] reason; until {}")
    last = run(text.format("2026-06-15"), ("t5-fp16-overflow", 4))
    after = run(text.format("2026-06-14"), ("t5-fp16-overflow", 4))
    assert last.findings[0].suppressed is not None and last.events == ()
    assert after.findings[0].suppressed is None
    assert [(event.kind, event.values["until"]) for event in after.events] == [("suppression-expired", "2026-06-14")]


@pytest.mark.parametrize("rest", [" reason", "[] reason", "[t5-fp16-overflow] reason; until next week"])
def test_what_cannot_be_read_is_told_and_counts_for_nothing(rest: str) -> None:
    text = CONFIG.replace("fp16: true", f"fp16: true  # kb: ignore{rest}")
    result = run(text, ("t5-fp16-overflow", 4))
    assert (kinds(result), result.findings[0].suppressed) == (["suppression-unreadable"], None)


def test_the_word_until_in_a_reason_is_no_date() -> None:
    text = CONFIG.replace("fp16: true", "fp16: true  # kb: ignore[t5-fp16-overflow] kept until the new card comes")
    assert run(text, ("t5-fp16-overflow", 4)).findings[0].suppressed is not None


def test_a_date_that_is_none_is_told_and_counts_for_nothing() -> None:
    text = CONFIG.replace("fp16: true", "fp16: true  # kb: ignore[t5-fp16-overflow] reason; until 2027-13-45")
    result = run(text, ("t5-fp16-overflow", 4))
    assert (kinds(result), result.findings[0].suppressed) == (["suppression-unreadable"], None)


def test_an_unused_one_is_told_and_can_be_taken_out() -> None:
    comment = "  # kb: ignore[fp16-and-bf16] reason"
    text = CONFIG.replace("fp16: true", "fp16: true" + comment)
    result = run(text, ("t5-fp16-overflow", 4))
    (event,) = result.events
    assert (event.kind, event.values["rules"]) == ("suppression-unused", "fp16-and-bf16")
    (edit,) = event.edits
    assert text[edit.span.start : edit.span.end] == comment


def test_an_unused_one_alone_on_its_line_goes_with_the_line() -> None:
    text = CONFIG.replace("  fp16", "  # kb: ignore[fp16-and-bf16] reason\n  fp16")
    (edit,) = run(text).events[0].edits
    assert text[: edit.span.start] + text[edit.span.end :] == CONFIG


def test_a_rule_that_could_not_be_decided_is_not_called_unused() -> None:
    text = CONFIG.replace("fp16: true", "fp16: true  # kb: ignore[host-memory-over] reason")
    assert run(text, decided=KNOWN - {"host-memory-over"}).events == ()


def test_an_unknown_rule_is_told_with_the_one_meant() -> None:
    text = CONFIG.replace("fp16: true", "fp16: true  # kb: ignore[t5-fp16-overflows] reason")
    (event,) = run(text, ("t5-fp16-overflow", 4)).events
    assert event.kind == "suppression-unknown-rule"
    assert event.values == {"rules": "t5-fp16-overflows", "meant": "t5-fp16-overflow"}


def test_a_mark_inside_a_value_is_no_comment() -> None:
    text = 'a: "x # kb: ignore[t5-fp16-overflow] reason"\nb: |\n  # kb: ignore[t5-fp16-overflow] reason\nc: 1\n'
    assert read_suppressions(text) == ()


def test_windows_line_ends_are_no_part_of_the_reason() -> None:
    (directive,) = read_suppressions("fp16: true  # kb: ignore[t5-fp16-overflow] reason\r\nbf16: true\r\n")
    assert (directive.reason, directive.lines) == ("reason", range(1, 2))


def test_events_carry_the_values_that_the_vocabulary_promises() -> None:
    lines = [
        "# kb: ignore[t5-fp16-overflow]",
        "# kb: ignore reason",
        "# kb: ignore[nothing] reason",
        "# kb: ignore[t5-fp16-overflow] reason; until 2020-01-01",
        "# kb: ignore[t5-fp16-overflow] reason",
    ]
    result = run("".join(f"k{number}: 1  {line}\n" for number, line in enumerate(lines)))
    assert len({event.kind for event in result.events}) == 5
    for event in result.events:
        assert set(event.values) == set(EVENTS[event.kind]["values"])
