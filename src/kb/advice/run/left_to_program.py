"""What a command or a config leaves to the program that it starts or that reads it: one with settings of its own has
defaults of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from kb.core.document import Setting, Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.facts import FactType
from kb.core.naming import HANDS_ON, is_unread, readers_of
from kb.core.program import (
    SEVERAL_HAVE_IT,
    Program,
    freezes,
    guards_sampling,
    has_own_loss,
    hints_at_trainer,
    trainers_of,
)

DECIDED = ("training.", "data.", "lora.", "quantization.", "model.torch_dtype", "model.attn_implementation")
"""Settings that a program fills in itself where the command does not say them."""
TOLD = (
    "training.output_dir", "training.do_train", "training.do_eval", "training.do_predict",
    "training.auto_find_batch_size",
)  # fmt: skip
"""What a command of a program with the library's arguments says: where to, what to do, or with which batch."""
OF_COMMANDS = "command"  # flags of a program that generates
OF_TRAINING = "command-training"  # flags that are named otherwise than a library's: the program's parser is its own
ADAPTER, TARGETS = "lora.enabled", "lora.target_modules"
OF_UNSLOTH = (
    "model.torch_dtype", "model.attn_implementation", "model.fused_loss", "quantization.load_in_4bit",
    "training.gradient_checkpointing",
)  # fmt: skip
"""What a model that Unsloth loads has otherwise than transformers' default."""
# Words in a flag's name by which not all weights train.
PARTLY = frozenset(("peft", "lora", "qlora", "dora", "adapter", "adapters", "freeze", "frozen"))
WITHOUT_BETA = frozenset(("sft", "reward", "ppo", "prm"))  # trainers of TRL whose class has no ``beta``
NOT_SAID = ("false", "0", "no", "none", "")
TRAINER, OF_TRL, OWN_LOOP = "script.trainer", "trl", "run.own_loop"
IN_4_BITS = "quantization.load_in_4bit"
OF_SAMPLING = tuple(f"generation.{name}" for name in ("temperature", "top_p", "top_k", "min_p", "typical_p"))
OF_ADAPTERS = (ADAPTER, "lora.r", "lora.target_modules", "run.adapter")


def left_to_program(
    unit: Unit,
    find: Callable[[Unit], Sequence[Program]],
    facts: Mapping[str, FactType],
    given: Mapping[str, object] = {},
) -> Unit:
    """A unit with the settings hidden that its program decides and the unit does not say.

    Of a command, whose program is known, it is enough that the program names a setting; of a file, which any of the
    project's programs may read, that one of them sets it.

    A program that hands every name on to the library's class of arguments has the library's defaults, and only its
    adapters are its own; one with neither that class nor a trainer of the library has none of them, nor has one that
    trains by a loop of its own and is told no batch. Of one that is not
    found all that the command leaves out is hidden where it says nothing that such a program is told: then the parser
    is likely its own, with defaults of its own.

    Args:
        find: looks for the sources of what reads the unit.
        facts: the vocabulary.
        given: what the project says of itself.
    """
    if unit.reader != "script" or given.get(HANDS_ON) is True:
        return unit
    programs = find(unit)
    if not unit.program:
        programs = [each for each in programs if each.may_read_files or each.hands_on]
    unit = _with_trainer(_with_targets(unit, programs), programs)
    if not programs:
        return _without(unit, _hidden_by_one_unseen(unit, facts), given)
    if any(guards_sampling(program.text) for program in programs):
        unit = _untold(unit, OF_SAMPLING)
    if unit.program and any(program.loads_adapters for program in programs):
        unit = _without_defaults(unit, OF_ADAPTERS)
    hidden = {ADAPTER} if _adds_adapter(unit, programs) else set()
    if any(each.has_own_strategy or (each.sets("eval_strategy") and not each.parses) for each in programs):
        hidden.add("training.eval_strategy")
    if any(program.loads_by_unsloth for program in programs):
        hidden.update(OF_UNSLOTH)
    if any(has_own_loss(program.own) for program in programs):
        hidden.add("model.fused_loss")
    if not unit.program:
        of_loop = _read_by_loop(unit, programs)
        unit = _in_loop(unit) if of_loop else unit
        hidden.update(_settled(unit, facts, lambda key: True) if of_loop else _set_by(unit, programs, facts))
        unit = _untold(unit, _unread(unit, programs))
    elif not any(program.hands_on for program in programs):
        own = unit.dialect == OF_TRAINING and not any(program.is_of_trainer for program in programs)
        own = own or (unit.as_written(OWN_LOOP) is True and not any(map(_is_told, unit.settings)))
        hidden.update(_settled(unit, facts, lambda key: own or any(program.decides(key) for program in programs)))
    else:  # the class is made of a table that the program writes: what stands in it is not left to the class
        set_there = _settled(unit, facts, lambda key: any(program.sets(key) for program in programs))
        hidden.update(name for name in set_there if name.startswith("training."))
    return _without(unit, hidden, given)


def _hidden_by_one_unseen(unit: Unit, facts: Mapping[str, FactType]) -> set[str]:
    """What a program decides that is not found."""
    own = bool(unit.program) and unit.dialect != OF_COMMANDS and not unit.typical
    own = own and (unit.dialect == OF_TRAINING or _has_flags_of_its_own(unit))
    hidden = set(_settled(unit, facts, lambda key: True)) if own else set()
    if unit.program and _adds_adapter(unit, ()):
        hidden.add(ADAPTER)
    if _adapts_by_own_names(unit):
        hidden.add(IN_4_BITS)
    return hidden


def _with_targets(unit: Unit, programs: Sequence[Program]) -> Unit:
    """The unit, whose targets are unknown where they are called ``all``: that is no name of PEFT's, and a program that
    takes it makes names of it."""
    targets = unit.settings.get(TARGETS)
    if targets is None or targets.value not in ("all", ["all"], ("all",)):
        return unit
    takes = not programs or any('"all"' in each.text or "'all'" in each.text for each in programs)
    return _untold(unit, (TARGETS,)) if takes else unit


def _with_trainer(unit: Unit, programs: Sequence[Program]) -> Unit:
    """The unit of a file with the trainer of TRL that its programs start, where its names hint at one that no program
    names; untold where there are several."""
    hinted = unit.settings.get(TRAINER)
    handing = [each.text for each in programs if each.hands_on]
    vaguely = hinted is not None and hinted.value == SEVERAL_HAVE_IT
    sure = not vaguely and hints_at_trainer(hinted, *handing)
    if hinted is None or unit.dialect != OF_TRL or unit.program or sure:
        return unit
    started = frozenset[str]().union(*map(trainers_of, handing)) - (WITHOUT_BETA if vaguely else frozenset())
    if vaguely and len(started) != 1:
        return unit
    if len(started) != 1:
        return _untold(unit, (TRAINER,))
    return unit._replace(settings={**unit.settings, TRAINER: hinted._replace(value=next(iter(started)))})


def _without(unit: Unit, hidden: Iterable[str], given: Mapping[str, object]) -> Unit:
    new = sorted(name for name in hidden if name not in unit.settings and name not in given)
    return unit._replace(hidden=(*unit.hidden, *new)) if new else unit


def _adapts_by_own_names(unit: Unit) -> bool:
    """Whether a config in names of a project's own asks for adapters: its program, which is not here, may load the
    weights below them in 4 bits as well as whole."""
    own = any(each.own_name for each in unit.settings.values())
    return own and not unit.program and any(name in unit.settings for name in OF_ADAPTERS)


def _has_flags_of_its_own(unit: Unit) -> bool:
    """Whether a command speaks to a parser of its program's own, which is not here: many of its flags are no library's,
    or none says what each such program is told. A sweep's parameters, which lie in a package, are not told apart."""
    return (is_unknown(unit.as_written(OWN_LOOP)) and not unit.package) or not any(map(_is_told, unit.settings))


def _is_told(name: str) -> bool:
    return name in TOLD or name.endswith("batch_size")


def _without_defaults(unit: Unit, names: Sequence[str]) -> Unit:
    """The unit of a command without what only the defaults of its program's flags say of these settings."""
    kept = {name: each for name, each in unit.settings.items() if not (name in names and each.joined == unit.program)}
    return unit._replace(settings=kept)


def _untold(unit: Unit, names: Sequence[str]) -> Unit:
    """The unit where only the run of its program tells what becomes of these settings."""
    told = [(name, unit.settings[name]) for name in names if name in unit.settings]
    untold = {name: each._replace(value=Unknown(frozenset((name,)), "the program decides")) for name, each in told}
    return unit._replace(settings={**unit.settings, **untold}) if told else unit


def _unread(unit: Unit, programs: Sequence[Program]) -> list[str]:
    """The settings of training that stand in a config and that no program reads."""
    said = ((name, each) for name, each in unit.settings.items() if name.startswith("training.") and not each.joined)
    return [name for name, each in said if each.path and is_unread(unit, programs, str(each.path[-1]))]


def _adds_adapter(unit: Unit, programs: Iterable[Program]) -> bool:
    """Whether the program trains adapters, or not all weights, though nothing in the command asks for that."""
    asked = any(name in unit.settings for name in OF_ADAPTERS)
    if asked:
        return False
    return any(map(_trains_partly, unit.keys.items())) or any(
        each.adds_adapter or (unit.program and each.loads_adapters) or freezes(each.own) for each in programs
    )


def _trains_partly(flag: tuple[str, Setting]) -> bool:
    """Whether a flag of the program's own asks for adapters, or for frozen parts: ``--enable_peft``."""
    name, said = flag
    return not PARTLY.isdisjoint(name.casefold().split("_")) and str(said.value).casefold() not in NOT_SAID


def _read_by_loop(unit: Unit, programs: Iterable[Program]) -> bool:
    """Whether those that train by a config's keys have a loop of their own, or another library's trainer: nothing that
    the config leaves out is a default of this one."""
    training = [each for each in readers_of(unit, programs) if each.trains]
    return bool(training) and not any(each.is_of_trainer for each in training)


def _in_loop(unit: Unit) -> Unit:
    """The unit of a config that a loop of the project's own trains by: it makes of a setting what it likes."""
    if OWN_LOOP in unit.settings or not unit.settings:
        return unit
    like = next(iter(unit.settings.values()))
    looped = like._replace(value=True, path=(OWN_LOOP,), alias=True, comment="", own_name=False)
    return unit._replace(settings={**unit.settings, OWN_LOOP: looped})


def _set_by(unit: Unit, programs: Sequence[Program], facts: Mapping[str, FactType]) -> Iterable[str]:
    """The settings that a program which may read a file sets itself.

    What a parser made of the library's class hands on has the library's defaults; of the model and its adapters that
    class says nothing.
    """
    keys = frozenset(name.rpartition(".")[2] for name, fact in facts.items() if fact.setting)
    given, parsed, fixed = _of_all(tuple(programs), keys)
    handed = ("training.", "data.") if parsed else ()
    yield from (name for name in _settled(unit, facts, given.__contains__) if not name.startswith(handed))
    if handed and fixed:
        yield from (name for name in _settled(unit, facts, fixed.__contains__) if name.startswith(handed))


@lru_cache(8)
def _of_all(programs: tuple[Program, ...], keys: frozenset[str]) -> tuple[frozenset[str], bool, frozenset[str]]:
    """Which keys the programs that train set, whether one hands names on by a parser, and which of the keys are given
    a value that stands there, whatever a parser says; once for many files.
    """
    training = [program for program in programs if program.trains]
    given = frozenset(key for key in keys if any(program.sets(key) for program in training))
    fixed = frozenset(key for key in given if any(program.fixes(key) for program in training))
    return given, any(program.parses for program in programs), fixed


def _settled(unit: Unit, facts: Mapping[str, FactType], settles: Callable[[str], bool]) -> Iterable[str]:
    """The settings that the programs settle, by the last part of their name, today's or an older one."""
    older: dict[str, list[str]] = {}
    for name, fact in facts.items():
        if fact.renamed:
            older.setdefault(fact.renamed, []).append(name)
    for name, fact in facts.items():
        names = (name, *older.get(name, ()))
        if not fact.setting or not name.startswith(DECIDED) or any(each in unit.settings for each in names):
            continue
        keys = [each.rpartition(".")[2] for each in names]
        if any(map(settles, keys)):
            yield name
