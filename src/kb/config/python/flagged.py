"""What a flag of a program is: as its command gives it, or by the default that it is declared with."""

import ast
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kb.config.python.arithmetic import FromOutsideError, UnknownValueError
from kb.config.python.declared import LITERAL, OFF, ON, YES_NO, Default, declared
from kb.config.python.forms import flag_value
from kb.config.python.held import CommandLine, Flags, Found, Held, Loaded, Origin
from kb.config.python.places import END
from kb.config.text.json_nodes import Place
from kb.config.text.nodes import SCALAR, Node
from kb.core.document import Setting
from kb.core.expression import is_unknown

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

_SETS_FLAGS = ("set_defaults", "namespace=", "dest=", "def parse_args(self")  # what gives a flag another value or name
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
        if known is not None and not known.can_be_told:
            raise FromOutsideError
        if known is None or any(each in text for each in _SETS_FLAGS):
            raise UnknownValueError
        own.shared.by_default = True
        return Loaded(flag_value(known.text))
    if known is None or any(each in text for each in _SETS_FLAGS):
        raise UnknownValueError
    spelt = known.spelt or (name,)
    said = next((each for each in map(command.flags.get, spelt) if each is not None), None)
    if said is not None:
        command.found.add((name,))
        return Loaded(_made(said.value, known), Origin(command, _node(said)))
    if _may_be_given(command, spelt, text):
        raise UnknownValueError
    if known.can_be_told or known.value is None:
        return Loaded(flag_value(known.text))
    return Held(flags.owner, known.value, END)


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
