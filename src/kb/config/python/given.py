"""What the calls of a program are given: the path, the key and the value of each argument."""

from collections.abc import Container
from typing import Any

from kb.config.files import ConfigError
from kb.config.python.calls import Call, Home
from kb.config.python.names import Names
from kb.config.python.set_later import set_later
from kb.config.python.syntax import Module
from kb.config.python.values import Values, moved
from kb.config.text.nodes import MAPPING, Node
from kb.core.expression import Unknown
from kb.core.record import NamedTuple


class Given(NamedTuple):
    """One keyword of a call: its path (the call's number, its name, names within), its key and its value."""

    path: tuple[str, ...]
    key: Node
    value: Node


class Arguments(NamedTuple):
    """What a call is given: what is written out, and whether there is a ``**more`` that cannot be told."""

    known: tuple[Given, ...]
    hides: bool


def given_to(call: Call, module: Module, values: Values, names: Names, settings: Container[str]) -> Arguments:
    """What a call is given, and what its object is given afterwards.

    Args:
        settings: the names that are settings of what the call makes.
    """
    if call.home is not None:
        found = _given_elsewhere(call, call.home, module, values)
    else:
        found = _given_here(call, module, values)
    known = {each.path: each for each in found.known}
    for name, expression, node in set_later(call, names, values, settings):
        node.alias = True  # a fix that gives the call this argument would change nothing
        _add(known, Given((str(call.number), name), values.key(module.extent(expression), name), node))
    return Arguments(tuple(known.values()), found.hides)


def _given_here(call: Call, module: Module, values: Values) -> Arguments:
    known: dict[tuple[str, ...], Given] = {}
    hides = False
    first = str(call.number)
    for keyword, name, expression in call.keywords():
        if name is None:
            pairs = values.pairs(expression, call.where)
            if pairs is None:
                loaded = values.loaded(expression, call.where)
                hides |= loaded is None
                for inner, node in loaded or ():
                    _add(known, Given((first, inner), values.key(module.extent(expression), inner), node))
                continue
            for key, inner, value in pairs[0]:
                node = values.node(value, pairs[2])
                node.alias = node.alias or pairs[1]
                start, end = module.extent(key)
                _add(known, Given((first, inner), values.key((start, end), inner, _quote(key, module)), node))
            continue
        node = values.node(expression, call.where)
        if name in call.kind.literal and isinstance(node.data, Unknown):
            continue
        start, _ = module.extent(keyword or expression)
        key_node = values.key((start, start + len(name)) if keyword else module.extent(expression), name)
        if keyword is not None and (first, name) in known:
            raise ConfigError(
                "config.python-syntax", *module.at_offset(start), reason=f"keyword argument repeated: {name}"
            )
        _add(known, Given((first, name), key_node, node))
    return Arguments(tuple(known.values()), hides)


def _given_elsewhere(call: Call, home: Home, module: Module, values: Values) -> Arguments:
    """What a call of another module is given: it stands where the program calls the function that makes it."""
    known: dict[tuple[str, ...], Given] = {}
    hides = False
    reading = values.of(home.owner)
    extent = module.extent(home.place)
    for _, name, expression in call.keywords():
        written: list[tuple[str, Node]] | None = None
        if name is not None:
            written = [(name, reading.node(expression, home.at))]
        elif (more := reading.pairs(expression, home.at)) is not None:
            written = [(inner, reading.node(value, more[2])) for _, inner, value in more[0]]
        else:
            written = reading.loaded(expression, home.at)
        hides |= written is None
        for inner, node in written or ():
            if not values.of_config:
                node = moved(node, *map(module.place, extent))
            if inner not in call.kind.literal or not isinstance(node.data, Unknown):
                _add(known, Given((str(call.number), inner), values.key(extent, inner), node))
    return Arguments(tuple(known.values()), hides)


def _quote(key: Any, module: Module) -> str:
    start, end = module.extent(key)
    return module.text[start] if module.text[start : start + 1] in ("'", '"') and end > start else ""


def _add(known: dict[tuple[str, ...], Given], given: Given) -> None:
    known[given.path] = given
    if given.value.kind == MAPPING:
        for key, value in given.value.value:
            _add(known, Given((*given.path, key.value), key, value))
