"""Two editions of the rules compared: entries added, changed or gone, and version bumps that are missing. Pure.

What the change does to recommendations and verdicts is in :mod:`kb.advice.rule_flips`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.text import LANGUAGES


class Edition(NamedTuple):
    """The rules at one time. ``entries`` maps ``kind/id`` to its version, a hash of what it means, and one of all that
    it says, prose included."""

    catalog: Catalog
    guide: Mapping[str, Any]
    entries: Mapping[str, tuple[int, str, str]]
    schemas: Mapping[str, str] = {}  # a schema's file name → a hash of its content
    contents: Mapping[str, Any] = {}  # what each entry says, by the names of ``entries``


class EntryChange(NamedTuple):
    """One entry that is not as it was; the version is None where it did not exist or does not any more."""

    name: str
    before: int | None
    after: int | None

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


class FieldChange(NamedTuple):
    """One value of an entry that is not as it was; None where it was not, or is not any more."""

    entry: str
    field: str  # its path: ``memory_bandwidth.value``
    before: Any
    after: Any
    unit: str = ""

    @property
    def is_prose(self) -> bool:
        return self.field.rpartition(".")[2] in (*LANGUAGES, "note")


class ConstantChange(NamedTuple):
    name: str
    before: Any
    after: Any


class Entries(NamedTuple):
    """``unbumped`` mean something else under the same version, or have a lower one; ``changed`` have a higher;
    ``reworded`` say the same in other words."""

    added: tuple[EntryChange, ...]
    changed: tuple[EntryChange, ...]
    removed: tuple[EntryChange, ...]
    unbumped: tuple[EntryChange, ...]
    reworded: tuple[EntryChange, ...]
    constants: tuple[ConstantChange, ...]
    facts_added: tuple[str, ...]
    facts_removed: tuple[str, ...]
    schemas: tuple[str, ...]  # names of schema files that differ
    errata: tuple[str, ...]  # ids of errata that are new, differ or are gone
    fields: tuple[FieldChange, ...] = ()  # figures first, prose last

    @property
    def none(self) -> bool:
        return not any(self)


def entries_of(before: Edition, after: Edition) -> Entries:
    """What differs between two editions, entry by entry."""
    old, new = before.entries, after.entries
    both = [name for name in new if name in old and old[name] != new[name]]
    raised = [name for name in both if new[name][0] > old[name][0]]
    reworded = [name for name in both if old[name][:2] == new[name][:2]]
    lowered = [name for name in both if name not in raised and name not in reworded]
    constants = before.catalog.constants.keys() | after.catalog.constants.keys()
    return Entries(
        added=tuple(EntryChange(name, None, new[name][0]) for name in sorted(new.keys() - old.keys())),
        changed=tuple(EntryChange(name, old[name][0], new[name][0]) for name in sorted(raised)),
        removed=tuple(EntryChange(name, old[name][0], None) for name in sorted(old.keys() - new.keys())),
        unbumped=tuple(EntryChange(name, old[name][0], new[name][0]) for name in sorted(lowered)),
        reworded=tuple(EntryChange(name, old[name][0], new[name][0]) for name in sorted(reworded)),
        constants=tuple(
            ConstantChange(name, before.catalog.constants.get(name), after.catalog.constants.get(name))
            for name in sorted(constants)
            if before.catalog.constants.get(name) != after.catalog.constants.get(name)
        ),
        facts_added=tuple(sorted(after.catalog.facts.keys() - before.catalog.facts.keys())),
        facts_removed=tuple(sorted(before.catalog.facts.keys() - after.catalog.facts.keys())),
        schemas=tuple(
            sorted(
                name
                for name in before.schemas.keys() | after.schemas.keys()
                if before.schemas.get(name) != after.schemas.get(name)
            )
        ),
        errata=_errata(before, after),
        fields=_fields(before.contents, after.contents, sorted(both)),
    )


def _fields(before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str]) -> tuple[FieldChange, ...]:
    """What differs in each entry that both editions have."""
    found: list[FieldChange] = []
    for name in names:
        old, new = dict(_flat(before.get(name))), dict(_flat(after.get(name)))
        for field in dict.fromkeys((*new, *old)):
            if field != "version" and old.get(field) != new.get(field):
                beside = f"{field.rpartition('.')[0]}.unit"
                unit = str(new.get(beside, old.get(beside, "")))
                found.append(FieldChange(name, field, old.get(field), new.get(field), unit))
    return tuple(sorted(found, key=lambda change: (change.is_prose, not _is_figure(change))))


def _is_figure(change: FieldChange) -> bool:
    return any(isinstance(each, int | float) for each in (change.before, change.after))


def _flat(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its path; a list of plain values is one."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and any(isinstance(each, dict | list) for each in data):
        for number, value in enumerate(data, 1):
            yield from _flat(value, f"{path}.{number}")
    else:
        yield path, data


def _errata(before: Edition, after: Edition) -> tuple[str, ...]:
    old, new = (
        {entry["id"]: entry for entry in edition.guide.get("errata", {}).get("errata", ())}
        for edition in (before, after)
    )
    return tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))


def readable_by_this_code(before: Edition, after: Edition) -> Edition:
    """``before`` with the facts and constants that this code asks for and that its own rules did not have yet."""
    catalog = before.catalog._replace(
        facts={**after.catalog.facts, **before.catalog.facts},
        constants={**after.catalog.constants, **before.catalog.constants},
    )
    return before._replace(catalog=catalog)
