"""An expression for a reader: a condition as a sentence in their language, ``adafactor is on and the config's format is
not team``; and as a formula again, with the names of the facts in it or their values.
"""

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from kb.core.expression import Tree
from kb.core.finding import Fix
from kb.core.units import GIB, MIB
from kb.report.values import UNKNOWN, printable
from kb.report.words import Words

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


_WRITTEN = "written."
_IN_BRACKETS = re.compile(r" \([^()]*\)$")
_SIGNS = {"==": "is", "!=": "is_not", ">": "over", ">=": "at_least", "<": "under", "<=": "at_most"}
_CONTRARY = {"in": "not in", "not in": "in", "==": "!=", "!=": "==", ">": "<=", ">=": "<", "<": ">=", "<=": ">"}
_SUMS = ("+", "-", "*", "/", "//", "%", "**")
_LISTS = {"in": "one_of", "not in": "none_of"}


def condition_text(fix: Fix, words: Words) -> str:
    """What must hold for a fix that is only offered, less what is known to hold; empty where nothing must."""
    return open_condition(fix.when, fix.needs, words)


def open_condition(when: Tree | None, needs: Iterable[str], words: Words) -> str:
    """A condition less what is known of it: ``needs`` are the facts that are not; empty where there is none."""
    return "" if when is None else sentence(_open(when, frozenset(needs)), words)


def computes(tree: Tree) -> bool:
    """Whether a condition works something out, which no sentence tells: then the step's own words have to."""
    if tree[0] == "lit" or _division(tree):
        return False
    return tree[0] in _SUMS or any(computes(part) for part in tree[1:] if isinstance(part, list) and part)


def _division(tree: Tree) -> bool:
    """Whether a comparison asks if one thing divides another: ``a % b == 0``."""
    return tree[0] == "compare" and tree[1] in (["=="], ["!="]) and tree[2][0] == "%" and tree[3] == ["lit", 0]


def sentence(tree: Tree, words: Words) -> str:
    """The sentence of a condition."""
    kind = tree[0]
    if kind in ("and", "or"):
        parts = (sentence(part, words) for part in tree[1:])
        inner = zip(tree[1:], parts, strict=True)
        return _joined(kind, (f"({text})" if part[0] in ("and", "or") else text for part, text in inner), words)
    if kind == "not":
        return _denied(tree[1], words)
    if kind == "fact":
        return _holds(tree[1], True, words)
    if _division(tree):
        key = "divides" if tree[1] == ["=="] else "divides_not"
        return words(f"condition.{key}", name=_value(tree[2][1], words), value=_value(tree[2][2], words))
    if kind == "compare":
        pairs = zip(tree[1], tree[2:], tree[3:], strict=False)
        return _joined("and", (_compared(sign, left, right, words) for sign, left, right in pairs), words)
    return unparse(tree, lambda name: named(name, words))


def _joined(kind: str, parts: Iterable[str], words: Words) -> str:
    return f" {words(f'condition.{kind}')} ".join(parts)


def _open(tree: Tree, needs: Collection[str]) -> Tree:
    """The parts of a condition that one of ``needs`` decides: the others are known."""
    if tree[0] not in ("and", "or") or not needs:
        return tree
    parts = [_open(part, needs) for part in tree[1:] if not set(fact_order(part)).isdisjoint(needs)]
    if not parts:
        return tree
    return parts[0] if len(parts) == 1 else [tree[0], *parts]


def _denied(tree: Tree, words: Words) -> str:
    if tree[0] == "fact":
        return _holds(tree[1], False, words)
    if tree[0] == "compare" and len(tree[1]) == 1:
        return _compared(_CONTRARY[tree[1][0]], tree[2], tree[3], words)
    return words("condition.not", condition=sentence(tree, words))


def _holds(name: str, holds: bool, words: Words) -> str:
    """A yes or no: written, on, or what the fact says."""
    answer = "yes" if holds else "no"
    if name.startswith(_WRITTEN):
        return words(f"condition.written.{answer}", name=name.rpartition(".")[2])
    if f"condition.{answer}.{name}" in words.messages:
        return words(f"condition.{answer}.{name}")
    fact = words.facts.get(name)
    kind = "setting" if fact is not None and fact.setting else "fact"
    return words(f"condition.{kind}.{answer}", name=named(name, words))


def _compared(sign: str, left: Tree, right: Tree, words: Words) -> str:
    if sign in _LISTS and right[0] == "lit" and len(right[1]) == 1:  # a list of one
        sign, right = "==" if sign == "in" else "!=", ["lit", *right[1]]
    if right == ["lit", ""]:
        return words(f"condition.{'none' if sign == '==' else 'some'}", name=_value(left, words))
    if left[0] == "fact" and right[0] == "lit":  # words of its own for what one fact is or is not
        if sign == "in" and f"condition.is.{left[1]}" in words.messages:  # of each
            return _joined("or", (_compared("==", left, ["lit", each], words) for each in right[1]), words)
        own = f"condition.{_LISTS.get(sign) or _SIGNS[sign]}.{left[1]}"
        for key in (f"{own}.{right[1]}", own):
            if key in words.messages:
                return words(key, value=_value(right, words))
    if sign in _LISTS:
        if left[0] == "lit" and right[0] == "fact":  # a text in a list of the run
            key = "condition.has" if sign == "in" else "condition.has_not"
            return words(key, name=named(right[1], words), value=_value(left, words))
        return words(f"condition.{_LISTS[sign]}", name=_value(left, words), value=_value(right, words))
    version = left[0] == "fact" and left[1].startswith("versions.")
    key = f"condition.version.{_SIGNS[sign]}" if version else f"condition.{_SIGNS[sign]}"
    return words(key, name=_value(left, words), value=_value(right, words))


def _value(tree: Tree, words: Words) -> str:
    if tree[0] == "fact":
        return named(tree[1], words)
    if tree[0] != "lit":
        return unparse(tree, lambda name: named(name, words))
    return _shown(tree[1], words)


def _shown(value: Any, words: Words) -> str:
    """A value as it is written, or by its name; words of a log in quotes."""
    if isinstance(value, list | tuple):
        numbers = all(isinstance(each, int) for each in value)
        return (".".join if numbers else ", ".join)(_shown(each, words) for each in value if each != "")
    if isinstance(value, str) and value:
        shown = words.messages.get(f"condition.value.{value}", printable(value))
        return f"“{shown}”" if " " in value else shown
    if isinstance(value, int) and value and value % MIB == 0:  # bytes
        return f"{value / GIB:g} GiB"
    return printable(f"{value:g}" if isinstance(value, float) else str(value)) or UNKNOWN


def named(name: str, words: Words) -> str:
    """A setting by its key, anything else by its meaning."""
    if f"condition.noun.{name}" in words.messages:
        return words(f"condition.noun.{name}")
    fact = words.facts.get(name)
    if fact is None or fact.setting:
        return name.removeprefix("deepspeed.") if name.startswith("deepspeed.") else name.rpartition(".")[2]
    meaning = _IN_BRACKETS.sub("", words.meaning(name))
    return meaning.removeprefix("whether ")
