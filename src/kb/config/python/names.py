"""What the names of a Python text stand for: assigned once and for certain, or unknown."""

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property

from kb.config.python.places import END, Binding, Imported, Scope, Walked, Where, walk
from kb.config.python.syntax import called_name, dotted_name


class Names(Walked):
    """What a pass over a module found, and the questions that take more than one look at it."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        vars(self).update(vars(walk(tree)))

    @cached_property
    def nodes(self) -> frozenset[int]:
        """The ids of everything in the module's tree."""
        return frozenset(map(id, ast.walk(self.tree)))

    @property
    def is_program(self) -> bool:
        """Whether the module is started by itself: ``if __name__ == "__main__"``."""
        tests = (node.test for node in self.tree.body if isinstance(node, ast.If))
        return any(isinstance(each, ast.Compare) and dotted_name(each.left) == "__name__" for each in tests)

    def imports(self, package: str) -> bool:
        """Whether the module imports the package, or a part of it, anywhere."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            else:
                named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(each.partition(".")[0] == package for each in named):
                return True
        return False

    def look_up(self, name: str, at: Where) -> Binding | None:
        """The one binding of a name that holds at a place; None where there is none for certain, or more than one."""
        scope = self.scope_of(name, at)
        found = self.bound[scope, name] if scope is not None else []
        return found[0] if len(found) == 1 and found[0].where.holds_at(at) else None

    def scope_of(self, name: str, at: Where) -> Scope | None:
        """The scope whose binding of a name is seen at a place; None of a name that is changed in place, or unknown."""
        if name in self.changed:
            return None
        scope: Scope | None = at.scope
        while scope is not None:
            seen = scope == at.scope or scope not in self.class_scopes
            if seen and (scope, name) in self.bound:
                return scope
            scope = scope[:-1] if scope else None
        return None

    def end_around(self, value: ast.expr) -> Where:
        """The end of the one function in which a name is bound, as a flag's default sees it that is declared there; for
        any other expression, that of the module."""
        scopes = [scope for scope, name in self.bound if isinstance(value, ast.Name) and name == value.id]
        return END._replace(scope=scopes[0]) if len(scopes) == 1 else END

    def are_bound_again(self, value: ast.expr) -> bool:
        """Whether a name in an expression gets a value in several places, so that it matters where it is read."""
        named = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
        return any(len(bound) > 1 for (_, name), bound in self.bound.items() if name in named)

    def every(self, name: str, at: Where) -> tuple[Scope, list[Binding]]:
        """Every binding of a name in the scope whose name is seen at a place, though it is changed in place."""
        scope: Scope | None = at.scope
        while scope is not None:
            found = self.bound.get((scope, name), [])
            if found and (scope == at.scope or scope not in self.class_scopes):
                return scope, found
            scope = scope[:-1] if scope else None
        return at.scope, []

    def at_top(self) -> list[str]:
        """The names that are bound outside functions and classes."""
        return [name for scope, name in self.bound if not scope]

    def only(self, name: str) -> tuple[ast.expr, Where] | None:
        """The value that a name at the top has throughout, and where it gets it; None where that is not certain."""
        found = self.bound.get(((), name), ())
        if len(found) != 1 or name in self.changed or found[0].where.certainly or found[0].value is None:
            return None
        return found[0].value, found[0].where

    def member(self, name: str, attribute: str, at: Where) -> Binding | None:
        """``CFG.batch`` of a class that assigns it once."""
        if self.look_up(name, at) is None or self.is_changed(name, attribute) or self.is_stored(attribute):
            return None
        return self.field(name, attribute)

    def field(self, class_name: str, attribute: str) -> Binding | None:
        """What the body of a class assigns to a name once."""
        known = self.class_of(class_name)
        found = self.bound.get((known[0], attribute), ()) if known is not None else ()
        return found[0] if len(found) == 1 else None

    def class_of(self, name: str) -> tuple[Scope, ast.ClassDef] | None:
        """A class that is what its text says: defined once, without a metaclass, and plain or a dataclass."""
        known = self.classes.get(name)
        if known is None or name in self.twice or known[1].keywords:
            return None
        return known if all(_is_dataclass(each) for each in known[1].decorator_list) else None

    def is_dataclass(self, name: str) -> bool:
        """Whether the fields of a class are the arguments of its call."""
        known = self.class_of(name)
        based = ("BaseModel", "BaseSettings", "NamedTuple")
        return known is not None and (bool(known[1].decorator_list) or any(base in based for base in self.bases(name)))

    def bases(self, class_name: str) -> list[str]:
        """The names of the classes that a class is built on."""
        known = self.classes.get(class_name)
        return [] if known is None else [dotted_name(each) or "?" for each in known[1].bases]

    def is_overridden(self, class_name: str, method: str) -> bool:
        """Whether a class of the module that is built on this one has a method of this name of its own."""
        heirs = {class_name}
        while more := {each for each in self.classes if not heirs.isdisjoint(self.bases(each))} - heirs:
            heirs |= more
        bodies = (self.classes[each][1].body for each in heirs - {class_name})
        return any(isinstance(each, ast.FunctionDef) and each.name == method for body in bodies for each in body)

    def is_class(self, name: str) -> bool:
        return self.class_of(name) is not None

    def is_stored(self, key: object) -> bool:
        """Whether an attribute or a key of this name gets a value on anything in the module, or anything may."""
        return str(key) in self.stored or bool(self.all_of) or "self" in self.changed

    def is_set_on_any(self, attribute: str) -> bool:
        """Whether an attribute of this name gets a value on anything in the module, or anything may."""
        return attribute in self.attributes_set or bool(self.all_of) or "self" in self.changed

    def is_called_alone(self, function: str) -> bool:
        """Whether a function is defined once, and no code holds it but to call it, or to hand it on with arguments."""
        made = (*self.calls_of.get(function, ()), *self.handed_on.get(function, ()))
        return len(self.bound.get(((), function), ())) == 1 and self.uses.get(function, 0) == len(made)

    @cached_property
    def handed_on(self) -> Mapping[str, list[tuple[ast.Call, Where]]]:
        """The calls of each function that others make, with the arguments that they are given for it."""
        found: dict[str, list[tuple[ast.Call, Where]]] = {}
        for node, where, _ in self.calls:
            if (later := _made_later(node)) is not None:
                found.setdefault(ast.unparse(later.func), []).append((later, where))
        return found

    def is_changed_anywhere(self, name: str) -> bool:
        """The same, or under another name, or by a function of the module that is given it."""
        given: set[str | None] = {name}
        for other, binding in self.every_binding():
            if isinstance(binding.value, ast.Name) and binding.value.id == name:
                given.add(other)
        for call, at, _ in self.calls:
            rows = [*enumerate(call.args), *((each.arg, each.value) for each in call.keywords)]
            places = [place for place, value in rows if isinstance(value, ast.Name) and value.id == name]
            scope = self.called_scope(call, at) if places else None
            if scope is not None:
                given |= {self.parameter(scope, each) if isinstance(each, int) else each for each in places}
        return any(each is not None and each in self.changed for each in given)

    def parameter(self, scope: Scope, position: int) -> str | None:
        """The name of a function's argument by its place."""
        rows = self.arguments.items()
        return next((name for (at, name), each in rows if at == scope and each.position == position), None)

    def is_changed(self, name: str, attribute: str) -> bool:
        """Whether ``name.attribute`` gets another value anywhere."""
        return name in self.changed or f"{name}.{attribute}" in self.changed

    def has_method(self, class_name: str, begins: tuple[str, ...]) -> bool:
        """Whether a class defines a method with a name that begins so."""
        known = self.classes.get(class_name)
        body = known[1].body if known is not None else []
        return any(isinstance(each, ast.FunctionDef) and each.name.startswith(begins) for each in body)

    def every_binding(self) -> Iterator[tuple[str, Binding]]:
        """Every place where a name gets a value, with the name; of an attribute of an object without one."""
        for (_, name), found in self.bound.items():
            yield from ((name, each) for each in found)
        for given in self.attributes.values():
            yield from (("", each) for _, each in given)

    def bindings(self, name: str, scope: Scope) -> list[Binding]:
        """Every place where a name gets a value in a scope."""
        return self.bound.get((scope, name), [])

    def holds_more_than_calls(self, name: str, scope: Scope) -> bool:
        """Whether a name gets a value in a scope that is no result of a call."""
        return any(not isinstance(each.value, ast.Call) for each in self.bindings(name, scope))

    def imports_of(self, name: str) -> Iterator[tuple[tuple[Scope, str], Imported]]:
        """Every ``import`` that brings in something under a name."""
        return ((key, found) for key, found in self.imported.items() if key[1] == name)

    def is_imported_alone(self, name: str) -> bool:
        """Whether imports alone give a name its meaning, in every scope."""
        bound = sum(len(found) for (_, each), found in self.bound.items() if each == name)
        taken = any(each == name for _, each in self.arguments)
        return bound == self.times_imported.get(name, 0) and not taken

    def body_of(self, name: str) -> Scope | None:
        """The scope of a function or class at the top of the module that is defined once."""
        if name not in self.bodies:
            self.bodies[name] = self._body_of(name)
        return self.bodies[name]

    def _body_of(self, name: str) -> Scope | None:
        if len(self.bound.get(((), name), ())) != 1:
            return None
        function, known = self.functions.get(name), self.class_of(name)
        if function is not None and any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function[0])):
            return None  # how far it is gone through, who asks it says
        return function[1].scope if function is not None else known[0] if known is not None else None

    def class_around(self, scope: Scope) -> str | None:
        """The class whose method a place lies in."""
        return next((name for n in range(len(scope), 0, -1) if (name := self.methods.get(scope[:n]))), None)

    def is_method(self, scope: Scope) -> bool:
        """Whether a scope is that of a method."""
        return scope in self.methods

    def members_of(self, class_name: str) -> Iterator[tuple[str, Binding]]:
        """Everything that the methods of a class assign to ``self``; of one of several results no value."""
        for (name, attribute), found in self.members.items():
            yield from ((attribute, each) for each in found if name == class_name)
        for (name, attribute), parts in self.parts_of_self.items():
            yield from ((attribute, each._replace(value=None)) for each, _ in parts if name == class_name)

    def returned(self, function: str, at: Where | None = None) -> Binding | None:
        """What a function outside classes returns, where that is its last statement and its only one of the kind; with
        a place also one that stands in the function around it."""
        scope, found = self.every(function, at) if at is not None else ((), self.bound.get(((), function), []))
        known = self.inside.get((scope, function)) if scope else self.functions.get(function)
        return self._returned(*known) if known is not None and len(found) == 1 else None

    def _returned(self, node: ast.FunctionDef | ast.AsyncFunctionDef, where: Where) -> Binding | None:
        if id(node) not in self.results:
            self.results[id(node)] = _returned(node, where)
        return self.results[id(node)]

    def called_scope(self, call: ast.Call, at: Where) -> Scope | None:
        """The scope of the module's own function, or of its class's method on ``self``, that is called at a place."""
        if isinstance(call.func, ast.Name):
            scope, found = self.every(call.func.id, at)
            name = call.func.id
            known = self.inside.get((scope, name)) if scope else self.functions.get(name)
            return known[1].scope if known is not None and len(found) == 1 else None
        kind = self.class_of(self.class_around(at.scope) or "")
        on_self = isinstance(call.func, ast.Attribute) and dotted_name(call.func.value) == "self"
        if kind is None or not on_self:
            return None
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        methods = [each for each in kind[1].body if isinstance(each, ast.FunctionDef) and each.name == name]
        return (*kind[0], id(methods[0])) if len(methods) == 1 and not self.is_overridden(kind[1].name, name) else None

    def returned_by(self, class_name: str, method: str) -> Binding | None:
        """The same of a method that a class defines once."""
        known = self.class_of(class_name)
        if known is None:
            return None
        scope, body = known[0], known[1].body
        found = [each for each in body if isinstance(each, ast.FunctionDef) and each.name == method]
        if len(found) != 1 or found[0].decorator_list:
            return None
        return self._returned(found[0], Where((*scope, id(found[0])), (), 0))


def _made_later(node: ast.Call) -> ast.Call | None:
    """The call of a function that is handed on with some of its arguments: ``partial(cut, limit=512)``,
    ``data.map(cut, fn_kwargs={"limit": 512})``."""
    named = {each.arg: each.value for each in node.keywords}
    function = node.args[0] if node.args else named.get("function")
    if not isinstance(function, ast.Name):
        return None
    if called_name(node) == "partial":
        return ast.copy_location(ast.Call(function, node.args[1:], node.keywords), node)
    given = named.get("fn_kwargs")
    if isinstance(given, ast.Dict) and all(isinstance(key, ast.Constant) for key in given.keys):
        pairs = [(ast.literal_eval(key), value) for key, value in zip(given.keys, given.values, strict=True) if key]
    elif isinstance(given, ast.Call) and called_name(given) == "dict" and not given.args:
        pairs = [(each.arg, each.value) for each in given.keywords]
    else:
        return None
    return ast.copy_location(ast.Call(function, [], [ast.keyword(key, value) for key, value in pairs]), node)


def _returned(node: ast.FunctionDef | ast.AsyncFunctionDef, where: Where) -> Binding | None:
    values = [each for each in ast.walk(node) if isinstance(each, ast.Return | ast.Yield | ast.YieldFrom)]
    last = node.body[-1]
    while isinstance(last, ast.With):  # with open(path) as file: return yaml.safe_load(file)
        last = last.body[-1]
    return Binding(last.value, where) if isinstance(last, ast.Return) and last.value and len(values) == 1 else None


def _is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (dotted_name(called) or "").rpartition(".")[2] == "dataclass"
