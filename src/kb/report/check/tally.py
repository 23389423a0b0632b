"""What the last lines of a report count: made from units, added up, worded once."""

from collections.abc import Iterable
from typing import NamedTuple

from kb.core.finding import SEVERITIES
from kb.core.result import UnitResult
from kb.report.check.undecided import need_of
from kb.report.style import Style
from kb.report.width import wrap
from kb.report.words import Words


class Tally(NamedTuple):
    """``needs``: the facts that fixes wait for. ``hidden``: notes that are counted and not shown. ``rule``: the first
    one that found something.
    """

    files: int = 0
    units: int = 0
    error: int = 0
    warning: int = 0
    info: int = 0
    suppressed: int = 0
    safe: int = 0
    unsafe: int = 0
    waiting: int = 0
    hidden: int = 0
    needs: tuple[str, ...] = ()
    rule: str = ""

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        whole = [mine + theirs for mine, theirs in zip(self[:10], other[:10], strict=True)]
        needs = tuple(sorted({*self.needs, *other.needs})) if other.needs else self.needs
        return Tally._make((*whole, needs, self.rule or other.rule))

    def severities(self) -> dict[str, int]:
        """How many findings of each severity count, and how many are suppressed."""
        return {**{name: getattr(self, name) for name in SEVERITIES}, "suppressed": self.suppressed}


def tally_of(units: Iterable[UnitResult]) -> Tally:
    """The counts of some units: how many findings a safe fix mends, how many only an unsafe one, how many wait."""
    units = list(units)
    found = [finding for unit in units for finding in unit.findings]
    counted = [finding for finding in found if finding.suppressed is None]
    waiting = [fix for finding in counted if (fix := finding.depending()) is not None]
    of_severity = {each: sum(finding.severity == each for finding in counted) for each in SEVERITIES}
    return Tally(
        files=len({unit.unit.path for unit in units}),
        units=len(units),
        error=of_severity["error"],
        warning=of_severity["warning"],
        info=of_severity["info"] + sum(unit.hidden_notes for unit in units),
        suppressed=len(found) - len(counted),
        safe=sum(finding.ready("safe") is not None for finding in counted),
        unsafe=sum(finding.ready("safe") is None and finding.ready("unsafe") is not None for finding in counted),
        waiting=len(waiting),
        hidden=sum(unit.hidden_notes for unit in units),
        needs=tuple(sorted({name for fix in waiting for name in fix.needs})),
        rule=min(counted, key=lambda finding: SEVERITIES.index(finding.severity)).rule if counted else "",
    )


def closing_lines(tally: Tally, words: Words, style: Style) -> list[str]:
    """Where to read more, and the counts."""
    lines = wrap(words("report.explain_hint", rule=tally.rule), style.width) if tally.rule else []
    return [*lines, *(style.paint(line, "heading") for line in wrap(tally_line(tally, words), style.width))]


def tally_line(tally: Tally, words: Words) -> str:
    """``2 files, 3 sections: 2 errors, 1 warning; 1 suppressed. 1 can be fixed with --fix.``"""
    what = [words.count("count.files", tally.files)]
    if tally.units != tally.files:
        what.append(words.count("count.units", tally.units))
    counts = tally.severities()
    found = [words.count(f"count.{name}", counts[name]) for name in SEVERITIES if counts[name]]
    if tally.hidden:
        found[-1] = words.count("count.hidden", tally.hidden)
    text = f"{', '.join(what)}: {', '.join(found) or words('count.clean')}"
    if tally.suppressed:
        text += f" ({words.count('count.suppressed', tally.suppressed)})"
    return " ".join([f"{text}.", *_fixable(tally, words)])


def _fixable(tally: Tally, words: Words) -> list[str]:
    hints = [words.count("count.fixable", tally.safe)] if tally.safe else []
    if tally.unsafe:
        hints.append(words.count("count.fixable_unsafe", tally.unsafe))
    if tally.waiting:
        needs = sorted({words(f"need.{need_of(name)}") for name in tally.needs})
        hints.append(words("count.fixable_when_known", n=tally.waiting, needs=needs))
    return hints
