"""The steps of a remedy, with the values that a config and the log's numbers give. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kb.core.expression import Tree, compile_tree, is_unknown
from kb.core.record import NamedTuple
from kb.core.text import Text, text_of

# What only a prediction gives. A step that needs one is no use to a reader without it; other unknowns they can see.
_PREDICTED = ("fit.", "memory.", "saving.")


class Change(NamedTuple):
    """One setting to change; None where a value is not known."""

    name: str
    old: Any
    new: Any


class Step(NamedTuple):
    """One thing to do: a sentence, settings to change, a command to paste.

    ``when``: the condition that it is for, where it is not known to hold; ``needs``: the facts that would decide.
    """

    text: Text
    changes: tuple[Change, ...] = ()
    run: str | None = None
    when: Tree | None = None
    needs: frozenset[str] = frozenset()


def steps_of(rows: Sequence[Mapping[str, Any]], lookup: Callable[[str], Any]) -> tuple[Step, ...]:
    """The steps that are not ruled out, in the order of the file; none that changes what an earlier one does.

    Args:
        rows: ``steps`` of a remedy, with checked trees.
        lookup: facts and the log's numbers by name.
    """
    steps: list[Step] = []
    for row in rows:
        applies: Any = compile_tree(row["when_tree"])(lookup) if "when" in row else True
        if not _applies(applies):
            continue
        changes = _changes(row.get("set", {}), lookup)
        known = changes and all(change.new is not None for change in changes)
        if not known or all(changes != step.changes for step in steps):
            open_when = (row["when_tree"], applies.needs) if is_unknown(applies) else (None, frozenset())
            steps.append(Step(text_of(row["text"]), changes, row.get("run"), *open_when))
    return tuple(steps)


def _applies(value: Any) -> bool:
    if is_unknown(value):
        return not any(name.startswith(_PREDICTED) for name in value.needs)
    return bool(value)


def _changes(settings: Mapping[str, Any], lookup: Callable[[str], Any]) -> tuple[Change, ...]:
    changes = []
    for name, given in settings.items():
        new = compile_tree(given["compute_tree"])(lookup) if isinstance(given, Mapping) else given
        old = lookup(name)
        if isinstance(new, float) and new.is_integer():
            new = int(new)
        unknown = is_unknown(new) or (
            not is_unknown(old) and new == old
        )  # a change to what it is already tells nothing
        changes.append(Change(name, None if is_unknown(old) else old, None if unknown else new))
    return tuple(changes)
