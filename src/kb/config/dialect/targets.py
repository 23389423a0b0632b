"""Which settings a key of a format means.

A file has few of the keys that a format knows: each is worked out where it is asked for, and all of them only for what
needs every one (a slip of a key, a setting to be written).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Any

from kb.core.catalog import Dialect
from kb.core.facts import FactType

Values = Mapping[str, Any]
Patterns = tuple[tuple[str, Any], ...]  # regular expression → what a text that it matches means
LAST = 10_000  # ranks of keys that count only where no other key of the setting is there
ANY = "*"  # in a translation: any value that is not listed
_PLAIN = frozenset(("to", "last"))
_NOTHING: frozenset[str] | None = frozenset()
_NO_VALUES: Values = {}
_SPELT = {"true": "True", "false": "False"}  # YAML writes its booleans either way


class Target:
    """A setting that a key means; of the keys of one setting the one with the lowest ``rank`` counts.

    ``values`` translates what is written; what is in ``skip``, or is the value of the key ``same`` too, says nothing of
    the setting, and where ``skip`` is None nothing does but what is translated; for what is in ``unknown`` (None: all
    that is not translated) no value of the setting is right. ``patterns`` translate a text that is not listed.
    ``split`` parts a text into a list, ``items`` translates the parts, and what ``adds`` is put together with the
    setting's other keys that add. A ``plain`` one takes the setting's own values: a fix may write it.
    """

    __slots__ = ("adds", "fact", "items", "patterns", "plain", "rank", "same", "skip", "split", "unknown", "values")

    def __init__(self, fact: FactType, rank: int, values: Values, how: Mapping[str, Any] = {}) -> None:
        self.fact, self.rank, self.values = fact, rank, values
        self.patterns: Patterns = tuple(how.get("patterns", _NO_VALUES).items())
        self.plain = how.keys() <= _PLAIN
        if self.plain:  # most are: the whole vocabulary may be spelt out
            self.skip, self.unknown = _NOTHING, _NOTHING
            self.same, self.split, self.items, self.adds = "", "", _NO_VALUES, False
            return
        skip = how.get("skip", ())
        self.skip = None if skip == "others" else frozenset(_both_spellings(skip))
        unknown = how.get("unknown", ())
        self.unknown = None if unknown == "others" else frozenset(_both_spellings(unknown))
        self.same, self.split = how.get("same", ""), how.get("split", "")
        self.items = how.get("items", _NO_VALUES)
        self.adds = how.get("adds", False)


def _both_spellings(written: Iterable[str]) -> list[str]:
    return [spelling for each in written for spelling in (each, _SPELT.get(each, each))]


class Targets(Mapping[str, list[Target]]):
    """By path of the file; in the order of the format's keys, a group of the vocabulary spelt out where it is named.

    Args:
        ignores: whether a path of such a group means no setting here.
    """

    def __init__(self, dialect: Dialect, facts: Mapping[str, FactType], ignores: Callable[[str], bool]) -> None:
        self._keys, self._values, self._facts, self._ignores = dialect.keys, dialect.values, facts, ignores
        self._ranks = {pattern: rank for rank, pattern in enumerate(self._keys)}
        # paths that name a group as a whole, what they mean, and their rank
        self.groups = [(path, self._keys[path], rank) for path, rank in self._ranks.items() if _is_group(path)]
        self._aimed: dict[str, list[Target]] = {}
        self._paths: dict[str, None] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._sorted: list[str] = []

    def __getitem__(self, path: str) -> list[Target]:
        found = self._aimed.get(path)
        if found is None:
            found = [Target(fact, rank, self._listed(fact.name, how), how) for fact, rank, how in self._meant(path)]
            if not found:
                raise KeyError(path)
            self._aimed[path] = found
        return found

    def __contains__(self, path: object) -> bool:
        return path in self._aimed or (isinstance(path, str) and next(self._meant(path), None) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._spelt_out())

    def __len__(self) -> int:
        return len(self._spelt_out())

    def names_in(self, parent: str) -> frozenset[str]:
        """The names known in a group, groups among them; empty where it holds none. The top is the empty path.

        Worked out for the groups that a file has: to spell out all paths of a format takes longer than reading a file.
        """
        if parent not in self._names:
            below = f"{parent}." if parent else ""
            names: set[str] = set()
            for pattern, meant in self._keys.items():
                if pattern.startswith(below) and not _is_group(pattern):
                    name = pattern[len(below) :].partition(".")[0]
                    if name not in names and any(self._is_setting(each) for each, _ in _each(meant)):
                        names.add(name)
            for pattern, meant, _ in self.groups:
                start = pattern[:-1]
                if start.startswith(below) or below.startswith(start):
                    names.update(path[len(below) :].partition(".")[0] for path in self._of_group(start, meant, below))
            self._names[parent] = frozenset(names)
        return self._names[parent]

    def _of_group(self, start: str, meant: Any, below: str) -> Iterator[str]:
        """The paths of a group of the vocabulary that begin so; one where the whole group does."""
        for name, _ in _each(meant):
            settings = self._beginning_with(name[:-1] + below[len(start) :])
            paths = (start + setting[len(name) - 1 :] for setting in settings)
            found = (path for path in paths if path not in self._keys and not self._ignores(path))
            yield from found if len(start) <= len(below) else islice(found, 1)

    def _beginning_with(self, start: str) -> Iterator[str]:
        """The settings whose names begin so."""
        if not self._sorted:
            self._sorted = sorted(self._facts)
        names = islice(self._sorted, bisect_left(self._sorted, start), None)
        return filter(self._is_setting, takewhile(lambda name: name.startswith(start), names))

    def _meant(self, path: str) -> Iterator[tuple[FactType, int, Mapping[str, Any]]]:
        """The settings of one path, each with its rank and how it is meant."""
        if path in self._keys:
            if not _is_group(path):
                for name, how in _each(self._keys[path]):
                    if self._is_setting(name):
                        yield self._facts[name], self._ranks[path] + _behind(how), how
            return
        for pattern, meant, rank in self.groups:
            if path.startswith(pattern[:-1]) and not self._ignores(path):
                for name, how in _each(meant):
                    setting = name[:-1] + path[len(pattern) - 1 :]
                    if self._is_setting(setting):
                        yield self._facts[setting], rank + _behind(how), how

    def _is_setting(self, name: str) -> bool:
        fact = self._facts.get(name)
        return fact is not None and fact.setting

    def _spelt_out(self) -> Mapping[str, None]:
        """Every path."""
        if not self._paths and self._keys:
            settings = [name for name, fact in self._facts.items() if fact.setting]
            inner: dict[str, list[str]] = {}  # the beginning of settings → the rest of each
            for pattern, meant in self._keys.items():
                if not _is_group(pattern):
                    if any(self._is_setting(name) for name, _ in _each(meant)):
                        self._paths[pattern] = None
                    continue
                for name, _ in _each(meant):
                    start = name[:-1]
                    if start not in inner:
                        inner[start] = [setting[len(start) :] for setting in settings if setting.startswith(start)]
                    paths = [pattern[:-1] + rest for rest in inner[start]]
                    self._paths.update(
                        (path, None) for path in paths if path not in self._keys and not self._ignores(path)
                    )
        return self._paths

    def _listed(self, name: str, how: Mapping[str, Any]) -> Values:
        """What values of a setting mean as they are written, by the format and by this key."""
        of_all, of_this, own = self._values.get(ANY), self._values.get(name), how.get("values")
        if not (of_all or of_this or own):
            return _NO_VALUES  # most have none, and a format may have thousands of keys
        listed = {**(of_all or {}), **(of_this or {}), **(own or {})}
        for text in [text for text in listed if text in _SPELT]:
            listed.setdefault(_SPELT[text], listed[text])
        return listed


def _is_group(pattern: str) -> bool:
    return pattern == ANY or pattern.endswith(".*")


def _behind(how: Mapping[str, Any]) -> int:
    return LAST if how.get("last") else 0


def _each(meant: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What a key means, a setting each, and how."""
    for each in meant if isinstance(meant, list | tuple) else (meant,):
        how = each if isinstance(each, Mapping) else {"to": each}
        to = how["to"]
        for name in [to] if isinstance(to, str) else to:
            yield name, how
