"""An expression tree as text again, with the names of the facts in it or their values."""

from collections.abc import Callable
from typing import Any

from kb.core.expression import Tree

_STRENGTH = {
    "if": 1,
    "or": 2,
    "and": 3,
    "not": 4,
    "compare": 5,
    "+": 6,
    "-": 6,
    "*": 7,
    "/": 7,
    "//": 7,
    "%": 7,
    "neg": 8,
    "**": 9,
}
_ATOM = 10


def unparse(tree: Tree, show: Callable[[str], str] = str) -> str:
    """The expression's text, with parentheses only where they are needed.

    Args:
        tree: as :func:`kb.core.grammar.parse` made it.
        show: what to write for a fact, by its name; the name itself by default.
    """
    kind = tree[0]
    if kind == "fact":
        return show(tree[1])
    if kind == "lit":
        return _literal(tree[1])
    if kind == "list":
        return f"[{', '.join(unparse(item, show) for item in tree[1:])}]"
    if kind == "call":
        return f"{tree[1]}({', '.join(unparse(item, show) for item in tree[2:])})"
    if kind == "compare":
        return _comparison(tree, show)
    strength = _STRENGTH[kind]
    if kind in ("and", "or"):
        return f" {kind} ".join(_part(part, strength + 1, show) for part in tree[1:])
    if kind == "not":
        return f"not {_part(tree[1], strength, show)}"
    if kind == "neg":
        return f"-{_part(tree[1], strength, show)}"
    if kind == "if":
        test, body, otherwise = tree[1:]
        return f"{_part(body, 2, show)} if {_part(test, 2, show)} else {_part(otherwise, 1, show)}"
    left = _part(tree[1], strength + (kind == "**"), show)  # ** binds to the right
    return f"{left} {kind} {_part(tree[2], strength + (kind != '**'), show)}"


def fact_order(tree: Tree) -> list[str]:
    """The facts of an expression in the order in which it names them, each once."""
    if tree[0] == "fact":
        return [tree[1]]
    names: list[str] = []
    if tree[0] != "lit":
        for part in tree[1:]:
            if isinstance(part, list) and part and isinstance(part[0], str) and part[0] in _KINDS:
                names += [name for name in fact_order(part) if name not in names]
    return names


_KINDS = {*_STRENGTH, "fact", "lit", "list", "call"}


def _part(tree: Tree, at_least: int, show: Callable[[str], str]) -> str:
    text = unparse(tree, show)
    return text if _STRENGTH.get(tree[0], _ATOM) >= at_least else f"({text})"


def _comparison(tree: Tree, show: Callable[[str], str]) -> str:
    signs, operands = tree[1], tree[2:]
    parts = [_part(operands[0], 6, show)]
    for sign, operand in zip(signs, operands[1:], strict=True):
        # beside an ordering or an equality, a list of whole numbers is a version
        version = operand[0] == "lit" and isinstance(operand[1], list | tuple) and sign not in ("in", "not in")
        right = f'"{".".join(map(str, operand[1]))}"' if version else _part(operand, 6, show)
        parts += [sign, right]
    return " ".join(parts)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
