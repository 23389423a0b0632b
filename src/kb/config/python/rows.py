"""How many rows a data set has at most, as the code that cuts it says: ``select(range(200))``, ``train_test_split``."""

import ast
import re

from kb.config.python.arithmetic import UnknownValueError
from kb.config.python.calls import Call
from kb.config.python.expressions import Expressions
from kb.config.python.places import MAX_STEPS, Where
from kb.core.document import Setting
from kb.core.finding import Span

EVALUATED, GIVEN = "data.eval_samples", "eval_dataset"
SPLIT, SELECT, LOAD = "train_test_split", "select", "load_dataset"
SIZES = {"test": "test_size", "train": "train_size"}
# Methods of a Dataset or a DatasetDict (datasets 4.x, arrow_dataset.py) that give as many rows back, or fewer.
NO_MORE = frozenset((
    "shuffle", "sort", "filter", "remove_columns", "rename_column", "rename_columns", "select_columns", "with_format",
    "with_transform", "cast", "cast_column", "add_column", "flatten_indices", "class_encode_column", "map",
))  # fmt: skip
BATCHED = "batched"  # of ``map``: a function of many rows may give more back
_FIRST = r"\w+\[:(\d+)\]"  # ``split="test[:200]"``


def evaluated_rows(call: Call, expressions: Expressions, span: Span) -> dict[str, Setting]:
    """What a trainer's call says by the data set that it evaluates, where the code tells how long that is."""
    given = call.argument(GIVEN)
    if given is None or call.home is not None:
        return {}
    try:
        rows = _rows(given, call.where, expressions, None)
    except UnknownValueError:
        return {}
    return {EVALUATED: Setting(rows, span, span, (GIVEN,), alias=True)} if rows > 0 else {}


def _rows(node: ast.expr, at: Where, known: Expressions, key: str | None, depth: int = 0) -> int:
    """The rows of a data set, or of one of a dictionary of them.

    Raises:
        UnknownValueError: nothing says it.
    """
    if depth > MAX_STEPS:
        raise UnknownValueError
    if isinstance(node, ast.Name):
        binding = known.bound(node.id, at)
        if binding is None or binding.value is None or not binding.where.holds_at(at):
            raise UnknownValueError
        return _rows(binding.value, binding.where.told(at), known, key, depth + 1)
    if isinstance(node, ast.Subscript) and key is None:
        if isinstance(node.slice, ast.Slice):
            raise UnknownValueError  # of a Dataset that is a dictionary of columns
        name = known.read(node.slice, at).data
        return _rows(node.value, at, known, str(name), depth + 1)
    if isinstance(node, ast.Call):
        return _of_call(node, at, known, key, depth)
    raise UnknownValueError


def _of_call(node: ast.Call, at: Where, known: Expressions, key: str | None, depth: int) -> int:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    if name == LOAD and key is None and "split" in named:
        found = re.fullmatch(_FIRST, str(known.read(named["split"], at).data))
        if found is not None:
            return int(found[1])
    if not isinstance(node.func, ast.Attribute):
        raise UnknownValueError
    if name == SELECT and key is None and node.args:
        return _counted(node.args[0], at, known)
    if name == SPLIT and key in SIZES and SIZES[key] in named:
        return _whole(named[SIZES[key]], at, known)
    if name not in NO_MORE or BATCHED in named:
        raise UnknownValueError
    return _rows(node.func.value, at, known, key, depth + 1)


def _counted(node: ast.expr, at: Where, known: Expressions) -> int:
    """The numbers of ``range(200)``; of ``range(min(200, len(rows)))`` as many at most."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
        raise UnknownValueError
    if len(node.args) == 2:
        return _whole(node.args[1], at, known) - _whole(node.args[0], at, known)
    if len(node.args) != 1:
        raise UnknownValueError
    end = node.args[0]
    if isinstance(end, ast.Call) and isinstance(end.func, ast.Name) and end.func.id == "min":
        for each in end.args:
            try:
                return _whole(each, at, known)
            except UnknownValueError:
                continue
        raise UnknownValueError
    return _whole(end, at, known)


def _whole(node: ast.expr, at: Where, known: Expressions) -> int:
    value = known.read(node, at).data
    if type(value) is not int:
        raise UnknownValueError
    return value
