"""One file's fixes carried to where they rest: a second run finds nothing to change, and no value goes to and fro.

Each pass makes the fixes that may be made, and of rivals for the same memory only one.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kb.config.fixing.fixes import Fixer, FixResult, Refused, Request
from kb.config.text.encoding import encode
from kb.core.document import Unit
from kb.core.facts import FactType
from kb.core.finding import SEVERITIES, Edit, Finding, Fix
from kb.core.record import NamedTuple
from kb.core.result import UnitResult
from kb.session.file import FileChecker
from kb.session.run import FileResult, Kind

# A fix may make room for another (a renamed key, then its value). So many that follow one another are a circle.
MAX_PASSES = 40
MAX_RUNS = 6
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
_WRITTEN = "written."
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

    def rests_on(self, other: "Candidate") -> bool:
        """Whether it is for a finding that looks at what the other sets: that may be all that it needs."""
        looked_at = {name.removeprefix(_WRITTEN) for name in self.finding.facts}
        return any(place.number == self.number and place.name in looked_at for place in other.sets())

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


def _without_waiting(found: Sequence[Candidate]) -> list[Candidate]:
    """The candidates of one pass without those that another may make needless: they are looked at again after it."""
    told = [
        each
        for each in found
        if not any(each.rests_on(other) and not other.rests_on(each) for other in found if other is not each)
    ]
    return told or list(found)


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
            found = _without_waiting(list(self._of_unit(number, result)))
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


class Settled(NamedTuple):
    """A file as its fixes leave it, and how many were made.

    ``refused`` could not be made. ``circle``: rules whose fixes undo one another; none of those is made.
    """

    after: FileResult
    applied: int = 0
    to_utf8: bool = False
    refused: tuple[tuple[Candidate, Refused], ...] = ()
    circle: tuple[str, ...] = ()

    def changes(self, before: FileResult) -> bool:
        """Whether the file is another than before."""
        return self.to_utf8 or self.after.text != before.text


class _Way(NamedTuple):
    """Where the fixes of one attempt lead, and those made on it; ``circle``: those that led back to an earlier text."""

    end: Settled
    made: tuple[Candidate, ...]
    circle: frozenset[Key] = frozenset()


def apply(checker: FileChecker, file: FileResult, kind: Kind, candidates: Sequence[Candidate]) -> FixResult:
    """The text with the candidates' fixes made, in their order."""
    fixer = Fixer(checker.catalog.dialects, checker.catalog.facts)
    requests = [request_of(candidate, file) for candidate in candidates]
    return fixer.apply(file.text, file.path, requests, shell=kind in ("shell", "command", "text"))


class Settling:
    """Carries the fixes of files to where they rest."""

    def __init__(self, checker: FileChecker, *, unsafe: bool) -> None:
        self._checker = checker
        self._unsafe = unsafe

    def settle(self, file: FileResult, kind: Kind) -> Settled:
        """The file with all its fixes made.

        Fixes whose effect another one takes back are left out where the rest does without them. Where fixes undo one
        another for ever, none of those is made.
        """
        end = self._settle_once(file, kind)
        for _ in range(MAX_RUNS if end.circle else 0):
            # what was barred may have a place from here: go on as a second run would, until one changes nothing
            more = self._settle_once(end.after, kind)
            if not more.applied:
                break
            end = more._replace(applied=end.applied + more.applied, to_utf8=end.to_utf8 or more.to_utf8)
        return end

    def _settle_once(self, file: FileResult, kind: Kind) -> Settled:
        barred: frozenset[Key] = frozenset()
        way = self._walk(file, kind, barred)
        while way.circle:
            barred |= way.circle
            way = self._walk(file, kind, barred)
        if barred:
            return way.end._replace(circle=tuple(sorted({rule for _, rule in barred})))
        needless = _turned_back(file, way)
        if needless:
            shorter = self._walk(file, kind, needless)
            if not shorter.circle and not self._walk(shorter.end.after, kind, frozenset()).made:
                return shorter.end
        return way.end

    def _walk(self, file: FileResult, kind: Kind, barred: Collection[Key]) -> _Way:
        """Run after run of passes, as if each were started anew, until one changes nothing."""
        walk = _Walk(self._checker, file, kind)
        moved = True
        while moved:
            moved = False
            choice = Choice(self._checker.catalog.facts, unsafe=self._unsafe, barred=barred)
            while found := choice.candidates(walk.file):
                # first faults of their own, for they change what memory is needed; only then the fix for memory
                candidates = [each for each in found if not each.is_rival] or found
                if walk.take(candidates, choice):
                    moved = True
                    if walk.circle:
                        break
            moved = moved and not walk.circle
        return walk.way()


class _Walk:
    """A file on its way from pass to pass."""

    def __init__(self, checker: FileChecker, file: FileResult, kind: Kind) -> None:
        self._checker, self._kind, self._encoding = checker, kind, file.encoding
        self.file = file
        self.circle: frozenset[Key] = frozenset()
        self._to_utf8 = False
        self._made: list[Candidate] = []
        self._refused: dict[Key, tuple[Candidate, Refused]] = {}
        self._seen = {(file.text, False): 0}

    def way(self) -> _Way:
        end = Settled(self.file, len(self._made), self._to_utf8, tuple(self._refused.values()))
        return _Way(end, tuple(self._made), self.circle)

    def take(self, candidates: Sequence[Candidate], choice: Choice) -> bool:
        """Make one pass; False where it changed nothing, and its candidates are given up."""
        outcome = apply(self._checker, self.file, self._kind, candidates)
        reasons = {id(each.request.fix): each for each in outcome.refused}
        text = (outcome.text, self._to_utf8 or outcome.to_utf8)
        if text == (self.file.text, self._to_utf8):
            for candidate in candidates:
                choice.give_up(candidate)
                if id(candidate.fix) in reasons:
                    self._refused[candidate.key] = candidate, reasons[id(candidate.fix)]
            return False
        for candidate in candidates:
            if id(candidate.fix) not in reasons:
                choice.made(candidate)
                self._made.append(candidate)
        self._to_utf8 = text[1]
        encoding = "utf-8" if self._to_utf8 else self._encoding
        self.file = self._checker.again(self.file, encode(outcome.text, encoding), self._kind)
        if text in self._seen or len(self._seen) > MAX_PASSES:
            self.circle = frozenset(each.key for each in self._made[self._seen.get(text, 0) :])
        self._seen[text] = len(self._made)
        return True


def _turned_back(before: FileResult, way: _Way) -> frozenset[Key]:
    """The fixes on the way of settings that were changed and changed again, to what they had been at its start."""
    counts: dict[Place, int] = {}
    for candidate in way.made:
        for place in candidate.sets():
            counts[place] = counts.get(place, 0) + 1
    after = way.end.after
    back = {
        place
        for place, times in counts.items()
        if times > 1
        and place.number < min(len(before.results), len(after.results))
        and _used(before.results[place.number], place.name) == _used(after.results[place.number], place.name)
    }
    return frozenset(each.key for each in way.made if each.sets() & back)


def _used(result: UnitResult, name: str) -> object:
    """A setting's value as it counts in a run, written or not."""
    setup = result.setup
    field = name.rpartition(".")[2]
    if setup is not None and hasattr(setup, field):
        return getattr(setup, field)
    return result.unit.as_written(name)
