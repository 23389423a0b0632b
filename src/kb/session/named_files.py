"""The files that configs and commands name, on disk: looked for beside the config, then in each folder above it."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kb.config.files import read_if_any
from kb.config.text.encoding import decode
from kb.config.text.guard import MAX_BYTES
from kb.core.document import Unit
from kb.core.naming import Program
from kb.session.seen import Lookup, Seen

if TYPE_CHECKING:
    from kb.config.programs import ProgramReader

SUFFIXES = (".json", ".yaml", ".yml")
MAX_FOLDERS = 8  # how far up a project's top may lie; runs are started there, and paths are relative to it


def read_named(path: str, named: str) -> str | None:
    """The text of the file that the config at ``path`` names; None where there is none, or none that can be read."""
    if not named.endswith(SUFFIXES):
        return None
    named = os.path.expanduser(named)
    folder = os.path.dirname(os.path.abspath(path))
    for _ in range(MAX_FOLDERS):
        text = _text(os.path.join(folder, named))
        parent = os.path.dirname(folder)
        if text is not None or parent == folder or os.path.isabs(named):
            return text
        folder = parent
    return None


class ProjectPrograms:
    """The programs that read a unit, from its project's folder; looked for only when a finding depends on them.

    Args:
        top: the top of the project that a path belongs to; None where it belongs to none.
        seen: remembers what was looked at, so that a stored result is not taken for one of today.
    """

    def __init__(self, top: Callable[[str], str | None], seen: Seen) -> None:
        self._top = top
        self.lookups: dict[str, Lookup] = {"programs": lambda path, named: self._programs().digest(path, named)}
        self._remember = seen.text("programs", self.lookups["programs"])
        self.forget()

    def forget(self) -> None:
        """Read every source anew: for a session that goes on while files change."""
        self._reader: ProgramReader | None = None

    def __call__(self, unit: Unit) -> tuple[Program, ...]:
        path = unit.path if os.path.isabs(unit.path) else os.path.join(os.curdir, unit.path)
        try:
            self._remember(path, unit.program)
            return self._programs().programs(path, unit.program)
        except (OSError, ValueError):  # the working folder is gone, or the path is none
            return ()

    def _programs(self) -> "ProgramReader":
        if self._reader is None:
            from kb.config.programs import ProgramReader  # few files leave it open who reads them

            self._reader = ProgramReader(self._top)
        return self._reader


def _text(path: str) -> str | None:
    raw = read_if_any(path, MAX_BYTES)
    return None if raw is None else decode(raw).text
