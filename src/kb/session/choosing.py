"""Which fixes to make in one pass over a file: those that may be made, and of rivals for the same memory only one."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kb.config.fixing.fixes import Request
from kb.core.document import Unit
from kb.core.facts import FactType
from kb.core.finding import SEVERITIES, Edit, Finding, Fix
from kb.core.record import NamedTuple
from kb.core.result import UnitResult
from kb.session.file_result import FileResult

# Each of these alone may be enough to make a run fit: two fixes at once would save the same memory twice.
RIVALS = frozenset(
    (
        "training.per_device_train_batch_size",
        "training.per_device_eval_batch_size",
        "training.gradient_accumulation_steps",
        "training.gradient_checkpointing",
        "training.optim",
        "inference.batch_size",
    )
)


Key = tuple[int, str]  # the number of a unit, and a rule that finds something in it


class Place(NamedTuple):
    """A setting of one unit of a file; the file's units keep their order from pass to pass."""

    number: int
    name: str


class Candidate(NamedTuple):
    """A fix that may be made: of the unit of this number, for a finding."""

    number: int
    finding: Finding
    fix: Fix

    @property
    def key(self) -> Key:
        return self.number, self.finding.rule

    @property
    def is_rival(self) -> bool:
        return any(edit.op == "set" and edit.name in RIVALS for edit in self.fix.edits)

    def sets(self) -> set[Place]:
        return {Place(self.number, edit.name) for edit in self.fix.edits if edit.op == "set"}

    def urgency(self) -> tuple[bool, int]:
        """Of rivals the first by this is made: a safe one, then that of the gravest finding."""
        return self.fix.safety != "safe", SEVERITIES.index(self.finding.severity)


def chosen_fix(finding: Finding, unsafe: bool) -> Fix | None:
    """The fix to make: the first safe one whose condition is known to hold, else, where allowed, the first unsafe.

    One that the file's form bars is chosen last; who tries it hears what is in the way.
    """
    allowed = ("safe", "unsafe") if unsafe else ("safe",)
    fixes = [fix for safety in allowed for fix in finding.fixes if fix.certain and fix.safety == safety]
    return next((fix for fix in fixes if not fix.barred), fixes[0] if fixes else None)


def effective(fix: Fix, unit: Unit, facts: Mapping[str, FactType]) -> Fix | None:
    """The fix without those of its edits that change nothing; None where none does.

    Writing out a default is nothing beside another change, but a fix that does only that is there to say it.
    """
    told = tuple(edit for edit in fix.edits if not _is_written(edit, unit))
    changes = tuple(edit for edit in told if not _is_default(edit, unit, facts))
    kept = changes or told
    return fix._replace(edits=kept) if kept else None


def _is_written(edit: Edit, unit: Unit) -> bool:
    setting = unit.settings.get(edit.name) if edit.op == "set" else None
    return setting is not None and _same(setting.value, edit.value)


def _is_default(edit: Edit, unit: Unit, facts: Mapping[str, FactType]) -> bool:
    fact = facts.get(edit.name) if edit.op == "set" and edit.name not in unit.settings else None
    return fact is not None and fact.default is not None and _same(fact.default, edit.value)


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


class Choice:
    """The choices of one run over one file: what a pass has set, no later one sets again.

    Args:
        rules: the only rules whose fixes count; None is all.
        barred: findings whose fixes are left alone.
    """

    def __init__(
        self,
        facts: Mapping[str, FactType],
        *,
        unsafe: bool,
        rules: Collection[str] | None = None,
        barred: Collection[Key] = (),
    ) -> None:
        self._facts = facts
        self._unsafe = unsafe
        self._rules = rules
        self._barred = barred
        self._settled: set[Place] = set()
        self._given_up: list[tuple[int, str, tuple[Edit, ...]]] = []

    def candidates(self, file: FileResult) -> list[Candidate]:
        """What one pass is to make, in the findings' order."""
        chosen: list[Candidate] = []
        for number, result in enumerate(file.results):
            found = list(self._of_unit(number, result))
            rivals = sorted((each for each in found if each.is_rival), key=Candidate.urgency)
            chosen += [each for each in found if not each.is_rival or each is rivals[0]]
        return chosen

    def _of_unit(self, number: int, result: UnitResult) -> Iterator[Candidate]:
        for finding in result.counted():
            if (self._rules is not None and finding.rule not in self._rules) or (number, finding.rule) in self._barred:
                continue
            fix = chosen_fix(finding, self._unsafe)
            fix = effective(fix, result.unit, self._facts) if fix else None
            if fix is None or (number, finding.rule, fix.edits) in self._given_up:
                continue
            candidate = Candidate(number, finding, fix)
            if not candidate.sets() & self._settled:
                yield candidate

    def made(self, candidate: Candidate) -> None:
        self._settled |= candidate.sets()

    def give_up(self, candidate: Candidate) -> None:
        """It cannot be made, and a next pass would meet the same."""
        self._given_up.append((candidate.number, candidate.finding.rule, candidate.fix.edits))


def request_of(candidate: Candidate, file: FileResult) -> Request:
    unit = file.results[candidate.number].unit
    return Request(fix=candidate.fix, unit=unit, at=candidate.finding.span, rule=candidate.finding.rule)
