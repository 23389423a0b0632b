"""The flags among the arguments of a program: each with its values and its place."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from kb.config.shell.expand import Argument
from kb.core.record import NamedTuple

_FLAG = re.compile(r"--?[A-Za-z]")
# Fields of TrainingArguments that are dictionaries, and that a command line says as JSON (_VALID_DICT_FIELDS).
_OBJECTS = ("accelerator_config", "fsdp_config", "gradient_checkpointing_kwargs")


class Flag(NamedTuple):
    """``--name`` with what follows it; the value of ``--name=value`` is an argument of its own."""

    name: str  # without dashes in front, with _ for -
    key: Argument
    values: tuple[Argument, ...]
    inline: bool = False
    dashes: str = "--"  # of ``name=value`` none


def short_flags(arguments: Sequence[Argument], text: str) -> tuple[Flag, ...]:
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
