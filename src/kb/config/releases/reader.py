"""Which releases of its libraries a project uses, as its files say, from a config's folder up to the project's top."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # a folder without such files, and most of them are, costs a listing and no import
    from kb.config.releases.files import Folder, Stamp
    from kb.config.releases.statements import Problem
    from kb.core.release import ProjectRelease

LIBRARIES = (
    "transformers",
    "torch",
    "peft",
    "accelerate",
    "trl",
    "deepspeed",
    "bitsandbytes",
    "datasets",
    "unsloth",
    "axolotl",
    "llamafactory",
    "vllm",
    "liger-kernel",
    "flash-attn",
    "torchtune",
    "torchao",
)
"""The libraries whose release a rule, a default or a prediction of kb can depend on."""
_NAMES = {
    "uv.lock": "lock",
    "poetry.lock": "lock",
    "pdm.lock": "lock",
    "Pipfile.lock": "pipfile_lock",
    "requirements.txt": "main",
    "requirement.txt": "main",
    "pyproject.toml": "pyproject",
    "Pipfile": "pipfile",
    "setup.cfg": "cfg",
    "setup.py": "setup",
    "requirements": "variant",
    ".github": "workflows",
}
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

    known: "Mapping[str, ProjectRelease]"
    problems: "tuple[Problem, ...]" = ()
    files: "tuple[Stamp, ...]" = ()

    def of(self, library: str) -> "ProjectRelease | None":
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
        self._folders: dict[tuple[str, str], Folder | None] = {}
        self._found: dict[tuple[str, str], Releases] = {}

    def find(self, path: str, text: str | None = None, kind: str | None = None) -> Releases:
        """What the project of a file or folder says, and the file's own text where it is given.

        Args:
            kind: ``shell``, ``python`` and ``notebook`` texts can say releases themselves.
        """
        try:
            absolute = os.path.abspath(path)
            folder = absolute if text is None and os.path.isdir(absolute) else os.path.dirname(absolute)
            top = self.top(folder, relative=not os.path.isabs(path))
        except (OSError, ValueError):  # the working folder is gone, or the path is none
            return NOTHING
        own = self._own(path, top, text, kind) if text and kind in ("shell", "python", "notebook") else None
        return self.of_folder(folder, top) if own is None else _settled([own, *self._chain(folder, top)])

    def of_folder(self, folder: str, top: str) -> Releases:
        """What the files in a folder, and in those above it up to the project's top, say. Both are absolute."""
        if (folder, top) not in self._found:
            self._found[folder, top] = _settled(self._chain(folder, top))
        return self._found[folder, top]

    def top(self, folder: str, *, relative: bool = False) -> str:
        """The project's top above a folder, which is absolute; ``relative``: was named from the working folder."""
        if (folder, relative) not in self._tops:
            at, parent = folder, os.path.dirname(folder)
            while not (found := os.path.exists(os.path.join(at, ".git"))) and parent != at:
                at, parent = parent, os.path.dirname(parent)
            if not found:
                named = [*([os.getcwd()] if relative else []), *([self._root] if self._root is not None else [])]
                at = min((each for each in named if within(folder, each)), key=len, default=folder)
            self._tops[folder, relative] = at
        return self._tops[folder, relative]

    def _own(self, path: str, top: str, text: str, kind: str) -> "Folder | None":
        """What a file says itself; None of most: a search of its text tells."""
        if "install" not in text and "# /// script" not in text and " add " not in text:
            return None
        from kb.config.releases.code import read_own

        own = read_own(path, top, text, kind)
        return own if own.statements or own.problems else None

    def _chain(self, folder: str, top: str) -> "list[Folder | None]":
        """Each folder's word, from the nearest to the top."""
        chain = []
        while True:
            key = (folder, top)
            if key not in self._folders:
                self._folders[key] = _read_folder(folder, top)
            chain.append(self._folders[key])
            if folder == top:
                return chain
            folder = os.path.dirname(folder)


def find_releases(path: str, *, root: str | None = None, text: str | None = None, kind: str | None = None) -> Releases:
    """:meth:`ReleaseReader.find` for one file; many share a reader."""
    return ReleaseReader(root).find(path, text, kind)


def within(path: str, folder: str) -> bool:
    """Whether ``path`` is the folder or lies below it; both absolute."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _settled(chain: "Sequence[Folder | None]") -> Releases:
    """One record for each library from what all the folders say."""
    if not any(chain):
        return NOTHING
    from kb.config.releases.statements import settle, voices

    spoken = [(distance, folder) for distance, folder in enumerate(chain) if folder is not None]
    statements = [each._replace(distance=distance) for distance, folder in spoken for each in folder.statements]
    problems = [problem for _, folder in spoken for problem in folder.problems]
    by_library = voices(statements, problems.append)
    known = {library: settle(library, heard) for library, heard in by_library.items()}
    return Releases(known, tuple(problems), tuple(stamp for _, folder in spoken for stamp in folder.files.values()))


def _read_folder(path: str, top: str) -> "Folder | None":
    try:
        names = os.listdir(path)
    except OSError:
        return None
    kinds = [(name, kind) for name in names if (kind := _kind(name))]
    if not kinds:
        return None
    from kb.config.releases.files_by_kind import read_files

    return read_files(path, top, sorted(kinds))


def _kind(name: str) -> str | None:
    """What kind of file a name promises; None of one that says no releases. Most folders hold many such."""
    known = _NAMES.get(name)
    if known is None and (name[:1] in "pcerDC" or name.endswith("ockerfile")):
        return next((kind for first, last, kind in _PATTERNS if name.startswith(first) and name.endswith(last)), None)
    return known
