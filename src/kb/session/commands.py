"""Command lines in a project: what reads them, and the programs that they start. Most runs meet none."""

from functools import cached_property
from typing import TYPE_CHECKING

from kb.core.catalog import Catalog
from kb.core.document import Unit

if TYPE_CHECKING:
    from kb.config.shell.command import CommandReader
    from kb.session.seen import ProjectPrograms


class Commands:
    """Made with a session, and ready when a command is met.

    Args:
        catalog: the knowledge.
        programs: looks for the sources of what a unit starts; None where there is no folder to look in.
    """

    def __init__(self, catalog: Catalog, programs: "ProjectPrograms | None") -> None:
        self._catalog, self._programs = catalog, programs

    @cached_property
    def reader(self) -> "CommandReader":
        """Reads command lines; it spells out four formats, so it is made once."""
        from kb.config.shell.command import CommandReader

        return CommandReader(self._catalog.dialects, self._catalog.facts)

    def with_program(self, unit: Unit) -> Unit:
        """The unit of a command with what its program says; any other unit as it is.

        The defaults of the program's own flags stand where the command leaves them out. A program that is not found
        says nothing: then the library's defaults count, and what rests on them is told with its condition.
        """
        if not unit.program or unit.reader != "script" or self._programs is None:
            return unit
        from kb.session.read_by_program import as_its_program_takes

        speller = self.reader.of_dialect(unit.dialect)
        return as_its_program_takes(unit, self._programs(unit), self._catalog, self._programs.files(), speller)


def starts_no_run(unit: Unit) -> bool:
    """Whether a command says nothing but its config, and that is of no format that kb knows: it does something else."""
    named = "launch.run_config" in unit.settings
    known = "launch.run_config" in unit.joined or "launch.run_config" in unit.unread
    return named and not known and not unit.events and all(name.startswith("launch.") for name in unit.settings)
