"""What a run's arguments are given after they were made and before it trains: ``args.seed = 1``, under whatever name
the program has them by then, by its own functions, and by calls that change them.
"""

import ast
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

from kb.config.python.calls import TRAINER, Call, body_of
from kb.config.python.expressions import met
from kb.config.python.names import Names
from kb.config.python.places import END, Binding, Scope
from kb.config.python.syntax import called_name, dotted_name
from kb.config.text.nodes import Node

if TYPE_CHECKING:
    from kb.config.python.values import Values

ANY = "*"  # in the place of an attribute's name: any of them
# Methods by which the arguments of a Trainer change themselves, several at once.
_SETTERS = ("set_dataloader", "set_evaluate", "set_optimizer", "set_testing", "set_training")
_SETATTR = ("setattr", "object.__setattr__", "builtins.setattr")


def set_later(
    call: Call, names: Names, values: "Values", known: Container[str], trainers: Iterable[Call]
) -> Iterator[tuple[str, ast.expr, Node]]:
    """The attributes that a run's arguments are given before it trains: name, expression and value.

    One that another function gives, or that is given under another name, or that an ``if`` gives of which only a run
    can tell, is unknown.

    Args:
        known: the names that are settings.
        trainers: those that may hold the arguments.
    """
    target = call.target
    if target is None or call.kind.dialect is None:
        return
    holders = [target, *(f"{each.target}.args" for each in trainers if each.target and _takes(each, call))]
    others = _aliases(holders, names)
    for holder in (*holders, *others):
        for attribute, binding in (*names.attributes.get(holder, ()), *_set_by_code(holder, names)):
            if attribute not in known and attribute != ANY:
                continue
            sure = _is_given(call, {*holders, *others}, binding, names, values)
            if sure is not None:
                value = binding.value if binding.value is not None else call.node
                told = sure and binding.value is not None and attribute != ANY and holder not in others
                at = binding.where.told(call.where)
                yield attribute, value, values.node(value, at) if told else values.unknown(value)
    for attribute in _set_by_functions((*holders, *others), values):
        if attribute in known or attribute == ANY:
            yield attribute, call.node, values.unknown(call.node)


def _takes(trainer: Call, call: Call) -> bool:
    """Whether a trainer is given what the call makes as its arguments."""
    given = trainer.argument("args")
    return given is not None and (given is call.node or dotted_name(given) == call.target)


def _aliases(holders: list[str], names: Names) -> list[str]:
    """Other names of the same object: ``run = args``, ``run = trainer.args``, ``run.args`` below ``run = trainer``."""
    held = [(name, dotted_name(each.value)) for name, each in names.every_binding() if name and each.value is not None]
    same = [(name, of) for name, of in held if of is not None and name != of]
    found: list[str] = []
    while True:
        every = {*holders, *found}
        more = [name for name, of in same if of in every]
        more += [f"{name}.args" for name, of in same if f"{of}.args" in every]
        more = [each for each in dict.fromkeys(more) if each not in every]
        if not more:
            return found
        found += more


def _set_by_code(holder: str, names: Names) -> Iterator[tuple[str, Binding]]:
    """What code gives the attributes of an object otherwise: ``setattr(args, "seed", 1)``, ``vars(args).update(…)``,
    ``args.set_training(…)``, ``dataclasses.replace(args, …)``; of names that cannot be told, any of them."""
    for node, at, _ in names.calls:
        name = dotted_name(node.func) or ""
        of_it = bool(node.args) and dotted_name(node.args[0]) == holder
        if of_it and name in _SETATTR and len(node.args) == 3:
            key = node.args[1]
            yield str(key.value) if isinstance(key, ast.Constant) else ANY, Binding(node.args[2], at)
        elif of_it and name in ("dataclasses.replace", "replace"):
            yield from ((each.arg or ANY, Binding(None, at)) for each in node.keywords)
        elif name in (f"{holder}.{each}" for each in _SETTERS):
            yield ANY, Binding(node, at)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            yield from ((ANY, Binding(node, at)) for _ in range(_is_table(node.func.value, holder)))
    for keyed, at in names.keyed:
        if _is_table(keyed.value, holder):
            key = keyed.slice
            yield str(key.value) if isinstance(key, ast.Constant) else ANY, Binding(None, at)


def _is_table(node: ast.expr, holder: str) -> bool:
    """``vars(args)`` and ``args.__dict__``."""
    if isinstance(node, ast.Call):
        return dotted_name(node.func) == "vars" and bool(node.args) and dotted_name(node.args[0]) == holder
    return dotted_name(node) == f"{holder}.__dict__"


def _set_by_functions(holders: tuple[str, ...], values: "Values") -> Iterator[str]:
    """The attributes that functions of the project's own give what they are given: the arguments, or their trainer."""
    entry = values.expressions
    trainers = {each.removesuffix(".args"): ".args" for each in holders if each.endswith(".args")}
    ends = {**trainers, **dict.fromkeys(holders, "")}
    for node, _, _ in entry.names.calls:
        rows = [*enumerate(node.args), *((each.arg, each.value) for each in node.keywords)]
        given = [(place, ends[name]) for place, each in rows if (name := dotted_name(each) or "") in ends]
        body = body_of(entry, node.func) if given else None
        for place, end in given if body is not None else ():
            assert body is not None
            names = body.owner.names
            parameter = names.parameter(body.scope, place) if isinstance(place, int) else place
            if parameter is not None:
                yield from _set_within(body.scope, parameter + end, names)


def _set_within(scope: Scope, holder: str, names: Names) -> Iterator[str]:
    for attribute, binding in (*names.attributes.get(holder, ()), *_set_by_code(holder, names)):
        if binding.where.scope[: len(scope)] == scope:
            yield attribute


def _is_given(call: Call, same: Container[str], binding: Binding, names: Names, values: "Values") -> bool | None:
    """Whether the arguments are given it for certain; None where they are not.

    Args:
        same: all names of the arguments.
    """
    target = call.target or ""
    at, made = binding.where, call.where
    if call.home is not None or at.scope != made.scope:
        of_any = "." in target or not made.scope or at.scope == made.scope
        return False if of_any else None
    if not made.order < at.order < _trained(call, names):
        return None
    bound = names.bindings(target, made.scope)
    others = (each for each in bound if each.value is None or dotted_name(each.value) not in same)
    if any(made.order < each.where.order < at.order and not each.where.excludes(at) for each in others):
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


def turns_on(call: Call, calls: Iterable[Call], names: Names, text: str) -> bool | None:
    """Whether a call has turned checkpointing on for the model of a run by the time it trains, whatever the Trainer's
    argument says, which only ever turns it on; None where it cannot be told.

    Args:
        calls: those of the run.
    """
    trainer = next((each for each in calls if each.kind.group == TRAINER), None)
    given = trainer.argument("model") if trainer is not None else None
    model = dotted_name(given) if given is not None else None
    known = call.kind.group in ("checkpointing", "prepared") and call.home is None
    if trainer is None or model is None or not known or call.where.scope != trainer.where.scope:
        return None
    begun = [at.order for node, at, _ in names.calls if called_name(node) == "train" and at.scope == call.where.scope]
    if call.where.order > min((order for order in begun if order >= trainer.where.order), default=END.order):
        return False
    func = call.node.func
    of_model = isinstance(func, ast.Attribute) and call.kind.group == "checkpointing"
    on_it = func.value if of_model and isinstance(func, ast.Attribute) else call.argument("model")
    held = dotted_name(on_it) if on_it is not None else None
    made = [each.value for each in names.bindings(model, call.where.scope)]
    if held is None or "checkpointing_disable" in text:
        return None
    if held == model or any(isinstance(each, ast.Call) and held in map(dotted_name, each.args) for each in made):
        return True
    loaded = all(called_name(each) == "from_pretrained" for each in made if each is not None)
    return False if made and loaded else None
