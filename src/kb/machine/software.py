"""Versions of the libraries installed beside kb, read from their metadata folders; nothing is imported. And whether
those are the versions of the project that is checked.
"""

import os
import re
import sys
from collections.abc import Mapping
from functools import cache

_FOLDER = re.compile(r"([A-Za-z0-9_.]+)-([^-]+)\.dist-info")


@cache
def installed_versions() -> dict[str, str]:
    """Distribution name (lower case, ``_`` for ``-``) → version, of everything on ``sys.path``; the first one wins.

    ``importlib.metadata`` answers the same and takes 15 ms to import.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            match = _FOLDER.fullmatch(name) if name.endswith(".dist-info") else None
            if match:
                found.setdefault(match[1].lower().replace("-", "_").replace(".", "_"), match[2])
    return found


def environment_of(project: str, environ: Mapping[str, str] | None = None, prefix: str | None = None) -> str | None:
    """The folder of the environment that kb runs in, where it is that of the project: it lies inside the project, or is
    the one that the user activated. Elsewhere (kb as a tool of its own, a system's Python) what is installed beside kb
    says nothing of the project: None.

    Args:
        project: the project's top.
        environ: as ``os.environ``; None takes that.
        prefix: as ``sys.prefix``; None takes that.
    """
    environ = os.environ if environ is None else environ
    prefix = os.path.realpath(sys.prefix if prefix is None else prefix)
    activated = [environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    if any(os.path.realpath(each) == prefix for each in activated):
        return prefix
    top = os.path.realpath(project)
    return prefix if prefix.startswith(top.rstrip(os.sep) + os.sep) else None
