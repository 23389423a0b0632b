"""Rows of tokens that a program cuts, or leaves out, by a limit of its own: a Trainer cuts none, and what is usual says
nothing of their length."""

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache

from kb.config.python.expressions import untold
from kb.config.python.lengths import LEAST, MOST, SOURCE, WORD
from kb.config.python.names import Names
from kb.config.python.syntax import called_name
from kb.config.python.values import Values
from kb.core.document import Setting
from kb.core.finding import Span
from kb.core.record import NamedTuple

ROW, FILTER = "input_ids", "filter"
MOST_LIMITS = 8  # of a program whose rows have one length
_WRAPPERS = ("tensor", "LongTensor", "as_tensor", "array", "asarray", "list")
_MAPPINGS = ("dict", "BatchEncoding", "BatchFeature", "update")
_LONGER = ("extend", "append", "insert")


class Limit(NamedTuple):
    """How long a row may be: what says it, None where more is done to the row; and a call near it, for its place."""

    node: ast.expr | None
    near: ast.Call | None


def length_by_hand(
    trees: tuple[ast.AST, ...], names: Names, values: Values, place_of: Callable[[ast.expr], Span]
) -> Setting | None:
    """How long the rows seem to be that a program itself cuts or leaves out: the one number that all its limits are,
    else unknown; None where it does neither."""
    limits = _limits(trees)
    if not limits:
        return None
    places = {id(call): where for call, where, _ in names.calls}
    known: set[int] = set()
    for node, near in limits[:MOST_LIMITS]:
        value = values.scalar_of(node, places[id(near)]) if node is not None and id(near) in places else None
        known.add(value if type(value) is int and LEAST <= value <= MOST else 0)
    length = known.pop() if len(known) == 1 and len(limits) <= MOST_LIMITS else 0
    span = place_of(limits[0].node or ast.Constant(None))
    return Setting(length or untold(SOURCE), span, span, WORD, alias=True, by_default=True)  # inferred


@lru_cache(1)
def _limits(trees: tuple[ast.AST, ...]) -> list[Limit]:
    """The limits in a program: of a slice that stays as ``input_ids`` (``input_ids = input_ids[:n]``), of a row that is
    left out (``if len(input_ids) > n: continue``), and of a filter (``lambda row: len(row["input_ids"]) <= n``)."""
    found: list[Limit] = []
    for tree in trees:
        nodes = list(ast.walk(tree))
        if not any(
            _is_row(node) or getattr(node, "value", None) == ROW or getattr(node, "arg", None) == ROW for node in nodes
        ):
            continue
        filters = [node for node in nodes if isinstance(node, ast.Call) and called_name(node) == FILTER and node.args]
        given = [node.args[0] for node in filters]
        names = {each.id for each in given if isinstance(each, ast.Name)}
        trained = _filters_trained_on(nodes)
        for body in (tree, *(node for node in nodes if isinstance(node, ast.FunctionDef | ast.Lambda))):
            own = list(_own(body))
            filters_by = body in given or getattr(body, "name", None) in names
            kept = [each if trained else None for each in _kept(body, own)] if filters_by else []
            calls = [node for node in own if isinstance(node, ast.Call)]
            found += [Limit(each, _near(each, calls)) for each in (*_cut(own), *_left_out(own), *kept)]
    return found


def _filters_trained_on(nodes: Sequence[ast.AST]) -> bool:
    """Whether every filter of a module gives the data set that a trainer is given to train on."""
    trained = {
        name for node in nodes if isinstance(node, ast.keyword) and node.arg == "train_dataset"
        for name in [each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)]
    }  # fmt: skip
    results = [
        node.targets[0] for node in nodes if isinstance(node, ast.Assign)
        and any(called_name(each) == FILTER for each in ast.walk(node.value))
    ]  # fmt: skip
    filters = sum(called_name(node) == FILTER for node in nodes)
    return filters == len(results) and all(getattr(each, "id", "") in trained for each in results)


def _own(body: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, or around all functions, in its order."""
    for child in ast.iter_child_nodes(body):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _own(child)


def _cut(own: Sequence[ast.AST]) -> Iterator[ast.expr | None]:
    """The ends of slices that become ``input_ids``; None where more than a slice does, or the row is made longer."""
    given = [pair for node in own for pair in _given(node)]
    stored = [value for target, value in given if target is None]
    rows = {each.id for value in (*stored, *_results(own)) for each in ast.walk(value) if isinstance(each, ast.Name)}
    rows &= {ROW, *(value.id for value in stored if isinstance(value, ast.Name))}
    last = {target.id: value for target, value in given if isinstance(target, ast.Name)}
    for target, value in given:
        if target is not None and target.id not in rows:
            continue
        bare, slices = _unwrapped(value), _slices(value)
        if len(slices) == 1 and isinstance(bare, ast.Subscript | ast.ListComp) and _slices(bare):
            stays = all(isinstance(_unwrapped(each), ast.Name) or _slices(each) for each in stored)
            whole = stays and (target is None or last[target.id] is value) and not _lengthened(own, rows, value)
            yield slices[0][0] if whole else None
        elif any(_is_row(row) or getattr(row, "id", "") in rows for _, row in slices):
            yield None


def _unwrapped(value: ast.expr) -> ast.expr:
    """``ids`` of ``torch.tensor(ids)``."""
    return value.args[0] if isinstance(value, ast.Call) and called_name(value) in _WRAPPERS and value.args else value


def _results(own: Sequence[ast.AST]) -> Iterator[ast.expr]:
    yield from (node.value for node in own if isinstance(node, ast.Return | ast.Yield) and node.value is not None)


def _lengthened(own: Sequence[ast.AST], rows: Collection[str], cut: ast.expr) -> bool:
    """Whether something is put to a row after it is cut: ``ids + more``, ``ids += more``, ``ids.extend(more)``."""
    for node in own:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [node.left, node.right]
        elif isinstance(node, ast.AugAssign):
            parts = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LONGER:
            parts = [node.func.value]
        else:
            continue
        later = (node.lineno, node.col_offset) > (cut.lineno, cut.col_offset)
        if later and any(_is_row(each) or getattr(each, "id", "") in rows for each in parts):
            return True
    return False


def _given(node: ast.AST) -> Iterator[tuple[ast.Name | None, ast.expr]]:
    """What a name, or ``input_ids`` of anything (None), gets here."""
    if isinstance(node, ast.Assign):
        for each in node.targets:
            if isinstance(each, ast.Name):
                yield each, node.value
            elif _is_row(each):
                yield None, node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == ROW:
                yield None, value
    elif isinstance(node, ast.Call) and called_name(node) in _MAPPINGS:
        yield from ((None, each.value) for each in node.keywords if each.arg == ROW)


def _slices(value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The end of each slice ``[:n]``, ``[-n:]`` and ``[:, :n]`` in an expression, with the row that it is taken of."""
    found = []
    of = {
        each.target.id: each.iter
        for node in ast.walk(value) if isinstance(node, ast.ListComp)
        for each in node.generators if isinstance(each.target, ast.Name)
    }  # fmt: skip
    for node in ast.walk(value):
        if not isinstance(node, ast.Subscript):
            continue
        part = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if isinstance(part, ast.Slice) and part.step is None:
            last = part.lower.operand if isinstance(part.lower, ast.UnaryOp) else None
            end = part.upper if part.lower is None else last if part.upper is None else None
            small = isinstance(end, ast.Constant) and not (isinstance(end.value, int) and end.value >= LEAST)
            if end is not None and not small and not isinstance(end, ast.UnaryOp):
                found.append((end, of.get(getattr(node.value, "id", ""), node.value)))
    return found


def _left_out(own: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """``if len(input_ids) > n: continue``, or the return of nothing, where rows are made of what is left."""
    makes = [
        node.lineno for node in own if isinstance(node, ast.Return | ast.Yield)
        or (isinstance(node, ast.expr | ast.stmt)
            and (called_name(node) == "append" or any(target is None for target, _ in _given(node))))
    ]  # fmt: skip
    for node in own:
        if isinstance(node, ast.If) and _leaves(node.body) and max(makes, default=0) > (node.body[-1].end_lineno or 0):
            tests = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or) else None
            yield from _compared(tests or [node.test], (ast.Gt, ast.GtE))


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether a row is passed over here, counted or said at most."""
    *before, last = body
    answer = (last.value or ast.Constant(None)) if isinstance(last, ast.Return) else None
    nothing = isinstance(answer, ast.Constant) and not answer.value
    return (nothing or isinstance(last, ast.Continue | ast.Raise)) and all(
        isinstance(each, ast.AugAssign | ast.Expr) for each in before
    )


def _kept(body: ast.AST, own: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """``len(row["input_ids"]) <= n`` where a filter answers with that, or with that and more."""
    answers = [body.body] if isinstance(body, ast.Lambda) else list(_results(own))
    if len(answers) == 1:
        both = isinstance(answers[0], ast.BoolOp) and isinstance(answers[0].op, ast.And)
        parts = answers[0].values if isinstance(answers[0], ast.BoolOp) and both else answers
        yield from _compared(parts, (ast.Lt, ast.LtE))


def _compared(nodes: Sequence[ast.AST], by: tuple[type[ast.cmpop], ...]) -> Iterator[ast.expr]:
    """What the length of a row is compared with."""
    for node in nodes:
        if not isinstance(node, ast.Compare) or len(node.ops) > 1 or not isinstance(node.ops[0], by):
            continue
        measured = node.left
        if isinstance(measured, ast.Call) and called_name(measured) == "len" and measured.args:
            yield from node.comparators if _is_row(measured.args[0]) else ()


def _is_row(node: ast.AST) -> bool:
    """``input_ids``, ``batch.input_ids``, ``batch["input_ids"]`` and ``batch["input_ids"][i]``."""
    if isinstance(node, ast.Subscript):
        return (isinstance(node.slice, ast.Constant) and node.slice.value == ROW) or _is_row(node.value)
    return getattr(node, "id", getattr(node, "attr", None)) == ROW


def _near(limit: ast.expr | None, calls: Sequence[ast.Call]) -> ast.Call | None:
    """The last call of a function before a limit, else its first."""
    if limit is None:
        return None
    before = [call for call in calls if (call.lineno, call.col_offset) <= (limit.lineno, limit.col_offset)]
    return before[-1] if before else calls[0] if calls else None
