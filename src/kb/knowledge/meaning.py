"""What each entry under rules/ means, apart from how it is worded: this tells whether a change needs a version."""

import hashlib
import json
from typing import Any

from kb.core.record import NamedTuple
from kb.core.text import LANGUAGES
from kb.knowledge.compile import Files, read_rules_folder
from kb.knowledge.locations import Location
from kb.knowledge.schema import FOLDERS
from kb.knowledge.source import Located

_PROSE = frozenset((*LANGUAGES, "note"))


class Entry(NamedTuple):
    """``meaning`` is a hash of what an entry says without its version and its prose, ``whole`` of all that it says."""

    version: int
    meaning: str
    whole: str
    located: Located


def entries(location: Location, files: Files | None = None) -> dict[str, Entry]:
    """Every entry as it stands now, by ``kind/id``; ``files`` where they have been read.

    Raises:
        KnowledgeError: the folder has faults.
    """
    files = read_rules_folder(location) if files is None else files
    found = {f"{kind}/{located.data['id']}": entry(located) for kind in FOLDERS for located in files.get(kind, ())}
    return dict(sorted(found.items()))


def entry(located: Located) -> Entry:
    """One file's entry."""
    said = {key: value for key, value in located.data.items() if key != "version"}
    return Entry(located.data["version"], _digest(without_prose(said)), _digest(said), located)


def without_prose(data: Any) -> Any:
    """The data without sentences in a language and without notes."""
    if isinstance(data, list):
        return [without_prose(each) for each in data]
    if isinstance(data, dict):
        return {
            key: without_prose(value) for key, value in data.items() if key not in _PROSE or isinstance(value, dict)
        }
    return data


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
