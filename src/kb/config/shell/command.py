"""Command lines as units: one by itself, those of a shell script, and those in the text that a shell is given."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kb.config.dialect.dialects import LAST
from kb.config.programs import DOCUMENTS, OF_A_HOST
from kb.config.shell.arguments import Argument, Held
from kb.config.shell.expand import Environment
from kb.config.shell.flags import (
    Flag,
    Speller,
    known_when_run,
    opened,
    read_value,
    repeated,
    setting_at,
    setting_by,
    setting_of,
)
from kb.config.shell.launch import Launch, Tool, Tools, either, read_launch, replaced_by
from kb.config.shell.lexer import Command, Fault, Word, split_commands
from kb.config.shell.nested import runs_in
from kb.config.shell.order import assigned, in_order
from kb.config.shell.processes import ASKED, IN_ENVIRONMENT, OF_FSDP, Surroundings, allotment_of_wrap, read_allotment
from kb.config.shell.serving import first_on_path, other_environment
from kb.config.text.source import Places
from kb.core.catalog import Dialect
from kb.core.document import EVERY_GPU, NOT_COUNTED, Event, Setting, Unit
from kb.core.expression import Unknown
from kb.core.facts import FactType
from kb.core.finding import Edit, Span

OF_OWN_PARSERS = ("command-training", "command")  # dialects of flags that a program names by itself
PROCESSES, MACHINES = "launch.num_processes", "launch.num_machines"
VISIBLE = "launch.visible_gpus"
EACH_ITS_OWN = ("torchrun", "accelerate")  # launchers whose processes each take one of the GPUs that are visible
ONE_PROCESS = ("hf", "trl")  # dialects whose programs `python` alone starts once
# ms-swift's own programs, where what leads to them is not told (`$(python …)/cli/sft.py`), by flags that it has alone.
OF_SWIFT, TUNERS = ("sft.py", "pt.py", "rlhf.py"), ("tuner_type", "train_type", "sft_type", "rlhf_type")
SWIFTS_OWN = "model_author"  # a flag of no other program: whom the model is to call its maker
RUN_CONFIG, CONFIG = "launch.run_config", "config"
ACCELERATE_CONFIG = "launch.config_file"
# Switches of `accelerate launch`; each means the setting of its name under launch.
SWITCHES = ("multi_gpu", "use_fsdp", "use_deepspeed", "cpu", "tpu")
# Flags of `accelerate launch` in place of a file of DeepSpeed's or accelerate's.
OF_LAUNCHER = {
    "zero_stage": "deepspeed.zero_stage",
    "offload_optimizer_device": "deepspeed.offload_optimizer.device",
    "offload_param_device": "deepspeed.offload_param.device",
    "mixed_precision": "accelerate.mixed_precision",
    "deepspeed_config_file": "deepspeed.config_file",
    **{f"fsdp_{name}": f"accelerate.fsdp_{name}" for name in OF_FSDP},
}
# Flags of launchers that start one process, or one for each GPU, where none of them is given.
COUNTS_PROCESSES = {
    "torchrun": frozenset(("nproc_per_node", "nnodes")),
    "deepspeed": frozenset(("num_gpus", "num_nodes", "include", "exclude", "hostfile")),
}
COUNTS_MACHINES = ("num_machines", "nnodes")  # flags of `accelerate launch` and of torchrun
AMONG_MACHINES = frozenset((*COUNTS_MACHINES, "machine_rank", "node_rank", "main_process_ip"))
OF_ADAPTERS = frozenset(("lora", "qlora", "peft", "dora"))  # words in the name of a script that adds one
BATCH = "training.per_device_train_batch_size"
TRAINER = "script.trainer"
_WORD = r"[^\s\"'=:,;()<>`]+"  # of a command: with its words taken apart no pattern runs over a long one
MAX_NAMED = 32  # words of one command that end in one name
_BEFORE_RECIPES = r"(?m)^\t[ \t]*[@+-]+"  # of a Makefile: signs in front of a command, for make alone


class CommandReader:
    """Reads command lines. Make one for many: it spells out the dialects only once.

    A training run by ``HfArgumentParser`` has the flags of dialect ``hf``, one of TRL's scripts those of ``trl``; one
    whose script calls its batch otherwise, those of ``command-training``; all others those of ``command``.
    """

    def __init__(self, dialects: Mapping[str, Dialect], facts: Mapping[str, FactType]) -> None:
        self._dialects, self._facts = dialects, facts
        self.tools = Tools(dialects.values())
        self._tools: dict[str, Speller] = {}
        self._training = Speller(dialects["hf"], facts)
        self._trl = Speller(dialects["trl"], facts)
        self._bare = Speller(dialects[OF_OWN_PARSERS[0]], facts)
        self._any = Speller(dialects[OF_OWN_PARSERS[1]], facts)

    def speller(self, launch: Launch) -> Speller:
        """The dialect of a run's flags."""
        if launch.tool is not None and launch.tool.dialect in self._dialects:
            name = launch.tool.dialect
            if name not in self._tools:
                self._tools[name] = Speller(self._dialects[name], self._facts)
            return self._tools[name]
        names = {flag.name for flag in launch.flags}
        if not names.isdisjoint(TUNERS) and (launch.script in OF_SWIFT or SWIFTS_OWN in names):
            return self.speller(launch._replace(tool=Tool("ms-swift")))
        if self._bare.score(launch.flags) > self._any.score(launch.flags) and self._bare.gives(BATCH, launch.flags):
            return self._bare
        if self._trl.score(launch.flags) >= self._trl.least or launch.trainer is not None:
            return self._trl
        score = self._training.score(launch.flags)
        # a model and an output folder are what any script of a model takes
        trains = score >= self._training.least and score > self._any.score(launch.flags) + 1
        return self._training if trains else self._any

    def of_dialect(self, name: str | None) -> Speller:
        """The flags of a format; those of the Trainer's where it is no format of flags."""
        if name is None or name not in self._dialects:
            return self._training
        known = (self._training, self._trl, self._bare, self._any)
        return next((each for each in (*known, *self._tools.values()) if each.id == name), self._training)

    def read(self, text: str, path: str = "--command") -> Unit | None:
        """The first command of ``text`` that starts a program with flags; None where there is none.

        Columns and offsets count in ``text``. Any program will do, and so do flags alone.
        """
        environment = Environment(text)
        for command, arguments in in_order(split_commands(text), environment):
            around = Surroundings(variables=environment.told(command, ASKED), fixed=environment.fixed(command, ASKED))
            launch = read_launch(arguments, text, any_program=True, around=around, tools=self.tools)
            if launch is not None and (launch.flags or launch.before or launch.config):
                places = Places(text)
                span = places.span(command.start, command.end)
                launch = launch.on_chosen_gpus(environment.chooses_gpus(command))
                return unit_of(launch, self.speller(launch), path, None, places, span)
        return None


def read_shell(
    text: str,
    path: str,
    reader: CommandReader,
    wanted: Callable[[str], bool] = lambda _: False,
    given: Mapping[str, Held | None] = {},
) -> tuple[Unit, ...]:
    """The runs of a script as units, each named after its script and line where there are several.

    A run none of whose flags is known is left out, unless its program is ``wanted``. A fault belongs to the unit of its
    command, or, where that is no run, to the first unit; a script of faults alone is one unit without settings.
    """
    places = Places(text)
    environment, allotment = Environment(text), read_allotment(text)
    environment.know(allotment.variables())
    environment.variables.update(given)
    environment.exported.update(given)
    of_make = path.endswith("Makefile")
    if of_make:
        environment.lines_apart(one_shell=".ONESHELL" in text)
    commands = split_commands(re.sub(_BEFORE_RECIPES, lambda found: " " * len(found[0]), text) if of_make else text)
    runs: dict[tuple[int, str], tuple[Command, Launch]] = {}
    elsewhere, on_path = None, first_on_path(text)
    for command, arguments in in_order(commands, environment, ends=not path.endswith((*DOCUMENTS, "Makefile"))):
        elsewhere = other_environment(arguments, text, elsewhere, on_path)
        told, fixed = environment.told(command, ASKED), environment.fixed(command, ASKED)
        whole = text[command.start : command.end]
        job = allotment_of_wrap(whole) if "sbatch" in whole and "--wrap" in whole else allotment
        around = Surroundings(job, told, fixed, elsewhere)
        for each in runs_in(command, arguments, environment):
            launch = read_launch(each, text, around=around, tools=reader.tools)
            if launch is None or not (wanted(launch.program) or _says_something(launch, reader)):
                continue
            launch = launch._replace(folder=environment.folder)
            still = tuple(word for word in launch.open if not environment.tells_flags_of(word, command.words))
            launch = replaced_by(environment.may_say(command.words), launch, arguments, text)._replace(open=still)
            launch = launch.on_chosen_gpus(environment.chooses_gpus(command))
            key = command.start, launch.program or launch.script
            runs[key] = (command, either(runs[key][1], launch) if key in runs else launch)
    found = sorted(runs.values(), key=lambda run: run[0].start)
    faults: dict[int, list[Event]] = {}
    for command in commands:
        if command.faults:
            at = max(sum(run.start <= command.start for run, _ in found) - 1, 0)
            faults.setdefault(at, []).extend(_event(fault, command, text, places) for fault in command.faults)
    if not found:
        span = places.span(0, len(text))
        events = faults.get(0, [])
        nothing = Unit(path=path, section=None, dialect=None, settings={}, span=span, events=tuple(events))
        return (nothing,) if events else ()
    units = []
    for index, (command, launch) in enumerate(found):
        span = places.span(command.start, command.end)
        section = f"{launch.script or 'line'}:{span.line}" if len(found) > 1 else None
        unit = unit_of(launch, reader.speller(launch), path, section, places, span)
        units.append(unit._replace(folder=launch.folder, events=(*faults.get(index, ()), *unit.events)))
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


def unit_of(launch: Launch, speller: Speller, path: str, section: str | None, places: Places, span: Span) -> Unit:
    """The unit of one run. Of a flag given twice the last counts, as it does for argparse."""
    settings: dict[str, Setting] = {}
    events: list[Event] = []
    ranks: dict[str, int] = {}
    seen: dict[str, Flag] = {}
    known: list[str] = []
    for flag in opened(launch.flags):
        name, negated = _known_name(flag, speller)
        targets = speller.targets.get(name, [])
        if targets:
            known.append(name)
            listed = speller.id in OF_OWN_PARSERS and targets[0].fact.type == "text"  # by argparse's ``append``
            if name in seen and not listed and not _apart(seen[name], flag, span, places):
                events += repeated(seen[name], flag, places)
            seen[name] = flag
        elif (meant := speller.meant_by(name)) is not None:
            events.append(_misspelt(flag, meant, speller, launch.flags, places))
        for target in targets:
            setting, event = setting_of(flag, negated, target, places)
            if setting is None:
                continue
            cut = name != flag.name and not negated and (event or speller.shortened(flag.name) == (name, False))
            if cut or (event is not None and _is_own_switch(flag, target.fact, speller, launch)):
                setting, event = setting._replace(value=known_when_run(target.fact.name)), None
            if target.rank <= ranks.get(target.fact.name, target.rank):
                settings[target.fact.name] = setting._replace(own_name=target.rank >= LAST)
                ranks[target.fact.name] = target.rank
            if event is not None and event not in events:
                events.append(event)
    settings |= _launch_settings(launch, speller.id, places)
    _follow_renames(settings, speller)
    settings |= _unmodelled(launch, speller, places)
    if launch.tool is not None:
        begin = places.span(span.start, span.start)
        made = launch.tool.sets.items()
        settings = {name: Setting(value, begin, begin, (launch.script,), alias=True) for name, value in made} | settings
    trainer = launch.trainer
    if trainer is not None:
        begin = places.span(span.start, span.start)
        by_name = launch.tool is None and not launch.script.startswith("trl.")  # its author's word for it, no more
        settings[TRAINER] = Setting(trainer, begin, begin, (launch.script,), alias=True, by_default=by_name)
    maybe = tuple(name for name in _maybe_said(launch, speller) if name not in settings)
    return Unit(
        path=path,
        section=section,
        dialect=speller.id,
        settings=settings,
        span=span,
        events=tuple(events),
        known_keys=tuple(dict.fromkeys(known)),
        script=launch.script,
        launcher=launch.launcher,
        reader="library" if launch.tool is not None or launch.script.startswith("trl.scripts.") else "script",
        program=launch.program,
        hidden=maybe,
        maybe=maybe,
        typical=launch.typical or (launch.typical is None and speller.tells(launch.flags)),
        keys={flag.name: _as_written(flag, places) for flag in (*launch.flags, *launch.short)},
    )


def _is_own_switch(flag: Flag, fact: FactType, speller: Speller, launch: Launch) -> bool:
    """Whether a flag without a word behind it, which a library would want a text for, is a switch of the program's own:
    of a parser of its own any may be but the name of a place, ``--debug`` in any program but the library's.
    """
    if flag.name.endswith(("_path", "_dir", "_file")):
        return False
    own = speller.id in OF_OWN_PARSERS or (flag.name == "debug" and launch.tool is None and not launch.typical)
    return own and not flag.values and fact.type == "text"


def _maybe_said(launch: Launch, speller: Speller) -> Iterator[str]:
    """The settings that flags mean of which only a run can tell whether they are given."""
    for flag in sorted(speller.targets if launch.open else launch.maybe):
        yield from (target.fact.name for target in speller.targets.get(flag, ()))
        if launch.launcher == "accelerate" and flag in OF_LAUNCHER:
            yield OF_LAUNCHER[flag]
        elif launch.launcher == "accelerate" and flag in SWITCHES:
            yield f"launch.{flag}"
    if _may_count(launch):
        yield PROCESSES


def _may_count(launch: Launch) -> bool:
    """Whether only a run can tell a flag of the launcher from which its processes are counted."""
    counts = COUNTS_PROCESSES.get(launch.launcher or "", frozenset())
    return not (counts & launch.maybe).issubset(flag.name for flag in launch.before)


def _apart(first: Flag, again: Flag, span: Span, places: Places) -> bool:
    """Whether two flags of one name lie in two variables, or one in the command itself: what is set for several
    commands one of them sets otherwise on purpose."""
    starts = (first.key.start, again.key.start)
    return min(starts) < span.start and places.at(starts[0])[0] != places.at(starts[1])[0]


def _as_written(flag: Flag, places: Places) -> Setting:
    """A flag by itself, whatever it means: its text, or all of them, or true where it stands alone."""
    texts = tuple(value.text for value in flag.values)
    if any(text is None for text in texts):
        value: Any = known_when_run(flag.name)
    else:
        value = texts if len(texts) > 1 else texts[0] if texts else True
    return setting_at(value, flag, places, bare=not texts, whole=True)


def _unmodelled(launch: Launch, speller: Speller, places: Places) -> dict[str, Setting]:
    """What flags that mean no setting say of things without a memory model; a script may bear one in its name."""
    flags = [flag for flag in launch.flags if not speller.targets.get(_known_name(flag, speller)[0])]
    keys = [(flag.name, _said(flag), speller.ignores(flag.name)) for flag in flags]
    settings: dict[str, Setting] = {}
    for found in speller.unmodelled.among(keys):
        flag = flags[found.at]
        text = found.text.replace(flag.name, flag.dashes + flag.name)
        settings.setdefault(found.to, setting_at(text, flag, places, bare=True)._replace(alias=True))
    words = launch.script.casefold().removesuffix(".py").replace("-", "_").split("_")
    if launch.word is not None and launch.tool is None and not OF_ADAPTERS.isdisjoint(words):
        named = setting_by(launch.script, launch.script, launch.word, places)
        settings.setdefault("run.adapter", named._replace(alias=True))
    return settings


def _said(flag: Flag) -> str:
    """The flag's value; of one alone, or one that only the run can tell, that it is so."""
    text = flag.values[0].text if flag.values else "true"
    return "?" if text is None else text


def _launch_settings(launch: Launch, dialect: str, places: Places) -> dict[str, Setting]:
    """What the launcher and its own flags say, and the config files that it and the run read."""
    settings: dict[str, Setting] = {}
    if launch.config is None and launch.word is not None and CONFIG in launch.maybe:
        settings[RUN_CONFIG] = setting_by(known_when_run(RUN_CONFIG), CONFIG, launch.word, places)
    elif launch.config is not None:
        start = launch.config.start
        file = Flag(CONFIG, Argument("", start, start), (launch.config,))
        named = launch.config.text
        value = known_when_run(RUN_CONFIG) if named is None else named
        settings[RUN_CONFIG] = setting_at(value, file, places)
    accelerate = [flag for flag in launch.before if flag.name == "config_file" and flag.values]
    settings |= _processes(launch, dialect, places)
    if (
        launch.visible
        and launch.word is not None
        and launch.launcher in EACH_ITS_OWN
        and _on_one_machine(launch.before)
    ):
        settings[VISIBLE] = setting_by(launch.visible, launch.word.text or "", launch.word, places)
    if launch.visible == 0 and launch.word is not None:
        settings["launch.cpu"] = setting_by(True, "CUDA_VISIBLE_DEVICES", launch.word, places)
    settings |= _of_environment(launch, places)
    if launch.launcher == "accelerate":
        if accelerate:
            settings[ACCELERATE_CONFIG] = setting_at(accelerate[-1].values[0].text, accelerate[-1], places)
        on = [flag for flag in launch.before if flag.name in SWITCHES and not flag.values]
        settings |= {f"launch.{flag.name}": setting_at(True, flag, places, bare=True) for flag in on}
        told = [flag for flag in launch.before if flag.name in OF_LAUNCHER and flag.values]
        for flag in told:
            name = OF_LAUNCHER[flag.name]
            settings[name] = setting_at(_read(flag.values[0].text, name), flag, places)
    return settings


def _of_environment(launch: Launch, places: Places) -> dict[str, Setting]:
    """What the environment has accelerate do, which the launcher's own flags replace."""
    settings: dict[str, Setting] = {}
    for switch, row in IN_ENVIRONMENT.items():
        said = launch.environment.get(switch, "false")
        if launch.word is None or (said is not None and said.casefold() not in ("true", "1", "yes", "on", "y", "t")):
            continue
        on = f"launch.{switch.removeprefix('ACCELERATE_').casefold()}"
        settings[on] = setting_by(known_when_run(on) if said is None else True, switch, launch.word, places)
        for name in row.keys() & launch.environment.keys():
            value = _read(launch.environment[name], row[name])
            settings[row[name]] = setting_by(value, switch, launch.word, places)
    return {name: each._replace(alias=True) for name, each in settings.items()}


def _on_one_machine(own: Sequence[Flag]) -> bool:
    """Whether the launcher's flags leave no room for more machines, nor for GPUs that accelerate chooses itself."""
    last = {flag.name: flag.values[0].text if flag.values else None for flag in own}
    machines = next((last[name] for name in COUNTS_MACHINES if name in last), None)
    chosen = "gpu_ids" in last or ("config_file" in last and last["config_file"] is None)  # which may say both
    return not chosen and (machines == "1" or AMONG_MACHINES.isdisjoint(last))


def _read(text: str | None, name: str) -> Any:
    """What a launcher's flag, or a variable that is as good as one, gives a setting of DeepSpeed's or FSDP's."""
    kind = "integer" if name.endswith(("_stage", "_version")) else "bool" if name.endswith("_params") else "text"
    value = None if text is None else read_value(text, kind)
    return known_when_run(name) if value is None else value


def _processes(launch: Launch, dialect: str, places: Places) -> dict[str, Setting]:
    """What is said of processes and machines. One of ``python`` holds of the Trainer, which starts no others; a script
    of one's own may."""
    said, word = launch.processes, launch.word
    if said is None or word is None or _may_count(launch):
        return {}
    alone = dialect in ONE_PROCESS or (launch.tool is not None and launch.tool.processes == "environment")
    if said.flag is None and said.number == 1 and launch.launcher in ("python", None) and not alone:
        return {}
    flag = said.flag or Flag(word.text or "", word, (), dashes="")
    value = said.number or Unknown(frozenset((PROCESSES,)), EVERY_GPU if said.every else NOT_COUNTED)
    settings = {PROCESSES: setting_at(value, flag, places, bare=said.flag is None)}
    if said.machines is not None and said.machines > 1:
        settings[MACHINES] = setting_at(said.machines, flag, places, bare=said.flag is None)
    return settings


def _follow_renames(settings: dict[str, Setting], speller: Speller) -> None:
    """A value under an old name counts under the new one too, unless that is given itself."""
    for targets in speller.targets.values():
        for target in targets:
            new = target.fact.renamed
            if new is not None and target.fact.name in settings and new not in settings:
                settings[new] = settings[target.fact.name]


def _known_name(flag: Flag, speller: Speller) -> tuple[str, bool]:
    """The flag's whole name, and whether its contrary says it: ``--no_fp16``, where no flag has that very name."""
    if not flag.name.startswith("no_"):
        whole = speller.shortened(flag.name)
        return flag.name if whole is None else whole[0], False
    if flag.name in speller.targets:
        return flag.name, False
    positive = flag.name.removeprefix("no_")
    switch = any(target.fact.type == "bool" for target in speller.targets.get(positive, ()))
    return (positive, True) if switch and not flag.inline else (flag.name, False)


def _misspelt(flag: Flag, meant: str, speller: Speller, flags: Sequence[Flag], places: Places) -> Event:
    """The event for a flag that is a slip of a known one, mended unless that is given too."""
    span = places.span(flag.key.start, flag.key.end)
    values = {"key": flag.dashes + flag.name, "meant": flag.dashes + meant}
    free = not flag.key.shared and not flag.key.from_variable and all(other.name != meant for other in flags)
    edits = (Edit("replace", speller.targets[meant][0].fact.name, flag.dashes + meant, span),) if free else ()
    return Event(kind="unknown-key", span=span, values=values, edits=edits)


def named_by(text: str, name: str, runs: Sequence[Unit]) -> Iterator[tuple[Unit | None, str]]:
    """Each word of a script that ends in a file's name, with the run that is given it, directly or by a variable; None
    where it is not told what becomes of it."""
    commands = split_commands(text)
    ends = {command.start: max(command.end, *(command.heredoc or (0,))) for command in commands}
    spans = [(run, run.span.start, ends.get(run.span.start, run.span.end)) for run in runs]
    for run, start, end in spans:
        yield from ((run, word) for word in _words_for(text[start:end], name))
    for command in commands:
        if any(start <= command.start < end for _, start, end in spans):
            continue
        for word in command.words:
            for named in _words_for(text[word.start : word.end], name):
                yield from ((run, named) for run in _given_it(word, text, spans))
        if command.heredoc is not None:
            yield from ((None, word) for word in _words_for(text[slice(*command.heredoc)], name))


def _words_for(text: str, name: str) -> list[str]:
    """The words that end in a file's name, each once."""
    if name not in text:
        return []
    found = dict.fromkeys(word for word in re.findall(_WORD, text) if os.path.basename(word) == name)
    return [word for word in found if not word.startswith(OF_A_HOST)][:MAX_NAMED]


def _given_it(word: Word, text: str, spans: Sequence[tuple[Unit, int, int]]) -> Sequence[Unit | None]:
    """The runs that are given what a word assigns to a variable; None where something else may be, too."""
    variable = assigned(word)
    if variable is None:
        return [None]
    uses = [found.start() for found in re.finditer(rf"\$\{{?{variable[1]}\b", text)]
    given = [next((run for run, start, end in spans if start <= use < end), None) for use in uses]
    return given or [None]
