"""Programs that take a format's own settings on their command line: which, and how, each format of ``rules/`` says."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

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
        self._by_name = {
            name: Tool(
                dialect.id,
                row.get("subcommands", {}),
                flagged=row.get("config") == "flag",
                overrides=row.get("overrides", False),
                processes=_how_many(row.get("processes", "gpus")),
                sets=row.get("sets", {}),
                marks=frozenset(dialect.recognise["marks"] if row.get("anywhere") else ()),
                code=dialect.assigned,
            )
            for dialect in dialects
            for name, row in dialect.programs.items()
        }
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


def _how_many(said: str | list[str]) -> str | tuple[str, ...]:
    return said if isinstance(said, str) else tuple(said)


NO_TOOLS = Tools(())
