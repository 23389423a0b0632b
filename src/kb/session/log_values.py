"""Where the concrete values of a remedy's steps come from: a config's facts, or those of the machine alone."""

from collections.abc import Sequence
from typing import Any

from kb.core.document import Unit
from kb.core.expression import Unknown
from kb.core.finding import Span
from kb.core.result import UnitResult
from kb.session.file import FileChecker

_OF_THE_MACHINE = ("gpu.", "host.", "versions.")


def machine_alone(checker: FileChecker) -> Any:
    """A lookup of facts where no config is given: what is known of the machine, and nothing else."""
    empty = Unit(path="", section=None, dialect=None, settings={}, span=Span(1, 1, 1, 1, 0, 0))
    facts = checker.facts(empty)

    def lookup(name: str) -> Any:
        return facts.get(name) if name.startswith(_OF_THE_MACHINE) else Unknown(frozenset((name,)))

    return lookup


def first_training(results: Sequence[UnitResult]) -> Unit | None:
    """The first section that trains, or the first of a known format; None where no format is known."""
    known = [result for result in results if result.unit.dialect is not None]
    training = [result.unit for result in known if result.setup and result.setup.do_train]
    return training[0] if training else known[0].unit if known else None
