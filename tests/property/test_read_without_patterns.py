"""What is read by hand, as a pattern takes longer to compile than a short check has, says what the pattern says."""

import re

from hypothesis import given
from hypothesis import strategies as st

from kb.config.text.nodes import MAX_DIGITS, number_meant
from kb.core.text import fill, placeholders_in
from kb.report.terminal import wrap

PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_.]*)(?::([A-Za-z0-9.,%]+))?\}")
NUMBER = re.compile(r"([-+]?)([0-9]*)(\.[0-9]*)?(?:[eE]([-+]?)([0-9]{1,3}))?")
BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]i?B)(?!\w))")


@given(st.text("{}:ab_.9 A%,é", max_size=24))
def test_placeholders_are_those_of_the_pattern(text: str) -> None:
    assert [*placeholders_in(text)] == [(found[1], found[2] or "", found[0]) for found in PLACEHOLDER.finditer(text)]

    def lookup(name: str, form: str) -> str:
        return f"<{name}|{form}>"

    assert fill(text, lookup) == PLACEHOLDER.sub(lambda found: lookup(found[1], found[2] or ""), text)


def by_pattern(text: str) -> tuple[float, str] | None:
    found = NUMBER.fullmatch(text.strip())
    if found is None or len(text) > MAX_DIGITS:
        return None
    sign, whole, fraction, exponent_sign, exponent = found.groups()
    if not whole and fraction in (None, "."):
        return None
    sign, whole = "-" if sign == "-" else "", whole.lstrip("0") or "0"
    if fraction is None and exponent is None:
        return int(sign + whole), sign + whole
    mantissa = f"{sign}{whole}.{(fraction or '.')[1:] or '0'}"
    written = mantissa if exponent is None else f"{mantissa}e{exponent_sign or '+'}{exponent}"
    return float(written), written


@given(st.text("0159.eE+- _٣²", max_size=10))
def test_numbers_are_those_of_the_pattern(text: str) -> None:
    assert number_meant(text) == by_pattern(text)


@given(
    st.lists(st.sampled_from(["12", "7.5", "GiB", "MB", "%", "GiBs", "a", "KB,", "TiB_", "5)", "B", "iB"]), max_size=12)
)
def test_lines_end_at_no_space_before_a_unit(words: list[str]) -> None:
    text = " ".join(words)
    kept = [held.replace("\u00a0", " ") for held in BEFORE_UNIT.sub("\u00a0", text).split(" ") if held]
    assert [line for line in wrap(text, 1) if line] == [
        part for held in kept for part in wrap(held.replace(" ", "\u00a0"), 1)
    ]
