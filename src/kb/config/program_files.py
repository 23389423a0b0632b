"""The files of a project that a Python program brings in, modules of its own and configs that it loads, and those that
a script's command means. Never run."""

import os
import tomllib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kb.config.files import ConfigError, read_if_any
from kb.config.programs import MAX_ENTRIES, SKIPPED, Top, upward, written_out
from kb.config.releases.files import within
from kb.config.text.parsing import parse

if TYPE_CHECKING:
    from kb.config.python.places import Imported

MAX_BYTES = 1 << 20  # of one module, of one file of data
MAX_FOLDERS = 8  # how far above a program a path may begin: runs are started from a folder above it
_DATA = (".yaml", ".yml", ".json", ".toml")

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
