"""Whether a value is what a JSON Schema allows, and nothing else: what is wrong with it jsonschema says (`schema.py`).

A file of rules is right nearly always, and jsonschema took half of the time in which all are read, since it makes an
object for each value that it looks at. Here each schema becomes functions, once. They answer as jsonschema does
(2020-12): ``tests/knowledge/test_fitting.py`` holds the one against the other.
"""

import re
from collections.abc import Callable, Mapping

from kb.core.typed import Any

Fits = Callable[[Any], bool]
Made = Callable[[Any], Fits]  # of a schema inside another
# What says nothing of a value by itself: "if" reads its "then" and "else".
_SILENT = frozenset(("$schema", "$defs", "title", "description", "default", "format", "then", "else"))


def fitting(whole: Any) -> Fits:
    """A function that says whether a value is what the schema allows.

    Raises:
        KeyError: the schema has a word that none of kb's has needed yet, or refers to what it does not hold.
    """
    named: dict[str, Fits] = {}

    def made(schema: Any) -> Fits:
        if isinstance(schema, bool):
            return lambda value: schema
        return _all([part(schema, word, wanted) for word, wanted in schema.items() if word not in _SILENT])

    def part(schema: Mapping[str, Any], word: str, wanted: Any) -> Fits:
        if word == "$ref":
            return referred(wanted)
        if word in _OF_SCHEMAS:
            return _OF_SCHEMAS[word](wanted, made, schema)
        if word in _OF_ANY:
            return _OF_ANY[word](wanted)
        kind, of_kind = _OF_KIND[word]
        holds = of_kind(wanted)
        return lambda value: not isinstance(value, kind) or isinstance(value, bool) or holds(value)

    def referred(name: str) -> Fits:
        if name not in named:
            named[name] = lambda value: named[name](value)  # while it is made: it may hold itself
            found = whole
            for step in filter(None, name.removeprefix("#").split("/")):
                found = found[step]
            named[name] = made(found)
        return named[name]

    return made(whole)


def _all(parts: list[Fits]) -> Fits:
    if len(parts) == 1:
        return parts[0]

    def fits(value: Any) -> bool:
        for part in parts:  # noqa: SIM110  # a loop is faster than all(): it runs for each of 140,000 values
            if not part(value):
                return False
        return True

    return fits


def _properties(schemas: Mapping[str, Any], made: Made, schema: Mapping[str, Any]) -> Fits:
    parts = {name: made(each) for name, each in schemas.items()}

    def fits(value: Any) -> bool:
        return not isinstance(value, dict) or all(parts[name](each) for name, each in value.items() if name in parts)

    return fits


def _others(others: Any, made: Made, schema: Mapping[str, Any]) -> Fits:
    known, part = schema.get("properties", {}).keys(), made(others)
    if others is False:
        return lambda value: not isinstance(value, dict) or value.keys() <= known
    return lambda value: (
        not isinstance(value, dict) or all(part(each) for name, each in value.items() if name not in known)
    )


def _items(items: Any, made: Made, schema: Mapping[str, Any]) -> Fits:
    first, part = len(schema.get("prefixItems", ())), made(items)
    return lambda value: not isinstance(value, list) or all(map(part, value[first:]))


def _first_items(schemas: list[Any], made: Made, schema: Mapping[str, Any]) -> Fits:
    parts = [made(each) for each in schemas]
    return lambda value: (
        not isinstance(value, list) or all(part(each) for part, each in zip(parts, value, strict=False))
    )


def _names(names: Any, made: Made, schema: Mapping[str, Any]) -> Fits:
    part = made(names)
    return lambda value: not isinstance(value, dict) or all(map(part, value))


def _contains(wanted: Any, made: Made, schema: Mapping[str, Any]) -> Fits:
    part = made(wanted)
    return lambda value: not isinstance(value, list) or any(map(part, value))


def _if(condition: Any, made: Made, schema: Mapping[str, Any]) -> Fits:
    met, then, otherwise = made(condition), made(schema.get("then", True)), made(schema.get("else", True))
    return lambda value: then(value) if met(value) else otherwise(value)


def _not(refused: Any, made: Made, schema: Mapping[str, Any]) -> Fits:
    part = made(refused)
    return lambda value: not part(value)


def _several(enough: Callable[[list[Fits], Any], bool]) -> Callable[[list[Any], Made, Mapping[str, Any]], Fits]:
    def of(schemas: list[Any], made: Made, schema: Mapping[str, Any]) -> Fits:
        parts = [made(each) for each in schemas]
        return lambda value: enough(parts, value)

    return of


# Words that hold schemas, with the schema that they stand in.
_OF_SCHEMAS: Mapping[str, Callable[[Any, Made, Mapping[str, Any]], Fits]] = {
    "properties": _properties, "additionalProperties": _others, "propertyNames": _names,
    "items": _items, "prefixItems": _first_items, "contains": _contains, "if": _if, "not": _not,
    "allOf": _several(lambda parts, value: all(part(value) for part in parts)),
    "anyOf": _several(lambda parts, value: any(part(value) for part in parts)),
    "oneOf": _several(lambda parts, value: sum(part(value) for part in parts) == 1),
}  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Mapping[str, Fits] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def _type(kinds: str | list[str]) -> Fits:
    if isinstance(kinds, str):
        return _TYPES[kinds]
    tests = [_TYPES[kind] for kind in kinds]
    return lambda value: any(test(value) for test in tests)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one to JSON, to which true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(each, other[name]) for name, each in one.items())
    return bool(one == other)


def _unique(values: list[Any]) -> bool:
    if all(isinstance(value, str) for value in values):
        return len({*values}) == len(values)
    return not any(_same(value, other) for at, value in enumerate(values) for other in values[:at])


def _pattern(wanted: str) -> Fits:
    search = re.compile(wanted).search
    return lambda value: search(value) is not None


def _required(names: list[str]) -> Fits:
    wanted = {*names}
    return lambda value: wanted <= value.keys()


# Words that ask of any value, and those that ask of values of some types alone.
_OF_ANY: Mapping[str, Callable[[Any], Fits]] = {
    "type": _type,
    "enum": lambda allowed: lambda value: any(_same(value, each) for each in allowed),
    "const": lambda wanted: lambda value: _same(value, wanted),
}
_NUMBER = (int, float)
_OF_KIND: Mapping[str, tuple[type | tuple[type, ...], Callable[[Any], Fits]]] = {
    "pattern": (str, _pattern),
    "minLength": (str, lambda least: lambda value: len(value) >= least),
    "maxLength": (str, lambda most: lambda value: len(value) <= most),
    "minimum": (_NUMBER, lambda least: lambda value: value >= least),
    "exclusiveMinimum": (_NUMBER, lambda bound: lambda value: value > bound),
    "maximum": (_NUMBER, lambda most: lambda value: value <= most),
    "minItems": (list, lambda least: lambda value: len(value) >= least),
    "maxItems": (list, lambda most: lambda value: len(value) <= most),
    "uniqueItems": (list, lambda wanted: lambda value: not wanted or _unique(value)),
    "required": (dict, _required),
    "minProperties": (dict, lambda least: lambda value: len(value) >= least),
    "dependentRequired": (
        dict,
        lambda names: lambda value: all(value.keys() >= {*others} for name, others in names.items() if name in value),
    ),
}
