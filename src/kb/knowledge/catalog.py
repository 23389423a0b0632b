"""The bundle's plain data → the frozen objects of core."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kb.core.catalog import Catalog, Computed, Dialect, Entries, Rule, RuleFix, Wording
from kb.core.facts import FactType, MovedDefault
from kb.core.hardware import Gpu
from kb.core.model import Architecture, Model, Vision
from kb.core.release import parse_version
from kb.core.text import Text
from kb.knowledge.bundle import load_part, read_data
from kb.knowledge.locations import Rules, located, shipped
from kb.knowledge.problems import KnowledgeError

WRITTEN = "written."  # before a setting's name: whether a config says it
SETTING = 3  # where a fact's row says that a config can
TABLE = "table-"  # what the name of a part begins with that holds the rows of one format

NO_TEXT = Text("", "")


def load_catalog(rules: Rules = None, *, whole: bool = False) -> Catalog:
    """The knowledge of a rules folder, or the shipped one.

    Args:
        rules: a folder, or a place with what is laid over it; None is the shipped one.
        whole: also the whys, examples, sources and meanings, which linting does not need.

    Raises:
        KnowledgeError: the folder has faults, each at file:line:column.
    """
    location = located(rules)
    hot = load_part(location, "hot")
    unmodelled = tuple(hot["unmodelled"])
    wordings = Entries(hot["wordings"], wording_of)
    cold = load_part(location, "cold") if whole else {"rules": {}, "meanings": {}, "sources": {}}
    return Catalog(
        version=hot["version"],
        facts=_facts(hot["facts"], cold["meanings"]),
        events=hot["events"],
        rules={
            name: rule_of(name, row, partial(wordings.__getitem__, name), cold["rules"].get(name, {}))
            for name, row in hot["rules"].items()
        },
        gpus=Entries(hot["gpus"], _gpu),
        models=Entries(hot["models"], _model),
        dialects={name: _dialect(row, hot["names"], unmodelled) for name, row in hot["dialects"].items()},
        constants=hot["constants"],
        sources=cold["sources"],
        triggers={name: tuple(keys) for name, keys in hot["tables"].items()},
        table=lambda name: load_part(location, TABLE + hot["same_tables"].get(name, name), beside=True),
        laid=frozenset(hot.get("laid", ())),
        called=hot["called"],
        serving=partial(load_part, location, "serving"),
    )


def load_words(language: str, rules: Rules = None) -> Mapping[str, str]:
    """The texts of one language (``ko`` or ``en``), by key."""
    location = located(rules)
    words: Mapping[str, str] = load_part(location, language)
    return words


def load_words_alone(language: str) -> Mapping[str, str]:
    """The texts of one language where the rules beside them are at fault; none where the texts are at fault too."""
    import os

    from kb.knowledge.source import read_source

    location = shipped()
    path = os.path.join(location.i18n, f"{language}.yaml")
    try:
        if location.sealed:
            texts: Mapping[str, str] = read_data(os.path.join(location.bundle, f"{language}.json"))
            return texts
        with open(path, encoding="utf-8") as stream:
            data = read_source(path, stream.read()).data
    except (OSError, ValueError, KnowledgeError):
        return {}
    return {key: text for key, text in data.items() if isinstance(text, str)} if isinstance(data, dict) else {}


def load_table_rows(rule: str, rules: Rules = None) -> list[list[str]]:
    """The rows that a rule words: library, id, condition as written, and what the library says."""
    rows: dict[str, list[list[str]]] = load_part(located(rules), "cold")["tables"]
    return rows.get(rule, [])


def load_table_examples(rules: Rules = None) -> list[dict[str, Any]]:
    """The examples of every table: ``of`` which row, the ``rules`` that may word what it shows, and the ``example``."""
    examples: list[dict[str, Any]] = load_part(located(rules), "cold")["table_examples"]
    return examples


def load_guide(rules: Rules = None) -> Mapping[str, Any]:
    """Presets, formulas, remedies, decisions and the rest: kind → id → the file's data, with checked trees."""
    guide: Mapping[str, Any] = load_part(located(rules), "guide")
    return guide


def names_of(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Every name of a model as it is looked up, in small letters → its id."""
    named = ((name, row["id"]) for row in models.values() for name in (row["id"], row["name"], *row["aliases"]))
    return {name.casefold(): model for name, model in named}


def _facts(rows: Mapping[str, list[Any]], meanings: Mapping[str, list[str]]) -> Mapping[str, FactType]:
    """The vocabulary; of each setting also whether it is written."""

    def made(name: str) -> FactType:
        of = name if name in rows else name.removeprefix(WRITTEN)
        meaning = Text(*meanings[of]) if of in meanings else NO_TEXT
        if of != name:
            return FactType(name, "bool", meaning, at=(of,))
        kind, default, unit, setting, renamed, at, given, moved, model_types = rows[name]
        before = _moved(moved) if moved else ()
        return FactType(
            name, kind, meaning, unit, default, setting, renamed, tuple(at), given, before, tuple(model_types)
        )

    names: dict[str, str] = {}
    for name, row in rows.items():
        names[name] = name
        if row[SETTING]:
            names[WRITTEN + name] = WRITTEN + name
    return Entries(names, made)


def _moved(rows: Iterable[Mapping[str, Any]]) -> tuple[MovedDefault, ...]:
    return tuple(MovedDefault(row["library"], parse_version(row["below"]), row["value"]) for row in rows)


_NOT_READ = tuple(Rule._field_defaults[name] for name in Rule._fields[Rule._fields.index("names") + 1 :])


def rule_of(name: str, row: Sequence[Any], wording: Callable[[], Wording], cold: Mapping[str, Any] = {}) -> Rule:
    """A compiled rule: ``row`` is what linting needs of it, ``cold`` what a check does not, and may be empty."""
    version, since, severity, confidence, area, when, on, at, names = row
    known = (name, version, since, severity, confidence, area, when, on, tuple(at), wording, NO_TEXT, names)
    if not cold:
        return Rule._make(known + _NOT_READ)  # hundreds are: each field by its place
    return Rule(*known)._replace(
        source=cold["source"],
        heard=Text(*cold["heard"]) if cold["heard"] else NO_TEXT,
        why=Text(*cold["why"]),
        examples=tuple(cold["examples"]),
        sources=tuple(cold["sources"]),
        deprecated=cold["deprecated"],
        replaced_by=cold["replaced_by"],
    )


def wording_of(row: Mapping[str, Any]) -> Wording:
    """What a compiled rule says and how it is mended."""
    fixes = tuple(_fix(fix) for fix in row["fix"])
    return Wording(title=Text(*row["title"]), message=Text(*row["message"]), fixes=fixes)


def _fix(row: Mapping[str, Any]) -> RuleFix:
    values = {
        name: Computed(value["compute"]) if isinstance(value, dict) else value for name, value in row["set"].items()
    }
    return RuleFix(
        when=row["when"],
        safety=row["safety"],
        title=Text(*row["title"]),
        set=values,
        remove=tuple(row["remove"]),
        rename=row["rename"],
    )


def _gpu(row: Mapping[str, Any]) -> Gpu:
    major, minor = row["compute_capability"]
    return Gpu(
        id=row["id"],
        name=row["name"],
        aliases=tuple(row["aliases"]),
        memory_total=row["memory_total"],
        compute_capability=(major, minor),
        native_bf16=row["native_bf16"],
        tensor_flops=row["tensor_flops"],
        memory_bandwidth=row["memory_bandwidth"],
    )


def _model(row: Mapping[str, Any]) -> Model:
    return Model(
        id=row["id"],
        name=row["name"],
        aliases=tuple(row["aliases"]),
        architecture=_architecture(row["architecture"]),
        parameters=row["parameters"],
        max_length=row["max_length"],
        weights_dtype=row["weights_dtype"],
        other_weights=tuple((name, stored) for name, stored in row["other_weights"]),
    )


def _architecture(row: Mapping[str, Any]) -> Architecture:
    if "vision" in row:
        seen = Vision(*row["vision"])
        tilings = tuple((height, width) for height, width in seen.tilings)
        seen = seen._replace(full_layers=tuple(seen.full_layers), states=tuple(seen.states), tilings=tilings)
        row = {**row, "vision": seen}
    given: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in row.items()}
    return Architecture(**given)


def _dialect(
    row: Mapping[str, Any], names: Mapping[str, Mapping[str, Any]], unmodelled: tuple[Mapping[str, Any], ...]
) -> Dialect:
    return Dialect(
        id=row["id"],
        reader=row["reader"],
        layout=row["layout"],
        recognise=row["recognise"],
        sections=row.get("sections", {}),
        names=partial(names.__getitem__, row["id"]),
        ignore=tuple(row.get("ignore", ())),
        values=row.get("values", {}),
        priority=row.get("priority", 0),
        defaults=row.get("defaults", {}),
        moved={name: _moved(rows) for name, rows in row.get("moved", {}).items()},
        named_by=tuple(row.get("named_by", ())),
        fallbacks=row.get("fallbacks", {}),
        closed=tuple(row.get("closed", ())),
        extended=row.get("extended", {}),
        exempt=tuple(row.get("exempt", ())),
        converts=row.get("converts", False),
        assigned=row.get("assigned", False),
        interpolates=row.get("interpolates", False),
        wrapped=row.get("wrapped", {}),
        telling=tuple(row.get("telling", ())),
        programs=row.get("programs", {}),
        unmodelled=unmodelled,
        constants=row.get("constants", {}),
    )
