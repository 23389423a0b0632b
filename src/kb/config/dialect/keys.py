"""Everything that one part of a config says, by the keys that the format itself has."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kb.config.dialect.dialects import Entries, Entry
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.config.text.source import Source
from kb.core.document import Setting

EACH = ".each."
"""Stands between a list and a key of the mappings in it: ``datasets.each.type``."""


class WrittenKeys(Mapping[str, Setting]):
    """The keys of one document by dotted path, each made a setting when it is asked for: most never are."""

    __slots__ = ("_entries", "_source")

    def __init__(self, entries: Entries, source: Source) -> None:
        self._entries, self._source = entries, source

    def __getitem__(self, path: str) -> Setting:
        if EACH in path:
            path, _, inner = path.partition(EACH)
            entry = self._entries[path]
            values = _inner_values(entry[2], inner)
            if values is None:
                raise KeyError(path)
            return placed(values, entry, self._source, borrowed=True)
        entry = self._entries[path]
        return placed(_plain(entry[2]), entry, self._source, borrowed=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def without(self, names: Collection[str]) -> "WrittenKeys":
        """The same less some keys of the top."""
        kept = {path: entry for path, entry in self._entries.items() if path.partition(".")[0] not in names}
        return WrittenKeys(kept, self._source)


def placed(value: Any, entry: Entry, source: Source, *, borrowed: bool) -> Setting:
    """``borrowed``: the value is not what stands there but follows from it, so that no fix may write over it."""
    path, key, node = entry
    span = source.span(node)
    comment = source.comment_after(span.end) if node.flow else ""
    key_span = source.between(key.start, key.end or key.start)
    return Setting(value, span, key_span, path, comment, alias=node.alias or borrowed)


def _plain(node: Node) -> Any:
    """A scalar as YAML reads it, a list as a tuple; of a mapping only that it is one."""
    if node.kind == SCALAR:
        return node.scalar()
    return tuple(node.plain()) if node.kind == SEQUENCE else {}


def _inner_values(node: Node, key: str) -> tuple[Any, ...] | None:
    """What ``key`` is in each mapping of a list that has it; None where none does."""
    if node.kind != SEQUENCE:
        return None
    entries = (item.entries().get(key) for item in node.value if item.kind == MAPPING)
    values = tuple(_plain(entry[1]) for entry in entries if entry is not None)
    return values or None
