"""What the flags of a command mean in one dialect."""

from collections.abc import Mapping, Sequence

from kb.config.dialect.dialects import CompiledDialect
from kb.config.dialect.typos import Neighbours
from kb.config.shell.flags import Flag
from kb.core.catalog import Dialect
from kb.core.facts import FactType

SHORTEST, MOST_CUT = 5, 4  # letters of a flag that may be the beginning of another, and those that it may lack


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
        """The known flag that an unknown one is a slip of."""
        if name in self.targets or self.ignores(name):
            return None
        if self._neighbours is None:
            self._neighbours = Neighbours(self.targets)
        return self._neighbours.meant_by(name)

    def shortened(self, name: str) -> tuple[str, bool] | None:
        """The known flag that ends within a word of its name here, which argparse takes for the whole; and whether no
        other begins so too: of two it stops, unless a release lacks one.
        """
        if name in self.targets or self.ignores(name) or len(name) < SHORTEST:
            return None
        cut = len(name)
        found = [each for each in self.targets if each.startswith(name) and each[cut : cut + 1] not in ("_", ".")]
        whole = min(found, key=len, default="")
        if not found or len(whole) > cut + MOST_CUT or not all(each.startswith(whole) for each in found):
            return None
        return whole, len(found) == 1
