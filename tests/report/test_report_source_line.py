"""The caret underline stands under the characters it means, whatever stands before them."""

from hypothesis import given
from hypothesis import strategies as st

from kb.core.finding import Span
from kb.report.check.changes import SourceLines, quote_line
from kb.report.terminal import Style, cells, columns

GUTTER = 8


def under(lines: list[str]) -> str:
    """The characters of the first line that the carets of the second stand under."""
    start = lines[1].index("^")
    end = start + lines[1].count("^")
    at, found = 0, []
    for character, width in cells(lines[0]):
        if width and start <= at and at + width <= end:
            found.append(character)
        at += width
    return "".join(found)


def test_caret_stands_under_korean_and_emoji() -> None:
    line = '설명: "한글🔥"  ; fp16: true'
    start = line.index("true") + 1
    assert under(quote_line(line, Span(3, start, 3, start + 4), Style())) == "true"


def test_caret_is_as_wide_as_what_it_marks() -> None:
    lines = quote_line("이름: 한글", Span(1, 5, 1, 7), Style())
    assert lines[1].count("^") == 4


def test_tabs_do_not_move_the_caret() -> None:
    line = "\tfp16:\ttrue"
    start = line.index("true") + 1
    assert under(quote_line(line, Span(1, start, 1, start + 4), Style())) == "true"


def test_a_span_over_several_lines_is_marked_to_the_end_of_its_first() -> None:
    lines = quote_line("general:   ", Span(1, 1, 4, 2), Style())
    assert lines[1].count("^") == len("general:")


def test_an_empty_span_still_has_a_caret() -> None:
    assert quote_line("", Span(1, 1, 1, 1), Style())[1].endswith("^")


def test_a_long_line_is_shown_around_the_span() -> None:
    line = "[" + ", ".join(f"항목{number}" for number in range(200)) + ", fp16, " + "x, " * 200 + "]"
    start = line.index("fp16") + 1
    lines = quote_line(line, Span(1, start, 1, start + 4), Style())
    assert under(lines) == "fp16"
    assert columns(lines[0]) <= 80


def test_escape_sequences_in_a_config_are_not_sent_to_the_terminal() -> None:
    lines = quote_line("name: \x1b[2J\x1b]0;title\x07", Span(1, 1, 1, 5), Style())
    assert "\x1b" not in "".join(lines)


def test_carriage_returns_alone_end_a_line_as_editors_count() -> None:
    sources = SourceLines({"a": "one\rtwo\r\nthree\n"})
    assert [sources.line("a", number) for number in (1, 2, 3, 4, 5)] == ["one", "two", "three", "", None]
    assert sources.line("missing", 2) is None


@given(
    st.text(alphabet=st.sampled_from("ab 한글🔥\té\u200d\x1b"), max_size=150),
    st.text(alphabet=st.sampled_from("ab한🔥"), min_size=1, max_size=6),
    st.text(alphabet=st.sampled_from("ab 한글🔥\t"), max_size=150),
)
def test_caret_finds_its_text_in_any_line(before: str, marked: str, after: str) -> None:
    span = Span(1, len(before) + 1, 1, len(before) + len(marked) + 1)
    lines = quote_line(before + marked + after, span, Style())
    assert columns(lines[0]) <= 80
    if not before.endswith("\u200d"):  # glued to what stands before it, the mark has no place of its own
        assert under(lines) == marked
