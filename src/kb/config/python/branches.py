"""Which arm of an ``if`` a program takes, where the values that it asks for are known."""

import ast
from collections.abc import Collection
from typing import TYPE_CHECKING

from kb.config.python.arithmetic import Symbol, UnknownValueError
from kb.config.python.places import Binding, Branch, Made, Where
from kb.core.expression import Unknown
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions


class Met(NamedTuple):
    """The conditions of a place that are left, once those that can be told are; None of a place that is not reached.

    ``by_default``: what decided it rests on what a caller or a command line may give otherwise.
    """

    branch: Branch | None
    by_default: bool


def met(branch: Branch, owner: "Expressions", made: Made | None, given: Collection[str] = ()) -> Met:
    """What is left of the conditions of a place in the module ``owner``.

    Args:
        made: the call of the function that the place lies in.
        given: tests, as :func:`tested` writes them, that are not asked for: a run stands in one of their arms.
    """
    left: list[tuple[int, str]] = []
    by_default = False
    shared = owner.shared
    for condition, arm in branch:
        shared.by_default = False
        taken = None if tested(condition, owner) in given else _taken(condition, owner, made)
        if taken is None:
            left.append((condition, arm))
            continue
        by_default |= shared.by_default
        if taken != (arm == "body"):
            return Met(None, by_default)
    return Met(tuple(left), by_default)


def tested(condition: int, owner: "Expressions") -> str:
    """The test of an ``if`` as text; empty of any other condition."""
    asked = owner.names.test(condition)
    return "" if asked is None else ast.unparse(asked[0])


def _taken(condition: int, owner: "Expressions", made: Made | None) -> bool | None:
    """Whether the test of an ``if`` holds; None where only a run can tell."""
    asked = owner.names.test(condition)
    if asked is None:
        return None
    test, at = asked
    inside = made is not None and at.scope[: len(made.scope)] == made.scope
    try:
        data = owner.read(test, at._replace(made=made) if inside else at).data
    except (UnknownValueError, RecursionError):
        return None
    return None if isinstance(data, Unknown | Symbol) else bool(data)


def last_reached(name: str, at: Where, owner: "Expressions") -> Binding | None:
    """Of several places in one function that give a name a value, the one that holds where it is read.

    None where a value may come from more than one of them, or from a place that is gone through again and again.
    """
    scope = owner.names.scope_of(name, at)
    bindings = owner.names.bindings(name, scope) if scope is not None and scope == at.scope else []
    repeated = any(owner.names.test(condition) is None for condition, _ in at.branch)
    beside = any(each.value is None and each.where.order == at.order for each in bindings)  # [… for size in sizes]
    if len(bindings) < 2 or repeated or beside:
        return None
    for binding in reversed([each for each in bindings if each.where.order < at.order]):
        left = met(binding.where.branch, owner, at.made)
        if left.branch is not None:
            return binding if binding.where._replace(branch=left.branch).holds_at(at) else None
    return None
