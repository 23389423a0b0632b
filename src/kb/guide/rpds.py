"""The persistent maps that jsonschema asks for, in Python: the page's Python has no compiled one.

Written into the Contribute page's archive as ``rpds``. Each change gives a copy; the schemas are few and small.
"""

from collections.abc import Iterable, Mapping
from typing import Any


class HashTrieMap(dict[Any, Any]):
    """A dict whose changes are others."""

    @classmethod
    def convert(cls, value: Mapping[Any, Any]) -> "HashTrieMap":
        return value if isinstance(value, cls) else cls(value)

    def insert(self, key: Any, value: Any) -> "HashTrieMap":
        return HashTrieMap({**self, key: value})

    def remove(self, key: Any) -> "HashTrieMap":
        """Raises: KeyError: it is not there."""
        rest = HashTrieMap(self)
        del rest[key]
        return rest

    def update(self, more: Mapping[Any, Any]) -> "HashTrieMap":  # type: ignore[override]
        return HashTrieMap({**self, **more})


class HashTrieSet(frozenset[Any]):
    """A set whose changes are others."""

    def insert(self, value: Any) -> "HashTrieSet":
        return HashTrieSet(self | {value})

    def discard(self, value: Any) -> "HashTrieSet":
        return HashTrieSet(self - {value})

    def update(self, more: Iterable[Any]) -> "HashTrieSet":
        return HashTrieSet(self | frozenset(more))


class List(tuple[Any, ...]):
    """A tuple that grows at its head."""

    def push_front(self, value: Any) -> "List":
        return List((value, *self))
