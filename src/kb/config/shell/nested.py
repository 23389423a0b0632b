"""The commands in a text that a script hands to a shell: ``bash -c "…"``, ``sbatch <<EOF``, ``cat > job.sh <<EOF``."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kb.config.shell.arguments import UNTOLD, UNTOLD_OPTIONS, UNTOLD_PART, Argument
from kb.config.shell.expand import POSITIONS, Environment
from kb.config.shell.folders import FOLDER
from kb.config.shell.launch import wraps
from kb.config.shell.lexer import Command, Piece, Word, split_commands
from kb.config.shell.serving import read_server

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|a)?sh\Z")
_WRAP = ("--wrap=", "--wrap")
_TEXT_FOLLOWS = re.compile(r"-[a-z]*c\Z")
_FILLED = re.compile(r"\\([$`\\])|\$(?:\{(\w+)\}|([A-Za-z_]\w*|\d))")
_VALUE_FOLLOWS = re.compile(r"-[a-z]*[oO]\Z")  # `-o pipefail`
_SHOWS = ("echo", "printf", "git", "cat", "grep")  # what stands behind them is run by nobody
_READS_INPUT = ("sbatch", "qsub", "bsub")  # they take a script from where a shell takes commands
_HAND_ON = ("xargs", "apptainer", "singularity")  # beside what wraps a command
# The words of a command behind which a shell has another environment than the script: of a container, another host or
# another user, an emptied one, or one of variables that are not told (``$`` stands for a word that is not known).
_APART = re.compile(
    r"""(?sx)(?:^|[ /])(?:
        (?:(?:docker|podman|nerdctl|kubectl|ssh|pdsh|mpirun|mpiexec)[\w.-]*|oc|su|ray)[ ]
        | sudo[ ](?!.*(?:-E|--preserve-env)[ ]) | qsub(?!.*[ ]-V[ ])
        | env[ ](?:.*[ ])?(?:\$|-[ ]|-\w*i|--ignore-) | exec[ ]-\w*c
        | (?:apptainer|singularity)[ ](?:.*[ ])?(?:-[A-Za-z]*[eC][A-Za-z]*[ ]|--(?:containall|compat))
    ) | --env-file | --clean-?env | --env[= ]\S*\$ | --export[= ](?!ALL\b) | [ ]-env[ ](?!all\b) | \$\$"""
)
_NAMED = re.compile(r"(?:^|[\s=,])(?:-[A-Za-z])?([A-Za-z_]\w*)(?=[\s=,])")  # maybe variables: `-e NAME=8`, `-u NAME`


def text_of_shell(words: Sequence[str | None]) -> int | None:
    """Where the text stands of a command that hands one to a shell: 2 of ``bash -lc "…"``, 1 of ``sbatch --wrap="…"``;
    None of any other."""
    if words and words[0] == "sbatch":
        return _wrapped(words)
    if not words or _SHELL.match(words[0] or "") is None:
        return None
    at = 1
    while at < len(words) - 1 and (word := words[at] or "").startswith(("-", "+")):
        if _TEXT_FOLLOWS.match(word):
            return at + 1
        at += 2 if _VALUE_FOLLOWS.match(word) else 1
    return None


def _wrapped(words: Sequence[str | None]) -> int | None:
    """Where among sbatch's options its job stands; a script's name ends these."""
    before = ""
    for at, word in enumerate(words[1:], 1):
        word = word or "-"
        if word.startswith(_WRAP):
            return at + (word == "--wrap" and at + 1 < len(words))
        if not word.startswith("-") and not before.startswith("-"):
            return None
        before = word
    return None


def runs_in(
    command: Command, arguments: tuple[Argument, ...], environment: Environment, *, here: bool = False
) -> Iterator[Sequence[Argument]]:
    """The arguments of the command itself, and of each command in the text that it hands to a shell; with ``here`` to
    one of this machine, not of a container or of another host.

    What wraps the shell (``srun -n 8``) stands before each of those. Places are those in the script.
    """
    yield arguments
    if len(command.words) == 2 and arguments and arguments[0].text == "eval":
        yield from commands_of_text(*_text_of(command.words[1], environment), environment)
        return
    texts = [argument.text for argument in arguments]
    first = (texts[0] or "").rpartition("/")[2] if texts else ""
    alone = first in _SHOWS or (here and not wraps(first))
    begun = [each.begins if each.text is None else each.text for each in arguments]
    for at in range(min(1, len(arguments) - 1) if alone else len(arguments) - 1):
        place = text_of_shell(begun[at:])
        if place is None:
            continue
        start = arguments[at + place].start
        word = next((each for each in command.words if each.start == start), None)
        if word is None:
            return
        before = arguments[:at] if at and wraps(arguments[0].text or "") else ()
        text, places = _text_of(word, environment)
        if text.startswith(_WRAP[0]):
            text, places = text[len(_WRAP[0]) :], places[len(_WRAP[0]) :]
        with _in_shell(environment, arguments[:at]):
            for inner in commands_of_text(text, places, environment):
                found = (*before, *inner)
                within = (*arguments[:at], *found)  # of `docker run IMAGE bash -c`, `ssh host bash -c`
                yield within if not before and at and read_server(within) is not None else found
        return
    if command.heredoc is not None and (_takes_commands(texts) or _writes_script(texts, command, environment)):
        text, places = _typed_in(command.start, *command.heredoc, environment)
        with _in_shell(environment, () if _SHELL.match(texts[0] or "") else arguments):
            yield from commands_of_text(text, places, environment)


@contextmanager
def _in_shell(environment: Environment, words: Sequence[Argument]) -> Iterator[None]:
    """What runs meanwhile runs in a shell of its own, which has what the script hands on through ``words``, the command
    that starts it: what it exports, and sets for this command. What is set there is gone behind it."""
    before, exported, prefixed = environment.variables, environment.exported, environment.prefixed()
    texts = (f"{each.begins}{'$' * (1 + each.options)}" if each.text is None else each.text for each in words)
    through = "".join(f"{text} " for text in texts)
    handed_on = not words or (_hands_on(words[0].text or "") and _APART.search(through) is None)
    kept = {*exported, *prefixed} if handed_on else set[str]()
    always = (FOLDER, "SLURM_") if handed_on else (FOLDER,)
    environment.variables = {
        name: value if name in kept or name.startswith(always) else None for name, value in (before | prefixed).items()
    } | dict.fromkeys((*POSITIONS, *_NAMED.findall(through)))
    environment.exported = {*exported, *prefixed}
    environment.open("(")
    yield
    environment.close("(")
    environment.variables, environment.exported = before, exported


def _hands_on(word: str) -> bool:
    """Whether a program may leave its environment to the shell that it starts."""
    return wraps(word) or word.rpartition("/")[2] in (*_HAND_ON, *_READS_INPUT)


def _takes_commands(words: Sequence[str | None]) -> bool:
    """Whether a program runs what it is given where a person would type."""
    if not words or _SHELL.match(words[0] or "") is None:
        return bool(words) and words[0] in _READS_INPUT
    return "-s" in words or all((word or "").startswith("-") for word in words[1:])


def _writes_script(words: Sequence[str | None], command: Command, environment: Environment) -> bool:
    """Whether a here-document is put in a file of this very folder as a shell's script, to be submitted then:
    ``cat > job.sh <<EOF``. Of one that is put elsewhere it is not known where it runs."""
    start, end = command.heredoc or (0, 0)
    begins = re.compile(r"[ \t]*#![ \t]*\S*(?:/|/env[ \t]+)(?:ba|z|k|da)?sh\b")
    put = re.compile(r"(?:>|\btee)[ \t]*[\"']?[\w.${}-]+\.(?:sh|bash|sbatch|slurm|job|pbs|lsf)[\"']?(?=\s)")
    written = words[:1] in (["cat"], ["tee"]) and put.search(environment.script, command.start, start) is not None
    return written and begins.match(environment.script, start, end) is not None


def _typed_in(at: int, start: int, end: int, environment: Environment) -> tuple[str, list[int]]:
    """The body of a here-document as a shell gets it, and where each character stands: what is not quoted in it,
    nor its mark, the script fills in."""
    script = environment.script
    body = script[start:end]
    if re.search(r"<<-?[ \t]*[\"'\\]", script[at:start]) is not None:
        return body, list(range(start, start + len(body)))
    text, places, after = "", list[int](), 0
    for found in _FILLED.finditer(body):
        name = found[2] or found[3]
        value = None if name is None else environment.known(Piece("variable", name, start + found.start(), True))
        said = found[1] or ("${_}" if value is None else UNTOLD_PART.sub("${_}", value[0]))
        text += body[after : found.start()] + said
        places += [*range(start + after, start + found.start()), *[start + found.start()] * len(said)]
        after = found.end()
    return text + body[after:], [*places, *range(start + after, start + len(body))]


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
