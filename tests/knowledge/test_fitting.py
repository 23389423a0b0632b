"""A schema allows what jsonschema says that it allows: word by word, and whole files with one value changed."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kb.knowledge.fitting import fitting
from kb.knowledge.schema import KINDS, library
from yaml_file import read_yaml

RULES = Path(__file__).parents[2] / "rules"
SCHEMAS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((RULES / "schema").glob("*.json"))}
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 1.0, 1.5, -3, "", "a", "ab", "abc", "1", [], [1], [1, 1], [1, True], [1, 1.0],
    ["a", "a"], ["a", "b", 3], [[1], [True]], [{"a": 1}, {"a": True}], [{"a": 1}, {"a": 1.0}], {}, {"a": 1}, {"a": "x"},
    {"a": True}, {"a": None, "b": 2}, {"b": [1, "x"]}, {"c": {"a": {"a": 2}}},
)  # fmt: skip
WORDS = (
    {}, {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"},
    {"type": ["array", "integer"]}, {"type": "object"}, {"enum": ["a", "abc"]}, {"enum": [1, "a", None, [1], {"a": 1}]},
    {"const": True}, {"const": 1}, {"const": [1, 1]}, {"const": {"a": 1}}, {"pattern": "^a.?$"}, {"minLength": 2},
    {"maxLength": 2}, {"minimum": 1}, {"maximum": 1}, {"exclusiveMinimum": 1}, {"minItems": 2}, {"maxItems": 1},
    {"uniqueItems": True}, {"uniqueItems": False}, {"required": ["a", "b"]}, {"minProperties": 1},
    {"dependentRequired": {"a": ["b"]}}, {"properties": {"a": {"type": "integer"}, "b": True, "c": False}},
    {"additionalProperties": False}, {"properties": {"a": {}}, "additionalProperties": False},
    {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"propertyNames": {"enum": ["a"]}},
    {"items": {"type": "integer"}}, {"prefixItems": [{"const": 1}, False]},
    {"prefixItems": [{"type": "string"}], "items": {"type": "string"}}, {"contains": {"const": "a"}},
    {"if": {"type": "integer"}, "then": {"minimum": 1}, "else": {"type": "object"}}, {"not": {"minimum": 1}},
    {"if": {"const": 1}, "then": False}, {"not": {"type": "string", "minLength": 1}},
    {"allOf": [{"type": "integer"}, {"minimum": 1}]}, {"anyOf": [{"type": "string"}, {"minimum": 1}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
    {"$defs": {"tree": {"type": "object", "additionalProperties": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"},
    {"$defs": {"one": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/one", "minimum": 2}}},
    {"properties": {"a": {"type": "object"}}, "additionalProperties": {"$ref": "#"}},
)  # fmt: skip


@pytest.mark.parametrize("schema", WORDS, ids=lambda schema: json.dumps(schema)[:60])
def test_a_word_allows_the_values_that_jsonschema_allows(schema: dict[str, Any]) -> None:
    allowed, holds = library().Draft202012Validator(schema).is_valid, fitting(schema)
    assert [(value, holds(value)) for value in VALUES] == [(value, allowed(value)) for value in VALUES]


def test_what_no_schema_has_needed_is_not_passed_over() -> None:
    with pytest.raises(KeyError):
        fitting({"patternProperties": {"^x": {"type": "string"}}})


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_file_with_one_value_changed_is_right_where_jsonschema_says_so(kind: str) -> None:
    holds = fitting(SCHEMAS[kind])
    paths = [path for place, name in KINDS.items() if name == kind for path in files(RULES / place)]
    if not paths:  # of no kind of rules: that its words are known is what counts
        return
    allowed = library().Draft202012Validator(SCHEMAS[kind]).is_valid
    path = min(paths, key=lambda path: path.stat().st_size)
    written = read_yaml(path)
    assert holds(written)
    for changed in changed_ones(written, 20 if path.stat().st_size < 10_000 else 4):  # jsonschema takes its time
        assert holds(changed) == allowed(changed), changed


def files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.yaml")) if place.is_dir() else [place]


def changed_ones(whole: Any, most: int) -> Iterator[Any]:
    """Copies in which one value, some way from the one before, is another, or gone, or has a neighbour."""
    all_ways = list(ways(whole))
    for number, way in enumerate(all_ways[:: len(all_ways) // most + 1]):
        changed = copy.deepcopy(whole)
        *parents, last = way
        holder = changed
        for step in parents:
            holder = holder[step]
        if number % 3 == 0:
            holder[last] = VALUES[number % len(VALUES)]
        elif number % 3 == 1:
            del holder[last]
        elif isinstance(holder, dict):
            holder["another"] = 1
        else:
            holder.append(copy.deepcopy(holder[last]))
        yield changed


def ways(value: Any) -> Iterator[tuple[Any, ...]]:
    """The steps to each value inside another."""
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in rows:
        yield (name,)
        yield from ((name, *further) for further in ways(each))
