"""Shell scripts: every command line in one that starts a Python run, and the faults that cut a command short."""

from collections.abc import Callable

from kb.config.shell.allotment import read_allotment
from kb.config.shell.command import CommandReader, unit_of
from kb.config.shell.expand import Environment
from kb.config.shell.launch import Launch, read_launch
from kb.config.shell.lexer import split_commands
from kb.config.shell.nested import runs_in
from kb.config.shell.processes import ASKED, Surroundings
from kb.config.shell.words import Command, Fault
from kb.config.text.source import Places
from kb.core.document import Event, Unit
from kb.core.finding import Edit


def read_shell(
    text: str, path: str, reader: CommandReader, wanted: Callable[[str], bool] = lambda _: False
) -> tuple[Unit, ...]:
    """The runs of a script as units, each named after its script and line where there are several.

    A run none of whose flags is known is left out, unless its program is ``wanted``. A fault belongs to the unit of its
    command, or, where that is no run, to the first unit; a script of faults alone is one unit without settings.
    """
    places = Places(text)
    environment, allotment = Environment(text), read_allotment(text)
    environment.know(allotment.variables())
    runs: list[tuple[Command, Launch]] = []
    faults: dict[int, list[Event]] = {}
    for command in split_commands(text):
        arguments = environment.take(command)
        around = Surroundings(allotment, environment.told(command, ASKED))
        launches = (
            read_launch(each, text, around=around, tools=reader.tools)
            for each in runs_in(command, arguments, environment)
        )
        runs_here = (each for each in launches if each is not None)
        launch = next((each for each in runs_here if wanted(each.program) or _says_something(each, reader)), None)
        events = [_event(fault, command, text, places) for fault in command.faults]
        if launch is not None:
            runs.append((command, launch.on_chosen_gpus(environment.chooses_gpus(command))))
            faults.setdefault(len(runs) - 1, []).extend(events)
        elif events:
            faults.setdefault(max(len(runs) - 1, 0), []).extend(events)
    if not runs:
        span = places.span(0, len(text))
        events = faults.get(0, [])
        nothing = Unit(path=path, section=None, dialect=None, settings={}, span=span, events=tuple(events))
        return (nothing,) if events else ()
    units = []
    for index, (command, launch) in enumerate(runs):
        span = places.span(command.start, command.end)
        section = f"{launch.script or 'line'}:{span.line}" if len(runs) > 1 else None
        unit = unit_of(launch, reader.speller(launch), path, section, places, span)
        units.append(unit._replace(events=(*faults.get(index, ()), *unit.events)))
    return tuple(units)


def _says_something(launch: Launch, reader: CommandReader) -> bool:
    targets = reader.speller(launch).targets
    if launch.config is not None or launch.tool is not None:
        return True
    told = launch.processes is not None and launch.processes.flag is not None
    return told or any(flag.name in targets for flag in launch.flags)


def _event(fault: Fault, command: Command, text: str, places: Places) -> Event:
    """The fault with the edits that mend it: what breaks the line goes, its comment moves above the command."""
    edits = [Edit("replace", "", "", places.span(fault.start, fault.end))]
    if fault.comment:
        first = text[command.line_start : command.start]
        indent = first[: len(first) - len(first.lstrip(" \t"))]
        end = "\r\n" if "\r\n" in text else "\n"
        above = "".join(f"{indent}{line}{end}" for line in fault.comment.split("\n"))
        edits.insert(0, Edit("replace", "", above, places.span(command.line_start, command.line_start)))
    kind = "comment-after-backslash" if fault.comment else "space-after-backslash"
    return Event(kind=kind, span=places.span(fault.start, fault.end), edits=tuple(edits))
