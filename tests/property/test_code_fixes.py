"""Whatever the Python file or notebook, applied fixes change their targets and nothing else; refused ones nothing."""

import ast
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from catalog_sample import load_catalog
from effort import examples
from kb.config.files import ConfigError
from kb.config.fixing.fixes import Fixer, Request
from kb.config.notebook.reader import read_cells
from kb.config.python.reader import PythonReader
from kb.config.shell.command import CommandReader
from kb.core.document import Unit
from kb.core.finding import Edit, Fix
from kb.core.text import Text

CATALOG = load_catalog()
PYTHON = PythonReader(CATALOG.dialects, CATALOG.facts)
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
FIXER = Fixer(CATALOG.dialects, CATALOG.facts)
# Keyword of the training call → values that it may have.
KEYWORDS: dict[str, list[Any]] = {
    "per_device_train_batch_size": [1, 8, 32],
    "gradient_accumulation_steps": [1, 4],
    "learning_rate": [5e-5, 0.1],
    "fp16": [True, False],
    "bf16": [True, False],
    "optim": ["adafactor", "adamw_torch"],
    "eval_strategy": ["no", "한국어 'x'"],
}
NAMES = st.sampled_from(sorted(KEYWORDS))
COMMENTS = st.sampled_from(["", "", "  # 메모 😀", "  # fp16=True, )"])
NEWLINES = st.sampled_from(["\n", "\n", "\r\n"])
AROUND = st.sampled_from(
    ["", "import torch\n", 'x = """\nfp16=True,\n"""\n', "def f(a, *, b=(1, 2)): return {a: b}\n", "# 주석 'x\n"]
)


@st.composite
def literals(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, str):
        return draw(st.sampled_from([repr(value), json.dumps(value, ensure_ascii=False)]))
    if isinstance(value, int) and not isinstance(value, bool) and draw(st.booleans()):
        return f"{value} * 1"
    return f"({value!r})" if draw(st.integers(0, 5)) == 0 else repr(value)


@st.composite
def scripts(draw: st.DrawFn) -> str:
    names = draw(st.lists(NAMES, min_size=1, unique=True))
    before, rows, unpacked = [draw(AROUND)], [], []
    for name in names:
        literal = draw(literals(draw(st.sampled_from(KEYWORDS[name]))))
        how = draw(st.sampled_from(["here", "here", "here", "named", "shared", "unpacked"]))
        if how in ("named", "shared"):
            before.append(f"{name.upper()} = {literal}{draw(COMMENTS)}\n")
            if how == "shared":
                before.append(f"print({name.upper()})\n")
            literal = name.upper()
        (unpacked if how == "unpacked" else rows).append((name, literal))
    if unpacked:
        inner = ", ".join(f"{json.dumps(name)}: {literal}" for name, literal in unpacked)
        before.append(f"common = {{{inner}}}\n")
    entries = [f"{name}{draw(st.sampled_from(['=', ' = ']))}{literal}" for name, literal in rows]
    entries += ["**common"] if unpacked else []
    entries = [draw(st.sampled_from(['"out"', 'output_dir="out"'])), *entries]
    if not entries[0].startswith('"'):
        entries = draw(st.permutations(entries))
    if draw(st.booleans()):
        call = ", ".join(entries) + draw(st.sampled_from(["", ","]))
    else:
        pad = draw(st.sampled_from(["    ", "\t", " "]))
        last = draw(st.sampled_from(["", ","]))
        commas = [",", *[","] * (len(entries) - 2), last][-len(entries) :] if len(entries) > 1 else [last]
        lines = [f"{pad}{entry}{comma}{draw(COMMENTS)}\n" for entry, comma in zip(entries, commas, strict=True)]
        call = draw(COMMENTS) + "\n" + "".join(lines)
    text = "".join(before) + f"args = TrainingArguments({call})\n" + draw(AROUND)
    return text.replace("\n", draw(NEWLINES))


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    name = draw(NAMES)
    op = draw(st.sampled_from(["set", "set", "remove"]))
    return Edit(op, f"training.{name}", draw(st.sampled_from(KEYWORDS[name])) if op == "set" else None)


def said(unit: Unit) -> dict[str, Any]:
    return {name: setting.value for name, setting in unit.settings.items()}


def expected(before: Mapping[str, Any], applied: tuple[Request, ...]) -> dict[str, Any]:
    values = dict(before)
    for request in applied:
        for edit in request.fix.edits:
            if edit.op == "set":
                values[edit.name] = edit.value
            else:
                values.pop(edit.name, None)
    return values


def requests(unit: Unit, wanted: list[Edit]) -> list[Request]:
    fixes = [Fix("safe", Text("x", "x"), (edit,)) for edit in wanted]
    return [Request(fix, unit, next(iter(unit.settings.values())).span, "rule") for fix in fixes]


def code_but_for_values(text: str) -> list[str]:
    """The statements of a program by their kind: no fix adds, drops or moves one."""
    return [type(node).__name__ for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]


@given(scripts(), st.lists(edits(), min_size=1, max_size=3))
@settings(max_examples=examples(30, 70), deadline=None)
def test_a_python_file_says_after_its_fixes_what_it_said_but_for_them(text: str, wanted: list[Edit]):
    (unit,) = PYTHON.read(text, "train.py")
    outcome = FIXER.apply(text, "train.py", requests(unit, wanted))
    (after,) = PYTHON.read(outcome.text, "train.py")
    assert said(after) == expected(said(unit), outcome.applied)
    assert code_but_for_values(outcome.text) == code_but_for_values(text)
    if not outcome.applied:
        assert outcome.text == text


def as_notebook(text: str, listed: bool, indent: int | None) -> str:
    source: Any = text.splitlines(keepends=True) if listed else text
    outputs = [{"output_type": "stream", "name": "stdout", "text": ['TrainingArguments(fp16=True) "\\']}]
    cell = {"cell_type": "code", "source": source, "metadata": {}, "outputs": outputs, "execution_count": 1}
    return json.dumps({"cells": [cell, {"cell_type": "markdown", "source": []}], "nbformat": 4}, indent=indent)


@given(scripts(), st.lists(edits(), min_size=1, max_size=3), st.booleans(), st.sampled_from([None, 1, 2]))
@settings(max_examples=examples(30, 70), deadline=None)
def test_a_notebook_changes_in_its_source_alone(text: str, wanted: list[Edit], listed: bool, indent: int | None):
    before = as_notebook(text, listed, indent)
    (unit,) = read_cells(before, "a.ipynb", PYTHON, COMMANDS)
    outcome = FIXER.apply(before, "a.ipynb", requests(unit, wanted))
    (after,) = read_cells(outcome.text, "a.ipynb", PYTHON, COMMANDS)
    assert said(after) == expected(said(unit), outcome.applied)
    old, new = json.loads(before), json.loads(outcome.text)
    source = new["cells"][0].pop("source")
    old["cells"][0].pop("source")
    assert new == old
    assert isinstance(source, list) == listed
    if listed:
        assert all(line.endswith("\n") and line.count("\n") == 1 for line in source[:-1])
    if not outcome.applied:
        assert outcome.text == before


PIECES = [
    "def f():",
    "TrainingArguments(",
    "LoraConfig(",
    ")",
    "fp16=",
    "True",
    "x",
    " = ",
    "\n",
    "    ",
    "if a:",
    "**",
    "{",
    "}",
]
PIECES += [
    "'",
    '"',
    "#",
    "\\",
    "\t",
    "8",
    "*",
    "torch.float16",
    "=",
    "[",
    "]",
    ",",
    ":",
    "\r",
    "\x0c",
    "한",
    "def f():",
]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
@settings(max_examples=examples(40, 100), deadline=None)
def test_any_text_is_read_or_refused_with_a_place(text: str):
    try:
        found = PYTHON.read(text, "a.py")
    except ConfigError as fault:
        assert fault.key.startswith("config.")
        assert fault.line is None or 1 <= fault.line <= text.count("\n") + text.count("\r") + 1
        return
    for unit in found:
        for setting in unit.settings.values():
            assert 0 <= setting.span.start <= setting.span.end <= len(text)
