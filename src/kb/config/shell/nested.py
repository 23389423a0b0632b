"""The commands in a text that a command of a script hands to another shell: ``bash -c "…"``, ``sbatch <<EOF``."""

import re
from collections.abc import Iterator, Sequence

from kb.config.shell.arguments import UNTOLD, UNTOLD_OPTIONS, Argument
from kb.config.shell.expand import Environment
from kb.config.shell.launch import wraps
from kb.config.shell.lexer import Command, Word, split_commands
from kb.config.shell.serving import read_server

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|a)?sh\Z")
_TEXT_FOLLOWS = re.compile(r"-[a-z]*c\Z")
_VALUE_FOLLOWS = re.compile(r"-[a-z]*[oO]\Z")  # `-o pipefail`
_READS_INPUT = ("sbatch", "qsub", "bsub")  # they take a script from where a shell takes commands


def text_of_shell(words: Sequence[str | None]) -> int | None:
    """Where the text stands of a command that hands one to a shell: 2 of ``bash -lc "…"``; None of any other."""
    if not words or _SHELL.match(words[0] or "") is None:
        return None
    at = 1
    while at < len(words) - 1 and (word := words[at] or "").startswith(("-", "+")):
        if _TEXT_FOLLOWS.match(word):
            return at + 1
        at += 2 if _VALUE_FOLLOWS.match(word) else 1
    return None


def runs_in(
    command: Command, arguments: tuple[Argument, ...], environment: Environment
) -> Iterator[Sequence[Argument]]:
    """The arguments of the command itself, and of each command in the text that it hands to a shell.

    What wraps the shell (``srun -n 8``) stands before each of those. Places are those in the script.
    """
    yield arguments
    if len(command.words) == 2 and arguments and arguments[0].text == "eval":
        yield from _commands_in(command.words[1], environment, ())
        return
    texts = [argument.text for argument in arguments]
    for at in range(len(arguments) - 2):
        place = text_of_shell(texts[at:])
        if place is None:
            continue
        start = arguments[at + place].start
        word = next((each for each in command.words if each.start == start), None)
        if word is None:
            return
        before = arguments[:at] if at and wraps(arguments[0].text or "") else ()
        with environment.in_shell():
            for found in _commands_in(word, environment, before):
                within = (*arguments[:at], *found)  # of `docker run IMAGE bash -c`, `ssh host bash -c`
                yield within if not before and at and read_server(within) is not None else found
        return
    if command.heredoc is not None and _takes_commands(texts):
        with environment.in_shell():
            yield from commands_of_text(*_typed_in(environment.script, *command.heredoc), environment)


def _takes_commands(words: Sequence[str | None]) -> bool:
    """Whether a program runs what it is given where a person would type."""
    if not words or _SHELL.match(words[0] or "") is None:
        return bool(words) and words[0] in _READS_INPUT
    return "-s" in words or all((word or "").startswith("-") for word in words[1:])


def _typed_in(script: str, start: int, end: int) -> tuple[str, list[int]]:
    """The body of a here-document as a shell gets it, and where each character stands: ``\\$`` is for that shell."""
    places = [
        at
        for at in range(start, min(end, len(script)))
        if not (script[at] == "\\" and script[at + 1 : at + 2] in ("$", "`"))
    ]
    return "".join(script[at] for at in places), places


def _commands_in(word: Word, environment: Environment, before: Sequence[Argument]) -> Iterator[Sequence[Argument]]:
    text, places = _text_of(word, environment)
    yield from ((*before, *found) for found in commands_of_text(text, places, environment))


def commands_of_text(text: str, places: Sequence[int], environment: Environment) -> Iterator[tuple[Argument, ...]]:
    """The arguments of each command in a text that a shell is given, each at its place: that of its characters."""
    for inner in split_commands(text):
        found = tuple(_moved(each, places) for each in environment.take(inner))
        if found:
            yield found


def _text_of(word: Word, environment: Environment) -> tuple[str, list[int]]:
    """What the shell is given, and where each character stands; a part that nobody knows is a variable there too."""
    text, places = "", list[int]()
    for piece in word.pieces:
        value = environment.known(piece)
        if value is None:
            text += "${_}"
            places += [piece.start] * 4
        else:
            for character, place in zip(*value, strict=True):
                shown = "${_}" if character in (UNTOLD, UNTOLD_OPTIONS) else character
                text += shown
                places += [place] * len(shown)
    return text, places


def _moved(argument: Argument, places: Sequence[int]) -> Argument:
    """The argument at its place in the script; one that a variable holds is there already."""
    if argument.shared or not places:
        return argument
    last = len(places) - 1
    start, end = places[min(argument.start, last)], places[min(max(argument.end - 1, 0), last)] + 1
    return argument._replace(start=start, end=max(end, start))
