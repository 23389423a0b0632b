"""The flags of a command: found among its arguments, spelled in a dialect, and the setting that each makes."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.config.dialect.dialects import CompiledDialect, Neighbours, Target
from kb.config.dialect.values import AS_WRITTEN, SAYS_NOTHING, translated
from kb.config.shell.arguments import Argument
from kb.config.text.nodes import SCALAR, Node, Place
from kb.config.text.source import Places
from kb.core.catalog import Dialect
from kb.core.document import AT_RUN, Event, Setting
from kb.core.expression import Unknown
from kb.core.facts import FactType
from kb.core.record import NamedTuple

_FLAG = re.compile(r"--?[A-Za-z]")
# Fields of TrainingArguments that are dictionaries, and that a command line says as JSON (_VALID_DICT_FIELDS); vLLM's.
_OBJECTS = ("accelerator_config", "fsdp_config", "gradient_checkpointing_kwargs", "speculative_config")


class Flag(NamedTuple):
    """``--name`` with what follows it; the value of ``--name=value`` is an argument of its own."""

    name: str  # without dashes in front, with _ for -
    key: Argument
    values: tuple[Argument, ...]
    inline: bool = False
    dashes: str = "--"  # of ``name=value`` none


def short_flags(arguments: Sequence[Argument]) -> tuple[Flag, ...]:
    """The flags of one letter, ``-b 8`` or ``-b8``, by their letter with its dash; one without a name stands for
    arguments that cannot be told, ``$ARGUMENTS``.
    """
    flags: list[Flag] = []
    for index, argument in enumerate(arguments):
        if argument.options and argument.text is None:
            flags.append(Flag(name="", key=argument, values=(argument,), dashes=""))
        written = argument.text if argument.text is not None else argument.begins
        if written.startswith("--") or not is_flag(argument):
            continue
        key = argument._replace(text=written[:2], begins="")
        values = [argument._replace(text=written[2:] if argument.text is not None else None)] if written[2:] else []
        for each in arguments[index + 1 :] if not values else ():
            if is_flag(each) or each.options:
                break
            values.append(each)
        flags.append(Flag(name=written[:2], key=key, values=tuple(values), dashes=""))
    return tuple(flags)


def read_flags(arguments: Sequence[Argument], text: str) -> tuple[Flag, ...]:
    """The long flags among the arguments, each with all that stands before the next flag."""
    flags: list[Flag] = []
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        written = argument.text if argument.text is not None else argument.begins
        if not written.startswith("--") or not is_flag(argument):
            continue
        if argument.text is None:
            flags.append(Flag(name=_bare(written[:-1]), key=argument, values=(argument,), inline=True))
            continue
        name, equals, value = written.partition("=")
        if equals:
            key, inline = _inline(argument, name, value, text)
            flags.append(Flag(name=_bare(name), key=key, values=(inline,), inline=True))
            continue
        first = index
        while index < len(arguments) and not is_flag(arguments[index]) and not arguments[index].options:
            index += 1
        flags.append(Flag(name=_bare(name), key=argument, values=tuple(arguments[first:index])))
    return tuple(flags)


def _inline(argument: Argument, name: str, value: str, text: str) -> tuple[Argument, Argument]:
    """The two halves of ``--name=value``, quotes counted with the value."""
    middle = text.find("=", argument.start, argument.end)
    middle = argument.end if middle < 0 else middle
    start = min(middle + 1, argument.end)
    return argument._replace(text=name, end=middle), argument._replace(text=value, start=start)


def _bare(name: str) -> str:
    return name[2:].replace("-", "_")


def is_flag(argument: Argument) -> bool:
    return bool(_FLAG.match(argument.begins if argument.text is None else argument.text))


def last_flags(flags: Sequence[Flag]) -> Mapping[str, Flag]:
    """The flags by name; of one given twice the last counts, as it does for argparse."""
    return {flag.name: flag for flag in flags}


def opened(flags: Sequence[Flag]) -> Iterator[Flag]:
    """The flags, and after one whose value is a JSON object those of its keys: ``--fsdp_config '{"version": 2}'`` says
    ``fsdp_config.version``. Nothing can be mended inside of such a text.
    """
    for flag in flags:
        yield flag
        text = flag.values[0].text if len(flag.values) == 1 and flag.name in _OBJECTS else None
        if text is None or not text.startswith("{"):
            continue
        try:
            said = json.loads(text)
        except ValueError:
            continue
        for key, value in said.items():
            if isinstance(value, (str, bool, int, float)):
                written = value if isinstance(value, str) else json.dumps(value)
                inside = flag.values[0]._replace(text=written, shared=True)
                yield flag._replace(name=f"{flag.name}.{key}", values=(inside,), inline=True)


SHORTEST, MOST_CUT = 5, 4  # letters of a flag that may be the beginning of another, and those that it may lack


class Speller:
    """What each flag means in one dialect."""

    def __init__(self, dialect: Dialect, facts: Mapping[str, FactType]) -> None:
        compiled = CompiledDialect(dialect, facts)
        self.id = dialect.id
        self.targets = compiled.targets
        self.ignores = compiled.ignores
        self.unmodelled = compiled.unmodelled
        self._marks: Mapping[str, int] = dialect.recognise["marks"]
        # what tells a file of `hf` from other formats says nothing about flags
        self._unless = frozenset(dialect.recognise.get("unless", ()) if dialect.id != "hf" else ())
        self._telling = frozenset(dialect.telling)
        self.least: int = dialect.recognise["least"]
        self._neighbours: Neighbours | None = None

    def score(self, flags: Sequence[Flag]) -> int:
        """How much these flags look like the dialect's, by the marks that it is recognised by; 0 where one forbids."""
        names = {flag.name for flag in flags}
        return 0 if names & self._unless else sum(self._marks.get(name, 0) for name in names)

    def tells(self, flags: Sequence[Flag]) -> bool:
        """Whether the flags are as those of a program that hands them to the library: of those that tell so there are
        several, and more than three for each of its own."""
        names = {flag.name for flag in flags}
        own = [name for name in names if name not in self.targets and not self.ignores(name)]
        return len(self._telling & names) > max(1, 3 * len(own))

    def gives(self, fact: str, flags: Sequence[Flag]) -> bool:
        """Whether one of the flags means this setting."""
        return any(target.fact.name == fact for flag in flags for target in self.targets.get(flag.name, ()))

    def meant_by(self, name: str) -> str | None:
        """The known flag that an unknown one is a slip of."""
        if name in self.targets or self.ignores(name):
            return None
        if self._neighbours is None:
            self._neighbours = Neighbours(self.targets)
        return self._neighbours.meant_by(name)

    def shortened(self, name: str) -> tuple[str, bool] | None:
        """The known flag that ends within a word of its name here, which argparse takes for the whole; and whether no
        other begins so too: of two it stops, unless a release lacks one.
        """
        if name in self.targets or self.ignores(name) or len(name) < SHORTEST:
            return None
        cut = len(name)
        found = [each for each in self.targets if each.startswith(name) and each[cut : cut + 1] not in ("_", ".")]
        whole = min(found, key=len, default="")
        if not found or len(whole) > cut + MOST_CUT or not all(each.startswith(whole) for each in found):
            return None
        return whole, len(found) == 1


MAX_DIGITS = 400
_NOWHERE = Place(0, 0, 0)

# The words that HfArgumentParser takes for a boolean, whatever their case.
_BOOLEANS = {"yes": True, "true": True, "t": True, "y": True, "1": True}
_BOOLEANS.update({"no": False, "false": False, "f": False, "n": False, "0": False})
_CLASS = re.compile(r"[A-Z]\w*For[A-Z]\w*")  # of a model, which says nothing of its weights


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
        made = known_when_run(target.fact.name) if made is None else made
        return setting_at(made, flag, places, bare=value is None)._replace(alias=True), None
    alone = value is None or (value.text is not None and value.text.lower() not in _BOOLEANS)
    if kind == "bool" and not flag.inline and alone:
        return setting_at(True, flag, places, bare=True), None
    if value is None and flag.name == "deepspeed":
        return None, None  # the switch of DeepSpeed's own argument group
    if value is None:
        missing = _wrong(flag, flag.key, kind, "", places)
        return setting_at(None, flag, places, bare=True), missing
    if kind == "list":
        return setting_at(_list(flag.values, target.fact.name), flag, places, whole=True), None
    if value.text is None:
        return setting_at(known_when_run(target.fact.name), flag, places), None
    read = read_value(value.text, kind)
    event = None if read is not None else _wrong(flag, value, kind, value.text, places)
    return setting_at(value.text if read is None else read, flag, places), event


def _translated(flag: Flag, target: Target) -> Any:
    """What the dialect makes of the written value; a bare flag stands for true, of several values none is one."""
    if len(flag.values) > 1 or (not flag.values and target.plain):
        return AS_WRITTEN
    text = flag.values[0].text if flag.values else "true"
    return AS_WRITTEN if text is None else translated(target, Node(SCALAR, text, None, "", _NOWHERE, _NOWHERE))


def known_when_run(name: str) -> Unknown:
    """Of a setting that only a run can tell."""
    return Unknown(frozenset((name,)), AT_RUN)


def _list(values: Sequence[Argument], name: str) -> Any:
    texts = [value.text for value in values]
    if any(text is None for text in texts):
        return known_when_run(name)
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
    if kind not in ("integer", "number", "bytes"):
        return text
    for convert in (int, float) if kind == "number" else (int,):  # argparse's own: `1_000`, `inf`, `８`
        with contextlib.suppress(ValueError):
            return convert(text)
    return None


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


def setting_by(value: Any, name: str, word: Argument, places: Places) -> Setting:
    """A setting that no flag says, but a word: a launcher's, a script's name, an image. It stands there."""
    return setting_at(value, Flag(name, word, (), dashes=""), places, bare=True)


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
    values = {"key": flag.dashes + flag.name, "raw": raw, "want": want}
    return Event("wrong-type", places.span(at.start, at.end), values)
