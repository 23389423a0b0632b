"""Running git: read only, bounded in time, without pagers, prompts, hooks, filters or locks, and with its errors said.

A repository's own configuration may name programs for git to run; those that reading could start are switched off.
"""

import os
from collections.abc import Mapping, Sequence

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
