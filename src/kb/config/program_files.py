"""The files of a project that a Python program brings in, modules of its own and configs that it loads, and those that
a script's command means. Never run."""

import os
import re
import tomllib
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from kb.config.files import ConfigError, read_if_any
from kb.config.programs import (
    MAX_ENTRIES,
    MAX_FILES,
    MAX_LOOKED,
    SCRIPTS,
    SKIPPED,
    Top,
    files_below,
    upward,
    written_out,
)
from kb.config.releases.files import within
from kb.config.text.parsing import parse
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.places import Imported

MAX_BYTES = 1 << 20  # of one module, of one script, of one file of data
MAX_CHANGES, MAX_BRACKET = 200, 1 << 12  # of the folder in one script; of the text in one bracket
MAX_FOLDERS = 8  # how far above a program a path may begin: runs are started from a folder above it
_DATA = (".yaml", ".yml", ".json", ".toml")
_APART = r"[\s\"'=:,;()<>`]+"  # of a line's words: with them taken apart no pattern runs over a long one
_FLAG = r"(?<![\w-])--([A-Za-z][\w-]*)(?:=|[ \t]+(?!-))?([^\s\"']*)"
# What starts a run; of a module or a script what stands before it is the launcher's.
_PROGRAM = r"^.*?(?:\S\.py(?![\w.])|\s-m\s+[\w.]+)|^.*?(?<![\w/.-])(?:trl|axolotl|llamafactory-cli|swift|tune)\s"
_ENDS = r"&&|\|\||[;|]|(?<=\s)#.*"
_TO_FOLDER = r"(?:^|&&|\|\||[;({]|\bthen\b|\bdo\b)[ \t]*(?:cd|pushd)[ \t]+([^\n;&|]*)"
_ITS_OWN = r"\$\(\s*dirname\s+(?:--\s+)?\"?\$(?:0|\{?BASH_SOURCE[^}\s\"]*\}?)\"?\s*\)"

Lookup = Callable[[str, str], str | None]


class ProgramFiles:
    """Finds what a program imports and loads below its project's top.

    Args:
        module: looks a module up by the program that asks and what it asks for, as :meth:`module_text` does.
        data: the same of a file of data, as :meth:`data_text` does.
    """

    def __init__(self, module: Lookup, data: Lookup) -> None:
        self._module, self._data = module, data

    def module(self, path: str, imported: "Imported") -> tuple[str, str] | None:
        """The path and the text of the project's own module; None of any other."""
        found = self._module(path, f"{'.' * imported.level}{imported.module}")
        if found is None:
            return None
        where, _, text = found.partition("\n")
        return where, text

    def data(self, path: str, named: str) -> tuple[str, Any] | None:
        """The path of a YAML, JSON or TOML file and what it says; None where there is none that can be read."""
        found = self._data(path, named)
        if found is None:
            return None
        where, _, text = found.partition("\n")
        try:
            if where.endswith(".toml"):
                return where, tomllib.loads(text)
            documents = [each for each in parse(text, where).documents if each is not None]
            return (where, documents[0].plain()) if len(documents) == 1 else None
        except (ConfigError, ValueError, RecursionError):
            return None

    @staticmethod
    def module_text(top: str | None, path: str, named: str) -> str | None:
        """The module that the program at ``path`` imports as ``named``, with the dots before it; its path comes first.

        Args:
            top: the project's top above the program; None where there is none.
        """
        if top is None:
            return None
        folder = os.path.dirname(os.path.abspath(path))
        dots = len(named) - len(named.lstrip("."))
        parts = [part for part in named.split(".") if part]
        starts = list(dict.fromkeys((folder, *_above(folder, top), os.path.join(top, "src"))))
        if dots:
            starts = [os.path.normpath(os.path.join(folder, *[".."] * (dots - 1)))]
        for start in starts:
            base = os.path.join(start, *parts)
            for candidate in (base + ".py", os.path.join(base, "__init__.py")):
                text = _text(candidate, top)
                if text is not None:
                    return f"{candidate}\n{text}"
        return None

    @staticmethod
    def data_text(top: str | None, path: str, named: str) -> str | None:
        """The file of data that the program at ``path`` loads as ``named``, relative to it or to a folder above it; its
        path comes first.
        """
        if top is None or not named.endswith(_DATA) or "$" in named:
            return None
        folder = os.path.dirname(os.path.abspath(path))
        for start in (folder, *_above(folder, top)):
            candidate = os.path.normpath(os.path.join(start, named))
            text = _text(candidate, top)
            if text is not None:
                return f"{candidate}\n{text}"
        return None


def _above(folder: str, top: str) -> list[str]:
    """The folders above one, up to the project's top."""
    found: list[str] = []
    while folder != top and len(found) < MAX_FOLDERS and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
        found.append(folder)
    return found


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
        self._below: dict[str, Callable[[str], list[str]]] = {}

    def meant(self, script: str, named: str) -> str | None:
        """The file that a command in ``script`` names: beside it or in a folder above. A command may be run in another
        folder; then it is the one file of the project that has this name. None where there are several, or none."""
        top, folder = self._top(script), os.path.dirname(os.path.abspath(script))
        if top is None:
            return None
        if (folder, named) not in self._found:
            self._found[folder, named] = upward(folder, top, named) or self._only_one(top, written_out(named))
        return self._found[folder, named]

    @staticmethod
    def gone_to(before: str) -> str:
        """The folder that the part of a script has gone to which stands before a command."""
        return folders_gone_to(before)(len(before))

    def _only_one(self, top: str, end: str) -> str | None:
        if top not in self._below:
            self._below[top] = _by_name(top)
        alike = [each for each in self._below[top](os.path.basename(end)) if f"/{each}".endswith(f"/{end}")]
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


class StartedConfigs:
    """What the commands of a project set themselves as they start a run with a config: its own value does not count
    then. ``train.py recipes/dpo.yaml --learning_rate=${lr}``: parsers of a config and flags take what the flags say.
    Each project's scripts are looked up once. ``top`` is as of :class:`kb.config.programs.ProgramReader`.
    """

    def __init__(self, top: Top) -> None:
        self._top = top
        self._found: dict[str, dict[str, list[_Start]]] = {}

    def set_by_commands(self, path: str) -> dict[str, str]:
        """The flags that each command gives which may name the config at ``path``, with their values, empty where they
        differ; none where a line names it that starts nothing known."""
        if (top := self._top(path)) is None:
            return {}
        if top not in self._found:
            self._found[top] = _commands(top)
        whole = os.path.abspath(path)
        rows = self._found[top].get(os.path.basename(path), ())
        found = [row.flags for row in rows if row.may_name(whole, top)]
        given = [flags for flags in found if flags is not None]
        if not given or len(given) < len(found):
            return {}
        values = {name: {each.get(name) for each in given} for name in given[0]}
        return {name: said.pop() or "" if len(said) == 1 else "" for name, said in values.items() if None not in said}


class _Start(NamedTuple):
    """A config as a command in a script names it, from the folders that the script goes to before; the command's flags,
    None of what starts no run."""

    script: str
    named: str
    gone_to: str
    flags: dict[str, str] | None

    def may_name(self, path: str, top: str) -> bool:
        """Whether it is the config at ``path``, or, where no file of that name lies there, may be."""
        folder = os.path.dirname(self.script)
        meant = upward(folder, top, os.path.join(self.gone_to, self.named)) or upward(folder, top, self.named)
        if meant is not None:
            return os.path.realpath(meant) == os.path.realpath(path)
        return path.replace(os.sep, "/").endswith(f"/{written_out(self.named)}")


def _commands(top: str) -> dict[str, list[_Start]]:
    """The configs that the scripts below a folder name, by the name of the file."""
    looked, found = 0, dict[str, list[_Start]]()
    for path in islice(files_below(top, SCRIPTS), MAX_FILES):
        raw = read_if_any(path, MAX_BYTES)
        if raw is None or looked > MAX_LOOKED:
            continue
        looked += len(raw)
        text = re.sub(r"\\\r?\n", lambda joined: " " * len(joined[0]), raw.decode("utf-8", "replace"))
        gone_to, at = folders_gone_to(text), 0
        for line in text.splitlines(keepends=True):
            begin, at = at, at + len(line)
            for command in () if line.lstrip().startswith("#") else re.split(_ENDS, line):
                begin += len(command)
                for word in re.split(_APART, command):
                    if word.endswith(_DATA):
                        start = _Start(path, word, gone_to(begin), _flags(command))
                        found.setdefault(os.path.basename(word), []).append(start)
    return found


def folders_gone_to(text: str) -> Callable[[int], str]:
    """The folder that a script has gone to before a place in it, as far as it is written out, from the one that the
    script is started in: ``cd project && python train.py``. Empty where it goes to none, or one that is not told."""
    changes: list[tuple[int, int, str]] = []
    for found in islice(re.finditer(_TO_FOLDER, text, re.M), MAX_CHANGES):
        line = text.rfind("\n", 0, found.start()) + 1
        within = "(" in text[line : found.start() + 1]
        changes.append((found.end(), _closed(text, found.start(1)) if within else len(text), found[1]))

    def before(place: int) -> str:
        folder = ""
        for at, until, target in changes:
            if at <= place <= until:
                folder = _gone(folder, target)
        return folder

    return before


def _closed(text: str, start: int) -> int:
    """Where the bracket closes that is open at a place."""
    open_ones = 1
    for at in range(start, min(len(text), start + MAX_BRACKET)):
        open_ones += (text[at] == "(") - (text[at] == ")")
        if not open_ones:
            return at
    return len(text)


def _gone(folder: str, target: str) -> str:
    """The folder after ``cd`` to a target: of one that a variable stands for what is written behind it."""
    target, own = re.subn(_ITS_OWN, ".", target.split(" #")[0].strip())
    target = re.sub(r"[\"' ]|\)$", "", target)
    if target in ("", "-", "~"):
        return ""
    if own or target.startswith("/") or "$" in target or "`" in target:
        return written_out(f"{target}/.").removesuffix(".").strip("/")
    return os.path.normpath(os.path.join(folder, target))


def _flags(command: str) -> dict[str, str] | None:
    """The flags of a command that starts a run, with ``_`` for ``-``; None of any other."""
    begun = re.search(_PROGRAM, command)
    given = re.findall(_FLAG, command[begun.end() :]) if begun else ()
    return {name.replace("-", "_"): value for name, value in given} if begun else None
