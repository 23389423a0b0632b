"""Fixes over whole files: which one is chosen, and how a report is told of them."""

from hypothesis import given
from hypothesis import strategies as st

from kb.core.finding import Edit, Finding, Fix, Span
from kb.core.text import Text
from kb.linting.fixing import _difference, chosen_fix

TEXT = Text("", "")


def fix(safety: str, *, certain: bool = True) -> Fix:
    return Fix(safety=safety, title=TEXT, edits=(Edit("set", "training.fp16", False),), certain=certain)  # type: ignore[arg-type]


def finding(*fixes: Fix) -> Finding:
    return Finding(rule="r", severity="error", confidence="high", message=TEXT, span=Span(1, 1, 1, 1), fixes=fixes)


def test_a_safe_fix_is_preferred_and_an_unsafe_one_needs_leave() -> None:
    safe, unsafe = fix("safe"), fix("unsafe")
    assert chosen_fix(finding(unsafe, safe), unsafe=True) is safe
    assert chosen_fix(finding(unsafe), unsafe=False) is None
    assert chosen_fix(finding(unsafe), unsafe=True) is unsafe


def test_a_fix_whose_condition_is_not_known_is_only_offered() -> None:
    assert chosen_fix(finding(fix("safe", certain=False)), unsafe=True) is None


def test_a_replacement_is_of_whole_words() -> None:
    span, text = _difference("a: true  # 값\nb: 1\n", "a: false  # 값\nb: 1\n")
    assert (span.line, span.column, span.end_line, span.end_column, text) == (1, 4, 1, 8, "false")


@given(st.text(alphabet="ab \n값", max_size=30), st.text(alphabet="ab \n값", max_size=30))
def test_a_replacement_turns_one_text_into_the_other(before: str, after: str) -> None:
    span, text = _difference(before, after)
    assert before[: span.start] + text + before[span.end :] == after
    lines = before.split("\n")
    assert sum(len(line) + 1 for line in lines[: span.line - 1]) + span.column - 1 == span.start
    assert sum(len(line) + 1 for line in lines[: span.end_line - 1]) + span.end_column - 1 == span.end
