"""The expression language: what it says, what it refuses, and what unknown facts do to it."""

import subprocess
import sys
from typing import Any

import pytest

from kb.core.expression import Unknown, compile_tree, fact_names, is_unknown
from kb.core.grammar import ExpressionError, parse
from kb.core.release import parse_version

NAMES = {
    "training.fp16": "bool",
    "training.bf16": "bool",
    "batch": "integer",
    "bytes": "bytes",
    "model.family": "text",
    "targets": "list",
    "version": "version",
    "x": "number",
}


def value(source: str, **facts: Any) -> Any:
    known = {name.replace("__", "."): fact for name, fact in facts.items()}
    evaluate = compile_tree(parse(source, NAMES))
    return evaluate(lambda name: known.get(name, Unknown(frozenset((name,)))))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("batch * 2 + 1", 17),
        ("batch // 3", 2),
        ("-batch % 3", 1),
        ("batch / 3 > 2", True),
        ("batch ** 2", 64),
        ("ceil(batch / 3) + floor(2.5) + round(2.6)", 8),
        ("min(batch, 4) + max(1, batch, 3) + abs(-1)", 13),
        ("1 < batch <= 8", True),
        ('model.family in ["t5", "mt5"]', True),
        ('"wi" not in targets', True),
        ('targets == ["q", "v"]', True),
        ('"t" in model.family', True),
        ('version >= "4.51"', True),
        ('version < "5"', True),
        ('"big" if batch > 4 else "small"', "big"),
        ("not training.fp16 or training.bf16", False),
        ("48 GB", 48 * 10**9),
        ("24 GiB", 24 * 2**30),
        ("1.5GiB - 512 MiB", 2**30),
        ("bytes >= 24 GB and bytes < 24 GiB", True),
        ("bytes > 0 and batch * 2 < bytes", True),  # two bytes for each
        ("bytes / 1 GB", 25.0),
        ('"48 GB" == model.family', False),
    ],
)
def test_the_language_says_what_python_would(source: str, expected: object) -> None:
    facts = {"batch": 8, "bytes": 25 * 10**9, "model__family": "t5", "targets": ("q", "v"), "version": (4, 57, 1)}
    assert value(source, training__fp16=True, training__bf16=False, **facts) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("training.fp16 and training.bf16", False),  # one known false decides
        ("training.bf16 and training.fp16", False),
        ("not training.fp16 or training.bf16", True),
        ("training.bf16 or not training.fp16", True),
    ],
)
def test_a_decisive_operand_decides_whatever_is_unknown(source: str, expected: bool) -> None:
    assert value(source, training__fp16=False) is expected


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        ("training.bf16", {"training.bf16"}),
        ("not training.bf16", {"training.bf16"}),
        ("training.fp16 or training.bf16", {"training.bf16"}),
        ("batch + x > 3", {"batch", "x"}),
        ("1 < batch < x", {"batch", "x"}),
        ("min(batch, x)", {"batch", "x"}),
        ("1 if training.bf16 else 2", {"training.bf16"}),
        ('model.family in ["t5"]', {"model.family"}),
    ],
)
def test_what_is_missing_is_named(source: str, needs: set[str]) -> None:
    answer = value(source, training__fp16=False)
    assert is_unknown(answer)
    assert answer.needs == needs


def test_a_chain_with_a_false_link_is_false_though_another_is_unknown() -> None:
    assert value("9 < batch < x", batch=8) is False


@pytest.mark.parametrize("source", ["batch / x", "batch // x", "batch % x", "(0 - batch) ** 0.5"])
def test_arithmetic_without_an_answer_is_unknown_with_a_reason(source: str) -> None:
    answer = value(source, batch=8, x=0)
    assert is_unknown(answer)
    assert answer.reason


def test_a_result_out_of_range_is_unknown() -> None:
    answer = value("x ** 3 * x ** 3", x=10**6)
    assert is_unknown(answer)
    assert "range" in answer.reason


def test_an_unknown_has_no_truth() -> None:
    with pytest.raises(TypeError):
        bool(Unknown())


@pytest.mark.parametrize(
    ("source", "column", "words"),
    [
        ("training.fp1 and batch > 1", 1, "did you mean 'training.fp16'"),
        ("batch > 1 and trainign.bf16", 15, "did you mean 'training.bf16'"),
        ("training.fp16 > 1", 17, "compares a bool with a number"),
        ("batch and training.fp16", 1, "needs a bool"),
        ("model.family + 1", 1, "needs a number"),
        ("batch ** 9", 10, "exponent must be 2, 3 or 0.5"),
        ("'a' if batch > 1 else 2", 1, "one type"),
        ("model.family < 'a'", 16, "orders numbers or versions"),
        ("batch in model.family", 10, "looks for"),
        ("version >= 'next'", 12, "not a version"),
        ("open(batch)", 1, "can be called"),
        ("min(batch)", 1, "two values or more"),
        ("batch is 8", 1, "compare with =="),
        ("None == batch", 1, "not None"),
        ("(batch", 1, "never closed"),
        ("batch)", 6, "closes nothing"),
        ("[batch)", 7, "closes nothing"),
        ("model.family == '한글' and wrong", 26, "unknown fact 'wrong'"),
        ("", 1, "empty"),
        ("batch > 8 and bytes < 24", 23, "write its unit, as in 24 GB or 24 GiB"),
        ("bytes + batch > 0", 1, "puts a size in bytes beside a plain number"),
        ("min(bytes, batch)", 1, "puts a size in bytes beside a plain number"),
        ("bytes * bytes > 0", 1, "bytes squared"),
        ("bytes < 24 gib", 9, "write 24 GiB"),
        ("bytes < 24G", 9, "write 24 GB or 24 GiB"),
        ("trainign.bf16 and training.fp61", 1, "did you mean 'training.bf16'? unknown fact 'training.fp61'; did you"),
        ("__ > 8", 1, "unknown fact '__'"),
    ],
)
def test_an_error_names_its_column_and_what_was_meant(source: str, column: int, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(source, NAMES)
    assert caught.value.column == column
    assert words in str(caught.value)
    caret = str(caught.value).splitlines()[-1]
    assert caret.index("^") == column + 1


def test_an_expression_must_have_the_type_its_place_wants() -> None:
    with pytest.raises(ExpressionError, match="a bool is needed"):
        parse("batch + 1", NAMES, want="bool")


def test_every_fact_of_a_tree_is_listed() -> None:
    tree = parse('training.fp16 and (batch > 1 or model.family in ["fact", "lit"])', NAMES)
    assert fact_names(tree) == {"training.fp16", "batch", "model.family"}


@pytest.mark.parametrize(
    ("text", "parts"), [("4.57.1", (4, 57, 1)), ("5.0.0rc1", (5, 0, 0)), ("2.13.0+cu128", (2, 13, 0))]
)
def test_versions_are_read_up_to_their_suffix(text: str, parts: tuple[int, ...]) -> None:
    assert parse_version(text) == parts


# Each hangs, exhausts memory or escapes in one expression engine or another.
ATTACKS = {
    "tower of powers": "9**9**9",
    "text times number": "'a'*10**10",
    "list times number": "len([0]*10**10) > 0",
    "chain of products": "*".join(["999999999999999"] * 60),
    "product past the limit": "*".join(["999999999999999999999"] * 20000),
    "nested parentheses": "(" * 5000 + "1" + ")" * 5000,
    "nested brackets": "[" * 400 + "]" * 400,
    "unclosed brackets": "[(" * 12,
    "unary chain": "-" * 50000 + "1",
    "short unary chain": "-" * 900 + "1",
    "not chain": "not " * 240 + "training.fp16",
    "long sum": "+".join(["x"] * 20000),
    "sum of many parts": "+".join(["x"] * 450),
    "class escape": "x.__class__.__mro__[1].__subclasses__()",
    "attribute of text": "''.__class__",
    "format string": "'{0.__class__}'.format(x)",
    "padding format": "'%1000000000d' % 1",
    "shift": "1<<10**9",
    "comprehension": "[a for a in targets for b in targets for c in [1]*10000]",
    "f-string": "f'{x:>1000000000}'",
    "lambda": "(lambda:1)()",
    "lambda words": "lambda x",
    "walrus": "(y:=1)",
    "import": "__import__('os').system('id')",
    "float overflow": "1e308*10 > 0",
    "huge literal": "1e999 > 0",
    "long literal": "9" * 900,
    "many digits power": "9**3999999*9**3999999",
    "pad by function": "$pad('x',10000000000)",
    "range": "range(10**9)",
    "regex": "'" + "a" * 40 + "b' == '^(a+)+$' and x.matches('(a+)+$')",
    "null byte": "x\0",
    "surrogate": "model.family == '\ud800'",
    "backslash": "model.family == '\\x41'",
    "walk through names": "x" + ".a" * 490,
    "conditional tower": " if training.fp16 else ".join(["1"] * 40),
    "comparison tower": " < ".join(["x"] * 240),
    "star arguments": "min(*targets)",
    "keyword arguments": "min(x, x, key=x)",
    "yield": "(yield)",
    "await": "(await x)",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_rejected_or_bounded(name: str) -> None:
    try:
        tree = parse(ATTACKS[name], NAMES)
    except ExpressionError:
        return
    facts = {"x": 10**15, "training.fp16": True, "training.bf16": True, "targets": ("q",), "model.family": "t5"}
    answer = compile_tree(tree)(lambda name: facts[name])
    assert is_unknown(answer) or isinstance(answer, bool | int | float | str | tuple)


def test_no_attack_takes_time_or_memory() -> None:
    """All of them in one process, against the limits of the design: 50 ms each and 50 MB."""
    code = f"""
import resource, time
from kb.core.grammar import parse, ExpressionError
names = {NAMES!r}
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
slowest = 0.0
for source in {list(ATTACKS.values())!a}:
    began = time.process_time()
    try:
        parse(source, names)
    except ExpressionError:
        pass
    slowest = max(slowest, time.process_time() - began)
print(slowest * 1e3, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024)
"""
    run = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=60, check=True)
    milliseconds, megabytes = map(float, run.stdout.split())
    # a hang or a blow-up is seconds and gigabytes: these bounds are for safety, not for speed
    assert milliseconds < 50
    assert megabytes < 50
