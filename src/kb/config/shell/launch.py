"""What a command line starts: its launcher, the script, the arguments of each, and how many processes there will be."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from kb.config.shell.expand import Argument
from kb.config.shell.tools import CONFIG_FLAGS, MODULES, TOOLS, Tool, is_config, overrides_of

_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*\Z")
_OF_THE_SYSTEM = ("nohup", "exec", "time", "env", "sudo", "nice", "ionice", "stdbuf", "numactl", "taskset", "command")
_OF_CLUSTERS = ("srun", "mpirun", "mpiexec")
_OF_ENVIRONMENTS = ("uv", "poetry", "pipenv", "pdm", "rye", "hatch", "conda", "mamba", "micromamba", "pixi")
_WRAPPERS = frozenset((*_OF_THE_SYSTEM, *_OF_CLUSTERS, *_OF_ENVIRONMENTS))  # they run the command that follows
_LAUNCHERS = frozenset(("torchrun", "accelerate", "deepspeed"))
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_NUMBER = re.compile(r"[0-9]{1,6}\Z")
_FLAG = re.compile(r"--?[A-Za-z]")


class Flag(NamedTuple):
    """``--name`` with what follows it; the value of ``--name=value`` is an argument of its own."""

    name: str  # without dashes in front, with _ for -
    key: Argument
    values: tuple[Argument, ...]
    inline: bool = False
    dashes: str = "--"  # of ``name=value`` none


class Launch(NamedTuple):
    """A script (or module) about to run. ``processes`` is their number, with the argument that says it, where known.

    ``launcher`` is what starts it, where that is to be seen; ``before`` are its flags.
    """

    script: str
    flags: tuple[Flag, ...]
    processes: tuple[int, Flag] | None = None
    launcher: str | None = None
    before: tuple[Flag, ...] = ()
    config: Argument | None = None  # the config file that the run reads
    tool: Tool | None = None

    def on_chosen_gpus(self, chosen: bool) -> "Launch":
        """The same run where the script chooses the GPUs: one process then need not mean DataParallel over all."""
        return self._replace(launcher=None) if chosen and self.launcher == "python" else self


def read_launch(arguments: Sequence[Argument], text: str, *, any_program: bool = False) -> Launch | None:
    """The Python run that these arguments start, or None where they start something else.

    ``any_program`` takes the first argument for the script where no Python is to be seen. ``text`` is what the
    arguments' offsets point into.
    """
    found = _program(arguments)
    if found is None:
        if not any_program or not arguments:
            return None
        at = 0 if not _is_flag(arguments[0]) else -1
        return _launch("", [], arguments[0].text or "" if at == 0 else "", arguments[at + 1 :], text)
    launcher, rest = found
    if launcher in TOOLS:
        return _tool_launch(launcher, TOOLS[launcher], rest, text)
    launch = _split_launch(launcher, rest, text)
    # a wrapper may itself be what starts several processes
    seen = launch is not None and arguments[0].text is not None and not _wraps(arguments[0].text)
    return launch._replace(launcher=launcher) if launch is not None and seen else launch


def _wraps(word: str) -> bool:
    return word.rpartition("/")[2] in _WRAPPERS


def _program(arguments: Sequence[Argument]) -> tuple[str, Sequence[Argument]] | None:
    """The launcher (``python`` is one) and what follows it."""
    if not arguments or arguments[0].text is None:
        return _unknown_python(arguments)
    wrapped = _wraps(arguments[0].text)
    for index, argument in enumerate(arguments):
        name = (argument.text or "").rpartition("/")[2]
        if _PYTHON.match(name):
            return _module_launcher(arguments[index + 1 :])
        if name in _LAUNCHERS or name in TOOLS:
            return name, arguments[index + 1 :]
        if name.endswith(".py"):
            return "python", arguments[index:]
        if not wrapped:
            return None
    return None


def _unknown_python(arguments: Sequence[Argument]) -> tuple[str, Sequence[Argument]] | None:
    """``$PYTHON train.py …``: what runs it is not known, that it is Python is."""
    if len(arguments) > 1 and (arguments[1].text or "").endswith(".py"):
        return "python", arguments[1:]
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
    if tool.subcommands:
        if not rest or rest[0].text not in tool.subcommands:
            return None
        name, rest = f"{name} {rest[0].text}", rest[1:]
    flags = read_flags(rest, text)
    if tool.overrides:
        flags += tuple(Flag(each, key, (value,), True, "") for each, key, value in overrides_of(rest, text))
    named = _flagged_config(flags)
    if named is None and not tool.flagged:
        named = next((argument for argument in rest if is_config(argument)), None)
    flags = tuple(flag for flag in flags if flag.name not in CONFIG_FLAGS)
    processes = _processes("torchrun", flags) if tool.dialect == "torchtune" else None
    return Launch(script=name, flags=flags, processes=processes, config=named, tool=tool)


def _flagged_config(flags: Sequence[Flag]) -> Argument | None:
    """The file that ``--config`` names."""
    named = [flag.values[0] for flag in flags if flag.name in CONFIG_FLAGS and flag.values]
    return named[-1] if named and is_config(named[-1]) else None


def _config_of(flags: Sequence[Flag], after: Sequence[Argument]) -> Argument | None:
    """The config of a script: by ``--config``, or its first argument (HfArgumentParser)."""
    found = _flagged_config(flags)
    return after[0] if found is None and after and is_config(after[0]) else found


def _split_launch(launcher: str, rest: Sequence[Argument], text: str) -> Launch | None:
    if launcher == "accelerate":
        if not rest or rest[0].text != "launch":
            return None
        rest = rest[1:]
    for index, argument in enumerate(rest):
        word = argument.text or ""
        if word in ("-m", "--module") and index + 1 < len(rest):
            return _launch(launcher, rest[:index], rest[index + 1].text or "", rest[index + 2 :], text)
        if word == "-c" or (word == "-" and launcher == "python"):
            return None
        if word.endswith(".py") or (launcher == "python" and not word.startswith("-")):
            return _launch(launcher, rest[:index], word, rest[index + 1 :], text)
    return None


def _launch(
    launcher: str, before: Sequence[Argument], script: str, after: Sequence[Argument], text: str
) -> Launch | None:
    own = read_flags(before, text)
    if script in MODULES:
        run = _tool_launch(script, MODULES[script], after, text)
        return run._replace(processes=_processes(launcher, own), before=own) if run is not None else None
    flags = read_flags(after, text)
    return Launch(
        script=script.rpartition("/")[2],
        flags=flags,
        processes=_processes(launcher, own),
        before=own,
        config=_config_of(flags, after),
    )


def _processes(launcher: str, flags: Sequence[Flag]) -> tuple[int, Flag] | None:
    """``accelerate`` counts all processes; ``torchrun`` and ``deepspeed`` those of one machine of several."""
    last = {flag.name: flag for flag in flags}
    if launcher == "accelerate":
        return _counted(last.get("num_processes"), 1)
    if launcher == "torchrun":
        return _counted(last.get("nproc_per_node"), _machines(last.get("nnodes")))
    if launcher == "deepspeed":
        return _counted(last.get("num_gpus"), _machines(last.get("num_nodes")))
    return None


def _counted(flag: Flag | None, machines: int | None) -> tuple[int, Flag] | None:
    number = _number(flag)
    return (number * machines, flag) if flag is not None and number and machines else None


def _machines(flag: Flag | None) -> int | None:
    return 1 if flag is None else _number(flag)


def _number(flag: Flag | None) -> int | None:
    value = flag.values[0].text if flag is not None and flag.values else None
    return int(value) if value is not None and _NUMBER.match(value) else None


def read_flags(arguments: Sequence[Argument], text: str) -> tuple[Flag, ...]:
    """The long flags among the arguments, each with all that stands before the next flag."""
    flags: list[Flag] = []
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        if argument.text is None or not argument.text.startswith("--") or not _is_flag(argument):
            continue
        name, equals, value = argument.text.partition("=")
        if equals:
            key, inline = _inline(argument, name, value, text)
            flags.append(Flag(name=_bare(name), key=key, values=(inline,), inline=True))
            continue
        first = index
        while index < len(arguments) and not _is_flag(arguments[index]) and not arguments[index].options:
            index += 1
        flags.append(Flag(name=_bare(name), key=argument, values=tuple(arguments[first:index])))
    return tuple(flags)


def _inline(argument: Argument, name: str, value: str, text: str) -> tuple[Argument, Argument]:
    """The two halves of ``--name=value``, quotes counted with the value."""
    middle = text.find("=", argument.start, argument.end)
    middle = argument.end if middle < 0 else middle
    start = min(middle + 1, argument.end)
    return (
        Argument(name, argument.start, middle, argument.shared, argument.from_variable),
        Argument(value, start, argument.end, argument.shared, argument.from_variable),
    )


def _bare(name: str) -> str:
    return name[2:].replace("-", "_")


def _is_flag(argument: Argument) -> bool:
    return argument.text is not None and bool(_FLAG.match(argument.text))
