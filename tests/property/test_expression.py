"""No text makes the expression language hang or raise anything but its own error; and it agrees with Python."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from kb.core.expression import LARGEST_NUMBER, Unknown, compile_tree, is_unknown
from kb.core.grammar import ExpressionError, parse

NAMES = {"a": "integer", "b": "number", "p": "bool", "q": "bool", "s": "text", "l": "list", "v": "version"}
VALUES: dict[str, Any] = {"a": 7, "b": 2.5, "p": True, "q": False, "s": "t5", "l": ("q", "v"), "v": (4, 57)}

PIECES = st.sampled_from(
    [
        *NAMES,
        "and",
        "or",
        "not",
        "in",
        "if",
        "else",
        "is",
        "lambda",
        "for",
        "min",
        "max",
        "round",
        "1",
        "0",
        "2.5",
        "1e9",
        "'t5'",
        '"q"',
        "(",
        ")",
        "[",
        "]",
        ",",
        "+",
        "-",
        "*",
        "**",
        "/",
        "//",
        "%",
        "<",
        "<=",
        "==",
        "!=",
        ".",
        "{",
        ":",
        "=",
        "\\",
        "#",
        "\n",
        "\t",
        "한",
        "\0",
        "f'",
        "0x",
        "...",
        "@",
        "a.b",
        "__class__",
    ]
)


@given(
    st.one_of(
        st.text(max_size=1200), st.lists(PIECES, max_size=80).map(" ".join), st.lists(PIECES, max_size=80).map("".join)
    )
)
@settings(max_examples=examples(80, 200), deadline=None)
def test_any_text_is_parsed_or_refused(source: str) -> None:
    try:
        tree = parse(source, NAMES)
    except ExpressionError as error:
        assert error.column >= 1
        return
    answer = compile_tree(tree)(VALUES.__getitem__)
    assert is_unknown(answer) or isinstance(answer, bool | int | float | str | tuple)
    unknown = compile_tree(tree)(lambda name: Unknown(frozenset((name,))))
    assert is_unknown(unknown) or unknown == answer


def numbers(depth: int) -> st.SearchStrategy[str]:
    leaf = st.one_of(st.sampled_from(["a", "b"]), st.integers(0, 99).map(str))
    if depth == 0:
        return leaf
    part = numbers(depth - 1)
    return st.one_of(
        leaf,
        st.tuples(part, st.sampled_from(["+", "-", "*", "/", "//", "%"]), part).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), part, part).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        part.map(lambda inner: f"(-{inner})"),
    )


def truths(depth: int) -> st.SearchStrategy[str]:
    leaf = st.one_of(
        st.sampled_from(["p", "q", "s == 't5'", "'q' in l", "s in ['t5', 'bart']"]),
        st.tuples(numbers(1), st.sampled_from(["<", "<=", "==", "!=", ">"]), numbers(1)).map(" ".join),
    )
    if depth == 0:
        return leaf
    part = truths(depth - 1)
    return st.one_of(
        leaf,
        st.tuples(part, st.sampled_from(["and", "or"]), part).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        part.map(lambda inner: f"(not {inner})"),
        st.tuples(part, part, part).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
    )


@given(st.one_of(numbers(3), truths(3)))
@settings(max_examples=examples(68, 170), deadline=None)
def test_with_every_fact_known_the_answer_is_pythons(source: str) -> None:
    try:
        answer = compile_tree(parse(source, NAMES))(VALUES.__getitem__)
    except ExpressionError as error:
        assert "more than" in str(error) or "nested" in str(error) or "longer" in str(error)
        return
    try:
        expected = eval(source, {"__builtins__": {}, "min": min, "max": max}, VALUES)
    except ZeroDivisionError:
        assert is_unknown(answer) or isinstance(answer, bool)  # Python may stop where ours decides otherwise
        return
    if is_unknown(answer):
        # only a part out of range, or a division by zero that Python's short circuit never met
        assert answer.reason
    elif isinstance(expected, float) and not math.isfinite(expected):
        assert abs(answer) <= LARGEST_NUMBER
    else:
        assert answer == expected


@given(truths(3), st.sets(st.sampled_from(sorted(NAMES))))
@settings(max_examples=examples(52, 130), deadline=None)
def test_hiding_facts_never_turns_an_answer_over(source: str, hidden: set[str]) -> None:
    """Three-valued logic is monotone: an answer given with less knowledge stands with more."""
    try:
        evaluate = compile_tree(parse(source, NAMES))
    except ExpressionError:
        return
    whole = evaluate(VALUES.__getitem__)
    part = evaluate(lambda name: Unknown(frozenset((name,))) if name in hidden else VALUES[name])
    assert is_unknown(part) or is_unknown(whole) or part == whole
    if is_unknown(part) and not is_unknown(whole):
        assert part.needs and part.needs <= hidden
