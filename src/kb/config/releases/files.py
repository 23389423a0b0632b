"""Files of a project, read once, only what is a regular file of a bearable size inside the project."""

import os
import stat
from collections.abc import Iterable

from kb.config.releases.statements import MAIN, Problem, Requirement, Statement
from kb.core.release import Source

MAX_BYTES = 1 << 20  # of a file that people write
MAX_LOCK_BYTES = 16 << 20  # of one that a program writes
MAX_FILES = 60  # that the requirement files of one folder may bring in
MAX_STATEMENTS, MAX_PROBLEMS = 2000, 20  # of one folder

Stamp = tuple[str, int, int]  # path, time of the last change in ns, size; -1 where there is none


class Folder:
    """What the files of one folder say. Readers of each format add to it.

    Args:
        path: absolute.
        root: the project's top; nothing outside it is followed.
    """

    def __init__(self, path: str, root: str) -> None:
        self.path, self.root = path, root
        self.statements: list[Statement] = []
        self.problems: list[Problem] = []
        self.files: dict[str, Stamp] = {}

    def report(self, key: str, path: str, line: int | None = None, **values: object) -> None:
        """Note a problem, each once."""
        problem = Problem(key, Source(path, line), tuple(values.items()))
        if len(self.problems) < MAX_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def say(self, requirement: Requirement | None, path: str, line: int | None, level: int = MAIN) -> None:
        """Note a requirement; one whose version is no version is a problem."""
        if requirement is None:
            return
        if requirement.fault:
            self.report("no_version", path, line, library=requirement.library, value=requirement.fault)
            requirement = requirement._replace(fault="")
        if len(self.statements) < MAX_STATEMENTS and applies(requirement.marker):
            self.statements.append(Statement(requirement, Source(path, line), level))

    def text(self, path: str, limit: int = MAX_BYTES) -> str | None:
        """A file's text; None where it cannot be had, which is noted. A byte that is no UTF-8 is noted and replaced."""
        raw = self._raw(path, limit)
        if raw is None:
            return None
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):  # what PowerShell's `>` writes
            return raw.decode("utf-16", "replace")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.report("not_utf8", path, raw.count(b"\n", 0, error.start) + 1)
            return raw.decode("utf-8-sig", "replace")

    def _raw(self, path: str, limit: int) -> bytes | None:
        try:
            info = os.stat(path)
            self.files[path] = (path, info.st_mtime_ns, info.st_size)
            if stat.S_ISDIR(info.st_mode):
                return None
            if not stat.S_ISREG(info.st_mode):
                self.report("not_a_file", path)
                return None
            if info.st_size > limit:
                self.report("too_large", path, size=info.st_size, limit=limit)
                return None
            # it may have become a pipe meanwhile: opening one to read would wait for a writer
            with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as stream:
                return stream.read(limit)
        except (OSError, ValueError) as error:
            self.files.setdefault(path, (path, -1, -1))
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.report("unreadable", path, reason=reason)
            return None

    def holds(self, path: str) -> bool:
        """Whether a path lies inside the project, links followed."""
        return within(os.path.realpath(path), os.path.realpath(self.root))


def regular_files(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files of a folder with one of these suffixes, at most as many as one folder may bring in."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(suffixes))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names[:MAX_FILES]]


def applies(marker: str) -> bool:
    """Whether a requirement with this marker holds on some Python under Linux, where training runs."""
    if not marker:
        return True
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    linux = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_version": "",
        "extra": "",
    }
    try:
        parsed = Marker(marker)
        return any(
            parsed.evaluate({**linux, "python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0"})
            for minor in range(7, 15)
        )
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, RecursionError):
        return True


def line_of(text: str, wanted: Iterable[str]) -> int | None:
    """The line of the first of these that the text holds."""
    for each in wanted:
        at = text.find(each)
        if at >= 0:
            return text.count("\n", 0, at) + 1
    return None


def within(path: str, folder: str) -> bool:
    """Whether ``path`` is the folder or lies below it; both absolute."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
