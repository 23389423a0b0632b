"""Which format a config is in, by the keys that it has."""

import re
from collections.abc import Mapping
from functools import cached_property

from kb.config.dialect.dialects import LAST, CompiledDialect, Entries, Entry, section_names, split
from kb.config.text.nodes import MAPPING, SCALAR
from kb.core.catalog import Dialect
from kb.core.facts import FactType

MOST_SHAPES = 256  # documents of different names whose dialects are remembered
LEAST_OF_A_RUN = 4  # settings that make a file without marks a run's, a hub's model and a batch among them
BATCH = "training.per_device_train_batch_size"
_OF_A_HUB = r"[\w.-]+/[\w.-]+"
# What is known once a run is over: with a number behind such a name a file says how one went, not how one is to go.
_RESULT = r"""(?x)(?:.*\.)?(?:
    (?:train|training|eval|test|val)_(?:runtime|samples_per_second|steps_per_second|duration\w*)
    | total_flos | training_time\w* | (?:metrics|results?)\.\w*loss)"""  # elsewhere a loss may be where a run starts
_NUMBER = r"-?\d+\.?\d*(?:[eE][+-]?\d+)?"


class Recognition:
    """Finds the dialect of a document among several by the marks that each names."""

    def __init__(self, dialects: Mapping[str, Dialect], facts: Mapping[str, FactType]) -> None:
        files = [dialect for dialect in dialects.values() if dialect.layout not in ("command", "python")]
        self._dialects = sorted(files, key=lambda dialect: (-dialect.priority, dialect.id))
        self._facts = facts
        self._compiled: dict[str, CompiledDialect] = {}
        self._seen: dict[tuple[tuple[str, bool], ...], list[Dialect]] = {}  # shapes of documents → their dialects

    def compiled(self, dialect: Dialect) -> CompiledDialect:
        if dialect.id not in self._compiled:
            self._compiled[dialect.id] = CompiledDialect(dialect, self._facts)
        return self._compiled[dialect.id]

    def unwrapped(self, entries: Entries) -> tuple[Dialect, dict[str, Entry]] | None:
        """The dialect whose entries each hold their value under one key, and the entries with it; None of others."""
        for dialect in self._dialects:
            if dialect.wrapped and (inner := _unwrapped(dialect, entries)) is not None:
                return dialect, inner
        return None

    def recognise(self, entries: Entries) -> Dialect | None:
        """The dialect with the highest priority among those whose marks suffice; of equals the best marked."""
        matching = self.matching(entries)
        return matching[0] if matching else None

    def matching(self, entries: Entries) -> list[Dialect]:
        """The dialect of a document, and after it those that it may as well be: of like priority, marked half as well
        or better. Names alone decide, and which of them hold mappings: a grid of configs is recognised once.
        """
        shape = tuple((path, entry[2].kind == MAPPING) for path, entry in entries.items())
        if shape not in self._seen:
            if len(self._seen) >= MOST_SHAPES:
                self._seen.clear()
            self._seen[shape] = self._matching(entries)
        found = self._seen[shape]
        if any(dialect.reader == "script" for dialect in found) and _holds_results(entries):
            found = [dialect for dialect in found if dialect.reader != "script"]
        return found

    def _matching(self, entries: Entries) -> list[Dialect]:
        found: list[tuple[int, Dialect]] = []
        for dialect in self._dialects:
            if dialect.wrapped:
                continue
            if found and dialect.priority < found[0][1].priority:
                break
            score = self.score(dialect, entries)
            if score >= dialect.recognise["least"]:
                found.append((score, dialect))
        if not found and any(path.rpartition(".")[2] in self._names_of_batches for path in entries):
            found = [  # of equals the most general: such names bring no special format's defaults
                (known, dialect)
                for dialect in reversed(self._dialects)
                if not dialect.wrapped and (known := self._known_of_a_run(dialect, entries)) >= LEAST_OF_A_RUN
            ]
        found.sort(key=lambda each: -each[0])
        return [dialect for score, dialect in found if 2 * score >= found[0][0]]

    def score(self, dialect: Dialect, entries: Entries) -> int:
        """What the dialect's marks in the document weigh, at its top and in its sections; 0 where one forbids."""
        parts = _parts_of(dialect, entries)
        marks = dialect.recognise["marks"]
        score: int = sum(weight for mark, weight in marks.items() if any(_bears(mark, part) for part in parts))
        groups = dialect.recognise.get("known", {})
        if groups and score < dialect.recognise["least"]:
            for path in dict.fromkeys(path for part in parts for path in part):
                weight = groups.get(path.rpartition(".")[0] + ".*", 0)
                # a name that programs of any kind have marks no format
                if weight and any(target.rank < LAST for target in self.compiled(dialect).targets.get(path, ())):
                    score += weight
        return score

    def _known_of_a_run(self, dialect: Dialect, entries: Entries) -> int:
        """Settings that a format knows in a file without marks; 0 where it names no model of a hub, or no batch."""
        parts = _parts_of(dialect, entries)
        if not parts:
            return 0
        targets = self.compiled(dialect).targets
        known = {
            aim.fact.name: entry[2] for part in parts for path, entry in part.items() for aim in targets.get(path, ())
        }
        model = known.get("model.name")
        named = model is not None and model.kind == SCALAR and re.fullmatch(_OF_A_HUB, model.value) is not None
        return len(known) if named and BATCH in known else 0

    def familiar_keys(self, entries: Entries, limit: int = 20) -> tuple[str, ...]:
        """Names in a document that some dialect knows, wherever they stand, in their order."""
        names = (key.value for _, key, _ in entries.values())
        return tuple(dict.fromkeys(name for name in names if name in self._names))[:limit]

    @cached_property
    def _names(self) -> frozenset[str]:
        """The last part of every name that some dialect knows: a folder of data asks for it once a file."""
        return frozenset(path.rpartition(".")[2] for each in self._dialects for path in self.compiled(each).targets)

    @cached_property
    def _names_of_batches(self) -> frozenset[str]:
        """The last part of every name of the batch in some dialect, by itself or in a group named as a whole."""
        every = (item for dialect in self._dialects for item in dialect.keys.items())
        named = {path.rpartition(".")[2] for path, meant in every if BATCH in str(meant)}
        return frozenset((*named, BATCH.rpartition(".")[2]))


def _unwrapped(dialect: Dialect, entries: Entries) -> dict[str, Entry] | None:
    """The entries without the key that wraps each value; None where one at the top is written otherwise."""
    within, beside = dialect.wrapped["in"], {dialect.wrapped["in"], *dialect.wrapped["beside"]}
    marks = dialect.recognise["marks"]
    if sum(weight for mark, weight in marks.items() if _bears(mark, entries)) < dialect.recognise["least"]:
        return None
    inner: dict[str, Entry] = {}
    for path, (steps, key, value) in entries.items():
        if len(steps) == 1:
            if steps[0] in marks and value.kind != MAPPING:
                continue
            if value.kind != MAPPING or not {within} <= value.entries().keys() <= beside:
                return None
            wrapping = key
        elif steps[1] == within:
            head, _, rest = path.partition(f".{within}")
            inner[head + rest] = (steps[:1] + steps[2:], wrapping if len(steps) == 2 else key, value)
    return inner


def _holds_results(entries: Entries) -> bool:
    """Whether a document has what a run came to, beside what it was set to: a record that its program wrote."""
    return any(
        value.kind == SCALAR and re.fullmatch(_NUMBER, value.value) and re.fullmatch(_RESULT, path)
        for path, (_, _, value) in entries.items()
    )


def _parts_of(dialect: Dialect, entries: Entries) -> list[dict[str, Entry]]:
    """The top of a document and its sections; nothing where one bears a mark that forbids the dialect."""
    top, sections = split(entries, section_names(dialect, entries))
    parts = [top, *sections.values()]
    unless = dict.fromkeys(dialect.recognise.get("unless", ()), "") | dialect.recognise.get("unless_alone", {})
    forbidden = any(_bears(mark, part) and but not in part for mark, but in unless.items() for part in parts)
    return [] if forbidden else parts


def _bears(mark: str, entries: Entries) -> bool:
    if mark.endswith(".*"):
        entry = entries.get(mark[:-2])
        return entry is not None and entry[2].kind == MAPPING
    return mark in entries
