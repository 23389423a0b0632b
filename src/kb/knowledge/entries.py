"""Everything under rules/ that has an id: where it stands, and how it is written there."""

import os
import re

from kb.core.record import NamedTuple
from kb.knowledge.locations import Location, files_under, opened
from kb.knowledge.overlay import laid_entries
from kb.knowledge.schema import KINDS

ERRATA = "errata"
_ID = re.compile(r"^( *)- id: *([A-Za-z0-9._-]+)", re.MULTILINE)


class Entry(NamedTuple):
    """``kind`` is the folder (``checks``, ``formulas``, …), or ``errata``; ``path`` is below the rules folder, or whole
    where it lies in an overlay."""

    kind: str
    id: str
    path: str


def entries_of(location: Location) -> dict[str, Entry]:
    """Every entry by its id and by ``kind/id``; an id that two kinds share means the first kind's."""
    found: dict[str, Entry] = {}
    folder = opened(location).rules
    for path in files_under(folder):
        kind, slash, rest = path.partition("/")
        if slash and kind in KINDS and kind != "sources" and path.endswith(".yaml"):
            _add(found, Entry(kind, rest.rpartition("/")[2].removesuffix(".yaml"), path))
    for laid in laid_entries(location):
        entry = Entry(laid.kind, laid.id, laid.path)  # a whole path, which stands for itself beside any folder
        found[laid.id] = found[f"{laid.kind}/{laid.id}"] = entry
    path = f"{ERRATA}.yaml"
    if os.path.exists(os.path.join(folder, path)):
        for match in _ID.finditer(_read(location, path)):
            _add(found, Entry(ERRATA, match[2], path))
    return found


def _add(found: dict[str, Entry], entry: Entry) -> None:
    found.setdefault(entry.id, entry)
    found[f"{entry.kind}/{entry.id}"] = entry


def written(location: Location, entry: Entry) -> str:
    """The entry's file as it is written; of an erratum its own part of the file, moved to the left margin."""
    text = _read(location, entry.path)
    if entry.kind != ERRATA:
        return text
    start = next(match for match in _ID.finditer(text) if match[2] == entry.id)
    indent = start[1]
    block: list[str] = []
    for line in text[start.start() :].splitlines():
        if block and line.strip() and not line.startswith(f"{indent}  "):
            break  # the next entry, or a comment between two
        block.append(line.removeprefix(indent))
    return "\n".join(block).rstrip() + "\n"


def _read(location: Location, path: str) -> str:
    with open(os.path.join(opened(location).rules, path), encoding="utf-8") as stream:
        return stream.read()
