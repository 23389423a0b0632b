"""What comes to a program from outside: the flags and variables that its command gives, and the files that it loads."""

import ast
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kb.config.python.declared import LITERAL, OFF, ON, YES_NO, Default, declared
from kb.config.python.held import (
    CommandLine,
    Flags,
    Found,
    FromOutsideError,
    GivenConfig,
    Held,
    Loaded,
    Origin,
    UnknownValueError,
)
from kb.config.python.names import Names
from kb.config.python.places import MAX_STEPS, Where
from kb.config.python.syntax import called_name, dotted_name
from kb.config.text.nodes import SCALAR, Node, Place, by_omegaconf
from kb.core.document import Setting
from kb.core.expression import is_unknown
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

_SETS_FLAGS = ("set_defaults", "namespace=", "def parse_args(self")  # what gives a flag another value
_YES, _NO = ("yes", "true", "t", "y", "1", "on"), ("no", "false", "f", "n", "0", "off")
OF_LAUNCHERS = ("WORLD_SIZE", "LOCAL_RANK", "RANK")  # variables that torchrun and accelerate set
REST = ""  # the name under which a command holds arguments that cannot be told


def of_flag(own: "Expressions", flags: Flags, name: str) -> Found:
    """What a flag is. Where no command is known, its default, which a command may give otherwise.

    Raises:
        UnknownValueError: it cannot be told.
    """
    text, command = flags.owner.text, own.shared.command
    known = declared(text).get(name)
    if command is None:
        if known is not None and not known.can_be_told and known.value is None:
            raise FromOutsideError
        if known is None or any(each in text for each in _SETS_FLAGS):
            raise UnknownValueError
        own.shared.by_default = True
        return _default(flags, known)
    if known is None or any(each in text for each in _SETS_FLAGS):
        raise UnknownValueError
    ways = [(flag, flag.spelt or (name,)) for flag in (known, *known.others)]
    given = [(flag, command.flags[each]) for flag, spelt in ways for each in spelt if each in command.flags]
    if len({flag for flag, _ in given}) > 1:  # the last one counts, and their order is not kept
        raise UnknownValueError
    if given:
        flag, said = given[0]
        command.found.add((name,))
        return Loaded(_made(said.value, flag), Origin(command, _node(said)))
    if any(_may_be_given(command, spelt, text) for _, spelt in ways):
        raise UnknownValueError
    return _default(flags, known)


def _default(flags: Flags, known: Default) -> Found:
    """A flag's default; what it is a name for, such as a constant of another module, is followed.

    Raises:
        UnknownValueError: it cannot be told.
    """
    if known.can_be_told:
        return Loaded(flag_value(known.text))
    if known.value is None or flags.owner.names.are_bound_again(known.value):  # of which value it took one
        raise UnknownValueError
    return Held(flags.owner, known.value, flags.owner.names.end_around(known.value))


def of_launcher(own: "Expressions", name: str) -> Loaded | None:
    """What a launcher sets a variable of the environment to; None where it sets none of this name.

    Raises:
        UnknownValueError: it sets one, and which value cannot be told.
    """
    command = own.shared.command
    if command is None or name not in OF_LAUNCHERS:
        own.shared.by_default = True
        return None
    if command.environment is None:
        raise UnknownValueError
    said = command.environment.get(name)
    return None if said is None else Loaded(said)


def is_command_line(argument: ast.expr) -> bool:
    """``parse_args(sys.argv[1:])``, or an argument that a test of the program may fill: ``parse_args(argv)``."""
    return ast.unparse(argument) in ("sys.argv[1:]", "argv", "args", "argv[1:]")


def is_fired(own: "Expressions", function: str) -> bool:
    """Whether a function takes the flags of the command: ``fire.Fire(train)``."""
    return "Fire(" in own.text and re.search(rf"\bFire\(\s*{re.escape(function)}\s*[,)]", own.text) is not None


def _may_be_given(command: CommandLine, spelt: tuple[str, ...], text: str) -> bool:
    """Whether arguments that cannot be told, or the beginning of its name, or its contrary, may give a flag."""
    if REST in command.flags or any("no_" + each in command.flags for each in spelt):
        return True
    others = declared(text)
    return any(each.startswith(given) and given not in others for each in spelt for given in command.flags)


def _made(said: Any, known: Default) -> Any:
    """What the parser makes of what a command says.

    Raises:
        UnknownValueError: only a run can tell.
    """
    if is_unknown(said):
        raise UnknownValueError
    if said is True:  # the flag alone
        if known.made in (ON, LITERAL, YES_NO):
            return True
        if known.made == OFF:
            return False
        raise UnknownValueError
    make = MADE.get(known.made)
    if make is None:
        raise UnknownValueError
    texts = said if isinstance(said, tuple) else (said,)
    try:
        made = [make(each) for each in texts]
    except (ValueError, OverflowError):
        raise UnknownValueError from None
    if known.many:
        return made
    if len(made) != 1:
        raise UnknownValueError
    return made[0]


def _yes_no(text: str) -> bool:
    """By the words that functions such as ``str2bool`` know.

    Raises:
        ValueError: it is neither.
    """
    if text.casefold() not in (*_YES, *_NO):
        raise ValueError(text)
    return text.casefold() in _YES


def _literal(text: str) -> Any:
    """As ``fire`` reads it: a Python literal, whose names stand for texts; else the text.

    Source: fire, parser.py, ``DefaultParseValue``.
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    if re.fullmatch(r"\[\s*[\w.-]+(\s*,\s*[\w.-]+)*\s*\]", text):
        return [_literal(each.strip()) for each in text.strip("[] ").split(",")]
    return text


MADE: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,  # of any text but an empty one True
    YES_NO: _yes_no,
    LITERAL: _literal,
}


def _node(said: Setting) -> Node:
    """The flag's value, at its place in the command."""
    span = said.span
    start = Place(span.start, span.line - 1, span.column - 1)
    end = Place(span.end, span.end_line - 1, span.end_column - 1)
    return Node(SCALAR, str(said.value), None, "", start, end)


def flag_value(text: str | None) -> Any:
    """A flag's default as the program has it."""
    if text is None:
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text


# Around the path of a file that is loaded.
_READS = ("open", "read_text", "read", "Path", "str", "resolve", "absolute", "abspath", "expanduser")


class _Path(NamedTuple):
    """The path of a file; ``joined`` where it is put together of several parts."""

    text: str
    joined: bool = False


def loaded(own: "Expressions", names: Names, node: ast.Call, at: Where) -> Loaded:
    """What the file says that a call such as ``yaml.safe_load(open("run.yaml"))`` loads.

    Of a program that is given a config, that is what it loads by a path that its command line gives.

    Raises:
        UnknownValueError: the path cannot be told, the file is not there, or the call makes something else of it.
    """
    if not node.args or any(each.arg != "Loader" for each in node.keywords):
        raise UnknownValueError
    of_omegaconf = (dotted_name(node.func) or "").endswith("OmegaConf.load")
    shared = own.shared
    before, shared.by_default = shared.by_default, False
    given = shared.config
    try:
        path = _path(own, names, node.args[0], at, 0)
        outside = shared.by_default and not path.joined
    except FromOutsideError:
        if given is None:
            raise
        path, outside = _Path(given.path), True
    if given is not None and outside:
        shared.by_default = before
        return _of_given(given, of_omegaconf)
    shared.by_default |= before
    found = own.data(path.text, of_omegaconf)
    if found is None:
        raise UnknownValueError
    if given is not None and os.path.abspath(found[0]) == os.path.abspath(given.path):
        return _of_given(given, of_omegaconf)
    return Loaded(found[1], None, of_omegaconf)


def _of_given(given: GivenConfig, of_omegaconf: bool) -> Loaded:
    data = by_omegaconf(given.root) if of_omegaconf else given.root.plain()
    return Loaded(data, Origin(given, given.root), of_omegaconf)


def _path(own: "Expressions", names: Names, node: ast.expr, at: Where, depth: int) -> _Path:
    """The path of a file that is opened, read, or named; of one that begins at the program's own, what follows."""
    if depth > MAX_STEPS:
        raise UnknownValueError
    if isinstance(node, ast.Name):
        scope = names.scope_of(node.id, at)
        opened = names.opened.get((scope, node.id)) if scope is not None else None
        if opened is not None and opened.value is not None:
            return _path(own, names, opened.value, opened.where.told(at), depth + 1)
        bound = own.bound(node.id, at)
        if bound is not None and isinstance(bound.value, ast.Call | ast.BinOp | ast.Attribute | ast.Subscript):
            return _path(own, names, bound.value, bound.where.told(at), depth + 1)
    if _is_own_folder(node):
        return _Path(".")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _joined(own, names, (node.left, node.right), at, depth)
    if isinstance(node, ast.Call) and (dotted_name(node.func) or "").endswith("path.join"):
        return _joined(own, names, node.args, at, depth)
    if isinstance(node, ast.Call) and called_name(node) in _READS:
        of_path = isinstance(node.func, ast.Attribute) and node.func.attr != "Path"
        inner = node.func.value if of_path and isinstance(node.func, ast.Attribute) else (*node.args, None)[0]
        if inner is None:
            raise UnknownValueError
        return _path(own, names, inner, at, depth + 1)
    if isinstance(node, ast.Subscript) and dotted_name(node.value) == "sys.argv":
        raise FromOutsideError
    found = own.references.follow(node, at, depth + 1)
    if isinstance(found, Held) and found.value is not node:  # an argument: what the caller gives for it
        return _path(found.owner, found.owner.names, found.value, found.at, depth + 1)
    data = found.data if isinstance(found, Loaded) else own.read(node, at, depth + 1).data
    if data is None and own.shared.by_default:
        raise FromOutsideError
    if type(data) is not str:
        raise UnknownValueError
    return _Path(data)


def _joined(own: "Expressions", names: Names, parts: Sequence[ast.expr], at: Where, depth: int) -> _Path:
    try:
        found = [_path(own, names, each, at, depth + 1) for each in parts]
    except FromOutsideError:
        raise UnknownValueError from None
    return _Path("/".join(each.text for each in found), joined=True)


def _is_own_folder(node: ast.expr) -> bool:
    """``Path(__file__).parent.parent``, ``os.path.dirname(__file__)``: a folder above the program, where its files are
    looked for.
    """
    inside = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    goes_up = bool(names & {"parent", "parents", "dirname"})
    return goes_up and "__file__" in inside and not any(isinstance(each, ast.BinOp) for each in ast.walk(node))
