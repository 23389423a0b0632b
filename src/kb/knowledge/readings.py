"""What the files of rules/ and i18n/ were found to hold, kept beside the bundle, so that a change of one reads one.

Only files without a fault are kept, each under a digest of its text, of its schema and of the code that reads and
checks: whatever differs is read again. Where values stand is found out again only where a fault is to be told.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from kb.knowledge import schema, source
from kb.knowledge.bundle import read_data, write_data
from kb.knowledge.locations import Location
from kb.knowledge.source import Located, Path, read_source

FILE = "readings.json"


def lend(location: Location, other: Location) -> None:
    """Give another folder what was found of this one: most files of the two are the same."""
    try:
        os.makedirs(other.bundle, exist_ok=True)
        shutil.copyfile(os.path.join(location.bundle, FILE), os.path.join(other.bundle, FILE))
    except OSError:
        pass  # none yet, or a read-only folder: every file of the other is read


class Readings:
    """The files of one rules folder that were read before and were right."""

    def __init__(self, location: Location) -> None:
        self._path = os.path.join(location.bundle, FILE)
        self._code = _code()
        self._kept = self._read()
        self._met: dict[str, Any] = {}
        self._new = False

    def known(self, path: str, text: str, rules: bytes) -> Located | None:
        """The file, where this text was right under the schema ``rules``; once: no two files share data."""
        key = self._key(text, rules)
        if key not in self._kept:
            return None
        data = self._met[key] = self._kept.pop(key)
        return Located(path, data, _Places(path, text))

    def keep(self, text: str, rules: bytes, data: Any) -> None:
        """The file was read, and had no fault."""
        self._met[self._key(text, rules)] = data
        self._new = True

    def write(self) -> None:
        """What was met replaces what lay there, where something is new and the folder can be written."""
        if not self._new:
            return
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            write_data(self._path, {"code": self._code, "files": self._met})
        except OSError:
            pass  # a read-only folder: every file is read at each compilation

    def _key(self, text: str, rules: bytes) -> str:
        return hashlib.blake2b(rules + b"\0" + text.encode(), digest_size=16).hexdigest()

    def _read(self) -> dict[str, Any]:
        try:
            kept = read_data(self._path)
            return dict(kept["files"]) if kept["code"] == self._code else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}  # none yet, or damaged


class _Places(Mapping[Path, tuple[int, int]]):
    """Where each value stands in a text, read when first asked."""

    def __init__(self, path: str, text: str) -> None:
        self._source = path, text

    @cached_property
    def _all(self) -> Mapping[Path, tuple[int, int]]:
        return read_source(*self._source).places

    def __getitem__(self, path: Path) -> tuple[int, int]:
        return self._all[path]

    def __iter__(self) -> Iterator[Path]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def _code() -> str:
    """A digest of the code that decides what a file holds and whether it is right."""
    digest = hashlib.blake2b(digest_size=16)
    for module in (source, schema):
        if module.__file__:
            with open(module.__file__, "rb") as stream:
                digest.update(stream.read())
    return digest.hexdigest()
