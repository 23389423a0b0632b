"""Every version of one file that git knows, oldest first; renames are followed."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kb.integrations.git.command import GitError, checked_revision, git

MAX_BYTES = 1 << 20  # a larger blob is no config; its content is not read
SHORT = 7

_COMMIT = rb"[0-9a-f]{40,64}"
_RECORD = re.compile(
    rb"\x1e(" + _COMMIT + rb")\x1f([^\x1f]*)\x1f([^\x1f]*)\x1f([^\x1e]*(?:\x1e(?!" + _COMMIT + rb")[^\x1e]*)*)"
)
_CHANGE = re.compile(rb"(:+)((?:[0-7]{6} )+)((?:[0-9a-f]{40,64} )+)([A-Z]+)\d*\0([^\0]+)\0(?:([^\0:\x1e\n][^\0]*)\0)?")


class FileVersion(NamedTuple):
    """One committed version. ``when`` is the author's date, ISO 8601; ``content`` is None where it is too large."""

    commit: str
    when: str
    subject: str
    path: str  # in that commit, from the top of the repository
    content: bytes | None

    @property
    def short(self) -> str:
        return self.commit[:SHORT]


class FileHistory(NamedTuple):
    """``working`` is the file's content on disk where it is not what was committed last; None where it is.

    ``shallow``: the clone ends before the repository began, so earlier versions may be missing.
    """

    versions: tuple[FileVersion, ...]
    working: bytes | None
    shallow: bool


def file_history(path: str, revisions: str | None = None) -> FileHistory:
    """The versions of ``path``, oldest first.

    Args:
        path: the file; it need not exist any more.
        revisions: a revision or a range (``v1..v2``); None is everything up to HEAD, and the file on disk.

    Raises:
        GitError: no git, no repository, no such revision, or no commit touched the file.
    """
    if os.path.isdir(path):
        raise GitError("git.is_folder", path=path)
    folder, name = _nearest_folder(path)
    wanted = checked_revision(revisions) if revisions else "HEAD"
    git(folder, ["rev-parse", "--git-dir"], path=path)
    if not revisions:
        _refuse_unborn(folder, path)
    shape = ["--follow", "-c", "-M", "--raw", "--no-abbrev", "-z", "--format=%x1e%H%x1f%aI%x1f%s%x1f"]
    log = git(folder, ["log", *shape, "--end-of-options", wanted, "--", name], path=path, revision=wanted)
    rows = _changes(log)
    if not rows:
        raise _no_history(folder, path, name, revisions)
    contents = _blobs(folder, list(dict.fromkeys(blob for _, _, _, _, blob in rows)))
    versions = tuple(
        FileVersion(commit=commit, when=when, subject=subject, path=at, content=contents.get(blob))
        for commit, when, subject, at, blob in reversed(rows)
    )
    working = None if revisions else _working(path, versions[-1])
    return FileHistory(versions=versions, working=working, shallow=_is_shallow(folder))


def _nearest_folder(path: str) -> tuple[str, str]:
    """The nearest folder above ``path`` that exists, and the rest: the file may have moved since with its folder."""
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder, os.path.relpath(os.path.abspath(path), folder)


def _refuse_unborn(folder: str, path: str) -> None:
    try:
        git(folder, ["rev-parse", "--verify", "--quiet", "HEAD"])
    except GitError as error:
        raise error if error.key != "git.failed" else GitError("git.no_commits", path=path) from None


def _no_history(folder: str, path: str, name: str, revisions: str | None) -> GitError:
    if revisions:
        return GitError("git.not_in_range", path=path, revision=revisions)
    if os.path.exists(os.path.join(folder, name)):
        return GitError("git.not_committed", path=path)
    return GitError("git.unknown_path", path=path)


def _changes(log: bytes) -> list[tuple[str, str, str, str, str]]:
    """(commit, when, subject, path, blob) of every version of the file, newest first; deletions are none."""
    found = []
    for commit, when, subject, changes in _RECORD.findall(log):
        match = _CHANGE.search(changes)
        if match is None or b"D" in match[4]:
            continue
        blob = match[3].split()[-1].decode()
        renamed = match[4][:1] in (b"R", b"C") and match[6]
        at = (match[6] if renamed else match[5]).decode("utf-8", "replace")
        found.append((commit.decode(), when.decode(), subject.decode("utf-8", "replace"), at, blob))
    return found


def _blobs(folder: str, names: Sequence[str]) -> Mapping[str, bytes]:
    """The contents of those blobs that are no larger than a config may be."""
    listing = git(folder, ["cat-file", "--batch-check"], given="\n".join(names).encode() + b"\n").decode()
    sizes = {parts[0]: int(parts[2]) for line in listing.splitlines() if len(parts := line.split()) == 3}
    small = [name for name in names if sizes.get(name, MAX_BYTES + 1) <= MAX_BYTES]
    output = git(folder, ["cat-file", "--batch"], given="\n".join(small).encode() + b"\n") if small else b""
    contents = {}
    at = 0
    for name in small:
        start = output.index(b"\n", at) + 1
        contents[name] = output[start : start + sizes[name]]
        at = start + sizes[name] + 1
    return contents


def _working(path: str, last: FileVersion) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError:
        return None
    # git may have written other line ends than it keeps
    same = last.content is not None and content.replace(b"\r\n", b"\n") == last.content.replace(b"\r\n", b"\n")
    return None if same else content


def _is_shallow(folder: str) -> bool:
    return git(folder, ["rev-parse", "--is-shallow-repository"]).strip() == b"true"
