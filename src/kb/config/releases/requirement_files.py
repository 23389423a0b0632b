"""Files in pip's format: requirements and constraints with what they bring in, environment.yml, and lock files."""

import json
import os
import re
from collections.abc import Iterator
from itertools import islice

from kb.config.releases.files import MAX_FILES, MAX_LOCK_BYTES, Folder, line_of, regular_files
from kb.config.releases.requirement import conda_requirement, library_of, read_requirement, tagged
from kb.config.releases.statements import CONSTRAINTS, DECLARED, LOCK, OPTIONAL, Requirement

_OPTION = re.compile(r"\s*(-r|--requirement|-c|--constraint|-e|--editable)(?:\s+|=|(?<=-[rce]))(\S+)")
_PACKAGE = re.compile(r"^\[\[packages?\]\][ \t]*$", re.M)
_FIELD = re.compile(r'^(name|version)[ \t]*=[ \t]*["\']([^"\'\n]{1,120})["\']', re.M)
MAX_LINE = 20_000
MAX_ASKED = 500  # names after -r and -c in one file and what it brings in
MAX_PACKAGES = 50_000  # of a lock file


def read_requirements(folder: Folder, path: str, level: int) -> None:
    """A requirements file with what its ``-r`` and ``-c`` bring in."""
    _Includes(folder).read(path, level)


def read_requirements_folder(folder: Folder, path: str) -> None:
    """A folder ``requirements``, with a file for each use."""
    for file in regular_files(path, (".txt", ".in")):
        read_requirements(folder, file, OPTIONAL)


def bring_in(folder: Folder, path: str, number: int, named: str, level: int, *, must: bool = True) -> None:
    """What ``-r named`` in the file at ``path`` brings in. What ``must`` not be there is no fault where it is not: the
    commands of an image run in the image."""
    if must or os.path.isfile(os.path.join(os.path.dirname(path), named)):
        _Includes(folder).bring_in(path, number, named, level)


class _Includes:
    """Files bring one another in: each is read once, and only inside the project."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._open: list[str] = []
        self._done: set[str] = set()
        self._asked: set[tuple[str, str]] = set()

    def read(self, path: str, level: int) -> None:
        real = os.path.realpath(path)
        text = None if real in self._done else self._folder.text(path)
        self._done.add(real)
        if text is None:
            return
        self._open.append(real)
        for number, line in logical_lines(text):
            option = _OPTION.match(line)
            if option is None:
                self._folder.say(read_requirement(line), path, number, level)
            elif option[1] in ("-e", "--editable"):
                self._folder.say(read_requirement(option[2]), path, number, level)
            else:
                # a file of constraints says nothing of its own: it narrows what is asked for beside it
                inner = CONSTRAINTS if option[1] in ("-c", "--constraint") and level < CONSTRAINTS else level
                self.bring_in(path, number, option[2].strip("\"'"), inner)
        self._open.pop()

    def bring_in(self, path: str, number: int, named: str, level: int) -> None:
        if "://" in named or "$" in named or "\0" in named:
            return
        wanted = os.path.join(os.path.dirname(path), named)
        if (path, wanted) in self._asked or len(self._asked) > MAX_ASKED:
            return
        self._asked.add((path, wanted))
        real = os.path.realpath(wanted)
        if real in self._open:
            self._folder.report("cycle", path, number, name=named)
        elif not self._folder.holds(wanted):
            self._folder.report("outside", path, number, name=named)
        elif not os.path.lexists(wanted):
            self._folder.report("missing", path, number, name=named)
        elif len(self._done) >= MAX_FILES:
            self._folder.report("too_many", path, number, limit=MAX_FILES)
        else:
            self.read(os.path.normpath(wanted), level)


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line with its number; one that ends in a backslash goes on. Of a huge line only the beginning is read."""
    pending, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        pending += line[:MAX_LINE]
        if pending.endswith("\\") and len(pending) < MAX_LINE and not pending.lstrip().startswith("#"):
            pending = pending[:-1] + " "
            continue
        yield start, pending
        pending, start = "", 0
    if pending:
        yield start, pending


def read_environment(folder: Folder, path: str, level: int = DECLARED) -> None:
    """conda's environment.yml: the items of ``dependencies``, and below ``pip:`` those in pip's format."""
    text = folder.text(path)
    inside, pip_indent = False, -1
    for number, line in enumerate((text or "").splitlines(), 1):
        bare = line[:MAX_LINE].strip()
        if not bare or bare.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0 and not bare.startswith("-"):
            inside, pip_indent = bare.startswith("dependencies:"), -1
        elif inside and bare.startswith("-"):
            item = re.split(r"\s#", bare[1:].strip())[0].strip().strip("\"'")
            if pip_indent >= 0 and indent <= pip_indent:
                pip_indent = -1
            if re.fullmatch(r"pip\s*:", item):
                pip_indent = indent
            elif pip_indent < 0:
                folder.say(conda_requirement(item), path, number, level)
            elif option := _OPTION.match(item):
                bring_in(folder, path, number, option[2], level)
            else:
                folder.say(read_requirement(item), path, number, level)


def read_lock(folder: Folder, path: str, level: int = LOCK) -> None:
    """uv.lock, poetry.lock, pdm.lock, pylock.toml: a table for each package, written by a program, so that a scan of
    its lines is enough: a parser takes seconds for a large one.
    """
    text = folder.text(path, MAX_LOCK_BYTES)
    if text is None:
        return
    starts = [found.end() for found in islice(_PACKAGE.finditer(text), MAX_PACKAGES)]
    if not starts and text.strip() and "[" not in text:
        folder.report("no_lock", path)
    counted, line = 0, 1
    for at, start in enumerate(starts):
        end = starts[at + 1] if at + 1 < len(starts) else len(text)
        name = _FIELD.search(text, start, min(end, start + 400))
        library = library_of(name[2]) if name and name[1] == "name" else None
        if library is None:
            continue
        stop = text.find("\n[", start, end)  # a table inside the package's own
        version = next(
            (each for each in _FIELD.finditer(text, start, stop if stop > 0 else end) if each[1] != "name"), None
        )
        if version is not None:
            line += text.count("\n", counted, version.start())
            counted = version.start()
            folder.say(read_requirement(f"{library}=={version[2]}"), path, line, level)


def read_pipfile_lock(folder: Folder, path: str, level: int = LOCK) -> None:
    """Pipfile.lock: JSON with ``default`` and ``develop``."""
    text = folder.text(path, MAX_LOCK_BYTES)
    if text is None:
        return
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        folder.report("not_json", path, getattr(error, "lineno", None), error=str(error)[:200])
        return
    for section, own in (("default", level), ("develop", OPTIONAL)):
        packages = data.get(section) if isinstance(data, dict) else None
        for name, entry in packages.items() if isinstance(packages, dict) else ():
            library = library_of(name)
            if library is None or not isinstance(entry, dict):
                continue
            line = line_of(text, (f'"{name}": {{', f'"{name}":{{'))
            if isinstance(entry.get("version"), str):
                folder.say(read_requirement(library + entry["version"]), path, line, own)
            elif isinstance(entry.get("git"), str):
                folder.say(tagged(library, str(entry.get("ref") or "")), path, line, own)
            else:
                folder.say(Requirement(library), path, line, own)
