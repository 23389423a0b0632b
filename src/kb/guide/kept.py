"""What takes long to compute for the site, kept in ``build/`` until what it was computed from is another."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from kb.knowledge.bundle import write_text

KEPT = 3  # results of former rules or code that are not yet thrown away: branches take turns
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def kept(folder: str, name: str, mark: str, compute: Callable[[], Any]) -> Any:
    """What lies in ``folder`` under this name and mark; computed and laid there where it does not. Plain data."""
    path = os.path.join(folder, f"{name}-{mark}.json")
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        found = compute()
    os.makedirs(folder, exist_ok=True)
    write_text(path, json.dumps(found, separators=(",", ":")))
    _throw_away(folder, name)
    return found


def mark_of(data: object, rooms: Iterable[str], files: Iterable[str] = ()) -> str:
    """A hash of data, and of the code that computes: whole rooms of kb, with the folders in them, and single files."""
    seen = hashlib.sha256(repr(data).encode())
    paths = [os.path.join(PACKAGE, name) for name in files]
    for room in rooms:
        for top, _, names in os.walk(os.path.join(PACKAGE, room)):
            paths += [os.path.join(top, name) for name in names if name.endswith(".py")]
    for path in sorted(paths):
        with open(path, "rb") as stream:
            seen.update(stream.read())
    return seen.hexdigest()[:16]


def _throw_away(folder: str, name: str) -> None:
    """All but the newest few of what former builds have left."""
    names = [each for each in os.listdir(folder) if each.startswith(f"{name}-") and each.endswith(".json")]
    with suppress(FileNotFoundError):  # another build threw it away
        paths = sorted((os.path.join(folder, each) for each in names), key=os.path.getmtime, reverse=True)
        for path in paths[KEPT:]:
            os.remove(path)
