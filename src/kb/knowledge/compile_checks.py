"""What is wrong with the files of rules/ that compiling each of them alone does not show; and
the names that programs of their own give to a setting (``batch_size``), laid under the keys of a format.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kb.core.text import did_you_mean
from kb.knowledge.locations import files_under
from kb.knowledge.problems import Problem
from kb.knowledge.rows import (
    check_defaults,
    check_hardware,
    check_measurement,
    check_model,
    check_settings,
    check_sources,
)
from kb.knowledge.schema import FOLDERS, GUIDE
from kb.knowledge.source import KEY, Located, Path


def checked(
    files: Mapping[str, list[Located]],
    types: dict[str, str],
    sources: dict[str, Any],
    gpus: dict[str, Any],
    below: Mapping[str, Sequence[Located]],
) -> list[Problem]:
    """What compiling the entries one by one does not show; ``below``: GPUs and models whose names are taken."""
    (vocabulary,) = files["vocabulary.yaml"]
    problems = [*_check_vocabulary(vocabulary), *check_defaults(vocabulary), *_check_ids(files)]
    for kind in ("hardware", "models"):
        problems += _check_aliases([*below[kind], *files[kind]])
    for kind in ("hardware", "models", "dialects", "tables", "vocabulary.yaml", "constants.yaml", *GUIDE):
        problems += check_sources(files[kind], sources)
    for located in files["hardware"]:
        problems += check_hardware(located)
    for located in files["measurements"]:
        problems += check_measurement(located, gpus)
    for kind in ("checks", *GUIDE):
        for located in files[kind]:
            problems += check_settings(located, vocabulary.data["facts"])
    own = vocabulary.data["own_names"]
    problems += [
        _not_a_fact(vocabulary, ("own_names", kind, name, KEY), meant, types)
        for kind, names in own.items()
        for name, means in names.items()
        for meant in _names(means)
        if meant not in types
    ]
    problems += _check_dialects(files["dialects"], types)
    return problems + [
        located.problem(
            ("own_names", kind, KEY), f"vocabulary.yaml has no own_names of kind {kind!r}: {', '.join(own)}"
        )
        for located in files["dialects"]
        for kind in located.data.get("own_names", {})
        if kind not in own
    ]


def check_entry(kind: str, located: Located, beside: Sequence[Located], sources: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with one GPU (``hardware``) or model (``models``) beside the others, where its schema is right."""
    rows = [*beside, located]
    found = [*_check_ids({kind: rows}), *_check_aliases(rows)]
    found += check_hardware(located) if kind == "hardware" else check_model(located)
    own = [problem for problem in found if problem.path == located.path]
    return sorted([*own, *check_sources([located], sources)], key=lambda problem: (problem.line, problem.column))


def _check_vocabulary(located: Located) -> Iterator[Problem]:
    facts = located.data["facts"]
    for name, fact in facts.items():
        for index, setting in enumerate(fact.get("at", [])):
            if not facts.get(setting, {}).get("setting"):
                settings = [each for each, row in facts.items() if row.get("setting")]
                yield _not_a_fact(located, ("facts", name, "at", index), setting, settings, "a setting of", "설정")
        values = fact.get("values")
        if isinstance(values, str) and "." in values and not isinstance(facts.get(values, {}).get("values"), list):
            yield located.problem(("facts", name, "values"), f"{values!r} is no fact that lists its values")
        if "moved" in fact and "default" not in fact:
            yield located.problem(("facts", name, "moved", KEY), f"{name!r} has no default now")
        renamed = fact.get("renamed")
        if renamed is not None and renamed not in facts:
            yield _not_a_fact(located, ("facts", name, "renamed"), renamed, facts)


def _not_a_fact(
    located: Located, path: Path, name: str, known: Iterable[str], what: str = "in", korean: str = "이름"
) -> Problem:
    """A name that the vocabulary has not, with the one that was probably meant."""
    hint, hint_ko = did_you_mean(name, known)
    english = f"{name!r} is not {what} vocabulary.yaml{hint}"
    return located.problem(path, english, f"{name!r}: vocabulary.yaml에 없는 {korean}입니다{hint_ko}")


def _check_ids(files: Mapping[str, list[Located]]) -> Iterator[Problem]:
    for kind in FOLDERS:
        seen: dict[str, str] = {}
        for located in files.get(kind, ()):
            name = located.data["id"]
            if os.path.basename(located.path) != f"{name}.yaml":
                yield located.problem(
                    ("id",), f"id {name!r} differs from the file's name", f"id {name!r} 값이 파일 이름과 다릅니다"
                )
            if name in seen:
                yield located.problem(("id",), f"id {name!r} is also in {seen[name]}")
            seen[name] = located.path
            if kind == "checks":
                area = os.path.basename(os.path.dirname(located.path))
                if area != located.data["area"]:
                    said = located.data["area"]
                    yield located.problem(
                        ("area",),
                        f"area is {said!r}, but the file lies in {area}/",
                        f"area는 {said!r}인데 파일은 {area}/ 폴더에 있습니다",
                    )


def _check_aliases(rows: list[Located]) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for located in rows:
        data = located.data
        names: dict[str, tuple[str, Path]] = {
            str(data["id"]).casefold(): (data["id"], ("id",)),
            str(data["name"]).casefold(): (data["name"], ("name",)),
        }
        for index, alias in enumerate(data.get("aliases", [])):
            names.setdefault(str(alias).casefold(), (alias, ("aliases", index)))
        for folded, (name, path) in names.items():
            owner = seen.setdefault(folded, data["id"])
            if owner != data["id"]:
                yield located.problem(
                    path,
                    f"{name!r} already means {owner}; take another name",
                    f"{name!r} 이름은 이미 {owner} 항목입니다. 다른 이름을 쓰십시오",
                )


def _names(meant: Any) -> Iterator[str]:
    """The settings that a key means, however it says them."""
    for each in meant if isinstance(meant, list) else [meant]:
        to = each["to"] if isinstance(each, dict) else each
        yield from [to] if isinstance(to, str) else to


def _check_dialects(rows: list[Located], types: dict[str, str]) -> Iterator[Problem]:
    """Every setting that a key means exists: a name, a group with ``.*``, or ``{to: name, …}``."""
    for located in rows:
        for key, meant in located.data["keys"].items():
            for name in _names(meant):
                group = name.removesuffix("*")
                if name not in types and not (group != name and any(known.startswith(group) for known in types)):
                    yield _not_a_fact(located, ("keys", key, KEY), name, types)
        for name in located.data.get("moved", ()):
            if name not in located.data.get("defaults", ()):
                yield located.problem(("moved", name, KEY), f"{name!r} has no default of this format")
        for path, name in _settings_named(located.data):
            if name not in types:
                yield _not_a_fact(located, path, name, types)


def _settings_named(dialect: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The settings, with their places, that the programs of a format make, that have its defaults or name its files."""
    for program, row in dialect.get("programs", {}).items():
        yield from ((("programs", program, "sets"), name) for name in row.get("sets", {}))
        for subcommand, made in row.get("subcommands", {}).items():
            yield from ((("programs", program, "subcommands", subcommand), name) for name in made)
    yield from ((("defaults", name), name) for name in dialect.get("defaults", ()))
    yield from ((("named_by",), name) for name in dialect.get("named_by", ()))


def fact_types(vocabulary: Any) -> dict[str, str]:
    """The type of every name that an expression may use, ``written.NAME`` of each setting included."""
    types = {name: fact["type"] for name, fact in vocabulary["facts"].items()}
    types |= {f"written.{name}": "bool" for name, fact in vocabulary["facts"].items() if fact.get("setting")}
    return types


def closed_sets(vocabulary: Located, ids: Mapping[str, Collection[str]] | None = None) -> dict[str, Collection[str]]:
    """The texts that a fact can have: its own list, another fact's, or the ids of a folder beside the vocabulary
    (``ids`` of each folder; None reads them)."""
    sets: dict[str, Collection[str]] = {}
    facts = vocabulary.data["facts"]
    for name, fact in facts.items():
        values = fact.get("values")
        values = facts.get(values, {"values": values}).get("values") if isinstance(values, str) else values
        if isinstance(values, str):
            folder = os.path.join(os.path.dirname(vocabulary.path), values)
            sets[name] = [file.removesuffix(".yaml") for file in files_under(folder)] if ids is None else ids[values]
        elif values is not None:
            sets[name] = values
    return sets


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
