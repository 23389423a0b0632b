"""JSON Schemas of the config formats, for editors that complete and explain keys: made from dialects and vocabulary.

They explain and complete; what is wrong is for kb to say, so a schema refuses little: types, and no key.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.config.dialect.dialects import CompiledDialect
from kb.core.catalog import Catalog, Dialect, Rule
from kb.core.facts import FactType
from kb.report.condition import fact_order
from kb.report.words import Words

MOST_RULES = 6  # named beside one setting
NO_FILES = ("command", "python")  # layouts that are no YAML or JSON
# A text is let in everywhere: interpolations, quoted numbers and `auto` are for the rules to judge.
TYPES = {
    "bool": ["boolean", "string", "null"],
    "integer": ["integer", "string", "null"],
    "number": ["number", "string", "null"],
    "bytes": ["integer", "string", "null"],
}


def config_schemas(catalog: Catalog, languages: Mapping[str, Words]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(format, JSON Schema) for each format that files have.

    Args:
        catalog: the whole catalogue: a rule's title is part of what is said of a setting.
        languages: the words of each language that descriptions are to have, first come first.
    """
    about = _rules_about(catalog)
    for dialect in catalog.dialects.values():
        if dialect.layout not in NO_FILES and dialect.keys:
            yield dialect.id, _schema(dialect, catalog, languages, about)


def _schema(
    dialect: Dialect, catalog: Catalog, languages: Mapping[str, Words], about: Mapping[str, list[Rule]]
) -> dict[str, Any]:
    compiled = CompiledDialect(dialect, catalog.facts)
    root: dict[str, Any] = {}
    for path, targets in compiled.targets.items():
        described = _described(targets[0].fact, languages, about)
        # put a setting's schema where its path leads; a key may be a value and a group, as ``deepspeed`` is
        node = root
        for step in path.split("."):
            node = node.setdefault("properties", {}).setdefault(step, {})
        inner = node.get("properties")
        node.update(described)
        if inner is not None:
            node["type"] = sorted({*node.get("type", []), "object"})
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kb: {dialect.id}",
        "type": "object",
        "properties": root.get("properties", {}),
    }
    if dialect.layout == "sections":  # the same groups, under any name
        schema["additionalProperties"] = {"properties": root.get("properties", {})}
    return schema


def _described(fact: FactType, languages: Mapping[str, Words], about: Mapping[str, list[Rule]]) -> dict[str, Any]:
    plain, marked = [], []
    for language, words in languages.items():
        meaning = fact.meaning.in_language(language) or fact.name
        default = "" if fact.default is None else f" ({words('schema.default', value=fact.default)})"
        rules = about.get(fact.name, [])[:MOST_RULES]
        plain.append(f"{meaning}{default}")
        named = "".join(f"\n- `{rule.id}`: {words.described(rule.title)}" for rule in rules)
        marked.append(f"{meaning}{default}" + (f"\n\n{words('schema.rules')}{named}" if named else ""))
    described: dict[str, Any] = {"description": "\n".join(plain), "markdownDescription": "\n\n".join(marked)}
    if fact.type in TYPES:
        described["type"] = TYPES[fact.type]
    return described


def _rules_about(catalog: Catalog) -> dict[str, list[Rule]]:
    """Setting → the rules that ask for it, the worst first."""
    order = {"error": 0, "warning": 1, "info": 2}
    about: dict[str, list[Rule]] = {}
    for rule in sorted(catalog.rules.values(), key=lambda rule: (order[rule.severity], rule.id)):
        if rule.when is None or rule.deprecated is not None:
            continue
        for name in dict.fromkeys(name.removeprefix("written.") for name in fact_order(rule.when)):
            about.setdefault(name, []).append(rule)
    return about
