"""The releases of a project's libraries, from every file that names one."""

import os
from collections.abc import Mapping, Sequence
from functools import cache

from kb.config import releases
from kb.config.files import upwards
from kb.config.releases.statements import (
    CONSTRAINTS,
    MAIN,
    MAX_FILES,
    OPTIONAL,
    Folder,
    Problem,
    Stamp,
    regular_files,
    settle,
    voices,
    within,
)
from kb.core.record import NamedTuple
from kb.core.release import ProjectRelease

_LEVELS = {"main": MAIN, "constraints": CONSTRAINTS, "variant": OPTIONAL}
_READERS = {  # of the other kinds
    "lock": "read_lock",
    "pipfile_lock": "read_pipfile_lock",
    "conda": "read_environment",
    "pyproject": "read_pyproject",
    "pipfile": "read_pipfile",
    "cfg": "read_setup_cfg",
    "setup": "read_setup_py",
    "image": "read_dockerfile",
    "workflows": "read_workflows",
}
_NAMES = {
    "uv.lock": "lock",
    "poetry.lock": "lock",
    "pdm.lock": "lock",
    "Pipfile.lock": "pipfile_lock",
    "requirements.txt": "main",
    "requirement.txt": "main",
    # what a tool, or `pip freeze`, wrote of the environment of requirements.txt; with a word more it is of another
    **dict.fromkeys(
        ("requirements.lock", "requirements.lock.txt", "requirements-lock.txt", "requirements_lock.txt"), "constraints"
    ),
    "pyproject.toml": "pyproject",
    "Pipfile": "pipfile",
    "setup.cfg": "cfg",
    "setup.py": "setup",
    "requirements": "variant",
    ".github": "workflows",
}
_SAY = ("shell", "python", "notebook", "image", "config")
_PATTERNS = (  # what a name begins with, and ends with
    (("pylock.",), (".toml",), "lock"),
    (("constraints",), (".txt",), "constraints"),
    (("environment", "conda"), (".yml", ".yaml"), "conda"),
    (("requirement",), (".txt", ".in"), "variant"),
    (("Dockerfile", "Containerfile"), ("",), "image"),
    (("",), (".dockerfile", ".Dockerfile"), "image"),
)


class Releases(NamedTuple):
    """What is known of a file's project. ``files``: what was looked at, with its time and size."""

    known: Mapping[str, ProjectRelease]
    problems: tuple[Problem, ...] = ()
    files: tuple[Stamp, ...] = ()

    def of(self, library: str) -> ProjectRelease | None:
        """The record of one library; None where no file names it."""
        return self.known.get(library)


NOTHING = Releases({})


class ReleaseReader:
    """Reads each folder once, for one run.

    The project is the repository that a file lies in. Without ``.git`` it is what lies below the working folder, for a
    path relative to that, or below ``root``, whichever is higher; else the file's own folder alone.

    Args:
        root: the folder that the user named.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = os.path.abspath(root) if root is not None else None
        self._tops: dict[tuple[str, bool], str] = {}
        self._read_folder = cache(_read_folder)
        self._found: dict[tuple[str, str], Releases] = {}

    def find(self, path: str, text: str | None = None, kind: str | None = None) -> Releases:
        """What the project of a file or folder says, and the file's own text where it is given.

        Args:
            kind: of some the texts can say releases themselves.
        """
        try:
            absolute = os.path.abspath(path)
            folder = absolute if text is None and os.path.isdir(absolute) else os.path.dirname(absolute)
            top = self.top(folder, relative=not os.path.isabs(path))
        except (OSError, ValueError):  # the working folder is gone, or the path is none
            return NOTHING
        own = self._own(path, top, text, kind) if text and kind in _SAY else None
        return self.of_folder(folder, top) if own is None else _settled([own, *self._chain(folder, top)], own=True)

    def of_folder(self, folder: str, top: str) -> Releases:
        """What the files in a folder, and in those above it up to the project's top, say. Both are absolute."""
        if (folder, top) not in self._found:
            self._found[folder, top] = _settled(self._chain(folder, top))
        return self._found[folder, top]

    def top(self, folder: str, *, relative: bool = False) -> str:
        """The project's top above a folder, which is absolute; ``relative``: was named from the working folder."""
        if (folder, relative) not in self._tops:
            top = next((each for each in upwards(folder) if os.path.exists(os.path.join(each, ".git"))), None)
            if top is None:
                named = [*([os.getcwd()] if relative else []), *([self._root] if self._root is not None else [])]
                top = min((each for each in named if within(folder, each)), key=len, default=folder)
            self._tops[folder, relative] = top
        return self._tops[folder, relative]

    def _own(self, path: str, top: str, text: str, kind: str) -> Folder | None:
        """What a file says itself; None of most: a search of its text tells."""
        if "install" not in text and "# /// script" not in text and " add " not in text and kind != "image":
            return None
        own = releases.read_own(path, top, text, kind)
        return own if own.statements or own.problems else None

    def _chain(self, folder: str, top: str) -> list[Folder | None]:
        """Each folder's word, from the nearest to the top."""
        chain = []
        for each in upwards(folder):
            chain.append(self._read_folder(each, top))
            if each == top:
                break
        return chain


def _settled(chain: Sequence[Folder | None], *, own: bool = False) -> Releases:
    """One record for each library from what all the folders say; ``own``: the first is what the file itself says."""
    if not any(chain):
        return NOTHING
    spoken = [(distance, folder) for distance, folder in enumerate(chain) if folder is not None]
    statements = [each._replace(distance=distance) for distance, folder in spoken for each in folder.statements]
    problems = [problem for _, folder in spoken for problem in folder.problems]
    by_library = voices(statements, problems.append)
    known = {library: settle(library, heard, own=own) for library, heard in by_library.items()}
    return Releases(known, tuple(problems), tuple(stamp for _, folder in spoken for stamp in folder.files.values()))


def _read_folder(path: str, top: str) -> Folder | None:
    """What the files of a folder say; None where none of them promises releases."""
    try:
        names = os.listdir(path)
    except OSError:
        return None
    kinds = sorted((name, kind) for name in names if (kind := _kind(name)))
    if not kinds:
        return None
    folder = Folder(path, top)
    lists = [name for name, kind in kinds if kind in ("main", "variant")]
    for name, kind in kinds[:MAX_FILES]:
        # the only file of requirements is what the project requires, whatever it is called
        _read_one(folder, os.path.join(path, name), "main" if lists == [name] else kind)
    if len(kinds) > MAX_FILES:
        folder.report("too_many", path, limit=MAX_FILES)
    return folder


def _kind(name: str) -> str | None:
    """What kind of file a name promises; None of one that says no releases. Most folders hold many such."""
    known = _NAMES.get(name)
    if known is None and (name[:1] in "pcerDC" or name.endswith("ockerfile")):
        return next((kind for first, last, kind in _PATTERNS if name.startswith(first) and name.endswith(last)), None)
    return known


def _read_one(folder: Folder, path: str, kind: str) -> None:
    """Read a file by the kind that its name says."""
    if kind not in _LEVELS:
        getattr(releases, _READERS[kind])(folder, path)
    elif not os.path.isdir(path):
        releases.read_requirements(folder, path, _LEVELS[kind])
    elif os.path.basename(path) == "requirements":  # with a file for each use
        for file in regular_files(path, (".txt", ".in")):
            releases.read_requirements(folder, file, OPTIONAL)
