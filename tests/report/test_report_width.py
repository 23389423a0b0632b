"""Terminal columns of Korean, emoji and marks; wrapping and cutting by them."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.report.terminal import columns, cut, expand_tabs, joined, pad, unbroken, wrap


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("fp16", 4),
        ("한글", 4),
        (unicodedata.normalize("NFD", "한글"), 4),
        ("🔥", 2),
        ("⚡", 2),
        ("❤\ufe0f", 2),
        ("👩\u200d💻", 2),
        ("👍🏽", 2),
        ("é", 1),
        ("e\u0301", 1),
        ("→·█", 3),
        ("ａ", 2),
        ("", 0),
    ],
)
def test_columns_are_those_of_a_terminal(text: str, wide: int) -> None:
    assert columns(text) == wide


def test_tabs_go_to_the_next_multiple_of_four_columns() -> None:
    assert expand_tabs("\ta\tb") == "    a   b"
    assert expand_tabs("한\tb") == "한  b"


def test_cut_never_splits_a_wide_character_into_half() -> None:
    assert cut("한글한글", 6) == "한글…"
    assert cut("한글", 4) == "한글"
    assert cut("한글한", 5, "...") == "한..."


def test_pad_fills_by_columns() -> None:
    assert pad("한", 4) == "한  "


def test_wrap_keeps_together_what_is_unbroken() -> None:
    text = f"one two {unbroken('bf16: false → true')}"
    assert wrap(text, 24, "  ", "    ") == ["  one two", "    bf16: false → true"]
    assert wrap(joined(["a b", "c d"], " · "), 6) == ["a b ·", "c d"]
    assert wrap(unbroken("kb plan some/train.py --gpu rtx-4090"), 24) == ["kb plan some/train.py", "--gpu rtx-4090"]


@given(st.text(alphabet=st.sampled_from("ab 한글🔥\n\t"), max_size=120), st.integers(8, 40))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrap(text, width, "  ", "    ")
    assert all(columns(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("tail", ["80 %", "34.2 GiB", "60.0 GB", "512 MiB"])
def test_a_number_stays_with_its_unit(tail: str) -> None:
    number, unit = tail.split()
    assert wrap(f"takes up {tail} of it", 10 + len(number)) == ["takes up", f"{tail} of it"]
    assert wrap(f"{number} {unit}x", len(number) + 1)[0] == number, "only where it is the unit"
