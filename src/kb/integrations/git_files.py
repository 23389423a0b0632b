"""Git, read only: a file's versions and a folder as it was. Nothing here writes to a repository."""

import io
import os
import re
from collections.abc import Mapping, Sequence

from kb.core.record import NamedTuple
from kb.core.text import UserError

TIMEOUT_SECONDS = 30.0
_SAFE = (
    "--no-pager",
    "--literal-pathspecs",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "log.showSignature=false"),
    *("-c", "core.quotePath=false"),
)
# Set while git runs a hook; they would point another repository's commands at this one.
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
_REASONS = (
    ("not a git repository", "git.no_repository"),
    ("outside repository", "git.no_repository"),
    ("does not have any commits", "git.no_commits"),
    ("dubious ownership", "git.not_trusted"),
    ("unknown revision", "git.unknown_revision"),
    ("bad revision", "git.unknown_revision"),
    ("Invalid revision range", "git.unknown_revision"),
    ("not a valid object name", "git.unknown_revision"),
    ("not a tree object", "git.unknown_revision"),
    ("Needed a single revision", "git.unknown_revision"),
)
MAX_BYTES = 1 << 20  # a larger blob is no config; its content is not read
SHORT = 7
_COMMIT = rb"[0-9a-f]{40,64}"
_RECORD = re.compile(
    rb"\x1e(" + _COMMIT + rb")\x1f([^\x1f]*)\x1f([^\x1f]*)\x1f([^\x1e]*(?:\x1e(?!" + _COMMIT + rb")[^\x1e]*)*)"
)
_CHANGE = re.compile(rb"(:+)((?:[0-7]{6} )+)((?:[0-9a-f]{40,64} )+)([A-Z]+)\d*\0([^\0]+)\0(?:([^\0:\x1e\n][^\0]*)\0)?")


class GitError(UserError):
    """What stands in the way of an answer from git; ``values`` hold ``path``, ``revision`` and git's own ``reason``."""


def git(folder: str, arguments: Sequence[str], *, given: bytes | None = None, **values: str) -> bytes:
    """Standard output of ``git ARGUMENTS`` in ``folder``.

    Args:
        given: standard input.
        values: what the error's sentence should name (``path``, ``revision``).

    Raises:
        GitError: git is not installed, takes too long, or refuses.
    """
    import subprocess

    command = ["git", *_SAFE, *arguments]
    try:
        run = subprocess.run(
            command,
            cwd=folder,
            env=_environ(os.environ),
            input=b"" if given is None else given,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise GitError("git.not_installed") from None
    except OSError as error:
        raise GitError("git.failed", reason=error.strerror or str(error)) from None
    except subprocess.TimeoutExpired:
        raise GitError("git.timed_out", seconds=int(TIMEOUT_SECONDS)) from None
    if run.returncode:
        raise _error(run.stderr.decode("utf-8", "replace"), values)
    return run.stdout


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name not in _OF_HOOKS}
    return kept | {
        "LC_ALL": "C",  # its messages are told apart below
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
    }


def _error(said: str, values: Mapping[str, str]) -> GitError:
    key = next((key for sign, key in _REASONS if sign in said), "git.failed")
    lines = [line.removeprefix("fatal: ") for line in said.splitlines() if line.strip()]
    return GitError(key, **{"path": "", "revision": "", **values, "reason": lines[0] if lines else "?"})


def checked_revision(revision: str) -> str:
    """``revision`` where it can be no option of git's.

    Raises:
        GitError: it begins with a hyphen, or holds what no revision does.
    """
    if not revision or revision.startswith("-") or any(sign in revision for sign in "\0\n"):
        raise GitError("git.unknown_revision", revision=revision, path="", reason="")
    return revision


def resolve(folder: str, revision: str) -> str:
    """The full hash of the commit that ``revision`` names in ``folder``'s repository.

    Raises:
        GitError: there is no repository, or no such commit.
    """
    name = checked_revision(revision)
    arguments = ["rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"]
    return git(folder, arguments, revision=revision, path=folder).decode().strip()


def export(folder: str, commit: str, names: Sequence[str], target: str) -> None:
    """Write ``names``, files or folders in ``folder``, below ``target`` as they were at ``commit``.

    A name that the commit does not hold is left out.

    Raises:
        GitError: git refuses.
        UserError: what git hands over cannot be unpacked.
    """
    import tarfile

    held = [name for name in names if git(folder, ["ls-tree", "--name-only", commit, "--", name], revision=commit)]
    if not held:
        return
    archive = git(folder, ["archive", "--format=tar", commit, "--", *held], revision=commit)
    os.makedirs(target, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(target, filter="data")  # links out of the folder, devices and absolute names are refused
    except (tarfile.TarError, OSError) as error:
        raise UserError("git.not_unpacked", revision=commit, reason=str(error)) from None


def contents_at(folder: str, commit: str, names: Sequence[str]) -> dict[str, bytes]:
    """What files in ``folder`` held at ``commit``, by name; those that it did not have are left out.

    Raises:
        GitError: git refuses.
    """
    return _contents(folder, names, [f"{commit}:./{name}" for name in names], path=folder)


def _contents(folder: str, names: Sequence[str], objects: Sequence[str], **values: str) -> dict[str, bytes]:
    """What git's objects hold, by the name given to each; those that are no file's content are left out."""
    if not names:
        return {}
    asked = "".join(f"{each}\n" for each in objects).encode()
    output = git(folder, ["cat-file", "--batch"], given=asked, **values)
    contents, at = {}, 0
    for name in names:
        head, at = output[at : output.index(b"\n", at)], output.index(b"\n", at) + 1
        parts = head.rsplit(b" ", 2)
        if len(parts) == 3 and parts[1] == b"blob":
            contents[name] = output[at : at + int(parts[2])]
            at += int(parts[2]) + 1
    return contents


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
        try:
            git(folder, ["rev-parse", "--verify", "--quiet", "HEAD"])
        except GitError as error:
            raise error if error.key != "git.failed" else GitError("git.no_commits", path=path) from None
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
    shallow = git(folder, ["rev-parse", "--is-shallow-repository"]).strip() == b"true"
    return FileHistory(versions=versions, working=working, shallow=shallow)


def _nearest_folder(path: str) -> tuple[str, str]:
    """The nearest folder above ``path`` that exists, and the rest: the file may have moved since with its folder."""
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder, os.path.relpath(os.path.abspath(path), folder)


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
    return _contents(folder, small, small)


def _working(path: str, last: FileVersion) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError:
        return None
    # git may have written other line ends than it keeps
    same = last.content is not None and content.replace(b"\r\n", b"\n") == last.content.replace(b"\r\n", b"\n")
    return None if same else content
