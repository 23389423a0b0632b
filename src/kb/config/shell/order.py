"""In which order the commands of a script run, a function where it is called, nothing behind ``exit``; and the names
that a command sets.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from kb.config.shell.folders import FOLDER, VERBS
from kb.config.shell.lexer import Command, Piece, Word
from kb.core.record import NamedTuple
from kb.core.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from kb.config.shell.arguments import Argument
    from kb.config.shell.expand import Environment

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
DECLARATIONS = frozenset(("export", "readonly", "declare", "typeset", "local"))
OPENING = {"if": "branch", "case": "branch", "{": "{"} | dict.fromkeys(("for", "while", "until", "select"), "loop")
CLOSING = {"fi": "branch", "esac": "branch", "done": "loop", "}": "{"}
BEFORE_COMMANDS = frozenset(("then", "else", "elif", "do", "!", "time", "if", "while", "until", "{", *CLOSING))
READ = frozenset(("read", "unset", "mapfile", "readarray", "getopts", "let", "printf"))  # they set what they name
_LET = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)([A-Za-z_]\w*)")
_ITEM = re.compile(r"([A-Za-z_]\w*)\[[^]]*\]\+?=")
_OF_THE_SHELL = re.compile(
    r"(?:^|/)(?:activate|\.(?:bash|zsh)rc|\.(?:bash_)?profile|etc/(?:profile|bashrc)|conda\.sh|setvars\.sh|init/bash)\Z"
)
_HOOKS = r"hook|conda|mamba|ssh-agent|pyenv|brew|modulecmd"  # `eval "$(conda shell.bash hook)"`
_SETTING_UP = frozenset(("", "set", "shopt", "trap", "source", "."))  # what a file of functions alone does besides
_LONG_LOOP = 500  # commands
_DEEPEST, _LONGEST = 8, 2**13  # calls within calls, and commands of all calls together


def assigned(word: Word) -> re.Match[str] | None:
    """``NAME=`` at the beginning of a word."""
    first = word.pieces[0] if word.pieces else None
    return ASSIGNMENT.match(first.text) if first and first.kind == "literal" and not first.quoted else None


def name_of(word: Word) -> str:
    """The name in ``NAME=value``, or the whole word."""
    match = assigned(word)
    return match[1] if match else word.literal or ""


def may_set_anything(words: Sequence[Word], known: Callable[[Piece], object], script: str) -> bool:
    """Whether a command reads in a file, or a text that nobody knows, which does not only make a shell ready."""
    pieces = [piece for piece in words[1].pieces if piece.text or piece.kind != "literal"]
    if words[0].literal in ("source", "."):
        named = "".join(piece.text for piece in pieces if piece.kind == "literal")
        return re.search(_OF_THE_SHELL, named) is None
    untold = words[0].literal == "eval" and bool(pieces) and known(pieces[0]) is None
    return untold and re.search(_HOOKS, script[words[1].start : words[1].end]) is None


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
    if first in VERBS:
        return [FOLDER]
    if first in ("for", "select"):
        return [word.literal for word in words[1:2] if word.literal]
    if first == "let":
        texts = (piece.text for word in words[1:] for piece in word.pieces)
        return [one or two for text in texts for one, two in _LET.findall(text)]
    if first in ("shift", "set"):
        return list("@123456789")
    if first == "printf":
        at = next((at for at, word in enumerate(words) if word.literal == "-v"), len(words))
        return [word.literal for word in words[at + 1 : at + 2] if word.literal]
    here = [match[1] for word in words if (match := assigned(word))]
    here += [name for word in words if (name := set_item(word))]
    if any(word.literal in READ for word in words[: len(here) + 1]):  # `IFS=, read -r A B`
        return here + [word.literal for word in words if word.literal is not None and word.literal.isidentifier()]
    return here


def adds_flags(word: Word, name: str, skip: int, *, added: bool) -> bool:
    """Whether ``NAME+=…`` or ``NAME="$NAME …"`` puts flags behind what is there: more letters make another word."""
    if word.items is not None:
        return added and bool(word.items) and word.items[0].pieces[0].text.startswith("-")
    pieces = [word.pieces[0]._replace(text=word.pieces[0].text[skip:]), *word.pieces[1:]]
    texts = [piece for piece in pieces if piece.text or piece.kind != "literal"]
    if not added:
        if not texts or (texts[0].kind, texts[0].text) != ("variable", name):
            return False
        del texts[0]
    return bool(texts) and texts[0].kind == "literal" and re.match(r"\s+-", texts[0].text) is not None


class _Function(NamedTuple):
    """Where a function stands among the commands: its name, and its body from the first command to the last."""

    name: str
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
        self._begins = {each.at: each for each in _functions(commands)}
        self._loops = _in_loops(commands)
        self._known: dict[str | None, _Function | None] = {}  # by name; None where only a run can tell which it is
        self._calls: set[int] = set()  # the commands that call one
        self._steps = 0
        self._ended = self._may_call_any = self._does_something = False

    def span(self, first: int, last: int, depth: int = 0) -> "Iterator[tuple[Command, tuple[Argument, ...]]]":
        """The commands from the first on, as they run, up to the last."""
        environment, at = self._environment, first
        while at < last and not self._ended:
            if at in self._begins and (depth == 0 or at > first):
                if opened := opened_by(self._commands[at]):
                    environment.take(self._commands[at]._replace(words=opened), self._behind_group(at))
                else:
                    environment.follow(self._commands[at].before)
                at = self._define(self._begins[at])
                continue
            self._steps += 1
            environment.changing = self._loops.get(at, frozenset())
            command = self._commands[at]
            arguments = environment.take(command, self._behind_group(at))
            at += 1
            name = arguments[0].text if arguments else ""
            self._may_call_any |= name is None or name == "eval"
            self._does_something |= depth == 0 and name not in _SETTING_UP
            if name in self._known:
                self._calls.add(at - 1)
                yield from self._call(self._known[name], arguments[1:], depth)
            elif arguments:
                yield command, arguments
            if name == "return" and depth:
                if environment.certain_in_call:
                    return
                environment.open("branch")  # the rest of the call may not happen
            if self._ends and environment.certain and (name == "exit" or (name == "exec" and len(arguments) > 1)):
                self._ended = True

    def _define(self, function: _Function) -> int:
        """A function takes hold where it stands; gives the command behind it."""
        again = function.name in self._known and not self._environment.certain
        self._known[function.name] = None if again else function
        return function.last + 1

    def _behind_group(self, at: int) -> str:
        """What stands behind the group that a command begins: ``|`` of ``{ … } | cat``; nothing of one that begins
        none."""
        last = _end_of_group(self._commands, at) if "{" in _keywords(self._commands[at], False) else None
        return "" if last is None else self._commands[last].after

    def _call(
        self, function: _Function | None, arguments: "Sequence[Argument] | None", depth: int
    ) -> "Iterator[tuple[Command, tuple[Argument, ...]]]":
        if function is None or depth >= _DEEPEST or self._steps >= _LONGEST:
            return
        self._environment.call(arguments)
        yield from self.span(function.first, function.last + 1, depth + 1)
        self._environment.returned()

    def uncalled(self) -> "Iterator[tuple[Command, tuple[Argument, ...]]]":
        """The functions that may be called in a way that is not to be seen: by what a word stands for, in a text, or by
        another script where this one only has functions.
        """
        called = {word.literal for at in self._calls for word in self._commands[at].words}
        named = Counter(re.findall(r"[\w-]+", self._environment.script))
        defined = Counter(each.name for each in self._begins.values())
        any_ = self._may_call_any or not self._does_something
        for name, function in list(self._known.items()):
            if not self._ended and name not in called and (any_ or named[name or ""] != defined[name or ""]):
                yield from self._call(function, None, 0)


def _functions(commands: Sequence[Command]) -> Iterator[_Function]:
    """The functions, each with its body in ``{ … }`` or ``( … )``."""
    for at, command in enumerate(commands):
        words = [word.literal for word in command.words[len(opened_by(command)) :]]
        if not words:
            continue
        behind = commands[at + 1].before[:3] if at + 1 < len(commands) else ()
        first = at if words[0] == "function" and "{" in words[2:3] else at + 1
        name = words[1] if words[0] == "function" and len(words) > 1 else words[0] if behind[:2] == ("(", ")") else None
        if name is None or (words[0] != "function" and len(words) > 1):
            continue
        last = _end_of_subshell(commands, first) if behind == ("(", ")", "(") else _end_of_group(commands, first)
        if last is not None:
            yield _Function(name, at, first, last)


def _end_of_subshell(commands: Sequence[Command], first: int) -> int:
    """The last command in the ``( … )`` that begins in front of the first one."""
    depth = 1
    for at in range(first + 1, len(commands)):
        before = commands[at].before
        depth += sum((operator == "(") - (operator == ")") for operator in before)
        if depth <= 0:
            return at - 1
    return len(commands) - 1


def _end_of_group(commands: Sequence[Command], first: int) -> int | None:
    """The command of the ``}`` that ends what the ``{`` of the first one begins."""
    depth = 0
    for at in range(first, len(commands)):
        for word in _keywords(commands[at], at == first):
            depth += (word == "{") - (word == "}")
        if depth <= 0:
            return at if at > first else None
    return None


def opened_by(command: Command) -> tuple[Word, ...]:
    """The words in front of a command that begin or end something else: ``{`` of ``{ f() {``."""
    return tuple(takewhile(lambda each: each.literal in BEFORE_COMMANDS, command.words))


def _keywords(command: Command, named: bool) -> Iterator[str]:
    words = [word.literal for word in command.words]
    at = len(opened_by(command))
    for word in words[at + 2 :] if named and words[at : at + 1] == ["function"] else words:
        if word not in BEFORE_COMMANDS:
            if word in ("for", "case", "select"):
                yield word
            return
        yield word or ""


def _in_loops(commands: Sequence[Command]) -> dict[int, frozenset[str]]:
    """The names that each loop sets, by the command with which it begins: in its second round they hold something else.
    Of one that is very long, or does not end, those of the whole script; what ``( … )`` in it sets is gone behind that.
    """
    open_: list[int] = []
    ends: dict[int, int] = {}
    depths = _depths(commands)
    for at, command in enumerate(commands):
        for word in _keywords(command, False):
            if OPENING.get(word) == "loop":
                open_.append(at)
            elif word == "done" and open_:
                ends[open_.pop()] = at
    if not ends and not open_:
        return {}
    names = [changed_by(command.words) for command in commands]
    every = frozenset(name for each in names for name in each)
    found = dict.fromkeys(open_, every)
    for at, end in ends.items():
        within = end - at < _LONG_LOOP
        own = (each for each, depth in zip(names[at : end + 1], depths[at:], strict=False) if depth <= depths[at])
        found[at] = frozenset(name for each in own for name in each) if within else every
    return found


def _depths(commands: Sequence[Command]) -> list[int]:
    """In how many ``( … )`` each command stands."""
    depth, found = 0, list[int]()
    for command in commands:
        depth += sum((operator == "(") - (operator == ")") for operator in command.before)
        found.append(depth)
    return found
