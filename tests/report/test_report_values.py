"""Values in texts: sizes, ratios, lists, unknowns, and what a terminal must not obey."""

import pytest

from kb.core.expression import Unknown
from kb.core.units import GIB, MIB
from kb.report.values import format_value, printable, size


@pytest.mark.parametrize(
    ("value", "form", "kind", "shown"),
    [
        (60 * 10**9, "GiB", "bytes", "55.9 GiB"),
        (60 * 10**9, "GB", "bytes", "60.0 GB"),
        (512 * MIB, "MiB", "bytes", "512 MiB"),
        (21.3 * GIB, "", "bytes", "21.3 GiB"),
        (100 * MIB, "", "bytes", "100 MiB"),
        (0.8, "%", "number", "80%"),
        (0.0512, ".1%", "number", "5.1%"),
        (1234.5678, ".1f", "number", "1,234.6"),
        (250112, "", "integer", "250,112"),
        (2048, "", "integer", "2048"),
        (2048, ",", "integer", "2,048"),
        (12.0, "", "number", "12"),
        (5e-05, "", "number", "5e-05"),
        (True, "", "bool", "true"),
        (("q", "v"), "", "list", "q, v"),
        ((8, 6), "", "version", "8.6"),
        ((4, 51), "", None, "4.51"),
        ((), "", "list", ""),
        ("mt5", "", "text", "mt5"),
        (None, "GiB", "bytes", "?"),
        (Unknown(frozenset(("gpu.id",))), "", "text", "?"),
        (7, "nonsense", "integer", "7"),
        ("text", "GiB", "bytes", "text"),
    ],
)
def test_value_is_shown_in_its_format(value: object, form: str, kind: str | None, shown: str) -> None:
    assert format_value(value, form, kind) == shown


def test_size_takes_the_unit_that_suits_it() -> None:
    assert [size(0), size(900), size(3 * MIB), size(3 * GIB)] == ["0 MiB", "900 B", "3 MiB", "3.0 GiB"]


def test_control_characters_of_a_config_do_not_reach_the_terminal() -> None:
    hostile = "a\x1b[31mred\x07\u202egnp.exe\r\nb\x9b"
    assert format_value(hostile) == "a\\u001b[31mred\\u0007\\u202egnp.exe\\r\\nb\\u009b"
    assert printable("한글 🔥 é") == "한글 🔥 é"


def test_a_value_of_any_length_is_shown_short() -> None:
    assert len(format_value("x" * 100_000)) == 200
    assert len(format_value(tuple("x" * 50 for _ in range(1000)))) == 200


def test_an_empty_list_is_said_in_words() -> None:
    assert format_value((), words={"value.none": "none"}) == "none"
    assert format_value([], words={"value.none": "없음"}) == "없음"
