"""The value of one flag: what a program reads that wants a value of its type, and what a dialect makes of it."""

import re
from collections.abc import Sequence
from typing import Any

from kb.config.dialect.targets import Target
from kb.config.dialect.translation import AS_WRITTEN, SAYS_NOTHING, translated
from kb.config.shell.expand import Argument
from kb.config.shell.flags import Flag
from kb.config.text.nodes import SCALAR, Node, Place
from kb.config.text.source import Places
from kb.core.document import Event, Setting
from kb.core.expression import Unknown

MAX_DIGITS = 400
_NOWHERE = Place(0, 0, 0)

# The words that HfArgumentParser takes for a boolean, whatever their case.
_BOOLEANS = {"yes": True, "true": True, "t": True, "y": True, "1": True}
_BOOLEANS.update({"no": False, "false": False, "f": False, "n": False, "0": False})
_CLASS = re.compile(r"[A-Z]\w*For[A-Z]\w*")  # of a model, which says nothing of its weights
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")


def setting_of(flag: Flag, negated: bool, target: Target, places: Places) -> tuple[Setting | None, Event | None]:
    """The setting, None where the flag says nothing of it; a value that only a run can tell is unknown, one of another
    type stays as written.
    """
    kind = target.fact.type
    if negated:
        return setting_at(False, flag, places, bare=True), None
    value = flag.values[0] if flag.values else None
    made = _translated(flag, target)
    named_class = target.fact.name == "model.name" and _CLASS.fullmatch((value and value.text) or "")
    if made is SAYS_NOTHING or named_class:
        return None, None
    if made is not AS_WRITTEN:
        made = _only_then(target.fact.name) if made is None else made
        return setting_at(made, flag, places, bare=value is None)._replace(alias=True), None
    if kind == "bool" and not flag.inline and (value is None or not _boolean_or_unknown(value)):
        return setting_at(True, flag, places, bare=True), None
    if value is None and flag.name == "deepspeed":
        return None, None  # the switch of DeepSpeed's own argument group
    if value is None:
        missing = _wrong(flag, flag.key, kind, "", places)
        return setting_at(None, flag, places, bare=True), missing
    if kind == "list":
        return setting_at(_list(flag.values, target.fact.name), flag, places, whole=True), None
    if value.text is None:
        return setting_at(_only_then(target.fact.name), flag, places), None
    read = read_value(value.text, kind)
    event = None if read is not None else _wrong(flag, value, kind, value.text, places)
    return setting_at(value.text if read is None else read, flag, places), event


def _translated(flag: Flag, target: Target) -> Any:
    """What the dialect makes of the written value; a bare flag stands for true, of several values none is one."""
    if len(flag.values) > 1 or (not flag.values and target.plain):
        return AS_WRITTEN
    text = flag.values[0].text if flag.values else "true"
    return AS_WRITTEN if text is None else translated(target, Node(SCALAR, text, None, "", _NOWHERE, _NOWHERE))


def _only_then(name: str) -> Unknown:
    return Unknown(frozenset((name,)), "known only when the command runs")


def _boolean_or_unknown(value: Argument) -> bool:
    return value.text is None or value.text.lower() in _BOOLEANS


def _list(values: Sequence[Argument], name: str) -> Any:
    texts = [value.text for value in values]
    if any(text is None for text in texts):
        return _only_then(name)
    known = [text for text in texts if text is not None]
    if len(known) == 1 and "," in known[0]:
        known = [part.strip() for part in known[0].split(",") if part.strip()]
    return tuple(known)


def read_value(text: str, kind: str) -> Any:
    """``text`` as a program reads it that wants a value of this type; None where it cannot."""
    if kind == "bool":
        return _BOOLEANS.get(text.lower())
    if len(text) > MAX_DIGITS:
        return None if kind in ("integer", "number", "bytes") else text
    if kind in ("integer", "bytes"):
        return int(text) if _INTEGER.match(text) else None
    if kind == "number":
        return int(text) if _INTEGER.match(text) else float(text) if _NUMBER.match(text) else None
    return text


def setting_at(value: Any, flag: Flag, places: Places, *, bare: bool = False, whole: bool = False) -> Setting:
    """A setting at its value's place; at the flag's own where it has none."""
    first = flag.key if bare or not flag.values else flag.values[0]
    last = flag.values[-1] if whole and flag.values else first
    return Setting(
        value=value,
        span=places.span(first.start, max(first.end, last.end)),
        key_span=places.span(flag.key.start, flag.key.end),
        path=(flag.dashes + flag.name,),
        inherited=first.shared or first.from_variable,
        by_default=any(each.by_default for each in flag.values),
    )


def event_at(kind: str, argument: Argument, places: Places, **values: Any) -> Event:
    return Event(kind=kind, span=places.span(argument.start, argument.end), values=values)


def repeated(first: Flag, again: Flag, places: Places) -> list[Event]:
    """The event for a flag with values that is said twice; a switch means the same twice, and what is not known may."""
    texts = [tuple(value.text for value in flag.values) for flag in (again, first)]
    if not any(texts) or any(None in each for each in texts):
        return []
    used, dropped = (" ".join(map(str, each)) or "true" for each in texts)
    line, span = places.at(first.key.start)[0], places.span(again.key.start, again.key.end)
    values = {"key": again.dashes + again.name, "first_line": line, "used": used, "dropped": dropped}
    return [Event("duplicate-key", span, values, related=(("", places.span(first.key.start, first.key.end)),))]


def _wrong(flag: Flag, at: Argument, want: str, raw: str, places: Places) -> Event:
    return event_at("wrong-type", at, places, key=flag.dashes + flag.name, raw=raw, want=want)
