"""An expression → the data that it has for certain; one that only a run can tell has none."""

import ast
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kb.config.python.held import Held, Loaded, NoSources, Read, Shared, Symbol, UnknownValueError, elsewhere
from kb.config.python.names import Names
from kb.config.python.operations import bounded, called, collected, compared, is_number, operate, plain, text_of
from kb.config.python.places import Binding, Branch, Imported, Made, Where
from kb.config.python.references import References
from kb.config.python.syntax import dotted_name, parsed
from kb.core.expression import Unknown
from kb.core.facts import NATIVE_BF16, either, negated
from kb.core.record import NamedTuple

MAX_DEPTH = 24  # of names that stand for names, and of expressions
MAX_READS = 100_000  # of one file: names that stand for names twice over double with every level
MAX_MODULES = 200  # of one program: beside a copy of a library there are thousands, and reading them takes a minute
MAX_BITS = 1024  # of a whole number: more of them no float holds
_NOT_READ = "from _ import *\n"
_LIBRARIES = sys.stdlib_module_names | {"accelerate", "datasets", "numpy", "peft", "torch", "transformers", "trl"}
COMPUTED = "known only when the program runs"

Pairs = list[tuple[ast.expr | ast.keyword, str, ast.expr]]


def untold(name: str) -> Unknown:
    """The value of a setting that the program works out as it runs."""
    return Unknown(frozenset((name,)), COMPUTED)


class Expressions:
    """Reads the expressions of one module.

    Args:
        names: the module's.
        constants: dotted names, and the texts they stand for.
        text: the module's, where it is a program's own.
        path: where it lies.
        shared: what it has in common with the modules that import it.
    """

    def __init__(
        self, names: Names, constants: Mapping[str, str], text: str = "", path: str = "", shared: Shared | None = None
    ) -> None:
        self.names, self.constants = names, constants
        self.text, self.path = text, path
        self.shared = shared or Shared(NoSources())
        self.shared.stored[path], self.shared.attributes_set[path] = names.stored, names.attributes_set
        self.references = References(self, names)
        self._found: dict[Imported, tuple[str, str] | None] = {}
        names.all_of = [each for each in names.all_of if not self._reads_all_of(each)]

    def _reads_all_of(self, imported: Imported) -> bool:
        """Whether what ``from module import *`` brings in is known: a library's, or that of a module of the project."""
        other = self.other(imported)
        if other is None:
            own = self.shared.sources.module(self.path, imported) is not None
            return not own and imported.level == 0 and imported.module.partition(".")[0] in _LIBRARIES
        after = max(each.where.order for each in self.names.bindings("*", ()))
        for name in other.names.at_top():
            before = any(each.where.order < after for each in self.names.bindings(name, ()))
            if before and self.names.imported.get(((), name)) != other.names.imported.get(((), name), name):
                self.names.change(name)
        return not other.names.all_of

    def other(self, imported: Imported) -> "Expressions | None":
        """The project's own module that an ``import`` names; None of any other. After very many, one that may hold
        anything."""
        if imported not in self._found:
            self._found[imported] = self.shared.sources.module(self.path, imported)
        found = self._found[imported]
        if found is None:
            return None
        path, text = found
        if path not in self.shared.modules:
            tree = parsed(text if len(self.shared.modules) < MAX_MODULES else _NOT_READ, path)
            self.shared.modules[path] = None  # of a module that takes all of one that takes all of it
            read = Expressions(Names(tree), self.constants, text, path, self.shared) if tree is not None else None
            self.shared.modules[path] = read
        return self.shared.modules[path]

    def brought(self, imported: Imported | None) -> "tuple[Expressions, str] | None":
        """The project's own module that a name is imported from, and its name there; None of any other import."""
        other = self.other(imported) if imported is not None and imported.name is not None else None
        return (other, imported.name) if other is not None and imported is not None and imported.name else None

    def data(self, named: str, omegaconf: bool = False) -> tuple[str, Any] | None:
        """The path of a file that the program loads and what it says; None where it cannot be read."""
        return self.shared.sources.data(self.path, named, omegaconf)

    def read(self, node: ast.expr, at: Where, depth: int = 0) -> Read:
        """What the expression says at a place.

        Raises:
            UnknownValueError: only a run can tell, or telling takes more than it may.
        """
        self.count()
        if depth > MAX_DEPTH:
            raise UnknownValueError
        reader = _READERS.get(type(node))
        if reader is None:
            raise UnknownValueError
        return reader(self, node, at, depth)

    def count(self) -> None:
        """One step more.

        Raises:
            UnknownValueError: there have been too many.
        """
        self.shared.reads += 1
        if self.shared.reads > MAX_READS:
            raise UnknownValueError

    def _constant(self, node: ast.Constant, at: Where, depth: int) -> Read:
        value = node.value
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise UnknownValueError
        if isinstance(value, int | float | str | bool | None):
            return Read(value, node)
        raise UnknownValueError

    def _items(self, node: ast.List | ast.Tuple | ast.Set, at: Where, depth: int) -> Read:
        items = [self.read(each, at, depth + 1) for each in node.elts]
        data: Any = [each.data for each in items]
        if isinstance(node, ast.Tuple):
            data = tuple(data)
        elif isinstance(node, ast.Set):
            data = collected(data)
        return Read(data, node, any(elsewhere(each, of) for each, of in zip(items, node.elts, strict=True)))

    def _choice(self, node: ast.IfExp, at: Where, depth: int) -> Read:
        """The arm that is taken; where that waits for the GPU, ``True if … else False`` waits as well."""
        test = self.read(node.test, at, depth + 1).data
        if not isinstance(test, Unknown):
            chosen = self.read(node.body if test else node.orelse, at, depth + 1)
            return Read(chosen.data, node, True)
        body, other = (self.read(arm, at, depth + 1).data for arm in (node.body, node.orelse))
        if body is True and other is False:
            return Read(test, node, True)
        if body is False and other is True:
            return Read(negated(test), node, True)
        if isinstance(body, int | float | str | None) and type(body) is type(other) and body == other:
            return Read(body, node, True)
        if isinstance(body, str) and type(body) is type(other) and test.needs == NATIVE_BF16.needs:
            return Read(either(test, str(body), str(other)), node, True)
        raise UnknownValueError

    def _named(self, node: ast.Name | ast.Attribute, at: Where, depth: int) -> Read:
        name = dotted_name(node)
        if name is None:
            raise UnknownValueError
        meant = self._constant_named(name)
        if meant is not None:
            return Read(meant, node)
        binding = self._binding(node, at)
        if binding is None or binding.value is None:
            return self.referred(node, at, depth)
        read = self.read(binding.value, binding.where.told(at), depth + 1)
        return read if self.names.uses.get(name, 0) <= 1 else read._replace(shared=True)

    def referred(self, node: ast.expr, at: Where, depth: int) -> Read:
        """What stands elsewhere: in a class, a call, another module, a file; no value can be put in its place here."""
        found = self.references.follow(node, at, depth + 1)
        if isinstance(found, Loaded):
            return Read(plain(found.data), node, True, origin=found.origin, of_file=True)
        if not isinstance(found, Held) or found.value is node:
            raise UnknownValueError
        read = found.owner.read(found.value, found.at, depth + 1)
        return Read(read.data, node, True, origin=read.origin, of_file=read.of_file)

    def _either(self, node: ast.BoolOp, at: Where, depth: int) -> Read:
        """``a or b``, ``a and b``."""
        read = Read(None, node)
        for each in node.values:
            read = self.read(each, at, depth + 1)
            if isinstance(read.data, Unknown):  # what the GPU answers, where all before it leaves it open
                if each is node.values[-1]:
                    return Read(read.data, node, True)
                raise UnknownValueError
            if bool(read.data) is isinstance(node.op, ast.Or):
                break
        return Read(read.data, node, True, origin=read.origin, of_file=read.of_file)

    def _constant_named(self, name: str) -> Symbol | None:
        for pattern, meant in self.constants.items():
            if pattern == name or name.endswith("." + pattern):
                return Symbol(meant)
            if pattern.endswith(".*") and name.split(".")[-2:-1] == pattern[:-2].split(".")[-1:]:
                return Symbol(name.rpartition(".")[2])
        return None

    def bound(self, name: str, at: Where) -> Binding | None:
        """The binding of a name that holds at a place; of several the last before it that is reached for certain."""
        found = self.names.look_up(name, at)
        found = found if found is not None else last_reached(name, at, self)
        at_top = found is not None and not found.where.scope
        return None if at_top and self.shared.is_set_elsewhere(name, self.path) else found

    def _binding(self, node: ast.Name | ast.Attribute, at: Where) -> Binding | None:
        if isinstance(node, ast.Name):
            return self.bound(node.id, at)
        return self.names.member(node.value.id, node.attr, at) if isinstance(node.value, ast.Name) else None

    def _dictionary(self, node: ast.Dict, at: Where, depth: int) -> Read:
        data: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise UnknownValueError
            data[key.value] = self.or_unknown(value, at, depth)
        return Read(data, node, at=at)

    def or_unknown(self, node: ast.expr, at: Where, depth: int) -> Any:
        try:
            return self.read(node, at, depth + 1).data
        except UnknownValueError:
            return Unknown(frozenset(), COMPUTED)

    def _joined(self, node: ast.JoinedStr, at: Where, depth: int) -> Read:
        text = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.conversion != -1 or part.format_spec is not None:
                    raise UnknownValueError
                text += text_of(self.read(part.value, at, depth + 1).data)
            elif isinstance(part, ast.Constant):
                text += str(part.value)
        return Read(bounded(text), node, any(isinstance(part, ast.FormattedValue) for part in node.values))

    def _unary(self, node: ast.UnaryOp, at: Where, depth: int) -> Read:
        inner = self.read(node.operand, at, depth + 1)
        named = elsewhere(inner, node.operand)
        if isinstance(node.op, ast.Not):
            if isinstance(inner.data, Unknown):
                return Read(negated(inner.data), node)
            return Read(not inner.data, node, named)
        if not is_number(inner.data) or not isinstance(node.op, ast.USub | ast.UAdd):
            raise UnknownValueError
        return Read(-inner.data if isinstance(node.op, ast.USub) else +inner.data, node, named)

    def _binary(self, node: ast.BinOp, at: Where, depth: int) -> Read:
        left, right = (self.read(side, at, depth + 1) for side in (node.left, node.right))
        named = elsewhere(left, node.left) or elsewhere(right, node.right)
        return Read(operate(node.op, left.data, right.data), node, named)

    def _subscript(self, node: ast.Subscript, at: Where, depth: int) -> Read:
        """``config["batch"]`` of a dictionary that is written out and never changed."""
        holder = node.value
        if not isinstance(node.slice, ast.Constant):
            return self.referred(node, at, depth)
        binding = self.bound(holder.id, at) if isinstance(holder, ast.Name) else None
        if binding is None or not isinstance(binding.value, ast.Dict):
            return self.referred(node, at, depth)
        if self.names.is_stored(node.slice.value) or self.shared.is_stored(node.slice.value):
            raise UnknownValueError
        for key, value in zip(reversed(binding.value.keys), reversed(binding.value.values), strict=True):
            if not isinstance(key, ast.Constant):  # may be the one that is asked for
                raise UnknownValueError
            if key.value == node.slice.value:
                return self.read(value, binding.where.told(at), depth + 1)._replace(shared=True)
        raise UnknownValueError


_Reader = Callable[[Expressions, Any, Where, int], Read]
_READERS: Mapping[type[ast.expr], _Reader] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._named,
    ast.Attribute: Expressions._named,
    ast.List: Expressions._items,
    ast.Tuple: Expressions._items,
    ast.Set: Expressions._items,
    ast.Dict: Expressions._dictionary,
    ast.JoinedStr: Expressions._joined,
    ast.UnaryOp: Expressions._unary,
    ast.BinOp: Expressions._binary,
    ast.Subscript: Expressions._subscript,
    ast.IfExp: Expressions._choice,
    ast.BoolOp: Expressions._either,
    ast.Compare: compared,
    ast.Call: called,
}


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
    asked = owner.names.tests.get(condition)
    return "" if asked is None else ast.unparse(asked[0])


def _taken(condition: int, owner: "Expressions", made: Made | None) -> bool | None:
    """Whether the test of an ``if`` holds; None where only a run can tell."""
    asked = owner.names.tests.get(condition)
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
    """Of the places in one function that give a name a value, each perhaps under a condition, the one that holds where
    it is read.

    None where a value may come from more than one of them, or from a place that is gone through again and again.
    """
    scope = owner.names.scope_of(name, at)
    bindings = owner.names.bindings(name, scope) if scope is not None and scope == at.scope else []
    repeated = any(condition not in owner.names.tests for condition, _ in at.branch)
    beside = any(each.value is None and each.where.order == at.order for each in bindings)  # [… for size in sizes]
    if repeated or beside:
        return None
    for binding in reversed([each for each in bindings if each.where.order < at.order]):
        left = met(binding.where.branch, owner, at.made)
        if left.branch is not None:
            return binding if binding.where._replace(branch=left.branch).holds_at(at) else None
    return None
