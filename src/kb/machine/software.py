"""Versions of the libraries installed beside kb, read from their metadata folders; nothing is imported. And whether
those are the versions of the project that is checked.
"""

import os
import sys
import zlib
from collections.abc import Mapping
from functools import cache

from kb.core.json_text import read, written


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
            if name.endswith(".dist-info"):
                distribution, _, version = name.removesuffix(".dist-info").partition("-")
                if version:
                    found.setdefault(distribution.lower().replace(".", "_"), version)
    return found


def entry_points(group: str, cache: str) -> list[tuple[str, str]]:
    """Name and value of every entry point of ``group`` that the distributions on ``sys.path`` declare.

    ``importlib.metadata`` answers the same in 30 ms. What was found is kept in the folder ``cache`` until a folder of
    ``sys.path`` changes, so that a start with no such package costs a look at those folders' times.
    """
    here = os.getcwd()  # of `python -m`; nothing is installed there
    folders = [folder for folder in dict.fromkeys(sys.path) if folder not in ("", here) and os.path.isdir(folder)]
    stamp = [[folder, os.stat(folder).st_mtime_ns] for folder in folders]
    path = os.path.join(cache, f"entry-points-{zlib.crc32(repr((group, folders)).encode('utf-8', 'replace')):08x}.json")
    try:
        with open(path, encoding="utf-8") as stream:
            kept = read(stream.read())
        if kept["stamp"] == stamp:
            return [(name, value) for name, value in kept["found"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = _declared(group, folders)
    try:
        os.makedirs(cache, exist_ok=True)
        with open(f"{path}.{os.getpid()}.tmp", "w", encoding="utf-8") as stream:
            stream.write(written({"stamp": stamp, "found": found}))
        os.replace(stream.name, path)
    except OSError:
        pass  # looked for again at the next start
    return found


def _declared(group: str, folders: list[str]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for folder in folders:
        for name in sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as stream:
                    text = stream.read()
            except (OSError, UnicodeDecodeError):
                continue
            if f"[{group}]" in text:
                section = text.partition(f"[{group}]")[2].partition("\n[")[0]
                for row in section.splitlines():
                    key, equals, value = row.partition("=")
                    if equals and not row.lstrip().startswith(("#", ";")):
                        found.setdefault(key.strip(), value.strip())
    return list(found.items())


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
