"""Command lines: the flags of a Python run as settings, with the place of each. Nothing is ever executed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kb.config.dialect.dialects import Target
from kb.config.dialect.translation import AS_WRITTEN, SAYS_NOTHING, translated
from kb.config.shell.expand import Argument, Environment
from kb.config.shell.launch import Flag, Launch, read_launch
from kb.config.shell.lexer import split_commands
from kb.config.shell.speller import Speller
from kb.config.text.json_nodes import Place
from kb.config.text.nodes import SCALAR, Node
from kb.config.text.places import Places
from kb.core.catalog import Dialect
from kb.core.document import Event, Setting, Unit
from kb.core.expression import Unknown
from kb.core.facts import FactType
from kb.core.finding import Edit, Span

PROCESSES = "launch.num_processes"
LAUNCHER = "launch.launcher"
RUN_CONFIG, CONFIG = "launch.run_config", "config"
ACCELERATE_CONFIG = "launch.config_file"
# Switches of `accelerate launch`; each means the setting of its name under launch.
SWITCHES = ("multi_gpu", "use_fsdp", "use_deepspeed", "cpu", "tpu")
BATCH = "training.per_device_train_batch_size"
MAX_DIGITS = 400
_NOWHERE = Place(0, 0, 0)

# The words that HfArgumentParser takes for a boolean, whatever their case.
_BOOLEANS = {"yes": True, "true": True, "t": True, "y": True, "1": True}
_BOOLEANS.update({"no": False, "false": False, "f": False, "n": False, "0": False})
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")


class CommandReader:
    """Reads command lines. Make one for many: it spells out the dialects only once.

    A training run by ``HfArgumentParser`` has the flags of dialect ``hf``, one of TRL's scripts those of ``trl``; one
    whose script calls its batch otherwise, those of ``command-training``; all others those of ``command``.
    """

    def __init__(self, dialects: Mapping[str, Dialect], facts: Mapping[str, FactType]) -> None:
        self._dialects, self._facts = dialects, facts
        self._tools: dict[str, Speller] = {}
        self._training = Speller(dialects["hf"], facts)
        self._trl = Speller(dialects["trl"], facts)
        self._bare = Speller(dialects["command-training"], facts)
        self._any = Speller(dialects["command"], facts)

    def speller(self, launch: Launch) -> Speller:
        """The dialect of a run's flags."""
        if launch.tool is not None and launch.tool.dialect in self._dialects:
            name = launch.tool.dialect
            if name not in self._tools:
                self._tools[name] = Speller(self._dialects[name], self._facts)
            return self._tools[name]
        if self._bare.score(launch.flags) > self._any.score(launch.flags) and self._bare.gives(BATCH, launch.flags):
            return self._bare
        if self._trl.score(launch.flags) >= self._trl.least:
            return self._trl
        score = self._training.score(launch.flags)
        # a model and an output folder are what any script of a model takes
        trains = score >= self._training.least and score > self._any.score(launch.flags) + 1
        return self._training if trains else self._any

    def read(self, text: str, path: str = "--command") -> Unit | None:
        """The first command of ``text`` that starts a program with flags; None where there is none.

        Columns and offsets count in ``text``. Any program will do, and so do flags alone.
        """
        environment = Environment()
        for command in split_commands(text):
            launch = read_launch(environment.take(command), text, any_program=True)
            if launch is not None and (launch.flags or launch.processes or launch.config):
                places = Places(text)
                span = places.span(command.start, command.end)
                launch = launch.on_chosen_gpus(environment.chooses_gpus(command))
                return unit_of(launch, self.speller(launch), path, None, places, span)
        return None


def unit_of(launch: Launch, speller: Speller, path: str, section: str | None, places: Places, span: Span) -> Unit:
    """The unit of one run. Of a flag given twice the last counts, as it does for argparse."""
    settings: dict[str, Setting] = {}
    events: list[Event] = []
    ranks: dict[str, int] = {}
    seen: dict[str, Flag] = {}
    known: list[str] = []
    for flag in launch.flags:
        name, negated = _known_name(flag, speller)
        targets = speller.targets.get(name, [])
        if targets:
            known.append(name)
            if name in seen:
                events.append(_repeated(seen[name], flag, places))
            seen[name] = flag
        elif not speller.ignores(name) and (meant := speller.meant_by(name)) is not None:
            events.append(_misspelt(flag, meant, speller, launch.flags, places))
        for target in targets:
            setting, event = _setting(flag, negated, target, places)
            if setting is None:
                continue
            if target.rank <= ranks.get(target.fact.name, target.rank):
                settings[target.fact.name] = setting
                ranks[target.fact.name] = target.rank
            if event is not None and event not in events:
                events.append(event)
    settings |= _launch_settings(launch, places)
    _follow_renames(settings, speller)
    return Unit(
        path=path,
        section=section,
        dialect=speller.id,
        settings=settings,
        span=span,
        events=tuple(events),
        known_keys=tuple(dict.fromkeys(known)),
        launcher=launch.launcher,
    )


def _launch_settings(launch: Launch, places: Places) -> dict[str, Setting]:
    """What the launcher and its own flags say, and the config files that it and the run read."""
    settings: dict[str, Setting] = {}
    if launch.config is not None:
        start = launch.config.start
        file = Flag(CONFIG, Argument("", start, start), (launch.config,))
        settings[RUN_CONFIG] = _at(launch.config.text, file, places)
    accelerate = [flag for flag in launch.before if flag.name == "config_file" and flag.values]
    if launch.launcher == "accelerate" and accelerate:
        settings[ACCELERATE_CONFIG] = _at(accelerate[-1].values[0].text, accelerate[-1], places)
    if launch.processes is not None:
        count, flag = launch.processes
        settings[PROCESSES] = _at(count, flag, places)
    if launch.launcher == "accelerate":
        on = [flag for flag in launch.before if flag.name in SWITCHES and not flag.values]
        settings |= {f"launch.{flag.name}": _at(True, flag, places, bare=True) for flag in on}
    return settings


def _follow_renames(settings: dict[str, Setting], speller: Speller) -> None:
    """A value under an old name counts under the new one too, unless that is given itself."""
    for targets in speller.targets.values():
        for target in targets:
            new = target.fact.renamed
            if new is not None and target.fact.name in settings and new not in settings:
                settings[new] = settings[target.fact.name]


def _known_name(flag: Flag, speller: Speller) -> tuple[str, bool]:
    """The flag's name, and whether it is said by its contrary: ``--no_fp16``, where no flag has that very name."""
    if flag.name in speller.targets or not flag.name.startswith("no_"):
        return flag.name, False
    positive = flag.name.removeprefix("no_")
    switch = any(target.fact.type == "bool" for target in speller.targets.get(positive, ()))
    return (positive, True) if switch and not flag.inline else (flag.name, False)


def _setting(flag: Flag, negated: bool, target: Target, places: Places) -> tuple[Setting | None, Event | None]:
    """The setting, None where the flag says nothing of it; a value that only a run can tell is unknown, one of another
    type stays as written.
    """
    kind = target.fact.type
    if negated:
        return _at(False, flag, places, bare=True), None
    value = flag.values[0] if flag.values else None
    made = _translated(flag, target)
    if made is SAYS_NOTHING:
        return None, None
    if made is not AS_WRITTEN:
        made = _only_then(target.fact.name) if made is None else made
        return _at(made, flag, places, bare=value is None)._replace(alias=True), None
    if kind == "bool" and not flag.inline and (value is None or not _boolean_or_unknown(value)):
        return _at(True, flag, places, bare=True), None
    if value is None:
        return _at(None, flag, places, bare=True), _wrong(flag, flag.key, kind, "", places)
    if kind == "list":
        return _at(_list(flag.values, target.fact.name), flag, places, whole=True), None
    if value.text is None:
        return _at(_only_then(target.fact.name), flag, places), None
    read = read_value(value.text, kind)
    event = None if read is not None else _wrong(flag, value, kind, value.text, places)
    return _at(value.text if read is None else read, flag, places), event


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


def _at(value: Any, flag: Flag, places: Places, *, bare: bool = False, whole: bool = False) -> Setting:
    """A setting at its value's place; at the flag's own where it has none."""
    first = flag.key if bare or not flag.values else flag.values[0]
    last = flag.values[-1] if whole and flag.values else first
    return Setting(
        value=value,
        span=places.span(first.start, max(first.end, last.end)),
        key_span=places.span(flag.key.start, flag.key.end),
        path=(flag.dashes + flag.name,),
        inherited=first.shared or first.from_variable,
    )


def _event(kind: str, argument: Argument, places: Places, **values: Any) -> Event:
    return Event(kind=kind, span=places.span(argument.start, argument.end), values=values)


def _misspelt(flag: Flag, meant: str, speller: Speller, flags: Sequence[Flag], places: Places) -> Event:
    """The event for a flag that is a slip of a known one, mended unless that is given too."""
    span = places.span(flag.key.start, flag.key.end)
    values = {"key": "--" + flag.name, "meant": "--" + meant}
    free = not flag.key.shared and not flag.key.from_variable and all(other.name != meant for other in flags)
    edits = (Edit("replace", speller.targets[meant][0].fact.name, "--" + meant, span),) if free else ()
    return Event(kind="unknown-key", span=span, values=values, edits=edits)


def _wrong(flag: Flag, at: Argument, want: str, raw: str, places: Places) -> Event:
    return _event("wrong-type", at, places, key="--" + flag.name, raw=raw, want=want)


def _repeated(first: Flag, again: Flag, places: Places) -> Event:
    used, dropped = (" ".join(value.text or "…" for value in flag.values) for flag in (again, first))
    line = places.at(first.key.start)[0]
    values: Mapping[str, Any] = {"key": "--" + again.name, "first_line": line, "used": used, "dropped": dropped}
    related = (("", places.span(first.key.start, first.key.end)),)
    return Event(kind="duplicate-key", span=places.span(again.key.start, again.key.end), values=values, related=related)
