"""One folder's files, each handed to the reader of its kind."""

import os
from collections.abc import Sequence

from kb.config.releases.files import MAX_FILES, Folder
from kb.config.releases.statements import CONSTRAINTS, MAIN, OPTIONAL

_LEVELS = {"main": MAIN, "constraints": CONSTRAINTS, "variant": OPTIONAL}


def read_files(path: str, top: str, kinds: Sequence[tuple[str, str]]) -> Folder:
    """What the files of a folder say.

    Args:
        kinds: their names, each with its kind.
    """
    folder = Folder(path, top)
    lists = [name for name, kind in kinds if kind in ("main", "variant")]
    for name, kind in kinds[:MAX_FILES]:
        # the only file of requirements is what the project requires, whatever it is called
        _read_one(folder, os.path.join(path, name), "main" if lists == [name] else kind)
    if len(kinds) > MAX_FILES:
        folder.report("too_many", path, limit=MAX_FILES)
    return folder


def _read_one(folder: Folder, path: str, kind: str) -> None:
    """Read a file by the kind that its name says. Each reader is imported where there is something for it."""
    if kind in ("main", "constraints", "variant", "lock", "pipfile_lock", "conda"):
        from kb.config.releases import requirement_files as lists

        if kind == "lock":
            lists.read_lock(folder, path)
        elif kind == "pipfile_lock":
            lists.read_pipfile_lock(folder, path)
        elif kind == "conda":
            lists.read_environment(folder, path)
        elif os.path.isdir(path):
            if os.path.basename(path) == "requirements":
                lists.read_requirements_folder(folder, path)
        else:
            lists.read_requirements(folder, path, _LEVELS[kind])
    elif kind in ("pyproject", "pipfile"):
        from kb.config.releases import project_files as tables

        (tables.read_pyproject if kind == "pyproject" else tables.read_pipfile)(folder, path)
    elif kind in ("cfg", "setup"):
        from kb.config.releases import setup_files as setup

        (setup.read_setup_cfg if kind == "cfg" else setup.read_setup_py)(folder, path)
    else:
        from kb.config.releases import commands

        (commands.read_dockerfile if kind == "image" else commands.read_workflows)(folder, path)
