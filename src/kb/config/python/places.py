"""Places in the flow of a Python program, and what names stand for there."""

import ast
from typing import TYPE_CHECKING

from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

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


class Walked:
    """What a pass over a module found."""

    def __init__(self) -> None:
        self.calls: list[tuple[ast.Call, Where, str | None]] = []  # each with its place and the name it is given
        self.uses: dict[str, int] = {}
        self.answers: list[tuple[int, int]] = []  # first and last lines of `with tokenizer.as_target_tokenizer():`
        self.bound: dict[tuple[Scope, str], list[Binding]] = {}
        self.all: set[str] = set()
        self.changed: set[str] = set()  # names whose value is changed in place, or in another scope
        self.classes: dict[str, tuple[Scope, ast.ClassDef]] = {}
        self.functions: dict[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef, Where]] = {}  # those outside classes
        self.arguments: dict[tuple[Scope, str], Argument] = {}
        self.imported: dict[tuple[Scope, str], Imported] = {}
        self.times_imported: dict[str, int] = {}
        self.opened: dict[tuple[Scope, str], Binding] = {}  # `with open(…) as file`
        self.unpacked: dict[tuple[Scope, str], Binding] = {}  # `model_args, data_args = parser.parse_…()`
        self.tests: dict[int, tuple[ast.expr, Where]] = {}  # of each if, by the id of its node
        self.unpacked_at: dict[tuple[Scope, str], int] = {}  # which of the results
        self.methods: dict[Scope, str] = {}  # the scope of a method, and the name of its class
        self.members: dict[tuple[str, str], list[Binding]] = {}  # `self.batch = …` in the methods of a class
        self.attributes: dict[str, list[tuple[str, Binding]]] = {}  # `args.seed = 1`, by what holds them
        self.class_scopes: set[Scope] = set()  # whose names the functions in them do not see
        self.stored: set[str] = set()  # names of attributes and keys that get a value on whatever holds them
        self.twice: set[str] = set()  # classes that are defined more than once
        self.takes_all = False  # from module import *: any name may be another's

    def bind(self, scope: Scope, name: str, binding: Binding) -> None:
        self.bound.setdefault((scope, name), []).append(binding)
        self.all.add(name)

    def change(self, name: str) -> None:
        self.changed.add(name)

    def define(self, node: ast.ClassDef, scope: Scope) -> None:
        if node.name in self.classes:
            self.twice.add(node.name)
        self.classes[node.name] = scope, node
        self.class_scopes.add(scope)
