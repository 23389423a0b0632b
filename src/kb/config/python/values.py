"""Values that a Python program gives: an expression as a config's value, what calls are given, what is set later."""

import ast
from collections.abc import Container, Iterable, Iterator, Mapping
from copy import copy
from typing import Any

from kb.config.files import ConfigError
from kb.config.python.calls import Call, Home
from kb.config.python.expressions import COMPUTED, MAX_DEPTH, Expressions, Pairs
from kb.config.python.held import (
    CommandLine,
    GivenConfig,
    Loaded,
    NoSources,
    Read,
    Shared,
    Sources,
    Symbol,
    UnknownValueError,
)
from kb.config.python.later import ANY, set_later
from kb.config.python.names import Names
from kb.config.python.places import Where
from kb.config.python.syntax import Module, entries_of
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, START, TEXT, Node, Place, plain_kind
from kb.config.text.source import Source
from kb.core.expression import Unknown
from kb.core.record import NamedTuple

WRITTEN = "py"  # the style of a scalar that is no text in quotes


class Values:
    """Reads the expressions of one module.

    Args:
        constants: dotted names, and the texts they stand for.
        path: where the module lies.
        sources: the project's files around it; None: there are none.
        given: the config or the flags that the program is started with. Everything then stands where these say it, or
            at the beginning: it is a reading of their file.
    """

    def __init__(
        self,
        module: Module,
        names: Names,
        constants: Mapping[str, str],
        path: str = "",
        sources: Sources | None = None,
        given: GivenConfig | CommandLine | None = None,
    ) -> None:
        self._module, self._names, self.of_config = module, names, given is not None
        self.flags = () if given is None else given.numbers if isinstance(given, CommandLine) else None
        self.expressions = Expressions(names, constants, module.text, path, Shared(sources or NoSources(), given))
        self.by_default: set[int] = set()  # the nodes whose value a caller or a command line may give otherwise

    def of(self, other: Expressions) -> "Values":
        """The values of another module of the same program."""
        made = copy(self)
        made._module, made._names, made.expressions = Module(Source(other.text)), other.names, other
        return made

    def node(self, expression: ast.expr, at: Where) -> Node:
        """The expression as a config's value; of a name, that of its one assignment, with the place of that."""
        shared = self.expressions.shared
        shared.by_default = False
        try:
            read = self.expressions.read(expression, at)
            if read.at is not None and isinstance(read.place, ast.Dict | ast.Call):
                return self._mapping(read, read.at)
            if read.origin is not None:
                node = self._placed(read.data, read.origin.node, expression)
            else:
                node = self._data_node(read.data, expression if read.shared else read.place)
        except (UnknownValueError, RecursionError):
            return self.unknown(expression)
        if read.of_file and node.kind == SCALAR:
            node.style = ""  # as the file's own parser gives it: 2e-5 of YAML is text there, too
        node.alias = read.shared
        if shared.by_default:
            self.by_default.add(id(node))
        return node

    def unknown(self, expression: ast.expr) -> Node:
        """The expression as a value that only a run can tell."""
        return self._scalar(expression, Unknown(frozenset(), COMPUTED))

    def pairs(self, expression: ast.expr, at: Where) -> tuple[Pairs, bool, Where] | None:
        """Key, its text and value of a dictionary that is written out, perhaps behind a name; None of any other.

        Then whether other code uses the dictionary too, and the place that its values are read at.
        """
        shared = False
        for _ in range(MAX_DEPTH):
            if not isinstance(expression, ast.Name):
                break
            binding = self.expressions.bound(expression.id, at)
            if binding is None or binding.value is None:
                return None
            shared = shared or self._names.uses.get(expression.id, 0) > 1
            expression, at = binding.value, binding.where.told(at)
        found = entries_of(expression)
        return None if found is None else (found, shared, at)

    def loaded(self, expression: ast.expr, at: Where) -> list[tuple[str, Node]] | None:
        """The entries of a mapping that a file says: ``**config["training"]``; None of anything else."""
        try:
            found = self.expressions.references.follow(expression, at)
        except (UnknownValueError, RecursionError):
            return None
        if not isinstance(found, Loaded) or not isinstance(found.data, Mapping):
            return None
        rows: list[tuple[str, Node]] = []
        for key in found.data:
            held = found.entry(key)
            of_config = held.origin.node if held.origin is not None else None
            if of_config is None:
                node = self._held_node(held.data, expression)
                node.alias = True  # it stands in the file, in quotes where its loader would read it otherwise
                plain = not isinstance(node.data, str) or (plain_kind(node.data) == TEXT and not found.omegaconf)
                if node.kind == SCALAR and plain:
                    node.style = ""
                rows.append((str(key), node))
            else:
                rows.append((str(key), self._placed(held.data, of_config, expression)))
        return rows

    def _placed(self, data: Any, of_config: Node, place: ast.expr) -> Node:
        """What a config says, at its place there."""
        if of_config.kind != SCALAR:
            return of_config.aliased(of_config.start, of_config.end or of_config.start)
        node = self._scalar(place, data)
        node.start, node.end = of_config.start, of_config.end
        return node

    def _held_node(self, data: Any, place: ast.expr) -> Node:
        if not isinstance(data, Mapping):
            return self._data_node(data, place)
        node = self._at(MAPPING, [], "", place)
        extent = self._module.extent(place)
        node.value = [(self.key(extent, str(key)), self._held_node(value, place)) for key, value in data.items()]
        return node

    def scalar_of(self, expression: ast.expr, at: Where) -> Any:
        """The plain value of an expression; Unknown where it cannot be told."""
        try:
            return self.expressions.read(expression, at).data
        except (UnknownValueError, RecursionError):
            return Unknown(frozenset(), COMPUTED)

    def key(self, extent: tuple[int, int], name: str, style: str = "") -> Node:
        """The node of a key that stands at these offsets."""
        start, end = (START, START) if self.of_config else [self._module.place(offset) for offset in extent]
        return Node(SCALAR, name, None, style, start, end)

    def _mapping(self, read: Read, at: Where) -> Node:
        node = self._at(MAPPING, [], "", read.place)
        for key, name, value in entries_of(read.place) or ():
            inner = self.node(value, at)
            inner.alias = inner.alias or read.shared
            node.value.append((self.key(self._module.extent(key), name, key_style(key)), inner))
        return node

    def _data_node(self, data: Any, place: ast.expr) -> Node:
        self.expressions.count()
        if isinstance(data, list | tuple):
            node = self._at(SEQUENCE, [], "", place)
            items = place.elts if isinstance(place, ast.List | ast.Tuple | ast.Set) else []
            whole = len(items) == len(data)
            node.value = [self._data_node(each, items[n] if whole else place) for n, each in enumerate(data)]
            return node
        if isinstance(data, dict):  # one of several that a choice or a list holds: it has no place of its own
            data = Unknown(frozenset(), COMPUTED)
        return self._scalar(place, data)

    def _scalar(self, place: ast.expr, data: Any) -> Node:
        data = str(data) if isinstance(data, Symbol) else data
        quoted = isinstance(data, str)
        text = data if quoted else str(data).lower() if isinstance(data, bool) else repr(data)
        node = self._at(SCALAR, text, '"' if quoted and isinstance(place, ast.Constant) else WRITTEN, place)
        node.data = data
        return node

    def _at(self, kind: int, value: Any, style: str, place: ast.expr) -> Node:
        if self.of_config:
            return Node(kind, value, None, style, START, START)
        start, end = self._module.extent(place)
        return Node(kind, value, None, style, self._module.place(start), self._module.place(end))


def key_style(key: ast.expr | ast.keyword) -> str:
    """The quote of a dictionary's key; none of a keyword."""
    return '"' if isinstance(key, ast.Constant) else ""


def _moved(node: Node, start: Place, end: Place) -> Node:
    """A value that stands in another module, at the place that leads to it; no other can be put in its place."""
    node.start, node.end, node.alias = start, end, True
    for child in node.value if node.kind != SCALAR else ():
        for each in child if isinstance(child, tuple) else (child,):
            _moved(each, start, end)
    return node


class Given(NamedTuple):
    """One keyword of a call: its path (the call's number, its name, names within), its key and its value."""

    path: tuple[str, ...]
    key: Node
    value: Node


_Known = dict[tuple[str, ...], Given]  # by their paths


class Arguments(NamedTuple):
    """What a call is given: what is written out, whether there is a ``**more`` that cannot be told, and whether any
    of it may be changed later."""

    known: tuple[Given, ...]
    hides: bool
    changed: bool = False


def given_to(
    call: Call, module: Module, values: Values, names: Names, settings: Container[str], trainers: Iterable[Call] = ()
) -> Arguments:
    """What a call is given, and what its object is given afterwards.

    Args:
        settings: the names that are settings of what the call makes.
        trainers: the calls of trainers, which hold the arguments that they are given: ``trainer.args.seed = 1``.
    """
    if call.home is not None:
        known, hides = _given_elsewhere(call, call.home, module, values)
    else:
        known, hides = _given_here(call, module, values)
    changed = False
    later = set_later(call, names, values, settings, trainers)
    for name, expression, node in (*later, *_set_elsewhere(call, values, settings, trainers)):
        node.alias = True  # a fix that gives the call this argument would change nothing
        if name == ANY:
            changed = True
            known = {path: each._replace(value=node) if path[1] in settings else each for path, each in known.items()}
            continue
        _add(known, Given((str(call.number), name), values.key(module.extent(expression), name), node))
    return Arguments(tuple(known.values()), hides or changed, changed)


def _given_here(call: Call, module: Module, values: Values) -> tuple[_Known, bool]:
    known: _Known = {}
    hides = False
    first = str(call.number)
    for keyword, name, expression in call.keywords():
        if name is None:
            pairs = values.pairs(expression, call.where)
            if pairs is None:
                loaded = values.loaded(expression, call.where)
                hides |= loaded is None
                for inner, node in loaded or ():
                    _add(known, Given((first, inner), values.key(module.extent(expression), inner), node))
                continue
            for key, inner, value in pairs[0]:
                node = values.node(value, pairs[2])
                if inner in call.kind.literal and isinstance(node.data, Unknown):
                    continue
                node.alias = node.alias or pairs[1]
                start, end = module.extent(key)
                _add(known, Given((first, inner), values.key((start, end), inner, _quote(key, module)), node))
            continue
        node = values.node(expression, call.where)
        if name in call.kind.literal and isinstance(node.data, Unknown):
            continue
        start, _ = module.extent(keyword or expression)
        key_node = values.key((start, start + len(name)) if keyword else module.extent(expression), name)
        if keyword is not None and (first, name) in known:
            raise ConfigError(
                "config.python-syntax", *module.at_offset(start), reason=f"keyword argument repeated: {name}"
            )
        _add(known, Given((first, name), key_node, node))
    return known, hides


def _given_elsewhere(call: Call, home: Home, module: Module, values: Values) -> tuple[_Known, bool]:
    """What a call of another module is given: it stands where the program calls the function that makes it."""
    known: _Known = {}
    hides = False
    reading = values.of(home.owner)
    extent = module.extent(home.place)
    for _, name, expression in call.keywords():
        written: list[tuple[str, Node]] | None = None
        if name is not None:
            written = [(name, reading.node(expression, home.at))]
        elif (more := reading.pairs(expression, home.at)) is not None:
            written = [(inner, reading.node(value, more[2])) for _, inner, value in more[0]]
        else:
            written = reading.loaded(expression, home.at)
        hides |= written is None
        for inner, node in written or ():
            if not values.of_config:
                node = _moved(node, *map(module.place, extent))
            if inner not in call.kind.literal or not isinstance(node.data, Unknown):
                _add(known, Given((str(call.number), inner), values.key(extent, inner), node))
    return known, hides


def _set_elsewhere(
    call: Call, values: Values, settings: Container[str], trainers: Iterable[Call]
) -> Iterator[tuple[str, ast.expr, Node]]:
    """What the module that makes a run's arguments for the program gives them afterwards: what, nobody knows here."""
    if call.home is None or call.kind.dialect is None:
        return
    home = call.home
    there = [
        each._replace(home=None, target=each.home.name, where=each.home.at)
        for each in (call, *trainers)
        if each.home is not None and each.home.owner is home.owner
    ]
    for name, _, _ in set_later(there[0], home.owner.names, values.of(home.owner), settings, there[1:]):
        yield name, home.place, values.unknown(home.place)


def _quote(key: Any, module: Module) -> str:
    start, end = module.extent(key)
    return module.text[start] if module.text[start : start + 1] in ("'", '"') and end > start else ""


def _add(known: _Known, given: Given) -> None:
    known[given.path] = given
    if given.value.kind == MAPPING:
        for key, value in given.value.value:
            _add(known, Given((*given.path, key.value), key, value))
