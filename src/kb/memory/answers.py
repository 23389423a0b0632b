"""What the engine has found before: kept in the process, and where a program wants that, from one process to the next.

An answer depends on what was asked and on the code alone, so a second check of a config that says the same of memory
follows no run again.
"""

from collections.abc import Callable
from functools import lru_cache, wraps

from kb.core.typed import Any, Protocol, TypeVar

MOST_KNOWN = 512  # answers of each kind that a process keeps
Answer = TypeVar("Answer")


class Store(Protocol):
    """A table from questions to JSON values that outlives the process; it never raises."""

    def get(self, question: str) -> Any:
        """The stored value; None where there is none."""

    def put(self, question: str, value: Any) -> None:
        """Store a value."""


class _Kept:
    store: Store | None = None


def keep_in(store: Store | None) -> None:
    """From here on answers outlive the process, in a table of what this code answers; with None they do not."""
    _Kept.store = store


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
    return _Kept.store.get(f"{name} {asked!r}") if _Kept.store is not None else None


def put(name: str, asked: Any, value: Any) -> None:
    """Keep a JSON value for :func:`get`."""
    if _Kept.store is not None:
        _Kept.store.put(f"{name} {asked!r}", value)


def known(
    name: str,
    asked: Any,
    answer: Callable[[], Answer],
    written: Callable[[Answer], Any] = lambda value: value,
    read: Callable[[Any], Answer] = lambda value: value,
) -> Answer:
    """What is kept of a question, or its answer, which is kept from here on where it can be read again as it was:
    so the code that answers is not imported where nothing new is asked.
    """
    if _Kept.store is None:
        return answer()
    found = get(name, asked)
    if found is not None:
        return read(found)
    value = answer()
    made = _as_json(written(value))
    if read(made) == value:
        put(name, asked, made)
    return value


def _as_json(value: Any) -> Any:
    """A value as JSON gives it back: its tuples as lists; what JSON has no word for equals nothing."""
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else object()
