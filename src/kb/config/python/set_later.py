"""What a program gives an object of arguments once it is made: ``args.gradient_checkpointing = True``."""

import ast
from collections.abc import Container, Iterator

from kb.config.python.branches import met
from kb.config.python.calls import Call
from kb.config.python.names import Names
from kb.config.python.places import END, Binding
from kb.config.python.syntax import dotted_name
from kb.config.python.values import Values
from kb.config.text.nodes import Node


def set_later(call: Call, names: Names, values: Values, known: Container[str]) -> Iterator[tuple[str, ast.expr, Node]]:
    """The attributes that a run's arguments are given before it trains: name, expression and value.

    One that another function gives, or that an ``if`` gives of which only a run can tell, is unknown.

    Args:
        known: the names that are settings.
    """
    target = call.target
    if target is None or call.kind.dialect is None:
        return
    for attribute, binding in names.set_on(target):
        if attribute not in known or binding.value is None:
            continue
        sure = _is_given(call, target, binding, names, values)
        if sure is not None:
            at = binding.where.told(call.where)
            yield attribute, binding.value, values.node(binding.value, at) if sure else values.unknown(binding.value)


def _is_given(call: Call, target: str, binding: Binding, names: Names, values: Values) -> bool | None:
    """Whether the arguments are given it for certain; None where they are not."""
    at, made = binding.where, call.where
    if call.home is not None or at.scope != made.scope:
        of_any = "." in target or not made.scope or at.scope == made.scope
        return False if of_any else None
    if not made.order < at.order < _trained(call, names):
        return None
    between = (each.where for each in names.bindings(target, made.scope))
    if any(made.order < each.order < at.order and not each.excludes(at) for each in between):
        return None  # another object by then
    left = met(at.branch, values.expressions, made.made)
    if left.branch is None or at.excludes(made):
        return None
    return at._replace(branch=left.branch).holds_at(made)


def _trained(call: Call, names: Names) -> int:
    """The place of the first ``….train()`` behind the call in its function."""
    orders = [
        where.order
        for node, where, _ in names.calls
        if where.scope == call.where.scope and (dotted_name(node.func) or "").endswith(".train")
    ]
    return min((order for order in orders if order > call.where.order), default=END.order)
