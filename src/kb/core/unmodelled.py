"""Keys that no format places and that change what a run takes: an adapter of a program's own, GaLore, offloading."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple

_NO = frozenset(("", "false", "no", "none", "null", "off", "0", "0.0", "~"))
OF_METHOD = ("run.adapter", "run.quantized")  # a format's own words for these are what it says of them
_SWITCHES = ("use_", "enable_")


class Found(NamedTuple):
    """``to`` is the setting that the key at position ``at`` gives, ``text`` its value: the thing's name and the key."""

    to: str
    text: str
    at: int


class Unmodelled:
    """The rows of ``unmodelled`` in ``vocabulary.yaml``, ready to be asked about keys."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows
        self._exact: dict[str, int] = {}
        self._begins: list[tuple[str, int]] = []
        for number, row in enumerate(rows):
            for key in row["keys"]:
                if key.endswith("*"):
                    self._begins.append((key[:-1], number))
                else:
                    self._exact.setdefault(key, number)

    def among(self, keys: Iterable[tuple[str, Any, bool]]) -> list[Found]:
        """What the keys say, in their order; the first of several for one setting counts.

        Args:
            keys: each key as written, its value (of one that is not known, anything true), and whether the format
                knows it as an argument of its own: such a one says nothing of adapters.
        """
        told: list[tuple[int, str, int]] = []
        denied: set[int] = set()
        for index, (written, value, known) in enumerate(keys):
            key = written.casefold().replace("-", "_")
            number = self._row_of(key)
            if number is None or (known and self._rows[number]["to"] in OF_METHOD):
                continue
            if _is_so(value, self._rows[number]):
                told.append((number, written, index))
            elif key.startswith(_SWITCHES):
                denied.add(number)
        return [self._found(number, key, index) for number, key, index in told if number not in denied]

    def _row_of(self, key: str) -> int | None:
        exact = self._exact.get(key)
        if exact is not None:
            return exact
        return next((number for begin, number in self._begins if key.startswith(begin)), None)

    def _found(self, number: int, key: str, index: int) -> Found:
        row = self._rows[number]
        return Found(row["to"], f"{row['name']} ({key})" if "name" in row else key, index)


def _is_so(value: Any, row: Mapping[str, Any]) -> bool:
    """Whether a key with this value says that the thing is there."""
    if isinstance(value, Mapping):
        if "words" in row:  # a group of that name: one of its own values must be the word
            return any(not isinstance(inner, Mapping) and _is_so(inner, row) for inner in value.values())
        switch = next((value[name] for name in ("enabled", "enable", "use", "device") if name in value), bool(value))
        return _is_so(switch, {})
    text = str(value).strip().casefold()
    if value is None or text in _NO:
        return False
    words = row.get("words")
    if words is not None:
        return any(text == word if word.isdigit() else word in text for word in words)
    above = row.get("above")
    return above is None or not text.isdigit() or int(text) > above
