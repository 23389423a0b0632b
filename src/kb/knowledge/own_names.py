"""Names that programs of their own give to a setting (``batch_size``), laid under the keys of a format."""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.knowledge.problems import Problem
from kb.knowledge.source import KEY, Located

Names = Mapping[str, list[str]]  # setting → names


def with_own_names(dialect: Mapping[str, Any], names: Names, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A format with these names in its groups, each counting only where no name of the format's own says the setting.

    Args:
        dialect: as its file says it; under ``own_names`` stand the groups of the file, by the first part of a setting.
        names: the names, by setting.
        facts: the vocabulary, whose settings a ``*`` of the format already spells out.
    """
    whole = {key: meant for key, meant in dialect["keys"].items() if key.endswith("*") and isinstance(meant, str)}
    spelt = {
        key[:-1] + fact[len(meant) - 1 :]
        for key, meant in whole.items()
        for fact in facts
        if fact.startswith(meant[:-1])
    }
    added = {
        path: {"to": setting, "last": True}
        for path, setting in _paths(dialect.get("own_names", {}), names)
        if path not in dialect["keys"] and path not in spelt
    }
    return {
        **{name: value for name, value in dialect.items() if name != "own_names"},
        "keys": {**dialect["keys"], **added},
    }


def _paths(groups: Mapping[str, list[str]], names: Names) -> Iterator[tuple[str, str]]:
    """Every name in every group where the setting's own first part stands, with the setting."""
    for part, places in groups.items():
        for place in places:
            for setting, called in names.items():
                if setting.partition(".")[0] == part:
                    for name in called:
                        yield (f"{place}.{name}" if place else name), setting


def check_own_names(dialects: list[Located], names: Names) -> list[Problem]:
    """A format that names a part of settings for which there are no names: its line would do nothing."""
    parts = {setting.partition(".")[0] for setting in names}
    return [
        located.problem(("own_names", part, KEY), f"no setting of {part!r} has names of its own in vocabulary.yaml")
        for located in dialects
        for part in located.data.get("own_names", {})
        if part not in parts
    ]
