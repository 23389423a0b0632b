"""What the names of a Python text stand for: assigned once and for certain, or unknown."""

import ast
from typing import NamedTuple

from kb.config.python.syntax import arguments_of, bodies_of, opens_answers

Branch = tuple[tuple[int, str], ...]  # the arms of if, for, while, except that a place lies in
Scope = tuple[int, ...]  # the functions and classes that a place lies in, from the outermost


class Where(NamedTuple):
    """A place in the flow of a program."""

    scope: Scope
    branch: Branch
    order: int

    def holds_at(self, other: "Where") -> bool:
        """Whether what happens here has happened for certain wherever ``other`` is reached."""
        return self.branch == other.branch[: len(self.branch)]

    def excludes(self, other: "Where") -> bool:
        """Whether both lie in different arms of one ``if``: only one of them happens."""
        return any(a[0] == b[0] and a[1] != b[1] for a, b in zip(self.branch, other.branch, strict=False))


class Binding(NamedTuple):
    """One place where a name gets a value; ``value`` is None where it gets one that no literal gives."""

    value: ast.expr | None
    where: Where


class Names:
    """All bindings of a module by scope; ``calls`` are its calls, each with its place and the name it is given."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: list[tuple[ast.Call, Where, str | None]] = []
        self.uses: dict[str, int] = {}
        self.answers: list[tuple[int, int]] = []  # first and last lines of `with tokenizer.as_target_tokenizer():`
        self._bound: dict[tuple[Scope, str], list[Binding]] = {}
        self._all: set[str] = set()
        self._changed: set[str] = set()  # names whose value is changed in place, or in another scope
        self._classes: dict[str, Scope] = {}
        self._class_scopes: set[Scope] = set()  # whose names the functions in them do not see
        self._tree = tree
        _Walk(self).go(tree)

    def imports(self, package: str) -> bool:
        """Whether the module imports the package, or a part of it, anywhere."""
        named = (
            each
            for node in ast.walk(self._tree)
            for each in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else ()
            )
        )
        return any(each.partition(".")[0] == package for each in named)

    def binds(self, name: str) -> bool:
        """Whether the module gives the name a meaning of its own anywhere."""
        return name in self._all

    def bind(self, scope: Scope, name: str, binding: Binding) -> None:
        self._bound.setdefault((scope, name), []).append(binding)
        self._all.add(name)

    def look_up(self, name: str, at: Where) -> Binding | None:
        """The one binding of a name that holds at a place; None where there is none for certain, or more than one."""
        if name in self._changed:
            return None
        scope: Scope | None = at.scope
        while scope is not None:
            found = self._bound.get((scope, name))
            if found is not None and (scope == at.scope or scope not in self._class_scopes):
                only = found[0] if len(found) == 1 else None
                return only if only is not None and only.where.holds_at(at) else None
            scope = scope[:-1] if scope else None
        return None

    def at_top(self) -> list[str]:
        """The names that are bound outside functions and classes."""
        return [name for scope, name in self._bound if not scope]

    def only(self, name: str) -> tuple[ast.expr, Where] | None:
        """The value that a name at the top has throughout, and where it gets it; None where that is not certain."""
        found = self._bound.get(((), name), ())
        if len(found) != 1 or name in self._changed or found[0].where.branch or found[0].value is None:
            return None
        return found[0].value, found[0].where

    def member(self, name: str, attribute: str, at: Where) -> Binding | None:
        """``CFG.batch`` of a class that assigns it once."""
        holder = self.look_up(name, at)
        scope = self._classes.get(name)
        if scope is None or holder is None or name in self._changed or f"{name}.{attribute}" in self._changed:
            return None
        found = self._bound.get((scope, attribute), ())
        return found[0] if len(found) == 1 else None

    def change(self, name: str) -> None:
        self._changed.add(name)

    def define(self, name: str, scope: Scope) -> None:
        self._classes[name] = scope
        self._class_scopes.add(scope)


CHANGING = frozenset(
    ("update", "pop", "setdefault", "clear", "append", "extend", "insert", "remove", "sort", "reverse")
)


class _Walk:
    """One pass over a tree, without recursion in expressions: they nest deeper than functions do."""

    def __init__(self, names: Names) -> None:
        self._names, self._order = names, 0

    def go(self, tree: ast.Module) -> None:
        self._body(tree.body, (), ())

    def _body(self, body: list[ast.stmt], scope: Scope, branch: Branch) -> None:
        for statement in body:
            self._order += 1
            self._statement(statement, Where(scope, branch, self._order))

    def _statement(self, node: ast.stmt, at: Where) -> None:
        names, scope, branch = self._names, at.scope, at.branch
        target: str | None = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definition(node, at)
            return
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
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                names.change(name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                names.bind(scope, (alias.asname or alias.name).partition(".")[0], Binding(None, at))
        elif isinstance(node, ast.Delete):
            for each in node.targets:
                self._targets(each, at)
        elif isinstance(node, ast.Try | ast.TryStar | ast.Match):
            for captured in _captured(node):
                names.bind(scope, captured, Binding(None, at))
        if isinstance(node, ast.With) and any(opens_answers(item.context_expr) for item in node.items):
            names.answers.append((node.lineno, node.end_lineno or node.lineno))
        self._parts(node, at, target)
        for arm, body, condition in bodies_of(node):
            self._body(body, scope, (*branch, (id(node), arm)) if condition else branch)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, at: Where) -> None:
        names = self._names
        names.bind(at.scope, node.name, Binding(None, at))
        for decorator in node.decorator_list:
            self._expression(decorator, at, None)
        inner = (*at.scope, id(node))
        if isinstance(node, ast.ClassDef):
            names.define(node.name, inner)
        else:
            for argument in arguments_of(node.args):
                names.bind(inner, argument.arg, Binding(None, at))
        # a function may be called from anywhere: what is certain in it is certain of its own
        self._body(node.body, inner, at.branch if isinstance(node, ast.ClassDef) else ())

    def _assign(self, node: ast.Assign, at: Where) -> str | None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._names.bind(at.scope, target.id, Binding(node.value, at))
                continue
            if isinstance(target, ast.Tuple | ast.List) and isinstance(node.value, ast.Tuple | ast.List):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
                if len(target.elts) == len(node.value.elts) and all(isinstance(each, ast.Name) for each, _ in pairs):
                    for each, value in pairs:
                        assert isinstance(each, ast.Name)
                        self._names.bind(at.scope, each.id, Binding(value, at))
                    continue
            self._targets(target, at)
        first = node.targets[0]
        if isinstance(first, ast.Tuple) and first.elts and isinstance(first.elts[0], ast.Name):
            return first.elts[0].id  # model, tokenizer = FastLanguageModel.from_pretrained(…)
        return dotted_or_none(first)

    def _targets(self, target: ast.expr, at: Where) -> None:
        """Names that get a value which is not known, or whose value is changed."""
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                self._names.bind(at.scope, node.id, Binding(None, at))
            elif isinstance(node, ast.Name) and isinstance(target, ast.Subscript):
                self._names.change(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self._names.change(f"{node.value.id}.{node.attr}")

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
                where = at._replace(branch=branch, scope=scope)
                names.calls.append((node, where, target if node is root else None))
                held = node.func
                if isinstance(held, ast.Attribute) and held.attr in CHANGING:
                    changed = dotted_or_none(held.value)
                    if changed is not None:
                        names.change(changed)
                elif isinstance(held, ast.Name) and held.id == "setattr" and node.args:
                    names.change(dotted_or_none(node.args[0]) or "")
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


def dotted_or_none(node: ast.expr) -> str | None:
    """The name that a call's result is assigned to: ``args``, or ``self.args``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _captured(node: ast.Try | ast.TryStar | ast.Match) -> list[str]:
    """The names that ``except … as`` and the patterns of ``case`` give a value."""
    if not isinstance(node, ast.Match):
        return [each.name for each in node.handlers if each.name]
    parts = (part for case in node.cases for part in ast.walk(case.pattern))
    return [name for part in parts if (name := getattr(part, "name", None) or getattr(part, "rest", None))]
