"""Units of command lines: with what the program says that a command starts, and which of them are no run."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache

from kb.config.programs import DOCUMENTS, written_out
from kb.config.reader import HALF, PRECISION, RUN_CONFIG, in_its_launchers_precision, without_comments_count
from kb.core.catalog import Catalog
from kb.core.document import AT_RUN, SEVERAL_WAYS, Setting, Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.finding import Finding
from kb.core.result import UnitResult
from kb.core.setup import Assumption
from kb.core.typed import TYPE_CHECKING, Any
from kb.session.lookups import ProjectPrograms, from_here

if TYPE_CHECKING:
    from types import ModuleType

    from kb.config.shell.command import CommandReader

# Programs that read a training config and train nothing, by their names: axolotl.cli.preprocess, prepare_data.py.
_PREPARING = "preprocess|prepare|merge|convert|export|download|tokenize"
_PREPARES = rf"(?:^|[./_])(?!\w*(?:train|tune))(?:{_PREPARING})[a-z_]*(?:\.py)?$"
# Programs that answer with a model, by their names: predict.py, run_inference.py; and what one that trains too calls.
_ANSWERS = r"(?:^|[./_])(?:predict|infer|inference|generate|evaluate)(?:_(?!\w*(?:train|tune))[a-z0-9_]+)?(?:\.py)?$"
_STARTS = r"\b(?!\w*pretrained)\w*(?:train|tune|fit|backward|run_exp)\w*\s*\(|\bimport\b[^\n]*\bmain\b|\bsubprocess\b"
# What a copy of LLaMA-Factory starts training by (``src/train.py``): it has no settings of its own. A name for it, what
# is handed to it, and a command line that is looked at or written may change what the file says.
_OF_LLAMAFACTORY = r"(?m)^[ \t]*from (?:llamafactory|llmtuner)[\w.]* import (?:\([^)]*?|[^\n(]*?)\brun_exp\b(?!\s+as\b)"
_STARTS_OTHERWISE = r"\brun_exp\b(?!\s*\(\s*\))|\bargv\b"
MAX_KEPT = 64  # scripts whose runs are kept, for the next file that they name
COUNT = "launch.num_processes"
_OF_LAUNCH = ("launch.", "accelerate.", "deepspeed.")
OF_SHARDING = ("training.deepspeed", "training.fsdp", "training.fsdp_config")  # flags that win over the config


class Commands:
    """Made with a session, ready when a command is met. ``programs`` is None where there is no folder to look in."""

    def __init__(self, catalog: Catalog, programs: ProjectPrograms | None) -> None:
        self._catalog, self._programs = catalog, programs
        self._starting = lru_cache(MAX_KEPT)(self._runs)

    @cached_property
    def _shell(self) -> "ModuleType":
        from kb.config.shell import command  # of scripts alone

        return command

    @cached_property
    def reader(self) -> "CommandReader":
        """Reads command lines; it spells out four formats, so it is made once."""
        reader: CommandReader = self._shell.CommandReader(self._catalog.dialects, self._catalog.facts)
        return reader

    def launches_of(self, path: str) -> list[Unit]:
        """The commands in scripts of the project that start the program or the config at ``path``, or where there are
        none, those in its Markdown; of files of one name the one beside the script, or above it."""
        programs = self._programs
        if programs is None:
            return []
        whole = os.path.abspath(path).replace(os.sep, "/")

        def means(script: str, named: Any, unit: Unit) -> bool:
            if script.endswith(DOCUMENTS):  # run from the folder that it lies in, without a step to another
                from_there = os.path.join(os.path.dirname(script), named) if isinstance(named, str) and named else ""
                return os.path.normpath(from_there).replace(os.sep, "/") == whole and not unit.folder
            if not isinstance(named, str) or not named or not whole.endswith(f"/{written_out(named)}"):
                return False
            return programs.means(script, unit.folder, named, path)

        found = [
            unit
            for script, text in programs.scripts_naming(path)
            for unit in self._starting(script, text)
            if means(script, unit.program, unit)
            or (RUN_CONFIG in unit.settings and means(script, unit.settings[RUN_CONFIG].value, unit))
        ]
        return [unit for unit in found if not unit.path.endswith(DOCUMENTS)] or found

    def set_by_commands(self, path: str) -> dict[str, list[Any]]:
        """The flags that each command of the project's scripts gives which may name the config at ``path``, with all
        their values; none where something names it that is no run."""
        programs, given = self._programs, list[Mapping[str, Setting]]()
        for script, text in programs.scripts_naming(path) if programs is not None else ():
            if programs is None or script.endswith(DOCUMENTS):
                continue
            runs = self._starting(script, text)
            for run, named in self._shell.named_by(text, os.path.basename(path), runs):
                if programs.means(script, None if run is None else run.folder, named, path, perhaps=True):
                    if run is None:
                        return {}
                    given.append(run.keys)
        every = set(given[0]).intersection(*given) if given else set[str]()
        return {name: [each[name].value for each in given] for name in every}

    def _runs(self, script: str, text: str) -> tuple[Unit, ...]:
        """The runs of a script, with those of programs none of whose flags is known."""
        found: tuple[Unit, ...] = self._shell.read_shell(text, script, self.reader, lambda program: True)
        return found

    def with_program(self, unit: Unit) -> Unit:
        """The unit of a command with what its program says; any other unit as it is.

        The defaults of the program's own flags stand where the command leaves them out. A program that is not found
        says nothing: then the library's defaults count, and what rests on them is told with its condition.
        """
        if RUN_CONFIG in unit.settings and re.search(_PREPARES, unit.program or unit.script or "") is not None:
            return _without_run(unit)
        if not unit.program or unit.reader != "script" or self._programs is None:
            return unit
        from kb.session.by_program import as_its_program_takes  # of programs of the project's own

        programs = self._programs(unit)
        answers = re.search(_ANSWERS, unit.program or unit.script or "") is not None
        idle = (each.trains_nothing or (answers and re.search(_STARTS, each.own) is None) for each in programs)
        if RUN_CONFIG in unit.joined and programs and all(idle):
            return _without_run(unit)
        if unit.dialect == "llamafactory" and programs and _starts_llamafactory(programs[0].own):
            return unit._replace(reader="library")
        speller = self.reader.of_dialect(unit.dialect)
        return as_its_program_takes(unit, programs, self._catalog, self._programs.files(), speller)


def _starts_llamafactory(source: str) -> bool:
    """Whether a program starts LLaMA-Factory's training as the command line says it, and every time so."""
    imported = re.search(_OF_LLAMAFACTORY, source)
    if imported is None:
        return False
    rest = source[: imported.start()] + source[imported.end() :]
    return re.search(_STARTS_OTHERWISE, rest) is None


def as_started(
    result: UnitResult,
    set_by_commands: Callable[[str], Mapping[str, Sequence[Any]]],
    check: Callable[[Unit], UnitResult],
) -> UnitResult:
    """A config's result without what is said of values that no run has: those that each command which starts a run with
    the config sets itself, as of :meth:`Commands.set_by_commands`. Looked for where something is said of the config
    alone.
    """
    unit = result.unit
    told = {finding.span for finding in result.findings if finding.severity != "info"}
    if unit.dialect is None or not told.intersection(setting.span for setting in unit.settings.values()):
        return result
    given = set_by_commands(unit.path)
    set_there = {
        name: setting._replace(value=Unknown(frozenset((name,)), AT_RUN))
        for name, setting in unit.settings.items()
        if len(setting.path) == 1 and str(setting.path[0]) in given and not setting.joined
        if not all(_says(each, setting.value) for each in given[str(setting.path[0])])
    }
    if not told.intersection(setting.span for setting in set_there.values()):
        return result
    return check(unit._replace(settings={**unit.settings, **set_there}))


def as_launched(
    result: UnitResult,
    launches: Callable[[str], list[Unit]],
    join: Callable[[Unit], Unit],
    take: Callable[[Unit], Unit],
    check: Callable[[Unit], UnitResult],
    several_beside: Callable[[str], bool],
) -> UnitResult:
    """The result of a program or a config on as many GPUs, and sharded, as the project's scripts start it. Looked for
    where something is said of its memory or its batch; where they start it in different ways none of that is known.

    Args:
        launches: the commands that start what lies at a path.
        join: brings in the files that a command names.
        take: says what the program makes of a command's flags.
        several_beside: whether they start a program beside the one at a path on several GPUs, as this may be.
    """
    unit, comment = without_comments_count(result.unit)
    of_memory = any(found.severity != "info" and _is_of_memory(found) for found in result.findings)
    of_batch = comment is not None or (result.setup is not None and result.setup.batch_known and result.setup.do_train)
    if not (of_memory or of_batch) or unit.dialect is None or unit.launcher or COUNT in unit.settings:
        return result
    started = launches(unit.path)
    own = ({name: each for name, each in unit.settings.items() if name != RUN_CONFIG} for unit in started)
    joined = [join(each._replace(settings=settings)) for each, settings in zip(started, own, strict=True)]
    ways = [
        {name: held for name, held in each.settings.items() if name.startswith(_OF_LAUNCH) or name in OF_SHARDING}
        for each in joined
    ]
    in_document = any(each.path.endswith(DOCUMENTS) for each in started)  # it tells how its author runs it
    if in_document and _may_be_alone(ways):
        return _as_likely(result)
    if not ways:
        return _as_likely(result) if of_memory and several_beside(unit.path) else result
    place = unit.span.beginning()
    told = {} if comment is None else {COUNT: comment}
    for name in dict.fromkeys(name for way in ways for name in way):
        values = [way[name].value if name in way else None for way in ways]
        alike = all(each == values[0] for each in values)
        known = next(way[name] for way in ways if name in way)
        value = values[0] if alike else Unknown(frozenset((name,)), SEVERAL_WAYS)
        told[name] = Setting(value, place, place, known.path, joined=known.joined or from_here(started[0].path))
    given = _given_otherwise(unit, lambda: [take(each) for each in joined], from_here(started[0].path))
    launchers = {each.launcher for each in started}
    launcher = launchers.pop() if len(launchers) == 1 else None
    unread = dict.fromkeys(name for each in (unit, *joined) for name in each.unread if name != RUN_CONFIG)
    settings = {**told, **unit.settings, **given, **{name: told[name] for name in OF_SHARDING if name in told}}
    of_trl = unit.dialect == "hf" and all(each.dialect == "trl" and RUN_CONFIG in each.settings for each in started)
    unit = unit._replace(dialect="trl" if of_trl else unit.dialect)
    launched = unit._replace(settings=settings, launcher=launcher, unread=tuple(unread))
    again = check(launched if PRECISION in unit.settings else _in_precision(launched))
    known_count = {COUNT: told[COUNT]} if COUNT in told and not is_unknown(told[COUNT].value) else {}
    unit = result.unit._replace(dialect=unit.dialect, settings={**result.unit.settings, **known_count})
    if again.note == "preference_not_predicted":
        again = again._replace(note_values={**again.note_values, "script": from_here(started[0].path)})
    found = tuple(each for each in again.findings if each.span != place)
    again = again._replace(unit=unit, findings=found)
    return _as_likely(again) if in_document else again


def _as_likely(result: UnitResult) -> UnitResult:
    """What is said of memory as a warning, where the run may be started on other GPUs."""
    alone = result.setup is not None and result.setup.world_size == 1
    if_so = (Assumption(COUNT, 1, "one_gpu"),) if alone else ()
    return result._replace(
        findings=tuple(
            each._replace(severity="warning", certainty="likely", if_so=each.if_so or if_so)
            if each.severity == "error" and _is_of_memory(each)
            else each
            for each in result.findings
        )
    )


def _given_otherwise(unit: Unit, commands: Callable[[], Sequence[Unit]], script: str) -> Mapping[str, Setting]:
    """What the commands that start a program give in the place of its own defaults; unknown where they differ."""
    found = {}
    by_default = {name: each for name, each in unit.settings.items() if each.by_default}
    taken = commands() if by_default else []
    # of a command whose program's run is known, what has no value is given one that only the run can tell
    open_ways = [
        not by_default.keys().isdisjoint(way.settings) and any(is_unknown(flag.value) for flag in way.keys.values())
        for way in taken
    ]
    for name, each in by_default.items():
        values = [way.settings[name].value if name in way.settings else each.value for way in taken]
        left_open = any(name not in way.settings and opens for way, opens in zip(taken, open_ways, strict=True))
        if left_open:
            found[name] = each._replace(value=Unknown(frozenset((name,)), AT_RUN), by_default=False, joined=script)
        elif any(value != values[0] for value in values):
            found[name] = each._replace(value=Unknown(frozenset((name,)), SEVERAL_WAYS))
        elif values[0] != each.value:
            found[name] = each._replace(value=values[0], by_default=False, joined=script)
    return found


def _is_of_memory(finding: Finding) -> bool:
    return any(each.name.startswith("memory.") for each in finding.because)


def _may_be_alone(ways: list[dict[str, Setting]]) -> bool:
    """Whether Markdown, which tells of more ways than one, has one of a single process or of as many as there are."""
    counts = [way[COUNT].value if COUNT in way else None for way in ways]
    return any(way != ways[0] for way in ways) and any(each in (None, 1) for each in counts)


def _in_precision(unit: Unit) -> Unit:
    """In the half precision that a run is started in; where that is not known, it is not known of the run either."""
    said = unit.settings.get(PRECISION)
    if said is None or not is_unknown(said.value):
        return in_its_launchers_precision(unit)
    of_half = (unit._replace(settings={**unit.settings, PRECISION: said._replace(value=half)}) for half in HALF)
    if all(in_its_launchers_precision(each) is each for each in of_half):  # the run takes none of it
        return unit
    reason = said.value.reason
    opened = {name: said._replace(value=Unknown(frozenset((name,)), reason)) for name in HALF.values()}
    return unit._replace(settings={**unit.settings, **opened})


def _says(flag: Any, value: Any) -> bool:
    """Whether a flag says the same as the config; of several words the first, others may be the program's own."""
    flag = flag[0] if isinstance(flag, tuple) and not isinstance(value, tuple) else flag
    try:
        return float(flag) == float(value)
    except (TypeError, ValueError):
        return str(flag).casefold() == str(value).casefold()


def _without_run(unit: Unit) -> Unit:
    """A command whose program reads a training config and trains nothing, such as one that prepares the data: what the
    config says is not said of it."""
    said = {name: each for name, each in unit.settings.items() if name.startswith("launch.")}
    joined, unread = (tuple(each for each in row if each != RUN_CONFIG) for row in (unit.joined, unit.unread))
    return unit._replace(settings=said, joined=joined, unread=unread, events=())


def starts_no_run(unit: Unit) -> bool:
    """Whether a command says nothing but its config, and that is of no format that kb knows: it does something else."""
    named = RUN_CONFIG in unit.settings
    known = RUN_CONFIG in unit.joined or RUN_CONFIG in unit.unread
    return named and not known and not unit.events and all(name.startswith("launch.") for name in unit.settings)
