"""How a command line starts a run: launchers, their options, and how many processes come of it; and the programs that
take a format's own settings on their command line, as the formats of ``rules/`` say.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import takewhile
from typing import Any

from kb.config.shell.arguments import Argument
from kb.config.shell.flags import Flag, is_flag, last_flags, read_flags, short_flags
from kb.config.shell.folders import ANY
from kb.config.shell.processes import (
    CHOSEN,
    NOTHING_AROUND,
    Processes,
    Surroundings,
    gpus_named,
    one_device,
    processes_of,
    tool_processes,
)
from kb.config.shell.serving import (
    GPUS,
    OTHER_VARIABLES,
    SPREAD,
    TGI_VARIABLES,
    VLLM_VARIABLES,
    Started,
    read_server,
    release_of_image,
    spelt_out,
)
from kb.core.catalog import Dialect
from kb.core.record import NamedTuple

OF_A_FORK = 3  # flags that mark a format, by which a program under another name is known for a fork


class Tool(NamedTuple):
    """One program, or one module that is a program.

    ``dialect`` is the format of its settings, ``subcommands`` those that start a run, each with the settings that it
    makes by itself; empty where the program has none. ``sets`` are the settings that the program makes. ``marks``
    are flags of which one has to be there, of a file that may lie anywhere, under a name that others have too.
    """

    dialect: str
    subcommands: Mapping[str, Mapping[str, Any]] = {}
    flagged: bool = False  # the config file is named by --config, not by its place
    overrides: bool = False  # settings are given as name=value
    processes: str | tuple[str, ...] = "gpus"  # "environment": NPROC_PER_NODE; "settings": its own; or their product
    sets: Mapping[str, Any] = {}
    marks: Set[str] = frozenset()
    code: bool = False  # its config is Python

    @property
    def by_settings(self) -> bool:
        """Whether its own settings say how many processes it starts, whatever starts it."""
        return self.processes == "settings" or isinstance(self.processes, tuple)


class Tools:
    """The programs of all formats, by the word or module that starts them."""

    def __init__(self, dialects: Iterable[Dialect]) -> None:
        self._by_name: dict[str, Tool] = {}
        for dialect in dialects:
            for name, row in dialect.programs.items():
                processes = row.get("processes", "gpus")
                self._by_name[name] = Tool(
                    dialect.id,
                    row.get("subcommands", {}),
                    flagged=row.get("config") == "flag",
                    overrides=row.get("overrides", False),
                    processes=processes if isinstance(processes, str) else tuple(processes),
                    sets=row.get("sets", {}),
                    marks=frozenset(dialect.recognise["marks"] if row.get("anywhere") else ()),
                    code=dialect.assigned,
                )
        self._anywhere = [(name, tool) for name, tool in self._by_name.items() if tool.marks]

    def command(self, word: str) -> Tool | None:
        """The program that a word starts: ``swift``."""
        tool = None if "." in word else self._by_name.get(word)
        return None if tool is not None and tool.marks else tool

    def module(self, script: str, flags: Set[str]) -> tuple[str, Tool] | None:
        """The program of a module, or of a file at its place: ``swift.cli.sft``, ``…/swift/cli/sft.py``; of some any
        file or module of that name, with ``flags`` that are the format's own, or of any name with several of them: a
        fork.
        """
        name = script.removesuffix(".py").replace("/", ".") if script.endswith(".py") else script
        while "." in name:
            tool = self._by_name.get(name)
            if tool is not None:
                return name, tool
            name = name.partition(".")[2] if script.endswith(".py") else name.rpartition(".")[2]
        tool = self._by_name.get(name)
        if tool is not None and not tool.marks.isdisjoint(flags):
            return name, tool
        forked = (each for each in self._anywhere if len(each[1].marks & flags) >= OF_A_FORK)
        return next(forked, None)


NO_TOOLS = Tools(())


CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
FOLDER = "config_path"  # of Hydra, where it names no file
CONFIG_FLAGS = ("config", "config_file", FOLDER, "job.config_file")
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=(?!=)")  # of Hydra: + adds a name

# Trainers of TRL: its program's subcommands, and others in the names of its scripts (`dpo.py`, `run_dpo.py`).
_TRL = frozenset(("sft", "dpo", "grpo", "kto", "reward", "rloo", "cpo", "orpo", "ppo"))
_SCRIPTS = {name: name for name in (*_TRL, "gkd", "xpo", "bco", "prm", "nash_md", "online_dpo")}
_SCRIPTS |= {"reward_modeling": "reward", "dpo_online": "online_dpo"}
# Example scripts of transformers, which hand their flags to its argument classes; those without a Trainer do not.
_EXAMPLES = re.compile(
    r"run_(?:glue|xnli|clm|mlm|plm|fim|summarization|translation|qa|seq2seq_qa|ner|swag|classification|mae|mim|clip"
    r"|image_classification|audio_classification|semantic_segmentation|object_detection|instance_segmentation"
    r"|speech_recognition_(?:ctc|seq2seq)(?:_adapter)?)(_no_trainer)?\.py\Z"
)


def trainer_of(script: str) -> str | None:
    """The trainer that ``trl dpo`` or a script's name says."""
    if script.startswith(("trl ", "trl.scripts.")):
        return _SCRIPTS.get(script[4:].removeprefix("scripts."))
    if not script.endswith(".py"):
        return None
    name = script.removesuffix(".py").removeprefix("run_").removeprefix("train_")
    return _SCRIPTS.get(name.removesuffix("_vlm").removesuffix("_tldr"))


def is_config(argument: Argument, *, code: bool = False) -> bool:
    """Whether the argument looks like a config file, perhaps one in Python; ``--data=x.json`` is a flag."""
    suffixes = (*CONFIG_SUFFIXES, *((".py",) if code else ()))
    return (argument.text or "").endswith(suffixes) and not is_flag(argument)


def overrides_of(arguments: Sequence[Argument], text: str) -> list[tuple[str, Argument, Argument]]:
    """Name, its place and the value of each ``name=value``."""
    found = []
    for argument in arguments:
        match = _OVERRIDE.match(argument.begins if argument.text is None else argument.text)
        if match is None:
            continue
        if argument.text is None:
            found.append((argument.begins.strip("+="), argument, argument))
            continue
        middle = text.find("=", argument.start, argument.end)
        if middle < 0:
            continue
        name, _, value = argument.text.partition("=")
        name = name.lstrip("+")
        key = argument._replace(text=name, end=middle)
        found.append((name, key, argument._replace(text=value, start=middle + 1)))
    return found


_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*\Z")
_OF_THE_SYSTEM = (
    "nohup", "exec", "time", "env", "sudo", "nice", "ionice", "stdbuf", "numactl", "taskset", "command", "timeout",
    "setsid",
)  # fmt: skip
_OF_CLUSTERS = ("srun", "mpirun", "mpiexec", "ray")
_OF_ENVIRONMENTS = ("uv", "poetry", "pipenv", "pdm", "rye", "hatch", "conda", "mamba", "micromamba", "pixi")
_WRAPPERS = frozenset((*_OF_THE_SYSTEM, *_OF_CLUSTERS, *_OF_ENVIRONMENTS))  # they run the command that follows
_LAUNCHERS = frozenset(("torchrun", "accelerate", "deepspeed"))
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}


class Launch(NamedTuple):
    """A script (or module) about to run. ``processes`` is what is said of their number, None where nothing is.

    ``launcher`` is what starts it, where that is to be seen; ``before`` are its flags and ``word`` its name. ``maybe``
    are flags in variables that a branch of the script sets: whether they are given only a run can tell.
    """

    script: str
    flags: tuple[Flag, ...]
    processes: Processes | None = None
    launcher: str | None = None
    word: Argument | None = None
    before: tuple[Flag, ...] = ()
    config: Argument | None = None  # the config file that the run reads
    tool: Tool | None = None
    program: str = ""  # the script with its folders, as it is written
    short: tuple[Flag, ...] = ()  # its flags of one letter
    visible: int | None = None  # the GPUs that the script lets it see
    environment: Mapping[str, str | None] = {}  # what the script sets of that which is asked; None: only a run can tell
    maybe: frozenset[str] = frozenset()
    folder: str = ""  # that it is started in, as of :class:`kb.core.document.Unit`
    open: tuple[Argument, ...] = ()  # words that may stand for any more flags: ``$ARGUMENTS``

    @property
    def typical(self) -> bool | None:
        """Whether the script's name is one that hands its flags to the library's argument classes; None where it does
        not say."""
        match = _EXAMPLES.match(self.script)
        if match is not None:
            return match[1] is None
        return False if self.script.endswith("_no_trainer.py") else None

    @property
    def trainer(self) -> str | None:
        """The kind of post-training that the program's name says."""
        return trainer_of(self.script) or trainer_of(self.program.rpartition("/")[2])

    def on_chosen_gpus(self, chosen: bool) -> "Launch":
        """The same run where the script chooses the GPUs: one process then need not mean DataParallel over all."""
        return self._replace(launcher=None) if chosen and self.launcher == "python" else self


def either(one: Launch, other: Launch) -> Launch:
    """A command that runs several times, as far as its runs are alike: what differs only a run can tell."""
    if one == other:
        return one
    flags, maybe = _in_both(one.flags, other.flags)
    before, of_launcher = _in_both(one.before, other.before)
    short, _ = _in_both(one.short, other.short)
    told = {name: one.environment.get(name) for name in (*one.environment, *other.environment)}
    environment = {name: value if other.environment.get(name) == value else None for name, value in told.items()}
    config = one.config if one.config is None or one.config.text is None else one.config._replace(text=None)
    return one._replace(
        flags=flags,
        before=before,
        short=short,
        maybe=one.maybe | other.maybe | maybe | of_launcher,
        environment=environment,
        config=one.config if one.config == other.config else config or other.config,
        processes=one.processes if one.processes == other.processes else Processes(None, None),
        visible=one.visible if one.visible == other.visible else None,
        folder=one.folder if one.folder == other.folder else ANY,
        open=(*one.open, *other.open),
    )


def replaced_by(maybe: frozenset[str], launch: Launch, arguments: Sequence[Argument], text: str) -> Launch:
    """The run with what flags before the words that may hold more (``maybe``) have only where those do not."""
    places = [at for at, each in enumerate(arguments) if each.text is None and each.options]
    behind = {flag.name for flag in read_flags(arguments[places[-1] + 1 :], text)} if places else set[str]()

    def left(flags: Sequence[Flag]) -> tuple[Flag, ...]:
        open_ = [flag.values and flag.name in maybe and flag.name not in behind for flag in flags]
        unknown = (flag.values[0]._replace(text=None) if flag.values else flag.key for flag in flags)
        each = zip(flags, open_, unknown, strict=True)
        return tuple(flag._replace(values=(value,)) if is_open else flag for flag, is_open, value in each)

    return launch._replace(flags=left(launch.flags), before=left(launch.before), maybe=maybe)


def _in_both(one: Sequence[Flag], other: Sequence[Flag]) -> tuple[tuple[Flag, ...], frozenset[str]]:
    """The flags of two runs, with the values that they share; and the names of those that one has alone."""
    if one == other:
        return tuple(one), frozenset()
    again = last_flags(other)
    kept = []
    for flag in last_flags(one).values():
        same = again.get(flag.name)
        if same is not None and [each.text for each in same.values] != [each.text for each in flag.values]:
            unknown = (flag.values or same.values)[0]._replace(text=None)
            kept.append(flag._replace(values=(unknown,)))
        elif same is not None:
            kept.append(flag)
    return tuple(kept), frozenset(again) ^ {flag.name for flag in one}


def read_launch(
    arguments: Sequence[Argument],
    text: str,
    *,
    any_program: bool = False,
    around: Surroundings = NOTHING_AROUND,
    tools: Tools = NO_TOOLS,
) -> Launch | None:
    """The Python run that these arguments start, or None where they start something else.

    ``any_program`` takes the first argument for the script where no Python is to be seen. ``text`` is what the
    arguments' offsets point into, ``around`` what its script says of the machines and sets for the command, ``tools``
    the programs whose settings are known.
    """
    started = read_server(arguments)
    if started is not None:
        return server_launch(started, text, around)
    found = _program(arguments, tools)
    if found is None:
        if not any_program or not arguments:
            return None
        at = 0 if not is_flag(arguments[0]) else -1
        return _launch([], arguments[0].text or "" if at == 0 else "", arguments[at + 1 :], text, tools)
    launcher, rest = found
    start = max(len(arguments) - len(rest) - 1, 0)
    tool = tools.command(launcher)
    if tool is not None:
        run = _tool_launch(launcher, tool, rest, text)
        if run is None:
            return None
        processes = tool_processes(run.script, read_flags(rest, text), around, tool.processes)
        return run._replace(processes=processes or one_device(rest), word=arguments[start])
    launch = _split_launch(launcher, rest, text, tools)
    if launch is None:
        return None
    wrapper = arguments[:start] if start and wraps(arguments[0].text or "") else ()
    processes = processes_of(launcher, launch.before, wrapper=wrapper, script=launch.flags, around=around)
    if launch.tool is not None and (launch.tool.by_settings or (launcher == "python" and not wrapper)):
        processes = tool_processes(launch.script, launch.flags, around, launch.tool.processes)
    if arguments[0].text is None:  # `$RUN train.py`: it may stand for a launcher
        return launch._replace(word=arguments[0])
    before = {(word.text or "").rpartition("/")[2] for word in arguments[:start]}
    seen = launcher != "python" or before.isdisjoint(_OF_CLUSTERS)  # srun may start Python several times
    here = 0 if around.hides_gpus else around.fixed_gpus
    visible = here if not any(untold_flags(arguments[start + 1 :])) else None
    launch = launch._replace(visible=visible, environment=around.variables, word=arguments[start])
    return launch._replace(processes=processes, launcher=launcher if seen else None)


def untold_flags(rest: Sequence[Argument]) -> Iterator[Argument]:
    """Words of a launcher's, or of a server's, that may stand for flags which only the run can tell: ``accelerate
    launch $MORE``."""
    own = takewhile(lambda each: each.text != "-m" and not (each.text or "").endswith(".py"), rest)
    flag = False  # whether the word before takes this one for its value
    for each in own:
        if each.text is None and not each.begins and (each.options or not flag):
            yield each
        flag = is_flag(each) and "=" not in (each.text or each.begins)


def wraps(word: str) -> bool:
    """Whether a program runs the command that follows it, as it stands there: ``srun``, ``nohup``."""
    return word.rpartition("/")[2] in _WRAPPERS


def _program(arguments: Sequence[Argument], tools: Tools) -> tuple[str, Sequence[Argument]] | None:
    """The launcher (``python`` is one) and what follows it."""
    if not arguments or arguments[0].text is None:
        return _unknown_python(arguments)
    wrapped = wraps(arguments[0].text)
    for index, argument in enumerate(arguments):
        name = (argument.text or "").rpartition("/")[2]
        if _PYTHON.match(name):
            return _module_launcher(arguments[index + 1 :])
        if name in _LAUNCHERS or tools.command(name) is not None:
            return name, arguments[index + 1 :]
        if name.endswith(".py"):
            return "python", arguments[index:]
        if not wrapped:
            return None
    return None


def _unknown_python(arguments: Sequence[Argument]) -> tuple[str, Sequence[Argument]] | None:
    """``$PYTHON train.py …``, ``$PYTHON -m package.train …``: what runs it is not known, that it is Python is."""
    if len(arguments) > 1 and (arguments[1].text or "").endswith(".py"):
        return "python", arguments[1:]
    if len(arguments) > 2 and arguments[1].text == "-m" and "." in (arguments[2].text or ""):
        return _module_launcher(arguments[1:])
    return None


def _module_launcher(rest: Sequence[Argument]) -> tuple[str, Sequence[Argument]]:
    for index, argument in enumerate(rest[:-1]):
        if argument.text == "-m":
            launcher = _LAUNCHER_MODULES.get(rest[index + 1].text or "")
            return (launcher, rest[index + 2 :]) if launcher else ("python", rest)
        if not (argument.text or "").startswith("-"):
            break
    return "python", rest


def _tool_launch(name: str, tool: Tool, rest: Sequence[Argument], text: str) -> Launch | None:
    """``axolotl train x.yaml --flag …``; torchtune has its launcher's flags before the recipe."""
    sets = tool.sets
    if tool.subcommands:
        subcommand = rest[0].text if rest else None
        if subcommand is None or subcommand not in tool.subcommands:
            return None
        sets = {**sets, **tool.subcommands[subcommand]}
        name, rest = f"{name} {subcommand}", rest[1:]
    flags = read_flags(rest, text)
    if tool.overrides:
        flags += tuple(Flag(each, key, (value,), True, "") for each, key, value in overrides_of(rest, text))
    naming = [flag for flag in flags if flag.name in CONFIG_FLAGS and flag.values]
    named = next(
        (each.values[0] for each in reversed(naming) if each.name != FOLDER or is_config(each.values[0])), None
    )
    if named is None and not tool.flagged:
        flagged = next((at for at, argument in enumerate(rest) if is_flag(argument)), len(rest))
        placed = [*rest[:flagged], *(each for each in rest[flagged:] if (each.text or "").endswith((".yaml", ".yml")))]
        named = next((each for each in placed if is_config(each, code=tool.code)), None)  # JSON behind flags is data
        if named is None and tool.code and rest and not is_flag(rest[0]):
            named = rest[0]  # one of the program's own configs, by its name
    flags = tuple(flag for flag in flags if flag.name not in CONFIG_FLAGS)
    return Launch(script=name, flags=flags, config=named, tool=tool._replace(sets=sets))


def server_launch(started: Started, text: str, around: Surroundings = NOTHING_AROUND) -> Launch:
    """A server about to run. The release that its image names is as good as a flag, and so are a variable of vLLM's
    that is told and the number of GPUs that it sees.
    """
    words = spelt_out(started)
    flags = read_flags(words, text)
    image = started.image or around.elsewhere
    if image is not None:  # of one that names no release nobody knows it, whatever the project pins
        named = image._replace(text=release_of_image(image.text or ""), from_variable=True)
        flags += (Flag("image_release", named, (named,), dashes=""),)
    told = {**around.variables, **started.told, GPUS: _gpus_seen(started, text, around)}
    for name in (GPUS, *(VLLM_VARIABLES if started.server.dialect == "vllm" else ())):
        if name in told and (name != GPUS or told[name] is not None):
            word = started.word._replace(text=told[name], from_variable=True)
            flags += (Flag(name, word, (word,), dashes=""),)
    given = {flag.name for flag in flags}
    for name in TGI_VARIABLES if started.server.dialect == "tgi" else ():
        if name in started.told and name.lower() not in given:
            word = started.word._replace(text=started.told[name], from_variable=True)
            flags += (Flag(name.lower(), word, (word,), dashes=""),)
    config = _flagged_config(flags)
    flags = tuple(flag for flag in flags if flag.name not in CONFIG_FLAGS)
    tool = Tool(started.server.dialect, sets={"serving.called": "python"} if started.inside else {})
    more = tuple(untold_flags(words))
    return Launch(script=started.server.dialect, flags=flags, config=config, tool=tool, word=started.word, open=more)


def _gpus_seen(started: Started, text: str, around: Surroundings) -> str | None:
    """How many GPUs a server sees at the most; None where nobody says it, or Ray may start its ranks elsewhere."""
    if SPREAD.search(text):
        return None
    told = started.told
    if OTHER_VARIABLES.search(text):
        around, told = around._replace(variables={}), {name: told[name] for name in told if name != CHOSEN}
    here = around.gpus_at_most if started.is_here else None
    said = (told.get(GPUS), gpus_named(told.get(CHOSEN)), here)
    return min((str(each) for each in said if each is not None), key=int, default=None)


def _flagged_config(flags: Sequence[Flag]) -> Argument | None:
    """The file that ``--config`` names."""
    named = [flag.values[0] for flag in flags if flag.name in CONFIG_FLAGS and flag.values]
    return named[-1] if named and is_config(named[-1]) else None


def _config_of(flags: Sequence[Flag], after: Sequence[Argument]) -> Argument | None:
    """The config of a script: by ``--config``, or its first argument (HfArgumentParser)."""
    found = _flagged_config(flags)
    return after[0] if found is None and after and is_config(after[0]) else found


def _split_launch(launcher: str, rest: Sequence[Argument], text: str, tools: Tools) -> Launch | None:
    if launcher == "accelerate":
        if not rest or rest[0].text != "launch":
            return None
        rest = rest[1:]
    for index, argument in enumerate(rest):
        word = _script_at(argument) if argument.text is None else argument.text
        if word in ("-m", "--module") and index + 1 < len(rest):
            return _launch(rest[:index], rest[index + 1].text or "", rest[index + 2 :], text, tools)
        if word == "-c" or (word == "-" and launcher == "python"):
            return None
        if word.endswith(".py") or (launcher == "python" and not word.startswith("-")):
            return _launch(rest[:index], word, rest[index + 1 :], text, tools)
    return None


def _script_at(argument: Argument) -> str:
    """``work/train.py`` of ``$HOME/work/train.py``, or of a variable that holds that: the folder is known only when the
    command runs, the file is."""
    return argument.ends.lstrip("/") if "/" in argument.ends and argument.ends.endswith(".py") else ""


def _launch(
    before: Sequence[Argument], script: str, after: Sequence[Argument], text: str, tools: Tools
) -> Launch | None:
    own = read_flags(before, text)
    found = tools.module(script, {flag.name for flag in read_flags(after, text)})
    if found is not None:
        run = _tool_launch(*found, after, text)
        return run._replace(before=own) if run is not None else None
    end = next((at for at, argument in enumerate(after) if argument.text == "--"), len(after))
    after = after[:end]  # no parser takes what is behind it for a flag
    flags = read_flags(after, text)
    return Launch(
        script=script.rpartition("/")[2],
        flags=flags,
        before=own,
        config=_config_of(flags, after),
        program=script if script.endswith(".py") else script.replace(".", "/") + ".py",
        short=short_flags(after),
    )
