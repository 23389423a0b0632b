"""Commands in the text that ``bash -c`` or ``eval`` is given: ``srun … bash -c "ray job submit -- python -m …"``."""

from collections.abc import Iterator, Sequence

from kb.config.shell.expand import UNTOLD, UNTOLD_OPTIONS, Argument, Environment
from kb.config.shell.launch import wraps
from kb.config.shell.lexer import split_commands
from kb.config.shell.words import Command, Word

_SHELLS = ("bash", "sh", "zsh")
_TEXT_FOLLOWS = ("-c", "-lc", "-ec", "-xc", "-ic")


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
    for at, argument in enumerate(arguments[:-2]):
        name = (argument.text or "").rpartition("/")[2]
        if name not in _SHELLS or arguments[at + 1].text not in _TEXT_FOLLOWS:
            continue
        start = arguments[at + 2].start
        word = next((each for each in command.words if each.start == start), None)
        if word is None:
            return
        before = arguments[:at] if at and wraps(arguments[0].text or "") else ()
        yield from _commands_in(word, environment, before)
        return


def _commands_in(word: Word, environment: Environment, before: Sequence[Argument]) -> Iterator[Sequence[Argument]]:
    text, places = _text_of(word, environment)
    for inner in split_commands(text):
        found = tuple(_moved(each, places) for each in environment.take(inner))
        if found:
            yield (*before, *found)


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
