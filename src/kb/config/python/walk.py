"""One pass over the tree of a Python text: every place where a name gets a value, is used, or is called."""

import ast

from kb.config.python.places import AFTER, Argument, Binding, Branch, Imported, Scope, Walked, Where
from kb.config.python.syntax import arguments_of, bodies_of, opens_answers


def walk(tree: ast.Module) -> Walked:
    """What a module's names stand for, place by place."""
    found = Walked()
    _Walk(found).go(tree)
    _follow_aliases(found)
    return found


def _follow_aliases(found: Walked) -> None:
    """What is changed under one name is changed under those that it was taken from: ``part = config["train"]``."""
    while True:
        more = {
            root
            for (_, name), bindings in found.bound.items()
            if name in found.changed
            for binding in bindings
            if binding.value is not None and not isinstance(binding.value, ast.Call)
            if (root := root_name(binding.value)) is not None and root not in found.changed
        }
        if not more:
            return
        found.changed |= more


def root_name(node: ast.expr) -> str | None:
    """The name that ``a.b["c"].get("d")``, ``vars(a)`` and ``a`` begin with."""
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call):
            called = node.func
            holds = isinstance(called, ast.Attribute) and called.attr in ("get", "setdefault")
            of_object = isinstance(called, ast.Name) and called.id in ("vars", "type") and node.args
            node = node.args[0] if of_object else called if holds else ast.Constant(None)
        else:
            return None


CHANGING = frozenset((
    "__setattr__", "__setitem__", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse",
    "set_defaults", "setdefault", "sort", "update",
))  # fmt: skip


class _Walk:
    """One pass over a tree, without recursion in expressions: they nest deeper than functions do."""

    def __init__(self, names: Walked) -> None:
        self._names, self._order = names, 0
        self._class_names: dict[Scope, str] = {}

    def go(self, tree: ast.Module) -> None:
        self._body(tree.body, (), ())

    def _body(self, body: list[ast.stmt], scope: Scope, branch: Branch) -> None:
        for statement in body:
            self._order += 1
            self._statement(statement, Where(scope, branch, self._order))
            if isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.body[-1], ast.Return):
                branch = (*branch, (id(statement), AFTER))

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
            merges = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr)
            if merges and isinstance(node.target, ast.Name):  # config |= {"batch": 1}: in place
                names.change(node.target.id)
            holder = self._class_names.get(scope[:-1])
            if holder and isinstance(node.target, ast.Attribute):  # self.batch *= 2
                names.members.setdefault((holder, node.target.attr), []).append(Binding(None, at))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                names.change(name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._imports(node, at)
        elif isinstance(node, ast.Delete):
            for each in node.targets:
                self._targets(each, at)
        elif isinstance(node, ast.Try | ast.TryStar | ast.Match):
            for captured in _captured(node):
                names.bind(scope, captured, Binding(None, at))
        if isinstance(node, ast.With) and any(opens_answers(item.context_expr) for item in node.items):
            names.answers.append((node.lineno, node.end_lineno or node.lineno))
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name):
                    names.opened[scope, item.optional_vars.id] = Binding(item.context_expr, at)
        self._parts(node, at, target)
        if isinstance(node, ast.If):
            names.tests[id(node)] = node.test, at
        for arm, body, condition in bodies_of(node):
            self._body(body, scope, (*branch, (id(node), arm)) if condition else branch)

    def _imports(self, node: ast.Import | ast.ImportFrom, at: Where) -> None:
        names, scope = self._names, at.scope
        for alias in node.names:
            names.takes_all |= alias.name == "*"
            bound = (alias.asname or alias.name).partition(".")[0]
            names.bind(scope, bound, Binding(None, at))
            names.times_imported[bound] = names.times_imported.get(bound, 0) + 1
            if isinstance(node, ast.ImportFrom):
                names.imported[scope, bound] = Imported(node.module or "", node.level, alias.name)
            elif alias.asname or "." not in alias.name:
                names.imported[scope, bound] = Imported(alias.name, 0, None)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, at: Where) -> None:
        names = self._names
        names.bind(at.scope, node.name, Binding(None, at))
        for decorator in node.decorator_list:
            self._expression(decorator, at, None)
        inner = (*at.scope, id(node))
        if isinstance(node, ast.ClassDef):
            names.define(node, inner)
            self._class_names[inner] = node.name
        else:
            self._arguments(node, at, inner)
        # a function may be called from anywhere: what is certain in it is certain of its own
        self._body(node.body, inner, at.branch if isinstance(node, ast.ClassDef) else ())

    def _arguments(self, node: ast.FunctionDef | ast.AsyncFunctionDef, at: Where, inner: Scope) -> None:
        names, given = self._names, node.args
        holder = self._class_names.get(at.scope)
        if holder is not None:
            names.methods[inner] = holder
        if not at.scope and not node.decorator_list:
            names.functions[node.name] = node, Where(inner, (), self._order)
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
                self._names.attributes.setdefault(dotted_or_none(target.value) or "", []).append(
                    (target.attr, Binding(node.value, at))
                )
            holder = self._class_names.get(at.scope[:-1])
            if holder and isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                self._names.members.setdefault((holder, target.attr), []).append(Binding(node.value, at))
            if isinstance(target, ast.Tuple | ast.List) and isinstance(node.value, ast.Tuple | ast.List):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
                if len(target.elts) == len(node.value.elts) and all(isinstance(each, ast.Name) for each, _ in pairs):
                    for each, value in pairs:
                        assert isinstance(each, ast.Name)
                        self._names.bind(at.scope, each.id, Binding(value, at))
                    continue
            if isinstance(target, ast.Tuple | ast.List) and isinstance(node.value, ast.Call):
                for number, each in enumerate(target.elts):
                    if isinstance(each, ast.Name):
                        self._names.unpacked[at.scope, each.id] = Binding(node.value, at)
                        self._names.unpacked_at[at.scope, each.id] = number
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
            stores = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
            if stores and isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "self":
                self._names.stored.add(node.attr)
            elif stores and isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                self._names.stored.add(str(node.slice.value))

    def _changes(self, node: ast.Call, held: ast.expr) -> None:
        """What a call changes: ``config.update(…)``, ``setattr(config, "batch", 8)``."""
        names = self._names
        by_name = isinstance(held, ast.Name) and held.id == "setattr"
        if isinstance(held, ast.Attribute) and held.attr in CHANGING:
            for changed in (dotted_or_none(held.value), root_name(held.value)):
                if changed is not None and (changed != "self" or held.attr.startswith("__")):
                    names.change(changed)
        elif not by_name:
            return
        if node.args and (by_name or (isinstance(held, ast.Attribute) and held.attr.startswith("__"))):
            names.change(root_name(node.args[0]) or "")
        names.stored |= {each.arg for each in node.keywords if each.arg}
        for given in node.args[:2]:
            keys = given.keys if isinstance(given, ast.Dict) else [given]
            names.stored |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}

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
                self._changes(node, held)
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
