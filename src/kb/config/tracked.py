"""The files that git keeps, whatever its ignore files say: read off ``.git/index``."""

import os
import struct

from kb.config.files import read_if_any

MAX_BYTES = 16 << 20
# of an entry: 40 bytes of times and modes, 20 of the hash, then the flags (gitformat-index)
FIXED, HASHED, EXTENDED, NAME_BITS = 62, 60, 0x4000, 0x0FFF


def tracked(root: str) -> frozenset[str]:
    """The paths in the index of the repository at ``root``, from there on, with ``/``; none where it cannot be read.

    Versions 2 and 3 are read, which git writes unless it is told otherwise.
    """
    raw = read_if_any(os.path.join(_folder_of(root), "index"), MAX_BYTES)
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
