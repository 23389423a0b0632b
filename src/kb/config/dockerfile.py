"""The server that an image starts: ENTRYPOINT and CMD of a Dockerfile's last stage.

Source: Docker's reference of Dockerfiles. ``docker run`` may put other words in the place of CMD; what it gives the
container (GPUs, shared memory) no Dockerfile says.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from kb.config.container_variables import Variables, filled
from kb.config.shell.arguments import Argument
from kb.config.shell.command import CommandReader, unit_of
from kb.config.shell.expand import Environment
from kb.config.shell.launch import server_launch
from kb.config.shell.lexer import split_commands
from kb.config.shell.nested import runs_in, text_of_shell
from kb.config.shell.serving import Started, names_model, own_image_of, read_server, server_of_image
from kb.config.text.source import Places
from kb.core.document import Unit
from kb.core.record import NamedTuple

_INSTRUCTION = re.compile(r"[ \t]*(FROM|ARG|ENV|ENTRYPOINT|CMD)[ \t]+", re.I)
_GOES_ON = re.compile(r"\\[ \t]*\r?\n\Z")
_COMMENT = re.compile(r"[ \t]*(?:#.*)?\r?\n?\Z")
_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_FROM = re.compile(r"(?:--\S+[ \t]+)*(\S+)(?:[ \t]+AS[ \t]+(\S+))?", re.I)
_PAIR = re.compile(r"""(\w+)=("[^"]*"|'[^']*'|\S*)""")
_SPACED = re.compile(r"(\w+)[ \t]+(.+)")


class _Instruction(NamedTuple):
    """``text`` is what stands behind the word, from ``start`` on; lines of comments between its lines are blank."""

    word: str
    text: str
    start: int


class _Stage(NamedTuple):
    """What the instructions of a stage have said so far."""

    image: Argument | None = None
    name: str = ""
    variables: Mapping[str, str] = {}
    entrypoint: _Instruction | None = None
    command: _Instruction | None = None


def server_in_image(text: str, path: str, reader: CommandReader) -> list[Unit]:
    """The unit of the server that the image starts; none where it starts something else, or leaves that to others."""
    stage = _last_stage(text)
    found = _started(stage)
    if found is None:
        return []
    started, span = found
    launch = server_launch(started, text)
    if not launch.flags:
        return []
    places = Places(text)
    return [unit_of(launch, reader.speller(launch), path, None, places, places.span(*span))]


def _last_stage(text: str) -> _Stage:
    stages: dict[str, _Stage] = {}
    known: dict[str, str] = {}  # arguments before the first stage, for the names of images
    stage = _Stage()
    for each in _instructions(text):
        if each.word == "FROM":
            stages[stage.name] = stage
            stage = _begun(each, known, stages)
        elif each.word in ("ARG", "ENV") and stage.image is None:
            known |= _pairs(each.text)
        elif each.word in ("ARG", "ENV"):
            stage = stage._replace(variables={**stage.variables, **_pairs(each.text)})
        elif each.word == "ENTRYPOINT":
            stage = stage._replace(entrypoint=each, command=None)  # Docker forgets the image's CMD
        else:
            stage = stage._replace(command=each)
    return stage


def _begun(instruction: _Instruction, known: Mapping[str, str], stages: Mapping[str, _Stage]) -> _Stage:
    """The stage that a FROM begins: an image's, or an earlier stage's with all that it said."""
    match = _FROM.match(instruction.text)
    if match is None:
        return _Stage(image=Argument(None, instruction.start, instruction.start))
    at = instruction.start + match.start(1)
    image = Argument(filled(match[1], Variables(known)), at, at + len(match[1]))
    return (stages.get(match[1]) or _Stage(image=image))._replace(name=match[2] or "")


def _instructions(text: str) -> Iterator[_Instruction]:
    """Those that matter here, each with all its lines."""
    lines = text.splitlines(keepends=True)
    at = start = number = 0
    while number < len(lines):
        first = _INSTRUCTION.match(lines[number])
        start, parts = at, [lines[number]]
        at += len(lines[number])
        number += 1
        if _COMMENT.match(parts[0]):  # none goes on, whatever it ends with
            continue
        while number < len(lines) and (_GOES_ON.search(parts[-1]) or (len(parts) > 1 and parts[-1].isspace())):
            line = lines[number]
            blank = _COMMENT.match(line) is not None
            parts.append(" " * len(line) if blank else line)
            at += len(line)
            number += 1
        if first is not None:
            yield _Instruction(first[1].upper(), "".join(parts)[first.end() :], start + first.end())


def _pairs(text: str) -> dict[str, str]:
    """``NAME=value NAME="other"`` or ``NAME value``; values with a variable in them are not known."""
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text).strip()
    found = _PAIR.findall(joined) or _SPACED.findall(joined)
    stripped = ((name, value[1:-1] if value[:1] in ("'", '"') else value.strip()) for name, value in found)
    return {name: value for name, value in stripped if value and "$" not in value}


def _started(stage: _Stage) -> tuple[Started, tuple[int, int]] | None:
    """The server that the image starts, and from where to where its words stand."""
    said = [each for each in (stage.entrypoint, stage.command) if each is not None]
    if not said or stage.image is None:
        return None
    lists = [_listed(each) for each in said]
    if len(said) == 2 and (lists[0] is None or lists[1] is None):
        said, lists = said[:1], lists[:1]  # a text of ENTRYPOINT's leaves CMD out; one of CMD's is no flag
    words = [word for each in lists for word in each or ()]
    script = None if lists[0] is None else _script(words)
    if lists[0] is None or script is not None:
        start, text = (said[0].start, said[0].text) if script is None else script
        runs = commands_at(start, text, stage.variables)
        words = next((run for run in runs if read_server(run) is not None), [])
    started = read_server(words)
    span = (said[0].start, said[-1].start + len(said[-1].text.rstrip()))
    if started is not None:
        return started._replace(image=stage.image), span
    name = stage.image.text or ""
    server = server_of_image(name) or own_image_of(name, words)
    if server is None or stage.entrypoint is not None or not words:
        return None
    if not (words[0].text or "").startswith("-") and not names_model(server, words):
        return None
    return Started(server, words, stage.image, stage.image), span


def _listed(instruction: _Instruction) -> list[Argument] | None:
    """The words of a list, which no shell goes through; None of a text."""
    body = instruction.text.strip()
    if not (body.startswith("[") and body.endswith("]")):
        return None
    found = []
    for match in _TEXT.finditer(instruction.text):
        text = json.loads(match[0])
        start = instruction.start + match.start() + 1
        plain = None if "$" in text else text  # no shell goes through a list: Docker hands the sign on
        begins = re.match(r"[^$=]*=|", text)
        found.append(Argument(plain, start, start + len(match[0]) - 2, begins=begins[0] if begins else ""))
    return found


def _script(words: Sequence[Argument]) -> tuple[int, str] | None:
    """The text of ``["sh", "-c", "…"]``, and where it begins."""
    place = text_of_shell([word.text for word in words])
    word = None if place is None else words[place]
    return None if word is None or word.text is None else (word.start, word.text)


def commands_at(start: int, text: str, variables: Mapping[str, str]) -> list[list[Argument]]:
    """The words of each command in a shell's text that begins at ``start`` of its file; a word that a variable holds
    stands where the text does."""
    script = " " * start + text
    environment = Environment(script)
    environment.know(variables)
    return [
        [
            word if word.start >= start else word._replace(start=start, end=start + 1)
            for word in run
            if word.text != "" or not word.from_variable
        ]
        for command in split_commands(script)
        for run in runs_in(command, environment.take(command), environment)
    ]
