"""What the references of a Python program go back to, and the files of the project that they may lead through."""

import ast
from typing import TYPE_CHECKING, Any, Protocol

from kb.config.python.places import Imported, Where
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions


class Sources(Protocol):
    """The files of the project around a program."""

    def module(self, path: str, imported: Imported) -> tuple[str, str] | None:
        """The path and the text of the project's own module; None of any other."""

    def data(self, path: str, named: str) -> Any:
        """What a YAML, JSON or TOML file says; None where there is none that can be read."""


class NoSources:
    """No file beside the text."""

    def module(self, path: str, imported: Imported) -> tuple[str, str] | None:
        return None

    def data(self, path: str, named: str) -> Any:
        return None


class Held(NamedTuple):
    """An expression, the module that it stands in, and where in that module's flow it is read."""

    owner: "Expressions"
    value: ast.expr
    at: Where


class Loaded(NamedTuple):
    """What a file or a flag says."""

    data: Any


class Flags(NamedTuple):
    """What a parser of a command line gives, by the module that declares its flags."""

    owner: "Expressions"


class Instance(NamedTuple):
    """An object of a class, made by this call; None: by a caller that is not known."""

    owner: "Expressions"
    name: str
    call: ast.Call | None
    at: Where


Found = Held | Loaded | Flags | Instance


class Shared:
    """What the modules of one program have in common while it is read.

    ``by_default``: what was read last rests on what a caller, a command line or the environment may give otherwise.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.reads = 0
        self.by_default = False
        self.modules: dict[str, Expressions | None] = {}
