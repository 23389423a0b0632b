"""In which order the commands of a script run, a function where it is called, nothing behind ``exit``; and the names
that a command sets.
"""

import re
from collections.abc import Iterator, Sequence

from kb.config.shell.lexer import Command, Word
from kb.core.record import NamedTuple
from kb.core.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from kb.config.shell.expand import Argument, Environment

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
DECLARATIONS = frozenset(("export", "readonly", "declare", "typeset", "local"))
OPENING = {"if": "branch", "case": "branch", "{": "{"} | dict.fromkeys(("for", "while", "until", "select"), "loop")
CLOSING = {"fi": "branch", "esac": "branch", "done": "loop", "}": "{"}
BEFORE_COMMANDS = frozenset(("then", "else", "elif", "do", "!", "time", "if", "while", "until", "{", *CLOSING))
READ = frozenset(("read", "unset", "mapfile", "readarray", "getopts", "let", "printf"))  # they set what they name
_LET = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)([A-Za-z_]\w*)")
_ITEM = re.compile(r"([A-Za-z_]\w*)\[[^]]*\]\+?=")
_SETTING_UP = frozenset(("", "set", "shopt", "trap", "source", "."))  # what a file of functions alone does besides
_DEEPEST, _LONGEST = 8, 2**13  # calls within calls, and commands of all calls together


def assigned(word: Word) -> re.Match[str] | None:
    """``NAME=`` at the beginning of a word."""
    first = word.pieces[0] if word.pieces else None
    return ASSIGNMENT.match(first.text) if first and first.kind == "literal" and not first.quoted else None


def set_item(word: Word) -> str | None:
    """The array of ``NAME[0]=…``."""
    match = _ITEM.match(word.pieces[0].text) if word.pieces and word.pieces[0].kind == "literal" else None
    return match[1] if match else None


def changed_by(words: Sequence[Word]) -> list[str]:
    """The names that a command sets, keywords in front of it passed over: ``read``, ``((N++))``, ``NAME=value``."""
    words = list(words)
    while words and words[0].literal in BEFORE_COMMANDS | DECLARATIONS:
        words.pop(0)
    first = words[0].literal if words else None
    if first in ("for", "select"):
        return [word.literal for word in words[1:2] if word.literal]
    if first == "let":
        texts = (piece.text for word in words[1:] for piece in word.pieces)
        return [one or two for text in texts for one, two in _LET.findall(text)]
    if first == "printf":
        at = next((at for at, word in enumerate(words) if word.literal == "-v"), len(words))
        return [word.literal for word in words[at + 1 : at + 2] if word.literal]
    here = [match[1] for word in words if (match := assigned(word))]
    here += [name for word in words if (name := set_item(word))]
    if any(word.literal in READ for word in words[: len(here) + 1]):  # `IFS=, read -r A B`
        return here + [word.literal for word in words if word.literal is not None and word.literal.isidentifier()]
    return here


class _Function(NamedTuple):
    """Where a function stands among the commands: its name, and from its ``{`` to its ``}``."""

    at: int
    first: int
    last: int


def in_order(
    commands: Sequence[Command], environment: "Environment", *, ends: bool = True
) -> "Iterator[tuple[Command, tuple[Argument, ...]]]":
    """The commands with their arguments as they run; those of a function at each of its calls, or at the end where none
    is to be seen. A function is not read that nothing in the script names.

    Args:
        ends: whether ``exit`` ends it; what a page of text shows is typed in more shells than one.
    """
    walk = _Walk(commands, environment, ends)
    yield from walk.span(0, len(commands))
    yield from walk.uncalled()


class _Walk:
    def __init__(self, commands: Sequence[Command], environment: "Environment", ends: bool) -> None:
        self._commands, self._environment, self._ends = commands, environment, ends
        self._functions = _functions(commands)
        self._begins = {each.at: each for each in self._functions.values()}
        self._called: set[str] = set()
        self._steps = 0
        self._ended = self._may_call_any = self._does_something = False

    def span(self, first: int, last: int, depth: int = 0) -> "Iterator[tuple[Command, tuple[Argument, ...]]]":
        """The commands from the first on, as they run, up to the last."""
        environment, at = self._environment, first
        while at < last and not self._ended:
            command = self._commands[at]
            if at in self._begins and (depth == 0 or at > first):
                at = self._begins[at].last + 1
                continue
            self._steps += 1
            environment.changing = _in_loop(self._commands, at)
            arguments = environment.take(command)
            at += 1
            name = arguments[0].text if arguments else ""
            self._may_call_any |= name is None or name == "eval"
            self._does_something |= depth == 0 and name not in _SETTING_UP
            if name in self._functions and depth < _DEEPEST and self._steps < _LONGEST:
                self._called.add(name)
                yield from self._call(self._functions[name], arguments[1:], depth)
            elif arguments:
                yield command, arguments
            if self._ends and environment.certain and (name == "exit" or (name == "exec" and len(arguments) > 1)):
                self._ended = True

    def _call(
        self, function: _Function, arguments: "Sequence[Argument] | None", depth: int
    ) -> "Iterator[tuple[Command, tuple[Argument, ...]]]":
        self._environment.call(arguments)
        yield from self.span(function.first, function.last + 1, depth + 1)
        self._environment.returned()

    def uncalled(self) -> "Iterator[tuple[Command, tuple[Argument, ...]]]":
        """The functions that may be called in a way that is not to be seen: by what a word stands for, in a text, or by
        another script where this one only has functions.
        """
        library = not self._does_something
        for name, function in self._functions.items():
            named = re.findall(rf"(?<![\w-]){re.escape(name)}(?![\w-])", self._environment.script)
            if name not in self._called and not self._ended and (self._may_call_any or len(named) > 1 or library):
                yield from self._call(function, None, 0)


def _functions(commands: Sequence[Command]) -> dict[str, _Function]:
    """The functions by name; of two of one name the later one."""
    found: dict[str, _Function] = {}
    for at, command in enumerate(commands):
        words = [word.literal for word in command.words]
        if words[0] == "function" and len(words) > 1:
            first = at if "{" in words[2:3] else at + 1
            name = words[1]
        elif len(words) == 1 and at + 1 < len(commands) and commands[at + 1].before[:2] == ("(", ")"):
            first, name = at + 1, words[0]
        else:
            continue
        last = _end_of_group(commands, first)
        if name and last is not None:
            found[name] = _Function(at, first, last)
    return found


def _end_of_group(commands: Sequence[Command], first: int) -> int | None:
    """The command of the ``}`` that ends what the ``{`` of the first one begins."""
    depth = 0
    for at in range(first, len(commands)):
        for word in _keywords(commands[at], at == first):
            depth += (word == "{") - (word == "}")
        if depth <= 0:
            return at if at > first else None
    return None


def _keywords(command: Command, named: bool) -> Iterator[str]:
    words = [word.literal for word in command.words]
    for word in words[2:] if named and words[0] == "function" else words:
        if word not in BEFORE_COMMANDS:
            if word in ("for", "case", "select"):
                yield word
            return
        yield word or ""


def _in_loop(commands: Sequence[Command], at: int) -> frozenset[str]:
    """The names that a loop sets which begins with this command: in its second round they hold something else."""
    depth, names = 0, set[str]()
    for command in commands[at:]:
        for word in _keywords(command, False):
            depth += (OPENING.get(word) == "loop") - (word == "done")
        if depth <= 0:
            break
        names.update(changed_by(command.words))
    return frozenset(names)
