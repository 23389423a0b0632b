"""rules/versions.lock: each entry's version and a hash of its content, so that no meaning changes under one version."""

import hashlib
import json
import os

from kb.knowledge.compile import Files, read_rules_folder
from kb.knowledge.locations import Location
from kb.knowledge.problems import Problem
from kb.knowledge.schema import GUIDE
from kb.knowledge.source import read_source

LOCK = "versions.lock"
LOCKED_KINDS = (
    "checks",
    "hardware",
    "models",
    "dialects",
    "tables",
    *(kind for kind in GUIDE if not kind.endswith(".yaml")),
)
_HEADER = """\
# The version and content of every entry under rules/. Written by `kb rules lock`; do not edit.
# A changed entry needs a higher version: raise it in the entry's file, then run `kb rules lock`.
"""


def entries(location: Location, files: Files | None = None) -> dict[str, tuple[int, str, str]]:
    """``kind/id`` → (version, content hash, path) of every entry as it stands now; ``files`` where they have been read.

    Raises:
        KnowledgeError: the folder has faults.
    """
    files = read_rules_folder(location) if files is None else files
    found = {}
    for kind in LOCKED_KINDS:
        for located in files.get(kind, ()):
            content = {key: value for key, value in located.data.items() if key != "version"}
            text = json.dumps(content, sort_keys=True, ensure_ascii=False)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            found[f"{kind}/{located.data['id']}"] = (located.data["version"], digest, located.path)
    return dict(sorted(found.items()))


def read_lock(location: Location) -> dict[str, tuple[int, str]]:
    """``kind/id`` → (version, content hash) as locked; empty where there is no lock yet."""
    path = os.path.join(location.rules, LOCK)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as stream:
        data = read_source(path, stream.read()).data or {}
    return {name: (int(row.split()[0]), row.split()[1]) for name, row in data.items()}


def check_lock(location: Location, files: Files | None = None, *, only: str | None = None) -> list[Problem]:
    """Entries whose content changed and whose version did not, and entries that the lock does not hold yet.

    Args:
        files: what was read; None reads the folder.
        only: the file that alone was read, by its path; entries that are gone are then not looked for.
    """
    now, locked = entries(location, files), read_lock(location)
    if only is not None:
        now = {name: row for name, row in now.items() if row[2] == only}
        locked = {name: row for name, row in locked.items() if name in now}
    problems = _broken(location, now, locked)
    for name, (version, _, path) in now.items():
        if name not in locked or version > locked[name][0]:
            problems.append(
                Problem(
                    path,
                    1,
                    1,
                    f"{name} {version} is not in versions.lock; run: kb rules lock",
                    f"{name} {version} 판이 versions.lock에 없습니다. 실행하십시오: kb rules lock",
                )
            )
    return problems


def _broken(
    location: Location, now: dict[str, tuple[int, str, str]], locked: dict[str, tuple[int, str]]
) -> list[Problem]:
    """What `kb rules lock` must not paper over."""
    problems = []
    for name, (version, digest, path) in now.items():
        old_version, old_digest = locked.get(name, (0, ""))
        if version < old_version:
            problems.append(Problem(path, 1, 1, f"version {version} is lower than the locked {old_version}"))
        elif version == old_version and digest != old_digest:
            message = f"the content changed and version {version} did not; raise it, then run: kb rules lock"
            problems.append(Problem(path, 1, 1, message))
    for name in sorted(locked.keys() - now.keys()):
        message = f"{name} is gone; deprecate an entry rather than remove it, or run: kb rules lock --rewrite"
        problems.append(Problem(os.path.join(location.rules, LOCK), 1, 1, message))
    return problems


def write_lock(location: Location, *, rewrite: bool = False) -> list[Problem]:
    """Lock what is new or has a higher version; refuse, writing nothing, where an entry changed under its version.

    ``rewrite`` locks everything as it stands: for entries that no release has carried yet.
    """
    now = entries(location)
    if not rewrite:
        broken = _broken(location, now, read_lock(location))
        if broken:
            return broken
    lines = [f"{name}: {version} {digest}" for name, (version, digest, _) in now.items()]
    with open(os.path.join(location.rules, LOCK), "w", encoding="utf-8", newline="\n") as stream:
        stream.write(_HEADER + "\n".join(lines) + "\n")
    return []
