"""The files of a project that a Python program brings in, modules of its own and configs that it loads, and those that
a script's command means. Never run."""

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from kb.config.files import ConfigError, read_if_any, upwards
from kb.config.programs import (
    DOCUMENTS,
    MAX_ENTRIES,
    MAX_FILES,
    OF_A_HOST,
    SKIPPED,
    Top,
    files_below,
    module_bases,
    upward,
    written_out,
)
from kb.config.releases.statements import within
from kb.config.shell.arguments import GPUS_OF_TASK, Held, held_at
from kb.config.shell.folders import ANY, end_of, names_from
from kb.config.text.nodes import by_omegaconf
from kb.config.text.parsing import parse

if TYPE_CHECKING:
    from kb.config.python.places import Imported

MAX_BYTES = 1 << 20  # of one module, of one script, of one file of data
MAX_FOLDERS = 8  # how far above a program a path may begin: runs are started from a folder above it
_INSTALLED = frozenset(("site-packages", "dist-packages"))  # whose modules are no project's own
_DATA = (".yaml", ".yml", ".json", ".toml")
_OPENS = r"^[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?(`{3,}|~{3,})[ \t]*([^`\n]*)$"  # in a list or a quotation as well
_OF_A_SHELL = frozenset((
    "", "bash", "sh", "shell", "zsh", "console", "shell-session", "shellsession", "sh-session", "text",
))  # fmt: skip
_PROMPT = r"^[ \t>]*(?:[$%][ \t]+(?=\S)|!(?=\w))"  # of a terminal or a notebook
_STARTS = r"\b(?:python3?|torchrun|accelerate|deepspeed|srun|trl|axolotl|llamafactory-cli|swift|tune)\b"

Lookup = Callable[[str, str], str | None]


class ProgramFiles:
    """Finds what a program imports and loads below its project's top.

    Args:
        module: looks a module up by the program that asks and what it asks for, as :meth:`module_text` does.
        data: the same of a file of data, as :meth:`data_text` does.
        imports: the first program of a path's project that imports a library, as :meth:`importing` finds it.
    """

    def __init__(self, module: Lookup, data: Lookup, imports: Lookup) -> None:
        self._module, self._data, self._imports = module, data, imports

    def module(self, path: str, imported: "Imported") -> tuple[str, str] | None:
        """The path and the text of the project's own module; None of any other."""
        found = self._module(path, f"{'.' * imported.level}{imported.module}")
        if found is None:
            return None
        where, _, text = found.partition("\n")
        return where, text

    def data(self, path: str, named: str, omegaconf: bool = False) -> tuple[str, Any] | None:
        """The path of a YAML, JSON or TOML file and what it says, to PyYAML or to OmegaConf; None where there is none
        that can be read."""
        found = self._data(path, named)
        if found is None:
            return None
        where, _, text = found.partition("\n")
        try:
            if where.endswith(".toml"):
                return where, tomllib.loads(text)
            documents = [each for each in parse(text, where).documents if each is not None]
            if len(documents) != 1:
                return None
            return where, by_omegaconf(documents[0]) if omegaconf else documents[0].plain()
        except (ConfigError, ValueError, RecursionError):
            return None

    def any_imports(self, path: str, library: str) -> bool:
        """Whether some program of the project imports a library."""
        return self._imports(path, library) is not None

    @staticmethod
    def importing(top: str | None, library: str) -> str | None:
        """The first program below a project's top that imports a library."""
        named = re.compile(rf"^[ \t]*(?:from|import)[ \t]+{re.escape(library)}\b", re.M)
        programs = islice(files_below(top, (".py",)), MAX_FILES) if top is not None else ()
        return next((each for each in programs if named.search(_text(each, top or "") or "")), None)

    @staticmethod
    def module_text(top: str | None, path: str, named: str) -> str | None:
        """The module that the program at ``path`` imports as ``named``, with the dots before it; its path comes first.

        Args:
            top: the project's top above the program; None where there is none.
        """
        if top is None:
            return None
        folder = os.path.dirname(os.path.abspath(path))
        bases = module_bases(named, folder, (*_up_to(folder, top), os.path.join(top, "src")))
        bases = [base for base in bases if _INSTALLED.isdisjoint(base.split(os.sep))]
        return _first(top, [path for base in bases for path in (base + ".py", os.path.join(base, "__init__.py"))])

    @staticmethod
    def data_text(top: str | None, path: str, named: str) -> str | None:
        """The file of data that the program at ``path`` loads as ``named``, relative to it or to a folder above it; its
        path comes first.
        """
        if top is None or not named.endswith(_DATA) or "$" in named:
            return None
        folder = os.path.dirname(os.path.abspath(path))
        return _first(top, [os.path.normpath(os.path.join(start, named)) for start in _up_to(folder, top)])


def _first(top: str, paths: Sequence[str]) -> str | None:
    """The text of the first file that can be read, behind its path."""
    for path in paths:
        text = _text(path, top)
        if text is not None:
            return f"{path}\n{text}"
    return None


def _up_to(folder: str, top: str) -> Iterator[str]:
    """A folder, and those above it up to the project's top."""
    for each in islice(upwards(folder), MAX_FOLDERS + 1):
        yield each
        if each == top:
            return


def _text(path: str, top: str) -> str | None:
    """A file's text, where it lies in the project: what a stranger's program names elsewhere is not read."""
    if not os.path.isfile(path):  # as most candidates are: following each step's links takes far longer
        return None
    if not within(os.path.realpath(path), os.path.realpath(top)):
        return None
    raw = read_if_any(path, MAX_BYTES)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


class StartedFiles:
    """The file that a command in a script means: sub-projects often have files of the same name. Each name is looked up
    once. ``top`` is as of :class:`kb.config.programs.ProgramReader`."""

    def __init__(self, top: Top) -> None:
        self._top = top
        self._found: dict[tuple[str, str], str | None] = {}
        self._below = cache(_by_name)

    def meant(self, script: str, named: str) -> str | None:
        """The file that a command in ``script`` names: beside it or in a folder above. A command may be run in another
        folder; then it is the one file of the project that has this name, as of
        :func:`kb.config.shell.folders.names_from`. None where there are several, or none."""
        top, folder = self._top(script), os.path.dirname(os.path.abspath(script))
        if top is None or named.startswith(OF_A_HOST):
            return None
        if (folder, named) not in self._found:
            end = end_of(named)
            beside = upward(folder, top, named) if end is None else None
            self._found[folder, named] = beside or self._only_one(top, end or written_out(named))
        return self._found[folder, named]

    @staticmethod
    def names(folder: str | None, named: str) -> list[tuple[str, str | None]]:
        """What a command in a folder may mean by a name, the surest first, each with the end of a path where it is no
        more than that."""
        return [(name, end_of(name)) for name in names_from(ANY if folder is None else folder, named)]

    @staticmethod
    def blocks_of(path: str, text: str, named: str) -> Sequence[str]:
        """What of a file that names another a shell may be given: of a script all, of Markdown its code blocks. None of
        Markdown that names it where something else starts it, too: in a sentence, a comment, a block of other code."""
        if not path.endswith(DOCUMENTS):
            return [text]
        blocks = [code for _, code in shell_blocks(text)]
        return blocks if _times(text, named) == sum(_times(code, named, read=True) for code in blocks) else ()

    def _only_one(self, top: str, end: str) -> str | None:
        alike = [each for each in self._below(top)(os.path.basename(end)) if f"/{each}".endswith(f"/{end}")]
        return os.path.join(top, alike[0]) if len(alike) == 1 else None


def _by_name(top: str) -> Callable[[str], list[str]]:
    """The paths below a folder by the name of the file; none where there are too many to tell which is the only one."""
    found, entries = dict[str, list[str]](), 0
    for folder, folders, files in os.walk(top):
        entries += len(folders) + len(files)
        if entries > MAX_ENTRIES:
            return lambda name: []
        folders[:] = [each for each in folders if each not in SKIPPED and each[:1] != "."]
        inner = os.path.relpath(folder, top)
        for name in files:
            found.setdefault(name, []).append(os.path.normpath(os.path.join(inner, name)).replace(os.sep, "/"))
    return lambda name: found.get(name, [])


def _times(text: str, named: str, *, read: bool = False) -> int:
    """In how many commands, or sentences that may be such, a text starts something with what is ``named``; with
    ``read`` in those alone that a shell runs."""
    lines = re.sub(r"\\\r?\n", " ", text).splitlines()
    of_a_shell = (line for line in lines if not (read and line.lstrip().startswith("#")))
    return sum(named in line and re.search(_STARTS, line) is not None for line in of_a_shell)


def shell_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The code blocks of Markdown that a shell may be given, each with where it starts.

    Where a block has prompts its other lines are output, and left blank, as the prompts are: places stay the same.
    What a comment of HTML holds, or has a quote that does not end, is left out.
    """
    for start, code in _fenced(re.sub(r"(?s)<!--.*?-->", lambda found: _blank(found[0]), text)):
        commands = _without_prompts(code)
        try:
            shlex.split(commands, comments=True)
        except ValueError:  # a quote without its end would take in what comes behind it
            continue
        yield start, commands


def _fenced(text: str) -> Iterator[tuple[int, str]]:
    """The fenced blocks in a language of a shell, or in none that is said."""
    at, opened, fence, wanted = 0, -1, "", False
    for line in text.splitlines(keepends=True):
        bare = line.strip(" \t>\r\n")
        if opened < 0:
            found = re.match(_OPENS, line.rstrip("\r\n"))
            if found is not None:
                language = found[2].lower().split()
                opened, fence, wanted = at + len(line), found[1], (language[0] if language else "") in _OF_A_SHELL
        elif bare.startswith(fence) and not bare.strip(fence[0]):
            if wanted:
                yield opened, text[opened:at]
            opened = -1
        at += len(line)


def _without_prompts(code: str) -> str:
    lines, goes_on = re.sub(r"(?m)^[ \t]*>[ \t>]*", lambda found: " " * len(found[0]), code).splitlines(True), False
    prompted = any(re.match(_PROMPT, line) for line in lines)
    kept = list[str]()
    for line in lines:
        found = re.match(_PROMPT, line)
        if found is not None:
            line = " " * len(found[0]) + line[len(found[0]) :]
        kept.append(line if found is not None or goes_on or not prompted else _blank(line))
        goes_on = (found is not None or goes_on) and line.rstrip().endswith("\\")
    return "".join(kept)


def shell_alone(text: str) -> str:
    """The text as a script of the same length: with nothing but those blocks, all else left blank."""
    return _alone(text, shell_blocks(text))


_ENTRY = r"""(?m)^[ \t]+(\w+):[ \t]*(?:(["'])([^"'$\\\n]*)\2|([^\s#"'&*!|>{[$][^\n$]*?))?(?:[ \t]+#.*)?[ \t]*$"""
_ACCELERATORS = (
    r"""(?mi)\baccelerators:[ \t]*\{?["']?(?!tpu|trainium|inferentia|gaudi)[a-z][\w-]*["']?"""
    r"""(?::[ \t]*(\d+))?["']?\}*[ \t]*(?:#.*)?$"""
)
_BODY = r"[^\n]*\n((?:[ \t]+[^\n]*\n?|\n)*)"


def task_alone(text: str, part: str = "run") -> str:
    """What a task of SkyPilot's runs, or its ``setup``, as a script of the same length; empty where it is none. Its
    margin, which YAML takes away, is of tabs. Source: SkyPilot's documentation of its YAML."""
    if re.search(r"(?m)^resources:", text) is None or re.search(r"(?m)^run:[ \t]*\|", text) is None:
        return ""
    found = re.search(rf"(?m)^{part}:[ \t]*\|{_BODY}", text)
    if found is None:
        return ""
    margin = re.search(r"(?m)^[ \t]*(?=\S)", found[1])
    width = len(margin[0]) if margin is not None else 0
    return _alone(text, [(found.start(1), re.sub(rf"(?m)^ {{{width}}}", "\t" * width, found[1]))])


def variables_of_task(text: str) -> dict[str, Held | None]:
    """What ``envs`` of such a task says, at its place; ``sky launch --env`` may say otherwise. None: not known. The
    GPUs of a node are told by a variable, too."""
    found: dict[str, Held | None] = {}
    gpus = re.findall(_ACCELERATORS, text)
    if len(gpus) == 1 and "any_of:" not in text and "ordered:" not in text:
        held = held_at(gpus[0] or "1", 0, 0)
        several = re.search(r"(?m)^num_nodes:[ \t]*1?[ \t]*[^\s1#]", text) is not None
        found[GPUS_OF_TASK] = held._replace(defaults=frozenset(held.offsets if several else ()))
    block = re.search(rf"(?m)^envs:{_BODY}", text)
    if block is None:
        return found
    found |= dict.fromkeys(re.findall(r"(?m)^[ \t]+(\w+):", block[1]))
    for said in re.finditer(_ENTRY, block[1]):
        value = said[3] if said[2] else said[4]
        if value and value not in ("null", "~"):
            start = block.start(1) + said.start(3 if said[2] else 4)
            held = held_at(value, start, start + len(value))
            found[said[1]] = held._replace(defaults=frozenset(held.offsets))
    return found


def _alone(text: str, blocks: Iterable[tuple[int, str]]) -> str:
    parts, at = list[str](), 0
    for start, code in blocks:
        parts += (_blank(text[at:start]), code)
        at = start + len(code)
    return "".join((*parts, _blank(text[at:]))) if parts else ""


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
