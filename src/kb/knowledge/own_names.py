"""Names that programs of their own give to a setting (``batch_size``), laid under the keys of a format."""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.knowledge.problems import Problem
from kb.knowledge.source import KEY, Located

Names = Mapping[str, Mapping[str, Any]]  # kind → name → what it means, as in the keys of a format


def with_own_names(dialect: Mapping[str, Any], names: Names, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A format with these names in its groups, each counting only where no name of the format's own says the setting.

    Args:
        dialect: as its file says it; under ``own_names`` stand the groups of the file, by the kind of name.
        names: the names, by kind.
        facts: the vocabulary, whose settings a ``*`` of the format already spells out.
    """
    keys = dialect["keys"]
    spelt = set(_spelt_out(keys, facts))
    added: dict[str, Any] = {}
    for path, meant in _paths(dialect.get("own_names", {}), names):
        if path not in keys and path not in spelt:
            added.setdefault(path, [_last(each) for each in (meant if isinstance(meant, list) else [meant])])
    rest = {name: value for name, value in dialect.items() if name != "own_names"}
    return {**rest, "keys": {**keys, **added}}


def _last(meant: Any) -> dict[str, Any]:
    return {**(meant if isinstance(meant, dict) else {"to": meant}), "last": True}


def _spelt_out(keys: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    """The paths that ``training.*: training.*`` and its like stand for."""
    for key, meant in keys.items():
        if key.endswith("*") and isinstance(meant, str):
            start = meant[:-1]
            yield from (key[:-1] + fact[len(start) :] for fact in facts if fact.startswith(start))


def _paths(groups: Mapping[str, list[str]], names: Names) -> Iterator[tuple[str, Any]]:
    """Every name in every group where its kind stands, with what it means."""
    for kind, places in groups.items():
        for place in places:
            for name, meant in names.get(kind, {}).items():
                yield (f"{place}.{name}" if place else name), meant


def check_own_names(dialects: list[Located], names: Names) -> list[Problem]:
    """A format that names a kind for which the vocabulary has no names."""
    return [
        located.problem(
            ("own_names", kind, KEY), f"vocabulary.yaml has no own_names of kind {kind!r}: {', '.join(names)}"
        )
        for located in dialects
        for kind in located.data.get("own_names", {})
        if kind not in names
    ]
