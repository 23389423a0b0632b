"""The bundle's plain data → the frozen objects of core."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial

from kb.core.catalog import (
    WRITTEN,
    Catalog,
    Computed,
    Dialect,
    Entries,
    Outline,
    Rule,
    RuleFix,
    Rules,
    Vocabulary,
    Wording,
)
from kb.core.facts import FactType, MovedDefault
from kb.core.hardware import Gpu
from kb.core.model import Architecture, Delta, Hearing, Model, Vision
from kb.core.release import parse_version
from kb.core.text import Text
from kb.core.typed import Any
from kb.knowledge.bundle import load_part, read_data
from kb.knowledge.locations import Rules as Place
from kb.knowledge.locations import located, shipped
from kb.knowledge.problems import KnowledgeError

TABLE = "table-"  # what the name of a part begins with that holds the rows of one format

NO_TEXT = Text("", "")
PACKED = ("mxfp4",)  # of what checkpoints store: packed, and 16 bits wide where transformers unpacks it


def load_catalog(rules: Place = None, *, whole: bool = False) -> Catalog:
    """The knowledge of a rules folder, or the shipped one.

    Args:
        rules: a folder, or a place with what is laid over it; None is the shipped one.
        whole: also the whys, examples, sources and meanings, which linting does not need.

    Raises:
        KnowledgeError: the folder has faults, each at file:line:column.
    """
    location = located(rules)
    hot = load_part(location, "hot")
    names, own = hot["names"], Entries(hot["formats"], partial(_own, hot["lists"]))
    wordings = Entries(hot["wordings"], wording_of)
    cold = load_part(location, "cold") if whole else {"rules": {}, "meanings": {}, "sources": {}}
    return Catalog(
        version=hot["version"],
        facts=_facts(hot, cold["meanings"]),
        events=hot["events"],
        rules=Rules(
            hot["rules"],
            lambda row: rule_of(row, partial(wordings.__getitem__, row[0]), cold["rules"].get(row[0], {})),
            cache(lambda: {name: _outline(row) for name, row in hot["outlines"].items()}),
        ),
        gpus=Entries(hot["gpus"], _gpu),
        models=Entries(hot["models"], _model),
        dialects=Entries(
            hot["dialects"],
            lambda row: _dialect(row, partial(names.__getitem__, row[0]), partial(own.__getitem__, row[0])),
        ),
        constants=hot["constants"],
        sources=cold["sources"],
        triggers=hot["tables"],
        table=lambda name: load_part(location, TABLE + hot["same_tables"].get(name, name), beside=True),
        laid=frozenset(hot.get("laid", ())),
        called=hot["called"],
        serving=partial(load_part, location, "serving"),
    )


def load_words(language: str, rules: Place = None) -> Mapping[str, str]:
    """The texts of one language (``ko`` or ``en``), by key."""
    location = located(rules)
    words: Mapping[str, str] = load_part(location, language)
    return words


def load_words_alone(language: str) -> Mapping[str, str]:
    """The texts of one language where the rules beside them are at fault; none where the texts are at fault too."""
    import os

    from kb.knowledge.source import read_source  # for words alone where the rules cannot be loaded

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


def load_table_rows(rule: str, rules: Place = None) -> list[list[str]]:
    """The rows that a rule words: library, id, condition as written, and what the library says."""
    rows: dict[str, list[list[str]]] = load_part(located(rules), "cold")["tables"]
    return rows.get(rule, [])


def load_table_examples(rules: Place = None) -> list[dict[str, Any]]:
    """The examples of every table: ``of`` which row, the ``rules`` that may word what it shows, and the ``example``."""
    examples: list[dict[str, Any]] = load_part(located(rules), "cold")["table_examples"]
    return examples


def load_guide(rules: Place = None) -> Mapping[str, Any]:
    """Presets, formulas, remedies, decisions and the rest: kind → id → the file's data, with checked trees."""
    guide: Mapping[str, Any] = load_part(located(rules), "guide")
    return guide


def names_of(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Every name of a model as it is looked up, in small letters → its id."""
    named = ((name, row["id"]) for row in models.values() for name in (row["id"], row["name"], *row["aliases"]))
    return {name.casefold(): model for name, model in named}


def _facts(hot: Mapping[str, Any], meanings: Mapping[str, list[str]]) -> Vocabulary:
    """The vocabulary; of each setting also whether it is written."""
    rows = hot["facts"]

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

    return Vocabulary(rows, made, lambda: dict.fromkeys(hot["lists"]["settings"].split(" ")))


def _moved(rows: Iterable[Mapping[str, Any]]) -> tuple[MovedDefault, ...]:
    return tuple(MovedDefault(row["library"], parse_version(row["below"]), row["value"]) for row in rows)


_NOT_READ = tuple(Rule._field_defaults[name] for name in Rule._fields[Rule._fields.index("names") + 1 :])


def rule_of(row: Sequence[Any], wording: Callable[[], Wording], cold: Mapping[str, Any] = {}) -> Rule:
    """A compiled rule: ``row`` is what linting needs of it, ``cold`` what a check does not, and may be empty."""
    name, version, since, severity, confidence, area, when, on, at, names = row
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


def _outline(text: str) -> Outline:
    area, on, needed, deprecated = text.split(" ")
    return Outline._make((area, on, needed.split(",") if needed else (), deprecated))


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
        of_host=row["of_host"],
        cuda_memory=row["cuda_memory"] and tuple(row["cuda_memory"]),
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
        weights_dtype="bf16" if row["weights_dtype"] in PACKED else row["weights_dtype"],
        packed=row["weights_dtype"] if row["weights_dtype"] in PACKED else None,
        other_weights=tuple((name, stored) for name, stored in row["other_weights"]),
    )


def _architecture(row: Mapping[str, Any]) -> Architecture:
    if "vision" in row:
        seen = Vision(*row["vision"])
        tilings = tuple((height, width) for height, width in seen.tilings)
        seen = seen._replace(full_layers=tuple(seen.full_layers), states=tuple(seen.states), tilings=tilings)
        row = {**row, "vision": seen}
    if "hearing" in row:
        heard = Hearing(*row["hearing"])
        row = {**row, "hearing": heard._replace(channels=tuple(heard.channels))}
    if "delta" in row:
        row = {**row, "delta": Delta(*row["delta"])}
    given: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in row.items()}
    return Architecture(**given)


def _dialect(
    row: Sequence[Any], names: Callable[[], Mapping[str, Any]], own: Callable[[], Mapping[str, Any]]
) -> Dialect:
    name, reader, layout, recognise, sections, priority, named_by, wrapped = row
    return Dialect(name, reader, layout, recognise, sections, names, own, priority, tuple(named_by), wrapped)


def _own(lists: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any]:
    moved = {name: _moved(rows) for name, rows in row.get("moved", {}).items()}
    return {**row, "moved": moved, "unmodelled": lists["unmodelled"]}
