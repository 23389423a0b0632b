"""A folder of the repository as it was at a revision, put where it can be read."""

import io
import os
from collections.abc import Sequence

from kb.core.text import UserError
from kb.integrations.git.command import checked_revision, git


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
