"""Which files of a folder are configs: by name, and by what is ignored."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from kb.config.files import (
    CODE_SUFFIXES,
    SHELL,
    TABLES,
    ConfigError,
    is_dockerfile,
    is_no_file,
    most_bytes,
    too_large,
    unreadable,
)
from kb.core.record import NamedTuple

SUFFIXES = (".yaml", ".yml", ".json", *SHELL)
SKIPPED_FOLDERS = frozenset(("node_modules", "venv", "__pycache__", "site-packages", "dist-packages"))
STANDARD_INPUT = "-"


class Found(NamedTuple):
    """A file to read. ``named``: by its path or a glob, so that what is unfit is told; not come upon in a folder."""

    path: str
    named: bool


class Discovery(NamedTuple):
    """The files in a stable order, each once; and each path given that leads to none, with why."""

    files: tuple[Found, ...]
    faults: tuple[tuple[str, ConfigError], ...]


def discover(paths: Sequence[str]) -> Discovery:
    """The files that ``paths`` mean: files, folders (all below them), globs, and ``-`` for standard input."""
    files: list[Found] = []
    faults: list[tuple[str, ConfigError]] = []
    seen: dict[str, int] = {}
    for path in paths:
        try:
            for found in _under(path, faults):
                identity = found.path if found.path == STANDARD_INPUT else os.path.realpath(found.path)
                at = seen.setdefault(identity, len(files))
                if at == len(files):
                    files.append(found)
                elif found.named:
                    files[at] = Found(files[at].path, True)
        except ConfigError as error:
            faults.append((path, error))
    return Discovery(tuple(files), tuple(faults))


def _under(path: str, faults: list[tuple[str, ConfigError]]) -> Iterable[Found]:
    if path == STANDARD_INPUT:
        return [Found(path, True)]
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not os.path.islink(path) and any(sign in path for sign in "*?["):
            return _globbed(path)
        raise unreadable(path, error) from None
    if not stat.S_ISDIR(status.st_mode):
        if is_no_file(path, status):
            raise ConfigError("config.not-a-file", path=path)
        if status.st_size > most_bytes(path):
            raise too_large(status.st_size, most_bytes(path))
        return [Found(path, True)]
    known = len(faults)
    found = [Found(name, False) for name in _walk(path, faults)]
    if not found and len(faults) == known:
        raise ConfigError("config.no-configs", path=path, suffixes=" ".join("*" + suffix for suffix in SUFFIXES))
    return found


def _globbed(pattern: str) -> list[Found]:
    import glob

    found = [Found(name, True) for name in sorted(glob.glob(pattern, recursive=True)) if not os.path.isdir(name)]
    if not found:
        raise ConfigError("config.glob", pattern=pattern)
    return found


def _walk(top: str, faults: list[tuple[str, ConfigError]]) -> Iterator[str]:
    """Config files below a folder, in the order of their names; links to folders are not followed.

    A folder that cannot be listed is among the ``faults``: nobody knows what lies in it.
    """
    from kb.config.ignored import IgnoreFiles  # of folders alone
    from kb.config.marks import is_worth_reading  # likewise

    ignore = IgnoreFiles(top)
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            if folder == top:
                raise unreadable(folder, error) from None
            faults.append((folder, unreadable(folder, error)))
            continue
        if folder != top and any(entry.name == "pyvenv.cfg" for entry in entries):
            continue  # a virtual environment, whatever it is called
        ignore.enter(folder, any(entry.name == ".gitignore" for entry in entries))
        below = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                skipped = entry.name.startswith(".") or entry.name in SKIPPED_FOLDERS
                if not skipped and not ignore.ignores(entry.path, folder=True):
                    below.append(entry.path)
            elif _is_config(entry) and not ignore.ignores(entry.path, folder=False) and is_worth_reading(entry.path):
                yield entry.path
        pending += reversed(below)


def _is_config(entry: os.DirEntry[str]) -> bool:
    """Hidden files are no configs; nor is a link to nothing. What is too large is said when it is to be read."""
    if entry.name.startswith("."):
        return False
    if not entry.name.lower().endswith((*SUFFIXES, *CODE_SUFFIXES, TABLES)) and not is_dockerfile(entry.name):
        return False
    try:
        return entry.is_file()
    except OSError:
        return False
