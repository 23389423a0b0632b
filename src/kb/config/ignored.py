"""What git ignores below a folder: what every ``.gitignore`` from the repository's top down names, the deepest first,
less the files that git keeps whatever those say, read off ``.git/index``.
"""

import os
import re
import struct
from itertools import takewhile
from typing import Any, cast

from kb.config.files import read_if_any, upwards
from kb.core.patterns import PatternError, compiled

NAME = ".gitignore"
MAX_BYTES = 1 << 20  # of a file of patterns
FEW_REPEATS = 4  # of one pattern; a real one has two or three
_REPEATS = re.compile(r"[*+]")
MAX_INDEX_BYTES = 16 << 20
# Of an entry of the index: 40 bytes of times and modes, 20 of the hash, then the flags (gitformat-index)
FIXED, HASHED, EXTENDED, NAME_BITS = 62, 60, 0x4000, 0x0FFF


class IgnoreFiles:
    """The patterns that hold below ``top``. Folders have to be entered from the top down.

    A folder that someone names is wanted: if git ignores it, the patterns from above it do not count.
    """

    def __init__(self, top: str) -> None:
        self._specs: dict[str, Any] = {}  # absolute folder → its patterns
        self._tracked: frozenset[str] | None = None
        self._root = self._top = os.path.abspath(top)
        holding = (folder for folder in upwards(self._top) if os.path.exists(os.path.join(folder, ".git")))
        above = next(holding, None)
        if above is not None:
            self._root = above
            folder = above
            for name in os.path.relpath(self._top, above).split(os.sep):
                self._read(folder)
                folder = os.path.join(folder, name)
            below = takewhile(lambda each: each != above, upwards(self._top))
            if any(self.ignores(each, folder=True) for each in below):
                self._specs.clear()
                self._root = self._top

    def enter(self, folder: str, has_patterns: bool) -> None:
        """Take in the folder's own patterns, before asking about what lies in it."""
        if has_patterns:
            self._read(os.path.abspath(folder))

    def ignores(self, path: str, *, folder: bool) -> bool:
        """Whether git would leave out ``path``, whose parents it does not."""
        if not self._specs:
            return False
        absolute = os.path.abspath(path)
        for parent in upwards(os.path.dirname(absolute)):
            spec = self._specs.get(parent)
            if spec is not None:
                relative = os.path.relpath(absolute, parent).replace(os.sep, "/")
                verdict = spec.check_file(relative + "/" if folder else relative).include
                if verdict is not None:
                    return bool(verdict) and (folder or not self._is_tracked(absolute))
            if parent == self._root:
                break
        return False

    def _is_tracked(self, path: str) -> bool:
        """Whether git keeps a file that matches a pattern: what it once took in, it goes on with."""
        if self._tracked is None:
            self._tracked = tracked(self._root)
        return os.path.relpath(path, self._root).replace(os.sep, "/") in self._tracked

    def _read(self, folder: str) -> None:
        raw = read_if_any(os.path.join(folder, NAME), MAX_BYTES)
        if raw is None:
            return
        from pathspec import GitIgnoreSpec

        lines = raw.decode("utf-8", "replace").splitlines()
        try:
            spec = GitIgnoreSpec.from_lines(lines)
        except (ValueError, re.error):
            spec = GitIgnoreSpec.from_lines(filter(_is_pattern, lines))
        for pattern in spec.patterns:
            if pattern.regex is not None and len(_REPEATS.findall(pattern.regex.pattern)) > FEW_REPEATS:
                pattern.regex = cast(Any, _Linear(pattern.regex.pattern))
        self._specs[folder] = spec


class _Linear:
    """A pattern with many stars, asked as ``re`` is: it would look for its stars in every way there is."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern

    def search(self, path: str) -> "_Linear | None":
        """Something where it matches; where telling takes too long, it does not."""
        try:
            return self if compiled(self._text).search(path) else None
        except PatternError:
            return None

    def groupdict(self) -> dict[str, str]:
        """Nothing: of a path whose folders are not ignored it makes no difference."""
        return {}


def _is_pattern(line: str) -> bool:
    """Whether git takes a line for a pattern: it passes over a lone ``!`` and what ends in a backslash."""
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def tracked(root: str) -> frozenset[str]:
    """The paths in the index of the repository at ``root``, from there on, with ``/``; none where it cannot be read.

    Versions 2 and 3 are read, which git writes unless it is told otherwise.
    """
    raw = read_if_any(os.path.join(_folder_of(root), "index"), MAX_INDEX_BYTES)
    if raw is None or raw[:4] != b"DIRC" or len(raw) < 12:
        return frozenset()
    version, count = struct.unpack(">II", raw[4:12])
    if version not in (2, 3):
        return frozenset()
    found, at = set(), 12
    for _ in range(count):
        flags = raw[at + HASHED : at + FIXED]
        if len(flags) < 2:
            return frozenset()
        value = int.from_bytes(flags, "big")
        start = at + FIXED + (2 if version == 3 and value & EXTENDED else 0)
        end = raw.find(b"\0", start + (value & NAME_BITS if value & NAME_BITS < NAME_BITS else 0))
        if end < 0:
            return frozenset()
        found.add(raw[start:end].decode("utf-8", "surrogateescape"))
        at += (end - at) // 8 * 8 + 8  # at least one NUL, up to a multiple of eight
    return frozenset(found)


def _folder_of(root: str) -> str:
    """Where a repository keeps its index: ``.git``, or what a file of that name says (worktrees, submodules)."""
    git = os.path.join(root, ".git")
    raw = read_if_any(git, 4096) if os.path.isfile(git) else None
    named = raw.decode("utf-8", "replace").strip() if raw is not None else ""
    return os.path.join(root, named.removeprefix("gitdir:").strip()) if named.startswith("gitdir:") else git
