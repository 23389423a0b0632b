"""What a check looked at beside the file itself, so that a stored result can tell whether it still holds."""

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from kb.config.files import read_if_any
from kb.config.text.guard import MAX_BYTES
from kb.core.model import Model

Row = tuple[str, str, str, str]  # what was looked up, two arguments, and what it said
Lookup = Callable[[str, str], Any]
BESIDE = ("named", "beside")


class Seen:
    """Remembers each lookup that passes through it, with what it gave."""

    def __init__(self) -> None:
        self.rows: dict[Row, None] = {}
        self.also: dict[str, None] = {}  # files whose words are in rows of another form

    def text(self, kind: str, look: Lookup) -> Lookup:
        """``look``, remembered under ``kind``."""

        def remembered(one: str, other: str) -> Any:
            found = look(one, other)
            self.rows[(kind, one, other, said(found))] = None
            return found

        return remembered

    def model(self, kind: str, look: Callable[[str], Model | None], file: Callable[[str], str | None]) -> Any:
        """``look`` for a model, remembered by the bytes of the ``file`` that it comes from."""

        def remembered(name: str) -> Model | None:
            try:
                return look(name)
            finally:  # after it: the look-up may fetch the file, and one that cannot be used may be mended
                self.rows[(kind, name, "", said(contents(file(name))))] = None

        return remembered

    def files(self) -> list[str]:
        """The files that were looked up beside the checked ones, where they lie beside them."""
        found = [*self.also]
        found += [os.path.join(os.path.dirname(one), other) for kind, one, other, _ in self.rows if kind in BESIDE]
        return [path for path in found if os.path.isfile(path)]

    def take(self) -> list[Row]:
        """What was looked up since the last call."""
        rows = list(self.rows)
        self.rows.clear()
        return rows


def still(rows: Sequence[Sequence[str]], lookups: dict[str, Lookup]) -> bool:
    """Whether every lookup would give today what it gave then."""
    return all(kind in lookups and said(lookups[kind](one, other)) == then for kind, one, other, then in rows)


def said(found: Any) -> str:
    """A short form of a text or of bytes; empty for none."""
    if found is None:
        return ""
    raw = found if isinstance(found, bytes) else str(found).encode("utf-8", "surrogatepass")
    return f"{len(raw)}-{zlib.crc32(raw):08x}-{zlib.adler32(raw):08x}"


def contents(path: str | None) -> bytes | None:
    """A file's bytes; None where there is none, or none that can be read."""
    return None if path is None else read_if_any(path, MAX_BYTES)


def folder_config(name: str) -> str | None:
    """The ``config.json`` of a model that is a local folder."""
    path = os.path.join(name, "config.json")
    return path if os.path.isfile(path) else None


def cached_config_of(name: str) -> str | None:
    """The ``config.json`` of a hub model in the Hugging Face cache."""
    from kb.session.hub_cache import cached_config

    return cached_config(name, os.environ)


LOOKUPS: dict[str, Lookup] = {
    "folder": lambda name, _: contents(folder_config(name)),
    "hub": lambda name, _: contents(cached_config_of(name)),
}
