"""Which key of a format means which setting, and which names it knows. The formats are data: ``rules/dialects/``.

A file has few of the keys that a format knows: each is worked out where it is asked for, and all of them only for what
needs every one (a slip of a key, a setting to be written). Keys that no format places and that change what a run takes
are known too: an adapter of a program's own, GaLore, offloading.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile

from kb.config.text.nodes import MAPPING, SEQUENCE, Node
from kb.core.catalog import Dialect, settings_of
from kb.core.facts import FactType
from kb.core.record import NamedTuple
from kb.core.text import fold
from kb.core.typed import Any

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
    that is not translated) no value of the setting is right. ``patterns`` translate a text that is not listed. What has
    something ``beside`` it counts only where that key's list has an item that the pattern matches (a plugin).
    ``split`` parts a text into a list, ``items`` translates the parts, and what ``adds`` is put together with the
    setting's other keys that add. A ``plain`` one takes the setting's own values: a fix may write it.
    """

    __slots__ = (
        "adds", "beside", "fact", "items", "patterns", "plain", "rank", "same", "skip", "split", "unknown", "values",
    )  # fmt: skip

    def __init__(self, fact: FactType, rank: int, values: Values, how: Mapping[str, Any] = {}) -> None:
        self.fact, self.rank, self.values = fact, rank, values
        self.patterns: Patterns = tuple(how.get("patterns", _NO_VALUES).items())
        self.plain = how.keys() <= _PLAIN
        if self.plain:  # most are: the whole vocabulary may be spelt out
            self.skip, self.unknown = _NOTHING, _NOTHING
            self.same, self.split, self.items, self.adds, self.beside = "", "", _NO_VALUES, False, _NO_VALUES
            return
        skip = how.get("skip", ())
        self.skip = None if skip == "others" else frozenset(_both_spellings(skip))
        unknown = how.get("unknown", ())
        self.unknown = None if unknown == "others" else frozenset(_both_spellings(unknown))
        self.same, self.split = how.get("same", ""), how.get("split", "")
        self.items = how.get("items", _NO_VALUES)
        self.adds, self.beside = how.get("adds", False), how.get("beside", _NO_VALUES)


def _both_spellings(written: Iterable[str]) -> list[str]:
    return [spelling for each in written for spelling in (each, _SPELT.get(each, each))]


class Targets(Mapping[str, list[Target]]):
    """By path of the file; in the order of the format's keys, a group of the vocabulary spelt out where it is named.

    Args:
        ignores: whether a path of such a group means no setting here.
    """

    def __init__(self, dialect: Dialect, facts: Mapping[str, FactType], ignores: Callable[[str], bool]) -> None:
        self._keys, self._values, self._facts, self._ignores = dialect.keys, dialect.values, facts, ignores
        self._settings = settings_of(facts)
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
                    if name not in names and any(each in self._settings for each, _ in _each(meant)):
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
            self._sorted = sorted(self._settings)
        names = islice(self._sorted, bisect_left(self._sorted, start), None)
        return takewhile(lambda name: name.startswith(start), names)

    def _meant(self, path: str) -> Iterator[tuple[FactType, int, Mapping[str, Any]]]:
        """The settings of one path, each with its rank and how it is meant."""
        if path in self._keys:
            if not _is_group(path):
                for name, how in _each(self._keys[path]):
                    if name in self._settings:
                        yield self._facts[name], self._ranks[path] + _behind(how), how
            return
        for pattern, meant, rank in self.groups:
            if path.startswith(pattern[:-1]) and not self._ignores(path):
                for name, how in _each(meant):
                    setting = name[:-1] + path[len(pattern) - 1 :]
                    if setting in self._settings:
                        yield self._facts[setting], rank + _behind(how), how

    def _spelt_out(self) -> Mapping[str, None]:
        """Every path."""
        if not self._paths and self._keys:
            inner: dict[str, list[str]] = {}  # the beginning of settings → the rest of each
            for pattern, meant in self._keys.items():
                if not _is_group(pattern):
                    if any(name in self._settings for name, _ in _each(meant)):
                        self._paths[pattern] = None
                    continue
                for name, _ in _each(meant):
                    start = name[:-1]
                    if start not in inner:
                        below = (setting for setting in self._settings if setting.startswith(start))
                        inner[start] = [setting[len(start) :] for setting in below]
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


MIN_LENGTH, MAX_LENGTH = 5, 100
LIKENESS = 0.85  # a name of 20 letters may differ in 3


class Neighbours:
    """The known names of one group, ready to be asked which one a misspelt one means: ``batchsize``."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = {name: _letters(name) for name in sorted(names) if MIN_LENGTH <= len(name) <= MAX_LENGTH}
        self._folded = {fold(name): name for name in sorted(names)}
        self._words = {word for name in names for word in name.split("_")}

    def meant_by(self, name: str) -> str | None:
        """The known name that ``name`` differs from by a slip; None where it may well be a name of its own."""
        if len(name) > MAX_LENGTH:
            return None
        same = self._folded.get(fold(name))
        if same is not None or len(name) < MIN_LENGTH:
            return same
        letters, best = _letters(name), None
        for known, known_letters in self._names.items():
            allowed = int(max(len(name), len(known)) * (1 - LIKENESS) + 0.5)
            if abs(len(known) - len(name)) > allowed or (letters ^ known_letters).bit_count() > 2 * allowed:
                continue
            distance = slips(name, known, allowed)
            if distance <= allowed and not self._own_name(name, known) and (best is None or distance < best[0]):
                best = (distance, known)
        return best[1] if best else None

    def _own_name(self, name: str, known: str) -> bool:
        """Whether the two differ by words that each mean something: ``min_length`` is no slip for ``max_length``."""
        if name.translate(_NO_DIGITS) == known.translate(_NO_DIGITS):
            return True
        mine, theirs = name.split("_"), known.split("_")
        if len(mine) != len(theirs):
            return all(word in self._words for word in mine)
        differing = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
        return any(a in self._words and a.rstrip("s") != b.rstrip("s") for a, b in differing)


_NO_DIGITS = str.maketrans("", "", "0123456789")


def _letters(name: str) -> int:
    """The set of characters in a name, as bits."""
    bits = 0
    for character in name:
        bits |= 1 << (ord(character) & 63)
    return bits


def slips(left: str, right: str, limit: int) -> int:
    """Letters added, dropped, changed or swapped between two names (optimal string alignment); over ``limit``: more."""
    beyond = limit + 1
    width = len(right)
    before: list[int] = []
    row = [min(j, beyond) for j in range(width + 1)]
    for i, a in enumerate(left, 1):
        previous, row = row, [beyond] * (width + 1)
        row[0] = min(i, beyond)
        # Cells further than `limit` from the diagonal cannot end within it.
        for j in range(max(1, i - limit), min(width, i + limit) + 1):
            b = right[j - 1]
            cost = min(previous[j - 1] + (a != b), previous[j] + 1, row[j - 1] + 1)
            if before and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row[j] = cost
        if min(row) > limit:
            return beyond
        before = previous
    return min(row[-1], beyond)


_NO = frozenset(("", "false", "no", "none", "null", "off", "0", "0.0", "~"))
OF_METHOD = ("run.adapter", "run.quantized")  # a format's own words for these are what it says of them
_SWITCHES = ("use_", "enable_")
_SWITCHES_OFF = {"fast_inference": "use_vllm"}  # Unsloth's: without it no vLLM is started, whatever share it would take


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

    def among(
        self, keys: Iterable[tuple[str, Any, bool]], is_off: Callable[[str], bool | None] = lambda switch: None
    ) -> list[Found]:
        """What the keys say, in their order; the first of several for one setting counts.

        Args:
            keys: each key as written, its value (of one that is not known, anything true), and whether the format
                knows it as an argument of its own: such a one says nothing of adapters.
            is_off: whether the run leaves this setting off; None of a format that does not have it.
        """
        told: list[tuple[int, str, int]] = []
        denied: set[int] = set()
        for index, (written, value, known) in enumerate(keys):
            key = written.casefold().replace("-", "_")
            number = self._row_of(_SWITCHES_OFF.get(key, key))
            if key in _SWITCHES_OFF and number is not None:
                denied |= set() if is_so(value, {}) else {number}
                continue
            if number is None or (known and self._says_nothing(key, self._rows[number], is_off)):
                continue
            if is_so(value, self._rows[number]):
                told.append((number, written, index))
            elif key.startswith(_SWITCHES):
                denied.add(number)
        found = []
        for number, key, index in told:
            row = self._rows[number]
            if number not in denied:
                found.append(Found(row["to"], f"{row['name']} ({key})" if "name" in row else key, index))
        return found

    @staticmethod
    def _says_nothing(key: str, row: Mapping[str, Any], is_off: Callable[[str], bool | None]) -> bool:
        off = is_off(row["switch"]) if "switch" in row else None
        return row["to"] in OF_METHOD or off or (off is False and key in row.get("at_server", ()))

    def _row_of(self, key: str) -> int | None:
        begins = (number for begin, number in self._begins if key.startswith(begin))
        return self._exact[key] if key in self._exact else next(begins, None)


def is_so(value: Any, row: Mapping[str, Any]) -> bool:
    """Whether a key with this value says that the thing is there."""
    if isinstance(value, Mapping):
        if "words" in row:  # a group of that name: one of its own values must be the word
            return any(not isinstance(inner, Mapping) and is_so(inner, row) for inner in value.values())
        switch = next((value[name] for name in ("enabled", "enable", "use", "device") if name in value), bool(value))
        return is_so(switch, {})
    text = str(value).strip().casefold()
    if value is None or text in _NO:
        return False
    words = row.get("words")
    if words is not None:
        return any(text == word if word.isdigit() else word in text for word in words)
    above = row.get("above")
    return above is None or not text.isdigit() or int(text) > above


Entry = tuple[tuple[str, ...], Node, Node]  # path from the top of the document, key, value
Entries = Mapping[str, Entry]  # by dotted path
DOT = "\x00"  # stands for a dot inside a key, so that it never counts as a step of a path


class CompiledDialect:
    """A dialect against the vocabulary: what each key of a file means, and which are known."""

    def __init__(self, dialect: Dialect, facts: Mapping[str, FactType]) -> None:
        self.id = dialect.id
        self.of_scripts = dialect.reader == "script"
        self.of_programs = self.of_scripts and dialect.layout == "sections"
        own = self.of_scripts and dialect.layout in ("sections", "grouped")
        self.unmodelled = Unmodelled([row for row in dialect.unmodelled if own or "own" not in row])
        self.targets = Targets(dialect, facts, self.ignores)
        self._facts = facts
        self.fallbacks = dialect.fallbacks
        self.own_names_at_top = dialect.assigned  # names of variables, which are the author's own
        self.converts = dialect.converts
        self._known: dict[str, str] = {}  # arguments that mean no setting → the releases that have them
        for releases, names in dialect.known.items():
            self._known |= dict.fromkeys(names, releases)
        self._closed = {"" if group == ANY else group.removesuffix(".*") for group in dialect.closed}
        self._extended = dialect.extended
        self._ignored = {pattern for pattern in dialect.ignore if not pattern.endswith(".*")}
        prefixes = [pattern[:-1] for pattern in dialect.ignore if pattern.endswith(".*")]
        self._ignored_prefixes = tuple(prefixes)
        self._ignored.update(prefix[:-1] for prefix in prefixes)
        whole = [(path, meant) for path, meant, _ in self.targets.groups if isinstance(meant, str)]
        self._groups = [(path.rstrip("*."), meant.removesuffix(".*")) for path, meant in whole]
        self._neighbours: dict[str, Neighbours] = {}

    def fact(self, name: str) -> FactType:
        """The vocabulary's entry for a setting."""
        return self._facts[name]

    def group_of(self, parent: str) -> str:
        """The group of the vocabulary whose settings lie under this path of the file, where one is named as a whole."""
        for path, group in self._groups:
            if parent == path:
                return group
            if not path or parent.startswith(path + "."):
                return f"{group}.{parent[len(path) :].lstrip('.')}"
        return ""

    def neighbours(self, parent: str) -> Neighbours:
        """The names known in a group, to be asked about names that are not."""
        if parent not in self._neighbours:
            listed = {path.rpartition(".")[2] for path in self._known if path.rpartition(".")[0] == parent}
            self._neighbours[parent] = Neighbours(self.targets.names_in(parent) | listed)
        return self._neighbours[parent]

    def ignores(self, path: str) -> bool:
        """Whether a key is known to mean no setting."""
        return path in self._known or path in self._ignored or path.startswith(self._ignored_prefixes)

    def lists(self, path: str) -> bool:
        """Whether it is an argument of the format that means no setting."""
        return path in self._known

    def last_release(self, path: str) -> str:
        """The last release looked at that has an argument which later ones lack; empty where the newest has it."""
        return self._known.get(path, "").partition("..")[2]

    def is_closed(self, parent: str, entries: Entries) -> bool:
        """Whether every name that the format takes in this group is known here: extensions have names of their own."""
        return parent in self._closed and not any(
            key in entries and _names_others(entries[key][2], own) for key, own in self._extended.items()
        )


def _names_others(node: Node, own: Sequence[str]) -> bool:
    """Whether a list has a name that is none of these, ``name.*`` for all below one."""
    listed = node.value if node.kind == SEQUENCE else (node,)
    names = [str(each.value) for each in listed if each.value not in (None, "")]
    below = tuple(each[:-1] for each in own if each.endswith(".*"))
    return any(not each.startswith(below) and each not in own for each in names)


def flatten(node: Node, into: dict[str, Entry], prefix: str = "", path: tuple[str, ...] = ()) -> None:
    """Every entry of a mapping and of the mappings in it, by dotted path; of a repeated key only the last counts."""
    for name, (key, value) in node.entries().items():
        dotted = prefix + (name.replace(".", DOT) if "." in name else name)
        here = (*path, name)
        into[dotted] = (here, key, value)
        if value.kind == MAPPING:
            flatten(value, into, dotted + ".", here)


def split(entries: Entries, sections: Collection[str]) -> tuple[dict[str, Entry], dict[str, dict[str, Entry]]]:
    """The entries at the top, and those of each section by their path in it."""
    top: dict[str, Entry] = {}
    parts: dict[str, dict[str, Entry]] = {section: {} for section in sections}
    for path, entry in entries.items():
        part = parts.get(entry[0][0])
        if part is None:
            top[path] = entry
        elif len(entry[0]) > 1:
            part[path.partition(".")[2]] = entry
    return top, parts


def section_names(dialect: Dialect, entries: Entries) -> list[str]:
    """The keys at the top that are sections: no group of the dialect themselves, but they hold at least one."""
    if dialect.layout != "sections":
        return []
    groups = dialect.sections["groups"]
    names = []
    for path, (_, key, value) in entries.items():
        if "." in path or path in groups or value.kind != MAPPING:
            continue
        if any((entry := entries.get(f"{path}.{group}")) and entry[2].kind == MAPPING for group in groups):
            names.append(key.value)
    return names
