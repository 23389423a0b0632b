"""The calls that functions of the project's other modules make for a program: its model is loaded in `src/model.py`."""

import ast
from collections.abc import Collection
from typing import TYPE_CHECKING

from kb.config.python.branches import met, tested
from kb.config.python.calls import Call, CallTable, Home
from kb.config.python.held import Caller
from kb.config.python.places import Imported, Made, Scope, Where
from kb.config.python.syntax import dotted_name
from kb.config.python.walk import root_name
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

MAX_BODIES = 200  # functions and classes that are gone through for one program
MAX_STEPS = 8  # from one call to the next


class _Body(NamedTuple):
    """A function or class that a program calls, and the module that it stands in."""

    owner: "Expressions"
    name: str
    scope: Scope


def calls_of(entry: "Expressions", table: CallTable) -> tuple[list[Call], bool]:
    """The calls that a program comes to, its own and those that it brings in, in the order of its text.

    A program without a training call of its own brings in none: it may be anything. What stands in an arm that is not
    taken is left out; then whether that rests on what a command line may give otherwise.
    """
    own: list[Call] = []
    by_default = False
    found_here = table.find(entry.names)
    of_runs = (call.where.branch for call in found_here if call.kind.dialect is not None)
    given = {tested(condition, entry) for branch in of_runs for condition, _ in branch} - {""}
    for call in found_here:
        left = met(call.where.branch, entry, None, given)
        by_default |= left.by_default
        if left.branch is not None:
            own.append(call._replace(where=call.where._replace(branch=left.branch)))
    if not any(call.kind.dialect is not None for call in own):
        return [call._replace(number=number) for number, call in enumerate(own)], by_default
    found = _Found(entry, table, given)
    for node, where, target in sorted(entry.names.calls, key=lambda each: _place(each[0])):
        left = met(where.branch, entry, None, given)
        if left.branch is not None:
            at = where._replace(branch=left.branch)
            found.follow(entry, node, at, Home(entry, at, node), target, 0)
    placed = [(_place(call.place), call) for call in (*own, *found.calls)]
    ordered = sorted(placed, key=lambda each: each[0])  # a stable order: of one place, as they are met
    calls = [call._replace(number=number) for number, (_, call) in enumerate(ordered)]
    return calls, by_default or found.by_default


def _place(node: ast.Call) -> tuple[int, int]:
    return node.lineno, node.col_offset


class _Found:
    """What a program's calls lead to."""

    def __init__(self, entry: "Expressions", table: CallTable, given: Collection[str]) -> None:
        self._entry, self._table, self._given = entry, table, given
        self._seen: set[tuple[str, Scope, ast.Call]] = set()
        self._calls: dict[str, list[Call]] = {}
        self.calls: list[Call] = []
        self.by_default = False

    def follow(
        self, owner: "Expressions", node: ast.Call, at: Where, home: Home, target: str | None, depth: int
    ) -> None:
        """What the function that is called here calls; and the functions that it is given to call.

        Args:
            owner: the module in which the call stands, at ``at`` of its flow.
            home: where the program itself comes to it: its place there, and the conditions it is met under.
            target: the name that the program gives the result.
        """
        body = _body(owner, node.func)
        if body is not None:
            _changed_by(body, owner, node)
        if body is not None and body.owner is not self._entry:  # whose calls are all gone through
            if body.owner is not owner:
                body.owner.shared.called(body.owner.path, body.name, Caller(owner, node, at))
            self._go_through(body, Made(body.scope, owner, node, at), home, target, depth)
        for name, given in (*((None, each) for each in node.args), *((each.arg, each.value) for each in node.keywords)):
            handed = _body(owner, given) if isinstance(given, ast.Name | ast.Attribute) else None
            if handed is not None:  # model_init=load_model is called without anything; what else is given, who knows
                unknown = ast.Call(given, [ast.Starred(given, ast.Load())], [])
                made = None if name == "model_init" else Made(handed.scope, owner, unknown, at)
                self._go_through(handed, made, home, None, depth)

    def _go_through(self, body: _Body, made: Made | None, home: Home, target: str | None, depth: int) -> None:
        visit = (body.owner.path, body.scope, home.place)
        if depth > MAX_STEPS or visit in self._seen or len(self._seen) > MAX_BODIES:
            return
        self._seen.add(visit)
        for call in self._known(body.owner):
            place = self._place_of(call.where, body, made, home)
            if place is not None and call.kind.dialect is None:
                own = Home(body.owner, call.where._replace(made=made), home.place)
                self.calls.append(call._replace(where=place, target=target, home=own))
        for node, at, _ in body.owner.names.calls:
            place = self._place_of(at, body, made, home)
            if place is not None:
                self.follow(body.owner, node, at._replace(made=made), home._replace(at=place), target, depth + 1)

    def _place_of(self, at: Where, body: _Body, made: Made | None, home: Home) -> Where | None:
        """Where the program itself meets a place of a body; None of one outside it, or that is not reached."""
        if at.scope[: len(body.scope)] != body.scope:
            return None
        left = met(at.branch, body.owner, made, self._given)
        self.by_default |= left.by_default
        return None if left.branch is None else home.at._replace(branch=(*home.at.branch, *left.branch))

    def _known(self, owner: "Expressions") -> list[Call]:
        if owner.path not in self._calls:
            self._calls[owner.path] = self._table.find(owner.names)
        return self._calls[owner.path]


def _body(owner: "Expressions", called: ast.expr) -> _Body | None:
    """The function or class of the project's own that a name stands for: this module's, or one that it imports."""
    name = dotted_name(called)
    if name is None:
        return None
    first, _, rest = name.partition(".")
    names = owner.names
    scope = names.body_of(name)
    if scope is not None:
        return _Body(owner, name, scope)
    imported = next((found for (_, bound), found in names.imports_of(first) if bound == first), None)
    if imported is None:
        return None
    if rest:  # models.load(…) of ``import models``, ``from src import models``
        if "." in rest:
            return None
        dots = "." if imported.module and imported.name else ""
        inner = f"{imported.module}{dots}{imported.name or ''}"
        imported = Imported(inner, imported.level, rest)
    other = owner.other(imported)
    if other is None or imported.name is None:
        return None
    scope = other.names.body_of(imported.name)
    return _Body(other, imported.name, scope) if scope is not None else _again(other, imported.name)


def _again(module: "Expressions", name: str) -> _Body | None:
    """What a package's ``__init__`` brings in from a module below it."""
    imported = module.names.imported(name, ())
    other = module.other(imported) if imported is not None else None
    scope = other.names.body_of(imported.name) if other and imported and imported.name else None
    return _Body(other, imported.name, scope) if other and imported and imported.name and scope else None


def _changed_by(body: _Body, owner: "Expressions", node: ast.Call) -> None:
    """What a function changes in place of what it is given is changed for the one who gives it."""
    names = body.owner.names
    given = [(names.parameter(body.scope, number), each) for number, each in enumerate(node.args)]
    given += [(each.arg, each.value) for each in node.keywords]
    for name, each in given:
        held = root_name(each)
        if name is not None and held is not None and names.is_changed_in_place(name):
            owner.names.change(held)
