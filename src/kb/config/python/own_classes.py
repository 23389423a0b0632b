"""A project's own classes of arguments and trainers: what they are built on, and which of their fields are its own."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kb.config.dialect.dialects import Target
from kb.config.dialect.settings import Part
from kb.config.python.calls import TRAINER, Call, CallTable, Kind
from kb.config.python.declared import nodes_of
from kb.config.python.held import Sources
from kb.config.python.names import Names
from kb.config.python.places import Imported, reached
from kb.config.python.syntax import Module, dotted_name
from kb.config.text.source import BYTE_ORDER_MARK
from kb.core.record import NamedTuple

LIBRARIES = frozenset(("trl", "transformers", "axolotl", "vllm", "sentence_transformers", "unsloth"))
MODEL, NOT_MODELLED = "model", "run.not_modelled"
_MOST_STEPS = 8  # from a class to what it is built on, or to the module that it is imported from
_ALL, _SHOWN = "*", "__all__"
_UNBOUND: Any = object()  # of a name that a module does not have
_NO_NAME = ""  # what a name holds that no other name stands for: a function, a value that is worked out


class _Brought(NamedTuple):
    """An import and its line."""

    imported: Imported
    line: int


class _Class(NamedTuple):
    """A class of a text, at its top where it has one there: its bases, the fields that it declares, its line, and
    whether it has methods."""

    bases: tuple[str, ...]
    fields: tuple[str, ...]
    line: int
    acts: bool


class _Read(NamedTuple):
    """What the names of a text stand for: its classes, what it imports, and what else they are given.

    An import is under the name that it binds: its module with the dots before it counted, and the name in it.
    ``given``: of other names the names of what each holds. ``shown`` are those that ``__all__`` lists, ``*`` among them
    where nobody can tell which; None where there is no such list.
    """

    classes: Mapping[str, _Class]
    imports: Mapping[str, list[_Brought]]
    given: Mapping[str, list[str]]
    shown: frozenset[str] | None


@lru_cache(64)
def _read(text: str) -> _Read | None:
    """None of what is no Python."""
    nodes = nodes_of(text.removeprefix(BYTE_ORDER_MARK))
    if not nodes or not isinstance(nodes[0], ast.Module):
        return None
    imports: dict[str, list[_Brought]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                brought = _Brought(Imported(node.module or "", node.level, alias.name), node.lineno)
                imports.setdefault(alias.asname or alias.name, []).append(brought)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                whole = Imported(alias.name if alias.asname else first, 0, None)
                imports.setdefault(alias.asname or first, []).append(_Brought(whole, node.lineno))
    inner = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name not in imports]
    top = [node for node in nodes[0].body if isinstance(node, ast.ClassDef)]
    classes = {node.name: _class(node) for node in (*inner, *top)}
    given: dict[str, list[str]] = {}
    shown: set[str] | None = None
    for name, value in _given(nodes[0].body):
        if name == _SHOWN:
            shown = (shown or set()) | _listed(value)
        elif not (isinstance(value, ast.Constant) and value.value is None):
            given.setdefault(name, []).append((value is not None and dotted_name(value)) or _NO_NAME)
    return _Read(classes, imports, given, None if shown is None else frozenset(shown))


def _class(node: ast.ClassDef) -> _Class:
    fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
    return _Class(
        tuple(dotted_name(base) or _NO_NAME for base in node.bases),
        tuple(target.id for target in fields if isinstance(target, ast.Name)),
        node.lineno,
        any(isinstance(each, ast.FunctionDef) for each in node.body),
    )


def _given(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that functions and assignments at the top of a text bind, each with its value; not those that stand in
    for a library that is missing (``except ImportError``).
    """
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, None
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and node.value is not None:
                    yield target.id, node.value
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _given(node.body)
            yield from _given(getattr(node, "orelse", ()))


def _listed(value: ast.expr | None) -> frozenset[str]:
    """The names of a list of texts; ``*`` where it is more than that."""
    items = value.elts if isinstance(value, ast.List | ast.Tuple) else [None]
    return frozenset(
        each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else _ALL for each in items
    )


def imports_of(name: str, text: str) -> list[Imported]:
    """What a text imports under a name, anywhere in it."""
    read = _read(text)
    return [each.imported for each in read.imports.get(name, ())] if read is not None else []


def of_library(imported: Imported) -> bool:
    """Whether an import names a library, of which a copy in the project is the library too."""
    return not imported.level and imported.module.partition(".")[0] in LIBRARIES


class Lineage:
    """What a class of the project's is built on. Each class is gone through once, however they name each other.

    ``fields``: the names that it and the project's classes below it declare.
    """

    def __init__(self, path: str, sources: Sources, table: CallTable) -> None:
        self._path, self._sources, self._table = path, sources, table
        self._known: dict[tuple[str, str], Any] = {}
        self.fields: set[str] = set()

    def kind_of(self, name: str, path: str, text: str, *, called_here: bool) -> Kind | None:
        """What calls of a class mean that a text defines or imports: what those of its first base do that means
        anything. None where that is no library's, or cannot be told; what the text that calls it does not bind is the
        library's.
        """
        found: Kind | None = self._meant(name, path, text, _MOST_STEPS)
        if found is _UNBOUND:
            return self._table.kind_of(name) if called_here else None
        return found

    def _meant(self, name: str, path: str, text: str, steps: int) -> Any:
        """As :meth:`kind_of`; that a text has no such name is told apart."""
        at, read = (path, name), _read(text)
        if at in self._known or not steps or read is None:
            return self._known.get(at)
        self._known[at] = None
        own = read.classes.get(name)
        ways = [] if own is None else [self._of_class(own, name, path, text, steps)]
        last = own.line if own is not None else 0
        imports = [each for each in read.imports.get(name, ()) if each.line > last]
        ways += [self._imported(reached(name, each.imported), path, steps) for each in imports]
        ways += [self._named(other, name, path, text, steps) for other in read.given.get(name, ())]
        last = max((last, *(each.line for each in imports)))
        ways += [self._of_all(name, each, path, steps, bound=bool(ways)) for each in _after(last, read)]
        self._known[at] = _agreed(ways)
        return self._known[at]

    def _of_class(self, own: _Class, name: str, path: str, text: str, steps: int) -> Kind | None:
        self.fields.update(own.fields)
        bases = [self._named(base, name, path, text, steps) for base in own.bases]
        kinds = [kind for kind in bases if kind not in (None, _UNBOUND) and (kind.dialect is not None or kind.sets)]
        return kinds[0] if kinds else None

    def _named(self, written: str, of: str, path: str, text: str, steps: int) -> Any:
        """What a text means by a name in it; by a class's own name, what it imports. What nothing brings is a
        library's in the text that is asked for first.
        """
        read = _read(text)
        if read is None or not written:
            return None
        if "." not in written and written != of:
            found = self._meant(written, path, text, steps - 1)
        else:
            found = self._outside(written, path, read, steps)
        return self._table.kind_of(written) if found is _UNBOUND and path == self._path else found

    def _outside(self, written: str, path: str, read: _Read, steps: int) -> Any:
        """What the imports of a text bring in under a name."""
        imports = [each.imported for each in read.imports.get(written.partition(".")[0], ())]
        ways = [self._imported(reached(written, each), path, steps) for each in imports]
        if not ways and "." not in written:
            ways = [self._of_all(written, each, path, steps, bound=False) for each in _after(0, read)]
        return _agreed(ways)

    def _of_all(self, name: str, imported: Imported, path: str, steps: int, *, bound: bool) -> Any:
        """What ``from module import *`` gives a name, which the text may have bound before."""
        found = None if of_library(imported) else self._sources.module(path, imported)
        if found is None:
            known = of_library(imported) or not bound
            return (self._table.kind_of(name) if known else None) or _UNBOUND
        read = _read(found[1])
        if read is None or (read.shown is not None and _ALL in read.shown):
            return None  # nobody can tell what it has
        hidden = name.startswith("_") if read.shown is None else name not in read.shown
        return _UNBOUND if hidden else self._meant(name, *found, steps - 1)

    def _imported(self, imported: Imported, path: str, steps: int) -> Kind | None:
        """What an import of a name brings in."""
        if imported.name is None:
            return None
        found = None if of_library(imported) else self._sources.module(path, imported)
        if found is None:
            return self._table.kind_of(imported.name)
        kind = self._meant(imported.name, *found, steps - 1)
        return None if kind is _UNBOUND else kind


def _agreed(ways: list[Any]) -> Any:
    """What all the ways in which a name gets its meaning give."""
    kinds = [kind for kind in ways if kind is not _UNBOUND]
    if not kinds:
        return _UNBOUND
    return kinds[0] if all(kind == kinds[0] for kind in kinds) else None


def _after(line: int, read: _Read) -> list[Imported]:
    """What is imported whole behind a line."""
    return [each.imported for each in read.imports.get(_ALL, ()) if each.line > line]


def as_based(call: Call, module: Module, names: Names, path: str, sources: Sources, table: CallTable) -> Call | None:
    """A call of a run as what the called class is built on, where the project defines a class of that name, in this
    module or in one that it is imported from. None where that is no library's: a dataclass ``SFTConfig``, say.
    A trainer of the project's own trains as the one of TRL's does that it is built on; a class that is built on nothing
    is none, whatever it is called: it is what makes and holds one.
    """
    trains = call.kind.group == TRAINER and not call.kind.sets
    written = dotted_name(call.node.func)
    if not (trains or call.kind.dialect) or call.home is not None or not written:
        return call
    texts = _defining(written, module.text, names, path, sources)
    if not texts:
        return call
    lines = [Lineage(where, sources, table) for _, where, _ in texts]
    kind, *others = (line.kind_of(*each, called_here=each[1] == path) for line, each in zip(lines, texts, strict=True))
    if any(other != kind for other in others):
        kind = None
    if trains and all(_is_plain(name, text) for name, _, text in texts):
        return None
    if trains:
        same = kind is not None and kind.group == TRAINER
        return call._replace(kind=call.kind._replace(sets=kind.sets)) if kind is not None and same else call
    if kind is None or kind.dialect is None:
        return None
    return call._replace(kind=kind, declared=frozenset().union(*(line.fields for line in lines)))


def of_own_model(call: Call, module: Module, names: Names, path: str, sources: Sources) -> Call:
    """A call that loads a model; of a class that the project writes itself, with methods of its own, nobody knows what
    it computes and holds: its name says no more than the library's class that it is called after.
    """
    written = dotted_name(call.node.func) or ""
    own, dotted, made = written.rpartition(".")
    if call.kind.group != MODEL or not dotted or made != "from_pretrained":
        return call
    text = module.text
    if call.home is not None:
        owner = call.home.owner
        text, names, path = owner.text, owner.names, owner.path
    found = _defining(own, text, names, path, sources)
    if not found or not all(_has_methods(*each, sources, _MOST_STEPS) for each in found):
        return call
    return call._replace(kind=call.kind._replace(sets={**call.kind.sets, NOT_MODELLED: own}))


def asks_again(given: ast.expr | None, module: Module, names: Names, path: str, sources: Sources) -> str | None:
    """The class of the project's that a trainer's model is of, where it holds a model and asks it more than once in a
    pass, as one of pairs of texts does: its activations are more than a batch's.
    """
    model = dotted_name(given) if given is not None else None
    made = (node for node, _, target in names.calls if node is given or (model and target == model))
    for written in filter(None, (dotted_name(node.func) for node in made)):
        if any(_asks_again(name, text) for name, _, text in _defining(written, module.text, names, path, sources)):
            return written
    return None


def _asks_again(name: str, text: str) -> bool:
    found = next((each for each in nodes_of(text) if isinstance(each, ast.ClassDef) and each.name == name), None)
    methods = {each.name: each for each in found.body if isinstance(each, ast.FunctionDef)} if found else {}
    if "__init__" not in methods or "forward" not in methods:
        return False
    made, forward = methods.pop("__init__"), methods.pop("forward")
    given = {each.arg for each in (*made.args.args, *made.args.kwonlyargs)}
    held = {
        (dotted_name(target) or "").removeprefix("self.")
        for node in ast.walk(made)
        if isinstance(node, ast.Assign) and (_loads(node.value) or (dotted_name(node.value) in given))
        for target in node.targets
    }
    held |= {each for each, method in methods.items() if any(_asked(method.body, other) for other in held)}
    return any(_asked(forward.body, each) > 1 for each in held)


def _loads(value: ast.expr) -> bool:
    loads = (".from_pretrained", ".from_config")
    return isinstance(value, ast.Call) and (dotted_name(value.func) or "").endswith(loads)


def _asked(body: Sequence[ast.AST], part: str) -> int:
    """How often statements ask a part of their own object (``self.encoder(**texts)``), on the way that asks it most;
    without what keeps no activations."""
    count = 0
    for at, node in enumerate(body):
        if isinstance(node, ast.If | ast.IfExp):
            arms = [each if isinstance(each, list) else [each] for each in (node.body, node.orelse)]
            rest = [each for each in body[at + 1 :] if isinstance(node, ast.If)]
            ended = isinstance(arms[0][-1], ast.Return | ast.Raise)
            other = _asked([*arms[1], *(rest if ended else ())], part)
            count += _asked([node.test], part) + max(_asked(arms[0], part), other)
            if ended:
                return count
        elif isinstance(node, ast.Try):
            count += max(_asked(each, part) for each in (node.body, *(each.body for each in node.handlers)))
        elif not (isinstance(node, ast.With) and "no_grad" in ast.unparse(node.items[0])):
            count += isinstance(node, ast.Call) and dotted_name(node.func) == f"self.{part}"
            count += _asked(list(ast.iter_child_nodes(node)), part)
    return count


def _has_methods(name: str, path: str, text: str, sources: Sources, steps: int) -> bool:
    """Whether a class that a text defines or imports is one of the project's that has methods, or is built on one."""
    read = _read(text)
    if read is None or not steps:
        return False
    own = read.classes.get(name)
    if own is not None:
        return own.acts or any(_has_methods(base, path, text, sources, steps - 1) for base in own.bases if base != name)
    brought = [each.imported for each in read.imports.get(name, ()) if not of_library(each.imported)]
    found = [(each.name, sources.module(path, each)) for each in brought]
    return any(where is not None and _has_methods(of or name, *where, sources, steps - 1) for of, where in found)


def _is_plain(name: str, text: str) -> bool:
    """Whether a text has a class of this name, which is built on no other."""
    read = _read(text)
    found = read.classes.get(name) if read is not None else None
    return found is not None and all(base in ("object", "ABC", "abc.ABC") for base in found.bases)


def _defining(written: str, text: str, names: Names, path: str, sources: Sources) -> list[tuple[str, str, str]]:
    """What a module has a class from: the name there, the path and the text of each of the project's modules; none
    where it may be from elsewhere.
    """
    first, dotted, _ = written.partition(".")
    imports = [found for _, found in names.imports_of(first)]
    here = [(written, path, text)]
    if dotted and not imports and first in names.all:
        imports = imports_of(first, text)  # `import project.args`
    elif not dotted and (names.is_class(first) or any(names.imports_of("*"))):
        return here
    elif not dotted and not imports and first in names.all:
        return here  # a function, or another name for a class
    if any(of_library(found) for found in imports):
        return []
    brought = [reached(written, found) for found in imports]
    found = [(each.name or first, sources.module(path, each)) for each in brought]
    texts = [(name, *where) for name, where in found if where is not None]
    return texts if len(texts) == len(brought) else []


def as_declared(part: Part, call: Call) -> Part:
    """What a call says, where its class declares fields of its own: their names are no matter of the library's. Nor is
    what a trainer is given a name of the class of arguments, of which the rules on names are.
    """
    if call.kind.group == TRAINER:
        part.settings |= {name: each._replace(declared=True) for name, each in part.settings.items()}
    if call.declared:
        part.settings |= {
            name: each._replace(declared=True)
            for name, each in part.settings.items()
            if each.path and each.path[-1] in call.declared
        }
        part.keys = part.keys.without(call.declared)
        part.events[:] = [event for event in part.events if event.values.get("key") not in call.declared]
    return part


def left_to_class(call: Call, targets: Mapping[str, list[Target]]) -> Iterator[str]:
    """The settings for which the call's class has a default of its own."""
    yield from (target.fact.name for name in sorted(call.declared) for target in targets.get(name, ()))
