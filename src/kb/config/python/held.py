"""What the references of a Python program go back to, and the files of the project that they may lead through."""

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kb.config.python.places import Imported, Where
from kb.config.text.nodes import MAPPING, Node
from kb.core.document import Setting
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions


class Sources(Protocol):
    """The files of the project around a program."""

    def module(self, path: str, imported: Imported) -> tuple[str, str] | None:
        """The path and the text of the project's own module; None of any other."""

    def data(self, path: str, named: str, omegaconf: bool = False) -> tuple[str, Any] | None:
        """The path of a YAML, JSON or TOML file and what it says, to PyYAML or to OmegaConf; None where there is none
        that can be read."""

    def any_imports(self, path: str, library: str) -> bool:
        """Whether some program of the project imports a library."""


class NoSources:
    """No file beside the text."""

    def module(self, path: str, imported: Imported) -> tuple[str, str] | None:
        return None

    def data(self, path: str, named: str, omegaconf: bool = False) -> tuple[str, Any] | None:
        return None

    def any_imports(self, path: str, library: str) -> bool:
        return False


class GivenConfig:
    """A config that a program is started with: what it loads by a path that its command line gives.

    ``found`` are the keys that the program asks for and finds there; ``missed`` is set once it asks in vain.
    """

    def __init__(self, path: str, root: Node) -> None:
        self.path, self.root = path, root
        self.found: set[tuple[str, ...]] = set()
        self.missed = False


class CommandLine:
    """The flags that a program is started with.

    Args:
        path: the file of the command.
        flags: each as it is written, by its name with _ for -: a text, several, true where it stands alone. One without
            a name stands for others that cannot be told.
        environment: what the launcher sets; None where it cannot be told.

    ``found`` are the flags that the program asks for and that are there.
    """

    def __init__(self, path: str, flags: Mapping[str, Setting], environment: Mapping[str, str] | None) -> None:
        self.path, self.flags, self.environment = path, flags, environment
        self.found: set[tuple[str, ...]] = set()
        self.missed = False

    @property
    def numbers(self) -> tuple[tuple[str, int | None], ...] | None:
        """What each flag gives where that is a whole number; None where there are flags that cannot be told."""
        if "" in self.flags:
            return None
        said = ((name, str(each.value)) for name, each in self.flags.items())
        return tuple((name, int(text) if text.isdecimal() else None) for name, text in said)


class Origin(NamedTuple):
    """Where a value stands in the config or the command that the program is given."""

    config: GivenConfig | CommandLine
    node: Node
    path: tuple[str, ...] = ()


class Held(NamedTuple):
    """An expression, the module that it stands in, and where in that module's flow it is read."""

    owner: "Expressions"
    value: ast.expr
    at: Where


class Loaded(NamedTuple):
    """What a file or a flag says; ``omegaconf``: to OmegaConf, whose text that looks like a number stood in quotes."""

    data: Any
    origin: Origin | None = None
    omegaconf: bool = False

    def has(self, key: Any) -> bool:
        return isinstance(self.data, Mapping) and key in self.data

    def entry(self, key: Any) -> "Loaded":
        """What stands under a key that it has."""
        if self.origin is None:
            return Loaded(self.data[key], None, self.omegaconf)
        config, node, above = self.origin
        path = (*above, str(key))
        config.found.add(path)
        pair = node.entries().get(str(key)) if node.kind == MAPPING else None
        origin = Origin(config, pair[1], path) if pair is not None else None
        return Loaded(self.data[key], origin, self.omegaconf)

    def miss(self) -> None:
        """The program asks for a key that is not there."""
        if self.origin is not None:
            self.origin.config.missed = True


class Flags(NamedTuple):
    """What a parser of a command line gives, by the module that declares its flags."""

    owner: "Expressions"


class Instance(NamedTuple):
    """An object of a class, made by this call; None: by a caller that is not known."""

    owner: "Expressions"
    name: str
    call: ast.Call | None
    at: Where


class Caller(NamedTuple):
    """A call that another module makes."""

    owner: "Expressions"
    node: ast.Call
    at: Where


Found = Held | Loaded | Flags | Instance


class Shared:
    """What the modules of one program have in common while it is read.

    ``callers``: the calls of a module's functions and classes by other modules, by its path and their name.
    ``by_default``: what was read last rests on what a caller, a command line or the environment may give otherwise.
    """

    def __init__(self, sources: Sources, given: GivenConfig | CommandLine | None = None) -> None:
        self.sources = sources
        self.config = given if isinstance(given, GivenConfig) else None
        self.command = given if isinstance(given, CommandLine) else None
        self.reads = 0
        self.by_default = False
        self.modules: dict[str, Expressions | None] = {}
        self.stored: dict[str, set[str]] = {}  # what each module gives a value on anything, by the module's path
        self.attributes_set: dict[str, set[str]] = {}  # those of them that are attributes, or may be
        self.callers: dict[tuple[str, str], list[Caller]] = {}

    def is_stored(self, key: object) -> bool:
        """Whether one of the other modules gives an attribute or a key of this name a value, on whatever holds it."""
        return self.is_set_elsewhere(str(key), "")

    def is_set_elsewhere(self, name: str, path: str) -> bool:
        """Whether another module than the one at ``path`` gives an attribute of this name a value."""
        return any(name in stored for where, stored in self.stored.items() if where != path)

    def called(self, path: str, name: str, caller: "Caller") -> None:
        """Another module calls what the module at ``path`` defines under ``name``."""
        known = self.callers.setdefault((path, name), [])
        if all(each.node is not caller.node for each in known):
            known.append(caller)


class Read(NamedTuple):
    """What an expression says: ``data``, where it is written (``place``), and whether other code depends on it there.

    ``shared``: it stands in an assignment that is used in more places than one, or is computed from names, so that
    no other value can be put in its place. ``at``: of a dictionary, where in the program its own values are read.
    """

    data: Any
    place: ast.expr
    shared: bool = False
    at: Where | None = None
    origin: Origin | None = None
    of_file: bool = False


def elsewhere(read: Read, written: ast.expr) -> bool:
    """Whether what is read stands somewhere else than where it is used."""
    return read.shared or read.place is not written


class UnknownValueError(Exception):
    """The expression has no value that can be told from the text."""


class FromOutsideError(UnknownValueError):
    """What starts the program gives the value, and nothing else does."""


class Symbol(str):
    """The text that a library's own name stands for, ``torch.bfloat16``: as a setting it is the text, in any other
    place it is an object of the library.
    """
