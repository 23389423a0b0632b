"""What a whole run found: its last lines, files that could not be checked, and how often each rule fired."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kb.core.catalog import Rule
from kb.core.finding import SEVERITIES
from kb.core.record import NamedTuple
from kb.core.result import CheckResult, UnitResult, Unusable
from kb.report.check.panel import need_of
from kb.report.terminal import Style, columns, cut, wrap
from kb.report.values import printable
from kb.report.words import Words


def fault_text(fault: Unusable, words: Words) -> str:
    """Why the input could not be checked, without its place."""
    return words(fault.key, **{"path": fault.path, **fault.values})


def fault_line(fault: Unusable, words: Words) -> str:
    """``path:line:column: what is wrong``, as far as there is a place that the sentence does not name itself."""
    text = fault_text(fault, words)
    if fault.line is None and printable(fault.path) in text:
        return f"kb: {text}"
    place = [shown_path(fault.path)] if fault.path else []
    place += [str(number) for number in (fault.line, fault.column) if number is not None]
    return f"{':'.join(place) or 'kb'}: {text}"


def shown_path(path: str) -> str:
    """A path as a line may begin with it: ``::`` at its start would be a command to GitHub's runner."""
    return printable(f"./{path}" if path.startswith(("::", "##[")) else path)


class Tally(NamedTuple):
    """``needs``: the facts that fixes wait for. ``hidden``: notes that are counted and not shown. ``bare``: sections
    about which there is nothing to say (:func:`is_bare`). ``rule``: the first one that found something.
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
    bare: int = 0
    needs: tuple[str, ...] = ()
    rule: str = ""

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        whole = [mine + theirs for mine, theirs in zip(self[:11], other[:11], strict=True)]
        needs = tuple(sorted({*self.needs, *other.needs})) if other.needs else self.needs
        return Tally._make((*whole, needs, self.rule or other.rule))

    @staticmethod
    def restored(data: Sequence[Any]) -> "Tally":
        """From what JSON made of one.

        Raises:
            ValueError: it is something else.
        """
        *counts, needs, rule = data
        return Tally._make((*map(int, counts), tuple(needs), str(rule)))

    def severities(self) -> dict[str, int]:
        """How many findings of each severity count, and how many are suppressed."""
        return {**{name: getattr(self, name) for name in SEVERITIES}, "suppressed": self.suppressed}


def is_bare(unit: UnitResult) -> bool:
    """Whether there is nothing to say about a section: it names no model, and nothing was found."""
    return unit.note == "no_model_named" and not unit.counted()


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
        bare=sum(map(is_bare, units)),
        needs=tuple(sorted({name for fix in waiting for name in fix.needs})),
        rule=min(counted, key=lambda finding: SEVERITIES.index(finding.severity)).rule if counted else "",
    )


def closing_lines(tally: Tally, words: Words, style: Style, *, folded: bool = False) -> list[str]:
    """How many sections are left out (``folded``), where to read more, and the counts."""
    lines = wrap(words.count("report.bare", tally.bare), style.width) if folded and tally.bare else []
    lines += wrap(words("report.explain_hint", rule=tally.rule), style.width) if tally.rule else []
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


def statistics_report(result: CheckResult, words: Words, style: Style, rules: Mapping[str, Rule]) -> str:
    """A line for each rule that fired, worst and most frequent first; ``+`` marks rules with a fix. Then the sums."""
    found = [finding for unit in result.units for finding in unit.counted()]
    counts = Counter((finding.severity, finding.rule) for finding in found)
    fixable = {finding.rule for finding in found if finding.ready("safe") or finding.ready("unsafe")}
    ordered = sorted(counts.items(), key=lambda item: (SEVERITIES.index(item[0][0]), -item[1], item[0][1]))
    wide_name = max((len(rule) for _, rule in counts), default=0)
    wide_severity = max((columns(words.named("severity", severity)) for severity in SEVERITIES), default=0)
    lines = []
    for (severity, rule), count in ordered:
        word = words.named("severity", severity)
        painted = style.paint(word, severity) + " " * (wide_severity - columns(word))
        lead = f"{count:>6}  {painted}  {'+' if rule in fixable else ' '} {rule:<{wide_name}}  "
        title = words.described(rules[rule].title) if rule in rules else ""
        room = style.width - (6 + 2 + wide_severity + 2 + 2 + wide_name + 2)
        lines.append((lead + cut(title, max(room, 12), style.ellipsis)).rstrip())
    summary = result.summary()
    sums = [words.count(f"count.{name}", summary[name]) for name in (*SEVERITIES, "suppressed") if summary[name]]
    lines.append(style.paint(", ".join(sums) or words("count.clean"), "heading"))
    return "\n".join(lines) + "\n"
