"""What the engine has found before: kept in the process, and where a program wants that, from one process to the next.

An answer depends on what was asked and on the code alone, so a second check of a config that says the same of memory
follows no run again.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any, Protocol, TypeVar

MOST_KNOWN = 512  # answers of each kind that a process keeps
Answer = TypeVar("Answer")


class Store(Protocol):
    """A table from keys to JSON values that outlives the process; it never raises."""

    def get(self, key: bytes) -> Any:
        """The stored value; None where there is none."""

    def put(self, rows: Iterable[tuple[bytes, Any]]) -> None:
        """Store values."""


class _Kept:
    """Where answers outlive the process: opened with the first that is asked for, anew in each process."""

    def __init__(self) -> None:
        self.open: Callable[[], tuple[bytes, Store] | None] | None = None
        self._opened: tuple[int, tuple[bytes, Store] | None] | None = None

    def place(self) -> tuple[bytes, Store] | None:
        """What tells this code's answers from others', and the table; None where nothing is kept."""
        if self.open is None:
            return None
        from os import getpid  # most processes ask for nothing

        if self._opened is None or self._opened[0] != getpid():  # a table does not pass to a process that is forked
            self._opened = getpid(), self.open()
        return self._opened[1]


_KEPT = _Kept()


def keep_in(table: Callable[[], tuple[bytes, Store] | None] | None) -> None:
    """From here on answers outlive the process.

    Args:
        table: opens it, and says in a few bytes which code answers; it is called when the first answer is asked for.
            None: they go with the process.
    """
    _KEPT.open = table


def kept(written: Callable[[Answer], Any], read: Callable[[Any], Answer]) -> Callable[..., Callable[..., Answer]]:
    """A function whose answers are kept; its arguments are told apart by their ``repr``.

    Args:
        written: an answer as a JSON value.
        read: the answer of that.
    """

    def keeping(answer: Callable[..., Answer]) -> Callable[..., Answer]:
        @lru_cache(maxsize=MOST_KNOWN)
        @wraps(answer)
        def known(*asked: Any) -> Answer:
            found = get(answer.__name__, asked)
            if found is None:
                found = written(answer(*asked))
                put(answer.__name__, asked, found)
            return read(found)

        return known

    return keeping


def get(name: str, asked: Any) -> Any:
    """The JSON value that is kept of a question of this name; None where there is none."""
    place = _KEPT.place()
    return place[1].get(_key(place[0], name, asked)) if place is not None else None


def put(name: str, asked: Any, value: Any) -> None:
    """Keep a JSON value for :func:`get`."""
    place = _KEPT.place()
    if place is not None:
        place[1].put([(_key(place[0], name, asked), value)])


def _key(code: bytes, name: str, asked: Any) -> bytes:
    from hashlib import blake2b  # most processes ask for nothing

    return blake2b(f"{name} {asked!r}".encode("utf-8", "surrogatepass"), digest_size=16, key=code).digest()
