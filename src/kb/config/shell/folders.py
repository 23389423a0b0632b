"""The folder that a command of a shell script runs in, as far as that is sure, and what it means by a name there."""

import os
import re
from typing import Final

from kb.config.programs import written_out

ANY: Final = "*"  # a folder that is not known; what stands behind it is how its path ends: */project/one
FOLDER, PUSHED = "/", "//"  # what a shell's variables are called that hold its folder, and those put by
VERBS = frozenset(("cd", "pushd", "popd"))
SUBMITTED = ("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR")  # variables with the folder that a script is started in
OPTIONS = ("-P", "-L", "-e", "-@", "--")
MAX_LENGTH = 1 << 10  # of a folder's path
MAX_PUSHED = 16
_ENDS_TRIED = 4  # of a folder that is not known, of its last folders


def names_from(folder: str, named: str) -> list[str]:
    """What a command may mean by a name in a folder, the surest first: with :data:`ANY` before it where that is only
    the end of a path."""
    known = not folder.startswith(ANY)
    parts = [] if known else folder.split("/")[1:][-_ENDS_TRIED:]
    ends = ["/".join((ANY, *parts[at:])) for at in range(len(parts) + 1)]
    if named.startswith("/"):
        return [named, f"{ANY}/{named}"]
    return [f"{each}/{named}" if each else named for each in ((folder, *ends) if known else ends)]


def end_of(name: str) -> str | None:
    """The end of the path that a name of :func:`names_from` is; None of one that is whole."""
    if not name.startswith(f"{ANY}/"):
        return None
    return written_out(os.path.normpath(name[len(ANY) + 1 :]).replace(os.sep, "/"))


def stepped(verb: str, target: str | None, started: bool, folder: str, pushed: str) -> tuple[str, str]:
    """The folder after one of :data:`VERBS`, and those put by, each on a line. ``target`` is None where none is given;
    with ``started`` it counts from the folder that the script is started in."""
    if verb == "popd":
        *rest, last = pushed.split("\n")[:-1] or [ANY]
        return (last, "".join(f"{each}\n" for each in rest)) if target is None else (ANY, "")
    gone = ANY if target is None or target[:1] in ("-", "+") else _gone(folder, target, started)
    if verb == "pushd":
        kept = pushed.split("\n")[:-1][1 - MAX_PUSHED :]
        pushed = "".join(f"{each}\n" for each in (*kept, folder))
    return gone, pushed


def _gone(folder: str, target: str, started: bool) -> str:
    """The folder after ``cd`` to a target: of one in which a ``$`` stands for what nobody knows, what is written behind
    it is how the path ends."""
    if len(folder) + len(target) > MAX_LENGTH or re.search(r"[\s`*?\[\\]", target):
        return ANY
    if target[:1] in ("/", "~") or "$" in target:
        end = written_out(f"{target}/.").removesuffix(".").strip("/")
        return f"{ANY}/{end}" if end else ANY
    if started or not folder.startswith(ANY):
        return _plain(os.path.join("" if started else folder, target))
    end = _plain(os.path.join(folder[len(ANY) + 1 :], target))
    return ANY if not end or end.startswith("..") else f"{ANY}/{end}"


def _plain(folder: str) -> str:
    folder = os.path.normpath(folder).replace(os.sep, "/")
    return "" if folder == "." else folder
