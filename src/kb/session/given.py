"""What a project says of itself in ``[facts]``: the names against the vocabulary, the values against their types."""

from collections.abc import Mapping
from typing import Any

from kb.core.expression import is_unknown
from kb.core.facts import FactType, coerce
from kb.core.release import parse_version
from kb.core.text import UserError, nearest
from kb.core.units import read_size


def given_facts(table: Mapping[str, Any], facts: Mapping[str, FactType], path: str) -> dict[str, Any]:
    """The facts of ``table`` as rules read them: a size of ``60GB`` in bytes, a version as its numbers.

    Args:
        path: the file that says them, for the faults.

    Raises:
        UserError: a name that the vocabulary lacks or that no project can say, or a value of another type.
    """
    return {name: _value(name, value, facts, path) for name, value in table.items()}


def _value(name: str, value: Any, facts: Mapping[str, FactType], path: str) -> Any:
    fact = facts.get(name)
    if fact is None or not fact.given:
        raise _no_such_fact(name, facts, path)
    if fact.type == "bytes":
        return read_size(f"{path}: {name}", value)
    if isinstance(value, str) and fact.type == "version":
        try:
            value = parse_version(value)
        except ValueError:
            value = None
    known = coerce(value, fact.type, name)
    if is_unknown(known):
        raise UserError("project.wrong_fact_type", path=path, name=name, want=fact.type)
    if isinstance(known, int | float) and known < 0:  # all of them count something
        raise UserError("project.wrong_fact_type", path=path, name=name, want=f"{fact.type} (≥ 0)")
    return known


def _no_such_fact(name: str, facts: Mapping[str, FactType], path: str) -> UserError:
    if name.startswith("versions."):
        return UserError("project.fact_is_version", path=path, name=name)
    if name in facts:
        key = "project.fact_is_setting" if facts[name].setting else "project.fact_is_computed"
        return UserError(key, path=path, name=name)
    known = sorted(name for name, fact in facts.items() if fact.given)
    meant = nearest(name, known)
    if meant:
        return UserError("project.unknown_fact", path=path, name=name, meant=meant[0])
    return UserError("project.no_such_fact", path=path, name=name, known=known)
