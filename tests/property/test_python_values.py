"""Whatever expression a Python file holds: it is read without a fault, and what is said of it is what Python makes."""

import ast
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catalog_sample import load_catalog
from effort import examples
from kb.config.python.names import Names
from kb.config.python.places import Where
from kb.config.python.reader import PythonReader
from kb.config.python.syntax import Module
from kb.config.python.values import Values
from kb.config.text.source import Source
from kb.core.expression import is_unknown

CATALOG = load_catalog()
READER = PythonReader(CATALOG.dialects, CATALOG.facts)
CONSTANTS = CATALOG.dialects["python"].constants
# Names that a text gives a value, and some that it does not.
KNOWN = 'a = 8\nb = 0.5\nc = "text"\nd = True\ne = None\nf = [1, 2]\ng = {"x": 1, "y": {"z": 2}, "x": 3}\n'
KNOWN += "h = (1, 2)\ni = a * 4\nfrom somewhere import mystery, other\n"
CLASS = "class CFG:\n    size = 16\n    name = c\n"
ATOMS = [
    *("1", "0", "-3", "2.5", "1e300", "10**30", "True", "False", "None", "''", "'bf16'", "'7'", "b'x'", "...", "3j"),
    *("a", "b", "c", "d", "e", "f", "g", "h", "i", "mystery", "other", "missing", "CFG.size", "CFG.name", "CFG.none"),
    *("mystery.field", "torch.bfloat16", "torch.cuda.is_bf16_supported()", "is_bfloat16_supported()"),
    *("__name__", "[]", "{}", "()", "lambda a: a", "1_000"),
]
# One template for each kind of expression, with a place for each part.
TEMPLATES = [
    *("[{}, {}]", "({}, {})", "{{{}, {}}}", "{{'k': {}, 'l': {}}}", "{{**{}, 'k': {}}}", "{{{}: {}}}", "[*{}, {}]"),
    *("not {}", "-{}", "+{}", "~{}", "{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} // {}", "{} % {}", "{} ** 2"),
    *("{} | {}", "{} << 1", "{} @ {}", "{} and {}", "{} or {}", "{} == {}", "{} < {}", "{} in {}", "{} is not {}"),
    *("{} if {} else {}", "True if {} else False", "False if {} else True", "f'{{{}}}'", "f'x{{{}!r}}y{{{}:>4}}'"),
    *("({})[{}]", "g['x']", "g[{}]", "f[0]", "({})[{}:{}]", "({}).upper()", "({}).real", "int({})", "float({})"),
    *("str({})", "dict(k={}, l={})", "dict({})", "getattr(torch, {})", "getattr({}, 'real')", "max({}, {})"),
    *("[{} for a in ({}, 1)]", "{{{} for b in {}}}", "{{a: {} for a in {}}}", "list({} for c in {})", "(x := {})"),
    *("(lambda a, b={}: {})({})", "mystery({}, k={})", "int({}, {})", "bool({})", "str()", "int(*{})"),
]


class Torch:
    """Stands in for the library in Python's own answer: objects that are no texts, and a GPU that may have bf16."""

    bfloat16 = object()

    def __init__(self, native: bool) -> None:
        self.cuda = self
        self.is_bf16_supported = lambda: native


def expressions() -> st.SearchStrategy[str]:
    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.builds(
            lambda template, parts: template.format(*(f"({part})" for part in parts[: template.count("{}")])),
            st.sampled_from(TEMPLATES),
            st.lists(inner, min_size=3, max_size=3),
        )

    return st.recursive(st.sampled_from(ATOMS), grown, max_leaves=12)


def evaluated(text: str, mystery: Any, native: bool) -> Any:
    """Python's own value, with one value for what is unknown; the error where it raises one."""
    spaces: dict[str, Any] = {"__name__": "m", "torch": Torch(native), "is_bfloat16_supported": lambda: native}
    spaces |= dict.fromkeys(("mystery", "other", "missing"), mystery)  # what nothing binds, a program that runs has
    try:
        exec(KNOWN.replace("from somewhere import mystery, other\n", "") + CLASS, spaces)
        return eval(text, spaces)
    except Exception as error:
        return error


def open_parts(data: Any) -> bool:
    """Whether something in what was read is left unknown."""
    if is_unknown(data):
        return True
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ()
    return any(open_parts(each) for each in inner)


def agrees(read: Any, made: Any) -> bool:
    """Whether what was read is what Python made: a library's own object counts as its text, a set as a list."""
    if is_unknown(read) or made is Torch.bfloat16:
        return is_unknown(read) or read == "bfloat16"
    if isinstance(read, dict):
        return isinstance(made, dict) and read.keys() == made.keys() and all(agrees(read[k], made[k]) for k in read)
    if isinstance(made, set):
        return isinstance(read, list) and all(any(agrees(each, one) for one in made) for each in read)
    if isinstance(read, list | tuple):
        alike = isinstance(made, list | tuple) and len(read) == len(made)
        return alike and isinstance(made, type(read)) and all(map(agrees, read, made))
    return type(read) is type(made) and (read == made or read != read)


@pytest.mark.long
@settings(max_examples=examples(60, 150), deadline=None)
@given(expressions())
@example("'x' if torch.cuda.is_bf16_supported() else 'y'")
@example("f'{torch.cuda.is_bf16_supported()}'")
@example("str([torch.bfloat16])")
@example("f'{torch.bfloat16}'")
@example("(1, 2) + [3]")
@example("[{'a': 1}]")
@example("{'a': mystery} == {'a': 5}")
@example("not dict(k=1, l=missing)")
@example("[a for a in (1, 2)]")
@example("g['x']")
@example("0x" + "f" * 5000)
@example("{1, True}")
@example("{2, 1} == {1, 2}")
@example("f in g")
@example("list({2, 1})")
@example("isinstance({1}, list)")
@example("isinstance(torch.bfloat16, str)")
@example("getattr(torch, torch.bfloat16)")
def test_what_is_said_of_an_expression_is_what_python_makes_of_it(text):
    source = f"{KNOWN}{CLASS}import torch\nargs = TrainingArguments('out', seed=1, learning_rate={text})\n"
    try:
        module = Module(Source(source))
    except Exception:
        return  # no Python: of other texts the tests of faults speak
    call = module.tree.body[-1].value  # type: ignore[attr-defined]
    values = Values(module, Names(module.tree), CONSTANTS)
    at = Where((), (), 10**6)
    read = values.scalar_of(call.keywords[-1].value, at)
    values.node(call.keywords[-1].value, at)
    READER.read(source, "train.py")
    for mystery, native in ((5, True), ("other", False), ([], True)):
        made = evaluated(text, mystery, native)
        if isinstance(made, Exception):
            assert open_parts(read), (text, read, made)
        else:
            assert agrees(read, made), (text, read, made)


def test_every_kind_of_expression_is_among_those_tried():
    tried = {type(node) for text in (*ATOMS, *TEMPLATES) for node in ast.walk(ast.parse(text.format(1, 1, 1)))}
    tried |= {type(node) for text in ATOMS for node in ast.walk(ast.parse(text))}
    statements_only = {"Await", "Yield", "YieldFrom", "TemplateStr", "Interpolation"}
    kinds = {
        kind for kind in ast.expr.__subclasses__() if kind.__module__ == "ast" and not issubclass(kind, ast.Constant)
    }
    assert {kind.__name__ for kind in kinds - tried} <= statements_only


@pytest.mark.parametrize(
    "text",
    [
        "async def run():\n    TrainingArguments('out', seed=1, learning_rate=await rate())\n",
        "def run():\n    TrainingArguments('out', seed=1, learning_rate=(yield 3))\n",
        "def run():\n    TrainingArguments('out', seed=1, learning_rate=(yield from rates()))\n",
    ],
)
def test_what_waits_for_another_is_unknown(text):
    (unit,) = READER.read(text, "train.py")
    assert is_unknown(unit.settings["training.learning_rate"].value)
