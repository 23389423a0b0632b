"""A config or a command as the program of its project reads it: which of the project's programs does, and what of the
config its source changes. What such a file says by its names alone is read in ``config/``.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from kb.config.files import ConfigError
from kb.config.program_files import ProgramFiles
from kb.config.python.held import CommandLine, GivenConfig
from kb.config.python.own_loop import SIGN
from kb.config.python.reader import PythonReader
from kb.config.python.rewritten import rewritten
from kb.config.python.syntax import Module
from kb.config.reader import HALF, PRECISION
from kb.config.shell.flags import Speller
from kb.config.shell.program_settings import BROUGHT, OWN_LOOP, with_program
from kb.config.text.nodes import MAPPING, Node
from kb.config.text.parsing import parse
from kb.config.text.source import Source
from kb.core.catalog import Catalog
from kb.core.document import REWRITTEN, Event, Setting, Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.program import Program, words_of
from kb.session.lookups import from_here

BATCH = "training.per_device_train_batch_size"
TWO_PROGRAMS = "two programs read it, each in its own way"
NAMED = 0.5  # of a config's keys, those that a program which may read it names at least
MOST_PROGRAMS = 12  # that are gone through for one config
MOST_TEXT = 1 << 20  # of their sources, that are read for what they change: a folder may be a heap of any scripts
TRAINER = "script.trainer"
PROCESSES, MACHINES = "launch.num_processes", "launch.num_machines"
DISTRIBUTED = ("torchrun", "accelerate", "deepspeed")  # launchers that say in the environment how many there are
OF_THE_CALL = ("training.", "trl.")
ASKED_FOR = ("training.eval_strategy", "training.save_strategy")  # what their own settings come to rests on it
BY_ITS_CALLS = (*OF_THE_CALL, "lora.", "quantization.", "model.", "run.")
"""Settings that the program's calls say; what else the command says, its launcher's and lengths of its rows, stays."""


def as_its_program_reads(
    units: Sequence[Unit], text: str, programs: Sequence[Program], catalog: Catalog, files: ProgramFiles
) -> list[Unit]:
    """The run of the program that reads a config; the units as they are where it cannot be told which does.

    Args:
        units: the config as its names alone would have it.
        text: the config's.
        programs: the project's.
        files: what they import and load.
    """
    path = units[0].path
    parsed = parse(text, path)
    documents = [each for each in parsed.documents if each is not None]
    if len(documents) != 1 or documents[0].kind != MAPPING:
        return list(units)
    root = documents[0]
    named = [each for each in programs if _share(each, root) >= NAMED]
    by_names = _without_rewritten(units, named, root)
    if len(named) > MOST_PROGRAMS:
        return by_names
    python = PythonReader(catalog.dialects, catalog.facts)
    found: list[tuple[int, Unit]] = []
    for program in named:
        given = GivenConfig(path, root)
        try:
            runs = python.as_read(Module(Source(program.own)), program.path, files, given, parsed.source)
        except ConfigError:
            continue
        if runs and not given.found:  # how it comes by its values is not understood: it may be the one
            return by_names
        if len(runs) == 1 and _says(runs[0], BATCH):
            found.append((len(given.found), runs[0]))
    found.sort(key=lambda each: -each[0])
    told = bool(found) and (len(found) == 1 or found[0][0] > found[1][0])
    if not told:
        return by_names
    unit = _agreed(found[0][1], [other for _, other in found[1:]])
    return [unit._replace(read_by=from_here(unit.read_by))]


def _agreed(unit: Unit, others: Sequence[Unit]) -> Unit:
    """The reading of one program, less what another that reads fewer of the keys says otherwise."""
    settings = dict(unit.settings)
    for other in others:
        for name in (*unit.settings, *other.settings):
            known = settings.get(name) or other.settings[name]
            if any(name not in each or each[name].value != known.value for each in (settings, other.settings)):
                settings[name] = known._replace(value=Unknown(frozenset((name,)), TWO_PROGRAMS))
    return unit._replace(settings=settings)


def _without_rewritten(units: Sequence[Unit], programs: Sequence[Program], root: Node) -> list[Unit]:
    """The config as its names have it, less the values that the programs which name most of its keys change."""
    keys = set(_keys(root))
    shares = [_share(each, root) for each in programs]
    most = [each for each, share in zip(programs, shares, strict=True) if share == max(shares)]
    most.sort(key=lambda each: len(each.text))
    sizes = accumulate(len(each.text) for each in most)
    looked = [each for each, size in zip(most, sizes, strict=True) if size <= MOST_TEXT or each is most[0]]
    changed = frozenset(key for each in looked for key in rewritten(each.text, keys))

    def told(name: str, setting: Setting) -> Setting:
        known = setting.joined or not setting.path or setting.path[-1] not in changed
        return setting if known else setting._replace(value=Unknown(frozenset((name,)), REWRITTEN))

    return [unit._replace(settings={name: told(name, each) for name, each in unit.settings.items()}) for unit in units]


def as_its_program_takes(
    unit: Unit, programs: Sequence[Program], catalog: Catalog, files: ProgramFiles, speller: Speller
) -> Unit:
    """The run that a command's program makes of its flags; where that cannot be told, what the names of the flags say,
    and the program's defaults.

    A finding about what the program itself says is shown where the command begins, and names the program.

    Args:
        unit: the command as its flags' names alone would have it.
        programs: the program's source, where it was found.
        files: what it imports and loads.
        speller: the dialect of its flags.
    """
    found = run_of(unit, programs, catalog, files) or with_program(unit, programs, speller)
    return _with_trainer(found, programs) if programs else _of_unknown_loop(found)


def _with_trainer(unit: Unit, programs: Sequence[Program]) -> Unit:
    """The unit whose program's name says how it trains; that is sure where its source names such a trainer too."""
    named = unit.settings.get(TRAINER)
    if named is None or not named.by_default:
        return unit
    makes = f"{named.value}trainer"
    if not all(makes in each.text.casefold() for each in programs):
        return unit
    return unit._replace(settings={**unit.settings, TRAINER: named._replace(by_default=False)})


def _of_unknown_loop(unit: Unit) -> Unit:
    """A command whose program is not here and has as many flags of its own as one in three: it may train by a loop of
    its own, in which a setting of the Trainer's name means something else.
    """
    flags = unit.keys.keys()
    own = flags - set(unit.known_keys)
    trains = any(name.startswith("training.") for name in unit.settings)
    if not trains or unit.typical or OWN_LOOP in unit.settings or 3 * len(own) < len(flags):
        return unit
    start = unit.span.beginning()
    unknown = Unknown(frozenset((OWN_LOOP,)), f"{unit.program} was not found")
    return unit._replace(
        settings={**unit.settings, OWN_LOOP: Setting(unknown, start, start, (unit.program,), alias=True)}
    )


def run_of(unit: Unit, programs: Sequence[Program], catalog: Catalog, files: ProgramFiles) -> Unit | None:
    """The run that a program makes of the flags it is given; None where that cannot be told."""
    if len(programs) != 1 or not unit.keys:
        return None
    program = programs[0]
    reads = "Arguments" in program.text or "Trainer(" in program.own  # TRL's classes are called DPOConfig and so on
    if not reads and SIGN not in program.own:
        return None
    given = CommandLine(unit.path, unit.keys, _environment(unit))
    python = PythonReader(catalog.dialects, catalog.facts)
    try:
        runs = python.as_read(Module(Source(program.own)), program.path, files, given, Source(""))
    except ConfigError:
        return None
    trains = [each for each in runs if any(name.startswith(OF_THE_CALL) for name in each.settings)]
    if len(runs) != 1 or not trains or not given.found or is_unknown(runs[0].as_written(BATCH)):
        return None
    return _told_in_command(unit, runs[0], catalog)


def _environment(unit: Unit) -> Mapping[str, str] | None:
    """What the launcher of a command says to each of its processes; None where it cannot be told."""
    if unit.launcher == "python":
        return {}
    processes = unit.as_written(PROCESSES)
    if unit.launcher not in DISTRIBUTED or not isinstance(processes, int) or MACHINES in unit.settings:
        return None
    return {"WORLD_SIZE": str(processes), "LOCAL_RANK": "0", "RANK": "0"}


def _told_in_command(unit: Unit, run: Unit, catalog: Catalog) -> Unit:
    """The command's unit with what its program makes of it. What it hands on without being told to, and as the library
    has it anyway, nobody has said: of its default for ``save_steps`` there is nothing to tidy.
    """
    start = unit.span
    place = start.beginning()

    flags = {flag.span: flag for flag in unit.keys.values()}

    def placed(setting: Setting) -> Setting:
        flag = flags.get(setting.span)
        if flag is not None:  # named as the command names it
            return setting._replace(path=flag.path, key_span=flag.key_span)
        return setting._replace(span=place, key_span=start, joined=unit.program)

    def heard(event: Event) -> Event:
        return event if event.span.end > 0 else event._replace(span=place, edits=())

    def idle(name: str, setting: Setting) -> bool:
        fact = catalog.facts.get(name)
        known = fact is not None and not fact.moved and setting.value == fact.default
        return known and setting.span not in flags and not name.startswith((*BROUGHT, *ASKED_FOR))

    used = {each.span for each in run.settings.values()}  # flags that the program trains by: no batch of inference
    kept = {
        name: each for name, each in unit.settings.items()
        if not name.startswith(BY_ITS_CALLS) and not (name.startswith("inference.") and each.span in used)
    }  # fmt: skip
    told = {name: each for name, each in run.settings.items() if name not in kept or not is_unknown(each.value)}
    taken = {name: placed(each) for name, each in told.items() if not idle(name, each)}
    said = unit.settings.get(PRECISION)
    launched = unit.launcher == "python" or (said is not None and not is_unknown(said.value))
    # Accelerate's own default without its launcher is none; what that is told holds where the program says nothing
    left = [name for name in HALF.values() if launched and name in run.hidden]
    kept |= {name: unit.settings[name] for name in left if name in unit.settings}
    return run._replace(
        hidden=tuple(name for name in run.hidden if name not in left),
        section=unit.section,
        settings={**kept, **taken},
        span=start,
        events=tuple(map(heard, run.events)),
        nulls=dict.fromkeys(run.nulls, place),
        keys={name: placed(each) for name, each in run.keys.items()},
        script=unit.script,
        launcher=unit.launcher,
        joined=unit.joined,
        unread=unit.unread,
        read_by=from_here(run.read_by),
    )


def _says(unit: Unit, name: str) -> bool:
    """Whether the config itself says a setting, and not its program alone."""
    setting = unit.settings.get(name)
    return setting is not None and setting.span.end > 0


def _share(program: Program, root: Node) -> float:
    """The part of a config's keys that a program names: by half of them it may be the one that reads it."""
    keys = _keys(root)
    words = words_of(program.text)
    return sum(key in words for key in keys) / len(keys) if keys else 0.0


def _keys(root: Node) -> list[str]:
    """The keys of a config, and those of its groups."""
    keys = [key.value for key, _ in root.pairs()]
    return keys + [key.value for _, group in root.pairs() if group.kind == MAPPING for key, _ in group.pairs()]
