"""Which key of a format means which setting. The formats are data: ``rules/dialects/``.

And keys that no format places and that change what a run takes: an adapter of a program's own, GaLore, offloading.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kb.config.dialect.targets import ANY, Targets
from kb.config.dialect.typos import Neighbours
from kb.config.text.nodes import MAPPING, SEQUENCE, Node
from kb.core.catalog import Dialect
from kb.core.facts import FactType
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


Entry = tuple[tuple[str, ...], Node, Node]  # path from the top of the document, key, value
Entries = Mapping[str, Entry]  # by dotted path
DOT = "\x00"  # stands for a dot inside a key, so that it never counts as a step of a path


class CompiledDialect:
    """A dialect against the vocabulary: what each key of a file means, and which are known."""

    def __init__(self, dialect: Dialect, facts: Mapping[str, FactType]) -> None:
        self.id = dialect.id
        self.of_programs = dialect.reader == "script" and dialect.layout == "sections"
        self.unmodelled = Unmodelled(dialect.unmodelled)
        self.targets = Targets(dialect, facts, self.ignores)
        self._facts = facts
        self.fallbacks = dialect.fallbacks
        self.own_names_at_top = dialect.assigned  # names of variables, which are the author's own
        self.interpolates, self.converts = dialect.interpolates, dialect.converts
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
