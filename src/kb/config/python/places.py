"""Where the names of a Python program get their values, are used and are called: one pass over its tree."""

import ast
from copy import copy
from typing import TYPE_CHECKING

from kb.config.python.syntax import (
    arguments_of,
    captured,
    dotted_name,
    dotted_or_none,
    holder_of,
    inside_self,
    root_name,
)
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

ROUND = "round"  # of a loop: what stands in it is met as often as there is something to do
AFTER = "after"  # of an ``if`` that returns: what stands behind it is its other arm
Branch = tuple[tuple[int, str], ...]  # the arms of if, for, while, except that a place lies in
Scope = tuple[int, ...]  # the functions and classes that a place lies in, from the outermost


class Made(NamedTuple):
    """A call of a function: its arguments are what this gives.

    ``scope`` is the function's; ``owner`` the module in which the call stands, at ``at`` of its flow.
    """

    scope: Scope
    owner: "Expressions"
    node: ast.Call
    at: "Where"


class Where(NamedTuple):
    """A place in the flow of a program; ``made`` is the call by which it is met, where it lies in a function."""

    scope: Scope
    branch: Branch
    order: int
    made: Made | None = None

    def told(self, other: "Where") -> "Where":
        """This place as it is met from ``other``: under the same call of the function that both lie in."""
        made = other.made
        inside = made is not None and self.scope[: len(made.scope)] == made.scope
        return self._replace(made=made) if inside and self.made is None else self

    def holds_at(self, other: "Where") -> bool:
        """Whether what happens here has happened for certain wherever ``other`` is reached."""
        own = self.certainly
        return own == other.certainly[: len(own)]

    @property
    def certainly(self) -> Branch:
        """The arms that it lies in, without the ways out that come before it."""
        return tuple(each for each in self.branch if each[1] != AFTER)

    @property
    def but_for_loops(self) -> bool:
        """Whether it is met under no condition, or only where a loop around it has something to do."""
        return all(each[1] == ROUND for each in self.certainly)

    def excludes(self, other: "Where") -> bool:
        """Whether both lie in different arms of one ``if``: only one of them happens."""
        return any(a[0] == b[0] and a[1] != b[1] for a, b in zip(self.branch, other.branch, strict=False))


MAX_STEPS = 24  # from one name to the next
END = Where((), (), 1 << 30)  # of a module, once all of it has run


class Binding(NamedTuple):
    """One place where a name gets a value; ``value`` is None where it gets one that no literal gives."""

    value: ast.expr | None
    where: Where


class Argument(NamedTuple):
    """An argument of a function: its default and its type, where they are written, and its position."""

    function: str  # of ``__init__``, the class
    default: ast.expr | None
    annotation: ast.expr | None
    position: int | None  # None: by keyword alone
    where: Where  # where its default is read


class Imported(NamedTuple):
    """A name of another module; ``name`` is None of the module itself, ``level`` counts the dots before it."""

    module: str
    level: int
    name: str | None


def reached(written: str, imported: Imported) -> Imported:
    """What is written with the name that an import binds, or with that as its first part (``args.Config`` of
    ``from project import args``), as an import of its own.
    """
    above, _, name = written.rpartition(".")
    if not above:
        return imported
    _, dot, below = above.partition(".")
    dots = "." if imported.module and imported.name else ""
    return Imported(f"{imported.module}{dots}{imported.name or ''}{dot}{below}", imported.level, name)


_WALKED = "kb_walked"  # the attribute of a tree that keeps what was found in it


class Walked:
    """What a pass over a module found."""

    def __init__(self) -> None:
        self.calls: list[tuple[ast.Call, Where, str | None]] = []  # each with its place and the name it is given
        self.calls_in: dict[Scope, list[tuple[ast.Call, Where, str | None]]] = {}  # the same by each scope around them
        self.bodies: dict[str, Scope | None] = {}  # of what is asked for: where the one of this name begins
        self.results: dict[int, Binding | None] = {}  # and what a function returns, by its id
        self.calls_of: dict[str, list[tuple[ast.Call, Where]]] = {}  # those of a name alone, by it
        self.uses: dict[str, int] = {}
        self.answers: list[tuple[int, int]] = []  # first and last lines of `with tokenizer.as_target_tokenizer():`
        self.bound: dict[tuple[Scope, str], list[Binding]] = {}
        self.all: set[str] = set()
        self.changed: set[str] = set()  # names whose value is changed in place, or in another scope
        self.classes: dict[str, tuple[Scope, ast.ClassDef]] = {}
        self.functions: dict[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef, Where]] = {}  # those outside classes
        self.inside: dict[tuple[Scope, str], tuple[ast.FunctionDef | ast.AsyncFunctionDef, Where]] = {}  # in a function
        self.arguments: dict[tuple[Scope, str], Argument] = {}
        self.imported: dict[tuple[Scope, str], Imported] = {}
        self.times_imported: dict[str, int] = {}
        self.opened: dict[tuple[Scope, str], Binding] = {}  # `with open(…) as file`
        self.unpacked: dict[tuple[Scope, str], Binding] = {}  # `model_args, data_args = parser.parse_…()`
        self.tests: dict[int, tuple[ast.expr, Where]] = {}  # of each if, by the id of its node
        self.unpacked_at: dict[tuple[Scope, str], int] = {}  # which of the results
        self.parts: dict[tuple[str, int], tuple[ast.expr, int]] = {}  # the same of every such statement, by its order
        self.definitions: dict[int, ast.FunctionDef | ast.AsyncFunctionDef] = {}  # every function, by its id
        self.parts_of_self: dict[tuple[str, str], list[tuple[Binding, int]]] = {}  # self.a, self.b = prepare(a, b)
        self.rounds: dict[int, Where] = {}  # where each `for` begins, by the id of its node
        self.methods: dict[Scope, str] = {}  # the scope of a method, and the name of its class
        self.members: dict[tuple[str, str], list[Binding]] = {}  # `self.batch = …` in the methods of a class
        self.attributes: dict[str, list[tuple[str, Binding]]] = {}  # `args.seed = 1`, by what holds them
        self.keyed: list[tuple[ast.Subscript, Where]] = []  # `table["seed"] = 1`
        self.class_scopes: set[Scope] = set()  # whose names the functions in them do not see
        self.stored: set[str] = set()  # names of attributes and keys that get a value on whatever holds them
        self.attributes_set: set[str] = set()  # those of them that are attributes, which flags have, or may be
        self.twice: set[str] = set()  # classes that are defined more than once
        self.all_of: list[Imported] = []  # from module import *: any name may be another's

    def bind(self, scope: Scope, name: str, binding: Binding) -> None:
        self.bound.setdefault((scope, name), []).append(binding)
        self.all.add(name)

    def call(self, node: ast.Call, where: Where, target: str | None) -> None:
        self.calls.append((node, where, target))
        for depth in range(1, len(where.scope) + 1):
            self.calls_in.setdefault(where.scope[:depth], []).append((node, where, target))
        if isinstance(node.func, ast.Name):
            self.calls_of.setdefault(node.func.id, []).append((node, where))

    def change(self, name: str) -> None:
        self.changed.add(name)

    def define(self, node: ast.ClassDef, scope: Scope) -> None:
        if node.name in self.classes:
            self.twice.add(node.name)
        self.classes[node.name] = scope, node
        self.class_scopes.add(scope)


def walk(tree: ast.Module) -> Walked:
    """What a module's names stand for, place by place; ``changed`` is the caller's own, the rest that of the tree."""
    found: Walked | None = vars(tree).get(_WALKED)
    if found is None:
        found = Walked()
        _Walk(found).go(tree)
        _follow_aliases(found)
        setattr(tree, _WALKED, found)
    own = copy(found)
    own.changed = set(found.changed)
    return own


def _follow_aliases(found: Walked) -> None:
    """What is changed under one name is changed under those that it was taken from: ``part = config["train"]``."""
    taken = [(name, bindings) for (_, name), bindings in found.bound.items()]
    taken += [(inside_self(attribute), bindings) for (_, attribute), bindings in found.members.items()]
    while True:
        more = {
            held
            for name, bindings in taken
            if name in found.changed
            for binding in bindings
            if binding.value is not None and not isinstance(binding.value, ast.Call)
            if (held := holder_of(binding.value)) is not None and held not in found.changed
        }
        if not more:
            return
        found.changed |= more


CHANGING = frozenset((
    "__setattr__", "__setitem__", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse",
    "set_defaults", "setdefault", "sort", "update",
))  # fmt: skip


Block = tuple[list[ast.stmt], Scope, Branch]


class _Walk:
    """One pass over a tree, without recursion: expressions nest deep, and each ``elif`` lies in the ``else`` before."""

    def __init__(self, names: Walked) -> None:
        self._names, self._order = names, 0
        self._class_names: dict[Scope, str] = {}

    def go(self, tree: ast.Module) -> None:
        open_blocks: list[Block] = [(tree.body[::-1], (), ())]  # each with what is left of it, the next one last
        while open_blocks:
            rest, scope, branch = open_blocks[-1]
            if not rest:
                open_blocks.pop()
                continue
            statement = rest.pop()
            self._order += 1
            inner = self._statement(statement, Where(scope, branch, self._order))
            if isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.body[-1], ast.Return):
                open_blocks[-1] = rest, scope, (*branch, (id(statement), AFTER))
            open_blocks += [(body[::-1], within, arms) for body, within, arms in reversed(inner)]

    def _statement(self, node: ast.stmt, at: Where) -> list[Block]:
        """Read one statement; the blocks in it, which come next."""
        names, scope, branch = self._names, at.scope, at.branch
        target: str | None = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return [self._definition(node, at)]
        if isinstance(node, ast.Assign):
            target = self._assign(node, at)
        elif isinstance(node, ast.AnnAssign):
            if isinstance(node.target, ast.Name):
                target = node.target.id
                names.bind(scope, target, Binding(node.value, at))
            else:
                self._targets(node.target, at)
        elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor):
            self._targets(node.target, at)
            names.rounds[id(node)] = at
            merges = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr)
            if merges and isinstance(node.target, ast.Name):  # config |= {"batch": 1}: in place
                names.change(node.target.id)
            if isinstance(node.target, ast.Attribute):  # args.batch *= 2, self.batch *= 2
                self._attribute(node.target, Binding(None, at))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                names.change(name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._imports(node, at)
        elif isinstance(node, ast.Delete):
            for each in node.targets:
                self._targets(each, at)
        elif isinstance(node, ast.Try | ast.TryStar | ast.Match):
            for name in captured(node):
                names.bind(scope, name, Binding(None, at))
        if isinstance(node, ast.With) and any(opens_answers(item.context_expr) for item in node.items):
            names.answers.append((node.lineno, node.end_lineno or node.lineno))
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name):
                    names.opened[scope, item.optional_vars.id] = Binding(item.context_expr, at)
        self._parts(node, at, target)
        if isinstance(node, ast.If):
            names.tests[id(node)] = node.test, at
        return [
            (body, scope, (*branch, (id(node), arm)) if condition else branch)
            for arm, body, condition in bodies_of(node)
        ]

    def _imports(self, node: ast.Import | ast.ImportFrom, at: Where) -> None:
        names, scope = self._names, at.scope
        for alias in node.names:
            bound = (alias.asname or alias.name).partition(".")[0]
            names.bind(scope, bound, Binding(None, at))
            names.times_imported[bound] = names.times_imported.get(bound, 0) + 1
            if isinstance(node, ast.ImportFrom):
                names.imported[scope, bound] = Imported(node.module or "", node.level, alias.name)
                names.all_of += [names.imported[scope, bound]] if bound == "*" else []
            elif alias.asname or "." not in alias.name:
                names.imported[scope, bound] = Imported(alias.name, 0, None)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, at: Where) -> Block:
        names = self._names
        names.bind(at.scope, node.name, Binding(None, at))
        for decorator in node.decorator_list:
            self._expression(decorator, at, None)
        inner = (*at.scope, id(node))
        if isinstance(node, ast.ClassDef):
            names.define(node, inner)
            self._class_names[inner] = node.name
        else:
            names.definitions[id(node)] = node
            self._arguments(node, at, inner)
        # a function may be called from anywhere: what is certain in it is certain of its own
        return node.body, inner, at.branch if isinstance(node, ast.ClassDef) else ()

    def _arguments(self, node: ast.FunctionDef | ast.AsyncFunctionDef, at: Where, inner: Scope) -> None:
        names, given = self._names, node.args
        holder = self._class_names.get(at.scope)
        if holder is not None:
            names.methods[inner] = holder
        if not at.scope and not node.decorator_list:
            names.functions[node.name] = node, Where(inner, (), self._order)
        elif holder is None and not node.decorator_list:
            names.inside[at.scope, node.name] = node, Where(inner, (), self._order)
        placed = [*given.posonlyargs, *given.args]
        defaults: dict[str, ast.expr | None] = dict(
            zip((each.arg for each in reversed(placed)), reversed(given.defaults), strict=False)
        )
        defaults |= {each.arg: default for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
        positions = {each.arg: number - (holder is not None) for number, each in enumerate(placed)}
        called = holder if holder is not None and node.name == "__init__" else node.name if not at.scope else None
        started = all((called_name(each) or "") in STARTING for each in node.decorator_list)
        for argument in arguments_of(given):
            names.bind(inner, argument.arg, Binding(None, at))
            if called is None or not started:
                continue
            names.arguments[inner, argument.arg] = Argument(
                called, defaults.get(argument.arg), argument.annotation, positions.get(argument.arg), at
            )

    def _assign(self, node: ast.Assign, at: Where) -> str | None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._names.bind(at.scope, target.id, Binding(node.value, at))
                continue
            if isinstance(target, ast.Attribute):
                self._attribute(target, Binding(node.value, at))
            if isinstance(target, ast.Tuple | ast.List) and isinstance(node.value, ast.Tuple | ast.List):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
                alike = len(target.elts) == len(node.value.elts)
                if alike and all(isinstance(each, ast.Name) for each, _ in pairs):
                    for each, value in pairs:
                        assert isinstance(each, ast.Name)
                        self._names.bind(at.scope, each.id, Binding(value, at))
                    continue
                for each, value in pairs if alike else ():
                    if isinstance(each, ast.Attribute):  # self.rows, self.length = rows, length
                        self._attribute(each, Binding(value, at))
            if isinstance(target, ast.Tuple | ast.List):
                for number, each in enumerate(target.elts):
                    if isinstance(each, ast.Name):
                        self._names.parts[each.id, at.order] = node.value, number
                    elif isinstance(each, ast.Attribute) and getattr(each.value, "id", "") == "self":
                        key = self._class_names.get(at.scope[:-1]) or "", each.attr
                        self._names.parts_of_self.setdefault(key, []).append((Binding(node.value, at), number))
                    if isinstance(each, ast.Name) and isinstance(node.value, ast.Call):
                        self._names.unpacked[at.scope, each.id] = Binding(node.value, at)
                        self._names.unpacked_at[at.scope, each.id] = number
            self._targets(target, at)
        first = node.targets[0]
        if isinstance(first, ast.Tuple) and first.elts and isinstance(first.elts[0], ast.Name):
            return first.elts[0].id  # model, tokenizer = FastLanguageModel.from_pretrained(…)
        return dotted_or_none(first)

    def _attribute(self, target: ast.Attribute, binding: Binding) -> None:
        """An attribute that gets a value, of whatever holds it, and of a class whose method gives it to ``self``."""
        names, held = self._names, dotted_name(target.value) or ""
        names.attributes.setdefault(held, []).append((target.attr, binding))
        holder = self._class_names.get(binding.where.scope[:-1])
        if holder and held == "self":
            names.members.setdefault((holder, target.attr), []).append(binding)

    def _targets(self, target: ast.expr, at: Where) -> None:
        """Names that get a value which is not known, or whose value is changed."""
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                self._names.bind(at.scope, node.id, Binding(None, at))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self._names.change(f"{node.value.id}.{node.attr}")
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                self._names.keyed.append((node, at))
                self._names.change(holder_of(node) or "")  # what stands in the brackets stays as it is
            stores = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
            if stores and isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "self":
                self._names.stored.add(node.attr)
                if not self._is_of_arguments(node.value, at):
                    self._names.attributes_set.add(node.attr)
            elif stores and isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                self._names.stored.add(str(node.slice.value))

    def _is_of_arguments(self, holder: ast.expr, at: Where) -> bool:
        """Whether a name holds by now what a class of arguments made, and no flags: ``run = TrainingArguments(…)``."""
        bound = self._names.bound.get((at.scope, holder.id), ()) if isinstance(holder, ast.Name) else ()
        made = bound[-1].value if bound else None
        return isinstance(made, ast.Call) and (dotted_or_none(made.func) or "").endswith(("Arguments", "Config"))

    def _changes(self, node: ast.Call, held: ast.expr) -> None:
        """What a call changes: ``config.update(…)``, ``setattr(config, "batch", 8)``."""
        names = self._names
        by_name = isinstance(held, ast.Name) and held.id == "setattr"
        if isinstance(held, ast.Attribute) and held.attr in CHANGING:
            for changed in (dotted_or_none(held.value), root_name(held.value), holder_of(held.value)):
                if changed is not None and (changed != "self" or held.attr.startswith("__")):
                    names.change(changed)
        elif not by_name:
            return
        if node.args and (by_name or (isinstance(held, ast.Attribute) and held.attr.startswith("__"))):
            names.change(root_name(node.args[0]) or "")
        stored = {each.arg for each in node.keywords if each.arg}
        for given in node.args[:2]:
            keys = given.keys if isinstance(given, ast.Dict) else [given]
            stored |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
        names.stored |= stored
        if by_name or "vars(" in (text := ast.unparse(held)) or "__" in text:
            names.attributes_set |= stored  # setattr(args, …), vars(args).update(…)

    def _parts(self, node: ast.stmt, at: Where, target: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child, at, target if child is getattr(node, "value", None) else None)
            elif isinstance(child, ast.withitem):
                self._expression(child.context_expr, at, None)
                if child.optional_vars is not None:
                    self._targets(child.optional_vars, at)

    def _expression(self, root: ast.expr, at: Where, target: str | None) -> None:
        names = self._names
        stack: list[tuple[ast.AST, Branch, Scope]] = [(root, at.branch, at.scope)]
        while stack:
            node, branch, scope = stack.pop()
            if isinstance(node, ast.Call):
                names.call(node, at._replace(branch=branch, scope=scope), target if node is root else None)
                self._changes(node, node.func)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                names.uses[node.id] = names.uses.get(node.id, 0) + 1
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                member = f"{node.value.id}.{node.attr}"
                names.uses[member] = names.uses.get(member, 0) + 1
            elif isinstance(node, ast.NamedExpr):
                names.bind(at.scope, node.target.id, Binding(None, at))
            elif isinstance(node, ast.comprehension):
                self._targets(node.target, at)
            if isinstance(node, ast.IfExp):
                names.tests[id(node)] = node.test, at._replace(branch=branch, scope=scope)
                stack.append((node.test, branch, scope))
                stack.append((node.body, (*branch, (id(node), "body")), scope))
                stack.append((node.orelse, (*branch, (id(node), "orelse")), scope))
            elif isinstance(node, ast.Lambda):  # a function without a name: in it its arguments are other names
                inner = (*scope, id(node))
                for argument in arguments_of(node.args):
                    names.bind(inner, argument.arg, Binding(None, at))
                stack.append((node.body, branch, inner))
                stack += [(each, branch, scope) for each in (*node.args.defaults, *node.args.kw_defaults) if each]
            else:
                stack += [(child, branch, scope) for child in reversed(list(ast.iter_child_nodes(node)))]


STARTING = ("command", "main", "record")  # decorators of what a command line starts: click, typer, hydra, torch


def called_name(node: ast.expr) -> str | None:
    """The last name of ``app.command()``, ``hydra.main(…)``, ``record``."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def opens_answers(expression: ast.expr) -> bool:
    """Whether a ``with`` of this makes the tokenizer one for answers."""
    held = expression.func if isinstance(expression, ast.Call) else None
    return isinstance(held, ast.Attribute) and held.attr == "as_target_tokenizer"


def bodies_of(node: ast.stmt) -> list[tuple[str, list[ast.stmt], bool]]:
    """The blocks of a statement: their name, their statements, and whether they may be left out."""
    if isinstance(node, ast.If):
        main = _is_main(node.test)
        return [("body", node.body, not main), ("orelse", node.orelse, True)]
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        return [(ROUND, node.body, True), ("orelse", node.orelse, True)]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [("body", node.body, False)]
    if isinstance(node, ast.Try | ast.TryStar):
        handlers = [(f"except{number}", each.body, True) for number, each in enumerate(node.handlers)]
        return [("body", node.body, False), *handlers, ("else", node.orelse, False), ("end", node.finalbody, False)]
    if isinstance(node, ast.Match):
        return [(f"case{number}", case.body, True) for number, case in enumerate(node.cases)]
    return []


def _is_main(test: ast.expr) -> bool:
    """``__name__ == "__main__"``, and a plain ``True`` or ``1``."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
