"""Commands that install: ``pip install`` and its like in shell text, images, workflows, notebooks and Python."""

import os
import re
from collections.abc import Iterator, Sequence

from kb.config.releases.requirement import bring_in, conda_requirement, logical_lines, read_requirement
from kb.config.releases.statements import ELSEWHERE, IMAGE, LIBRARIES, Folder, Requirement, regular_files
from kb.config.shell.expand import Environment
from kb.config.shell.lexer import split_commands
from kb.config.shell.nested import runs_in

MAX_TEXT = 200_000  # characters of the commands of one file that are taken apart
_TOOLS = ("pip", "conda", "mamba", "poetry", "uv", "pdm")
_PIP = re.compile(r"pip(?:[0-9]+(?:\.[0-9]+)?)?")
# Options whose value is the next word.
_VALUED = re.compile(
    "-[iftnp]|--(?:index-url|extra-index-url|default-index|index|index-strategy|find-links|target|platform|python"
    "|python-version|prefix|root|src|upgrade-strategy|proxy|cache-dir|torch-backend|trusted-host|timeout|no-binary"
    "|only-binary|progress-bar|log|report|name|channel|group|extra)"
)
_UPGRADE = re.compile("-[a-zA-Z]*U[a-zA-Z]*|--upgrade|--pre")
_IMAGE = re.compile(
    r"\s*FROM\s+(?:--\S+\s+)*(?:\S+/)?(pytorch/pytorch|huggingface/transformers-pytorch-gpu):v?([0-9]+(?:\.[0-9]+)+)",
    re.I,
)
_IMAGES = {"pytorch/pytorch": "torch", "huggingface/transformers-pytorch-gpu": "transformers"}
_KEY = re.compile(r"\s*(?:-\s+)?[\w-]+:\s+(?=\S)(?![>|])")
_MARK = re.compile(r"^[\s@-]*(?:[!%]+\s*|RUN\s+(?:--\S+\s+)*)")


def installs(text: str) -> bool:
    """Whether it is worth reading for such commands."""
    return "install" in text or " add " in text


def read_shell(
    folder: Folder, path: str, text: str, level: int, *, lines: Sequence[int] | None = None, script: bool = False
) -> None:
    """Every installing command of text that has such commands in it: of a ``script`` as its shell runs them, of other
    text line by line, as a quote in it may be an apostrophe.

    Args:
        lines: the line in the file of each line of ``text``, where they differ.
    """
    if not installs(text):
        return
    left, whole = MAX_TEXT, script and len(text) <= MAX_TEXT
    for number, part in [(1, text)] if whole else logical_lines(text):
        if left > 0 and installs(part) and any(tool in part for tool in _TOOLS) and _names_one(part):
            left -= len(part)
            for words, at in _commands(part if whole else _MARK.sub("", part, count=1)):
                line = number + (part.count("\n", 0, at) if whole else 0)
                read_command(folder, path, words, lines[line - 1] if lines else line, level)


def _names_one(line: str) -> bool:
    """Whether a line can concern a library that kb cares about: taking the words of others apart is for nothing."""
    lower = line.lower().replace("_", "-")
    return any(name in lower for name in LIBRARIES) or " -r" in line or " -c" in line or " --req" in line


def read_dockerfile(folder: Folder, path: str) -> None:
    """``RUN pip install …``, and images that are named for the release they hold."""
    text = folder.text(path)
    if text is not None:
        read_image(
            folder, path, text, IMAGE if os.path.basename(path) in ("Dockerfile", "Containerfile") else ELSEWHERE
        )


def read_image(folder: Folder, path: str, text: str, level: int) -> None:
    """A Dockerfile's text."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):  # Docker leaves it out before it joins a step's lines
            lines[number - 1] = "\\" if number > 1 and lines[number - 2].endswith("\\") else ""
        found = _IMAGE.match(line)
        if found:
            folder.say(read_requirement(f"{_IMAGES[found[1].lower()]}=={found[2]}"), path, number, level)
    read_shell(folder, path, "\n".join(lines), level)


def read_workflows(folder: Folder, path: str) -> None:
    """The workflows below ``.github``."""
    for file in regular_files(os.path.join(path, "workflows"), (".yml", ".yaml")):
        text = folder.text(file)
        if text is not None and installs(text):  # a step on one line has its key before it
            shell = "\n".join(_KEY.sub("", line, count=1) for line in text.splitlines())
            read_shell(folder, file, shell, ELSEWHERE)


def _commands(text: str) -> Iterator[tuple[list[str], int]]:
    """The words of each command, and where it begins. A word that is not the same in every run is as it is written."""
    environment = Environment(text)
    for command in split_commands(text):
        for run in runs_in(command, environment.take(command), environment, here=True):
            written = (text[word.start : word.end].strip("\"'") for word in run)
            yield (
                [
                    raw if word.text is None or word.by_default else word.text
                    for word, raw in zip(run, written, strict=True)
                ],
                run[0].start if run and not run[0].shared else command.start,
            )


def read_command(folder: Folder, path: str, words: Sequence[str], line: int | None, level: int) -> None:
    """One command's words, if it installs something."""
    found = _installer(words)
    if found is None:
        return
    kind, arguments = found
    upgrades = any(_UPGRADE.fullmatch(each) for each in arguments)
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        following = arguments[at] if at < len(arguments) else ""
        if word in ("-r", "--requirement", "-c", "--constraint") and kind == "pip":
            bring_in(folder, path, line or 1, following, level, must=False)
            at += 1
        elif word in ("-e", "--editable"):
            folder.say(read_requirement(following), path, line, level)
            at += 1
        elif _VALUED.fullmatch(word) or (kind == "conda" and word == "-c"):
            at += 1
        elif not word.startswith("-"):
            requirement = conda_requirement(word) if kind == "conda" else _of_word(word)
            if requirement is not None and upgrades and not requirement.specifier:
                requirement = requirement._replace(floating=True)
            folder.say(requirement, path, line, level)


def _of_word(word: str) -> Requirement | None:
    """A requirement in which a variable stands for the release says no more than the name."""
    bare = re.split(r"[=<>~!]+\s*(?=[^\s]*[${`])", word, maxsplit=1)[0]
    return read_requirement(bare) if "$" not in bare and "{" not in bare else None


def _installer(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Which tool installs, and what it is given: of ``sudo python3 -m pip install -q torch`` pip, and the rest."""
    at = 0
    while at < len(words) and (words[at] in ("sudo", "-H", "-E", "exec") or re.match(r"\w+=", words[at])):
        at += 1
    rest = list(words[at:])
    if "-m" in rest[1:4]:  # python3 -u -m pip
        rest = rest[rest.index("-m") + 1 :]
    if rest and rest[0] in ("conda", "mamba", "micromamba") and "run" in rest[1:2] and "pip" in rest:
        rest = rest[rest.index("pip") :]
    if not rest:
        return None
    tool = rest[0].rpartition("/")[2]
    if tool in ("uv", "poetry", "pdm") and rest[1:2] == ["add"]:
        return "pip", rest[2:]
    if tool == "uv" and rest[1:3] == ["pip", "install"]:
        return "pip", rest[3:]
    if "install" not in rest[1:4]:
        return None
    arguments = rest[rest.index("install") + 1 :]
    if _PIP.fullmatch(tool):
        return "pip", arguments
    return ("conda", arguments) if tool in ("conda", "mamba", "micromamba") else None
