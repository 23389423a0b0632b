"""The flags of a command line against one dialect: what each means, and how much they look like it."""

from collections.abc import Mapping, Sequence

from kb.config.dialect.dialects import CompiledDialect
from kb.config.dialect.typos import Neighbours
from kb.config.shell.flags import Flag
from kb.core.catalog import Dialect
from kb.core.facts import FactType


class Speller:
    """What each flag means in one dialect."""

    def __init__(self, dialect: Dialect, facts: Mapping[str, FactType]) -> None:
        compiled = CompiledDialect(dialect, facts)
        self.id = dialect.id
        self.targets = compiled.targets
        self.ignores = compiled.ignores
        self.unmodelled = compiled.unmodelled
        self._marks: Mapping[str, int] = dialect.recognise["marks"]
        # what tells a file of `hf` from other formats says nothing about flags
        self._unless = frozenset(dialect.recognise.get("unless", ()) if dialect.id != "hf" else ())
        self._telling = frozenset(dialect.telling)
        self.least: int = dialect.recognise["least"]
        self._neighbours: Neighbours | None = None

    def score(self, flags: Sequence[Flag]) -> int:
        """How much these flags look like the dialect's, by the marks that it is recognised by; 0 where one forbids."""
        names = {flag.name for flag in flags}
        return 0 if names & self._unless else sum(self._marks.get(name, 0) for name in names)

    def tells(self, flags: Sequence[Flag]) -> bool:
        """Whether the flags are as those of a program that hands them to the library."""
        return len(self._telling & {flag.name for flag in flags}) > 1

    def gives(self, fact: str, flags: Sequence[Flag]) -> bool:
        """Whether one of the flags means this setting."""
        return any(target.fact.name == fact for flag in flags for target in self.targets.get(flag.name, ()))

    def meant_by(self, name: str) -> str | None:
        """The known flag that an unknown one is a slip of; argparse takes the beginning of one for the whole."""
        if self._neighbours is None:
            self._neighbours = Neighbours(self.targets)
        meant = self._neighbours.meant_by(name)
        return None if meant is not None and meant.startswith(name) else meant
