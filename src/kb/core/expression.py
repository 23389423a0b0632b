"""Checked expression trees, compiled once to closures and evaluated in three-valued logic.

A tree is nested lists of strings, numbers and booleans, so that it can be stored as JSON: ``["fact", name]``,
``["lit", value]``, ``["and", …]``. :mod:`kb.core.grammar` makes trees from text, checks their types and names, and
is not needed to evaluate them. No input reaches ``eval``.
"""

import math
import operator
from collections.abc import Callable

from kb.core.typed import Any

Tree = list[Any]
Lookup = Callable[[str], Any]
Evaluator = Callable[[Lookup], Any]

# A byte count of the largest machine is under 1e14; a result beyond this is a fault of the rule or its input.
LARGEST_NUMBER = 10**18


class Unknown:
    """The third value: what is missing (fact names) or why there is no value. Never equal to anything, never true."""

    __slots__ = ("needs", "reason")

    def __init__(self, needs: frozenset[str] = frozenset(), reason: str = "") -> None:
        self.needs = needs
        self.reason = reason

    def __repr__(self) -> str:
        return f"Unknown({sorted(self.needs)}, {self.reason!r})"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value has no truth; test `is_unknown` first")


def is_unknown(value: object) -> bool:
    return value.__class__ is Unknown


def compile_tree(tree: Tree) -> Evaluator:
    """A function of a fact lookup that returns the value of ``tree``, or :class:`Unknown`.

    ``and``/``or`` follow Kleene: a false (true) operand decides whatever the others are. Elsewhere an unknown operand
    makes the result unknown and passes on what it needs.
    """
    return _COMPILERS[tree[0]](tree)


def fact_names(tree: Tree) -> frozenset[str]:
    """Every fact that the tree mentions."""
    if tree[0] == "fact":
        return frozenset((tree[1],))
    if tree[0] == "lit":
        return frozenset()
    return frozenset().union(*(fact_names(child) for child in _children(tree)))


def _children(tree: Tree) -> list[Tree]:
    """A comparison's first part is its list of signs, a call's is the function's name: neither is a tree."""
    return tree[2:] if tree[0] in ("compare", "call") else tree[1:]


def deciding_facts(tree: Tree, get: Lookup, doubt: Callable[[str], int]) -> tuple[Any, frozenset[str]]:
    """The value of ``tree``, and the facts that decided it: of ``a and b`` that is false because of ``a``, only ``a``.

    Where several operands would each have decided alone, the least doubtful one counts.

    Args:
        doubt: how doubtful a fact is; 0 is certain.
    """
    kind = tree[0]
    if kind == "fact":
        return get(tree[1]), frozenset((tree[1],))
    if kind == "lit":
        return compile_tree(tree)(get), frozenset()
    if kind == "if":
        test, names = deciding_facts(tree[1], get, doubt)
        if is_unknown(test):
            return test, names
        value, more = deciding_facts(tree[2] if test else tree[3], get, doubt)
        return value, names | more
    children = _children(tree)
    if kind not in ("and", "or"):
        every = frozenset[str]().union(*(deciding_facts(child, get, doubt)[1] for child in children))
        return compile_tree(tree)(get), every
    value = compile_tree(tree)(get)
    parts = [deciding_facts(child, get, doubt) for child in children]
    alone = [names for part, names in parts if part is value] if value is (kind == "or") else []
    if alone:
        return value, min(alone, key=lambda names: max(map(doubt, names), default=0))
    return value, frozenset[str]().union(*(names for _, names in parts))


def literals_beside(tree: Tree, name: str) -> frozenset[tuple[int, ...]]:
    """The versions that ``tree`` compares the fact ``name`` with."""
    if tree[0] in ("fact", "lit"):
        return frozenset()
    if tree[0] == "compare" and ["fact", name] in tree[2:]:
        return frozenset(tuple(part[1]) for part in tree[2:] if part[0] == "lit" and isinstance(part[1], list))
    return frozenset[tuple[int, ...]]().union(*(literals_beside(child, name) for child in _children(tree)))


def _unknown_of(*values: object) -> Unknown:
    unknown = [value for value in values if isinstance(value, Unknown)]
    needs = frozenset[str]().union(*(value.needs for value in unknown))
    return Unknown(needs, next((value.reason for value in unknown if value.reason), ""))


def _literal(tree: Tree) -> Evaluator:
    value = tuple(tree[1]) if isinstance(tree[1], list) else tree[1]  # JSON has no tuples
    return lambda get: value


def _fact(tree: Tree) -> Evaluator:
    name = tree[1]
    return lambda get: get(name)


def _list(tree: Tree) -> Evaluator:
    items = [compile_tree(item) for item in tree[1:]]

    def evaluate(get: Lookup) -> Any:
        values = tuple(item(get) for item in items)
        return _unknown_of(*values) if any(is_unknown(value) for value in values) else values

    return evaluate


def _junction(tree: Tree) -> Evaluator:
    decisive = tree[0] == "or"
    operands: list[Evaluator | None] = [None] * (len(tree) - 1)  # compiled when reached: the first decides most often

    def evaluate(get: Lookup) -> Any:
        unknown = []
        for at, operand in enumerate(operands):
            if operand is None:
                operand = operands[at] = compile_tree(tree[at + 1])
            value = operand(get)
            if value.__class__ is Unknown:
                unknown.append(value)
            elif value is decisive:
                return decisive
        return _unknown_of(*unknown) if unknown else not decisive

    return evaluate


def _of_one(operate: Callable[[Any], Any]) -> Callable[[Tree], Evaluator]:
    """An operator of one operand; of what is unknown the result is."""

    def compiled(tree: Tree) -> Evaluator:
        operand = compile_tree(tree[1])

        def evaluate(get: Lookup) -> Any:
            value = operand(get)
            return value if value.__class__ is Unknown else operate(value)

        return evaluate

    return compiled


def _conditional(tree: Tree) -> Evaluator:
    test, body, otherwise = (compile_tree(part) for part in tree[1:])

    def evaluate(get: Lookup) -> Any:
        value = test(get)
        if value.__class__ is Unknown:
            return value
        return body(get) if value else otherwise(get)

    return evaluate


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


def _comparison(tree: Tree) -> Evaluator:
    operators = [_COMPARISONS[name] for name in tree[1]]
    operands = [compile_tree(operand) for operand in tree[2:]]

    def evaluate(get: Lookup) -> Any:
        left = operands[0](get)
        unknown = None
        for compare, operand in zip(operators, operands[1:], strict=True):
            right = operand(get)
            if left.__class__ is Unknown or right.__class__ is Unknown:
                unknown = _unknown_of(left, right, unknown)
            elif not compare(left, right):
                return False
            left = right
        return True if unknown is None else unknown

    return evaluate


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
}


def _bounded(value: Any) -> Any:
    """``value`` if it is a number that a rule can mean; otherwise unknown, with the reason."""
    if isinstance(value, complex):
        return Unknown(reason="root of a negative number")
    if value != value:
        return Unknown(reason="not a number")
    if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        return Unknown(reason="number out of range")
    return value


def _arithmetic(tree: Tree) -> Evaluator:
    operate, left, right = _ARITHMETIC[tree[0]], compile_tree(tree[1]), compile_tree(tree[2])

    def evaluate(get: Lookup) -> Any:
        a, b = left(get), right(get)
        if a.__class__ is Unknown or b.__class__ is Unknown:
            return _unknown_of(a, b)
        try:
            return _bounded(operate(a, b))
        except ZeroDivisionError:
            return Unknown(reason="division by zero")
        except OverflowError:
            return Unknown(reason="number out of range")

    return evaluate


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "round": round,
}


def _call(tree: Tree) -> Evaluator:
    function, arguments = FUNCTIONS[tree[1]], [compile_tree(argument) for argument in tree[2:]]

    def evaluate(get: Lookup) -> Any:
        values = [argument(get) for argument in arguments]
        if any(value.__class__ is Unknown for value in values):
            return _unknown_of(*values)
        return function(*values)

    return evaluate


_COMPILERS: dict[str, Callable[[Tree], Evaluator]] = {
    "lit": _literal,
    "fact": _fact,
    "list": _list,
    "and": _junction,
    "or": _junction,
    "not": _of_one(operator.not_),
    "if": _conditional,
    "compare": _comparison,
    "neg": _of_one(operator.neg),
    "call": _call,
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
}
