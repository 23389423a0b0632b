"""The report a person reads: findings by file and section with the line of source, then the fit panel; and what a whole
run found: its last lines, files that could not be checked, and how often each rule fired.

A finding that stands in many files alike is told once, with its places behind; the others point back to it. Files are
worded apart, some of them by other processes or in an earlier run: each wording marks its findings, and what is written
out one behind the other is unmarked as it comes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kb.advice.run.run_kind import only_loads
from kb.core.catalog import Rule
from kb.core.finding import SEVERITIES, Because, Finding, Fix
from kb.core.hardware import Machine
from kb.core.memory_report import OVER
from kb.core.record import NamedTuple
from kb.core.release import LATEST
from kb.core.result import CheckResult, UnitResult, Unusable
from kb.core.typed import Any
from kb.report.check.changes import SourceLines, describe_fix, place_name, quote_line
from kb.report.check.panel import fit_panel, need_of
from kb.report.terminal import INDENT, Style, columns, cut, joined, unbroken, wrap
from kb.report.values import is_of_host, plan_command, printable, unit_name
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


NOTHING_TO_SAY = ("loads_no_model", "no_model_named", "no_training_call", "run_by_engine")


def is_bare(unit: UnitResult) -> bool:
    """Whether there is nothing to say about a section: it names no model, only loads one (a program that tests or
    serves it), starts a program that loads none or has another engine run it, or is what a run that has ended left
    (``adapter_config.json``), and nothing was found."""
    ended = unit.unit.reader == "record" and unit.prediction is None
    return (ended or unit.note in NOTHING_TO_SAY) and not unit.counted()


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
    return [*lines, *style.lines(tally_line(tally, words), "heading")]


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


MAX_RELATED = 4
GAP = "\n\n"  # between the blocks of a report
_MARK, _PART = "\x1d", "\x1f"  # no output has them: what comes from outside is printable
_MARKED = rf"{GAP}{_MARK}([^{_MARK}]*){_MARK}"
_RUN = rf"(?:{_MARKED})+"
MOST_PLACES = 3


def text_report(
    result: CheckResult, words: Words, style: Style, *, panel: bool = True, verbose: bool = False, fold: bool = False
) -> str:
    """The whole report, with a line break at its end.

    Args:
        panel: draw the fit panels.
        verbose: say also what each rule that could not be decided needs, and draw the host without a limit.
        fold: of many files, count the sections about which there is nothing to say, and tell once what stands in
            several alike.
    """
    repeated = Repeated(words, style)
    told = repeated.unmarked(units_text(result, words, style, panel=panel, verbose=verbose, fold=fold))
    closing = "\n".join((*repeated.lines(), *closing_lines(tally_of(result.units), words, style, folded=fold)))
    return GAP.join(part for part in (told, closing) if part) + "\n"


def units_text(
    result: CheckResult, words: Words, style: Style, *, panel: bool = True, verbose: bool = False, fold: bool = False
) -> str:
    """The part of the report that is about these units alone, without a line break at its end; where it folds, with
    marks for :class:`Repeated`.
    """
    return GAP.join("\n".join(block) for block in _unit_blocks(result, words, style, panel, verbose, fold) if block)


def _unit_blocks(
    result: CheckResult, words: Words, style: Style, panel: bool, verbose: bool, fold: bool
) -> list[list[str]]:
    sources = SourceLines(result.sources_text)
    blocks: list[list[str]] = []
    alike: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for unit in result.units:
        if fold and is_bare(unit):
            continue
        heading = _heading(unit, words, style)
        if fold and unit.unit.section and unit.prediction is None and not unit.counted():
            body = fit_panel(unit, result.machine, words, style, verbose=verbose) if panel else []
            first, others = alike.setdefault((unit.unit.path, *heading[1:], *body), (heading, []))
            if first is not heading:
                others.append(printable(unit.unit.section))
                continue
        blocks.append(heading)
        worst_first = sorted(unit.counted(), key=lambda finding: SEVERITIES.index(finding.severity))
        for finding in worst_first:
            lines = finding_lines(finding, unit, words, style, sources)
            blocks.append(marked(finding, shown_path(unit.unit.path), words, lines) if fold else lines)
        if panel:
            panel_lines = fit_panel(unit, result.machine, words, style, verbose=verbose)
            blocks.append(panel_lines + _what_would_fit(unit, result.machine, words, style))
    for heading, others in alike.values():
        if others:
            said = words("report.alike", sections=_some(others, words))
            heading += wrap(said, style.width, INDENT, INDENT)
    return blocks


def _some(names: Sequence[str], words: Words) -> str:
    """The first of several names, and how many more there are."""
    shown = [unbroken(name) for name in names[:MOST_PLACES]]
    if len(names) > MOST_PLACES:
        shown.append(words("report.and_more", n=len(names) - MOST_PLACES))
    return ", ".join(shown)


def _what_would_fit(unit: UnitResult, machine: Machine, words: Words, style: Style) -> list[str]:
    """Where a run does not fit, the command that says what makes it fit."""
    report, path = unit.prediction, unit.unit.path
    if report is None or report.verdict.status not in OVER or path.startswith("-"):
        return []
    said = words("report.what_would_fit", command=unbroken(plan_command(unit.unit, machine)))
    return wrap(said, style.width, INDENT, INDENT * 2)


def _heading(unit: UnitResult, words: Words, style: Style) -> list[str]:
    name = unit_name(unit.unit)
    tail = style.rule * max(style.width - columns(name) - 4, 3)
    first = style.paint(f"{style.rule * 2} {name} {tail}", "heading")
    second = joined(about(unit, words), style.dot)
    return [first, *style.lines(second, "dim", INDENT)]


def about(unit: UnitResult, words: Words) -> list[str]:
    """Format, model, method and batch: what the reader should see was understood."""
    parts = [words("report.dialect", name=unit.unit.dialect) if unit.unit.dialect else words("report.no_dialect")]
    if unit.unit.read_by:
        parts[0] = words("report.read_by", program=shown_path(unit.unit.read_by))
    setup = unit.setup
    if setup is None or unit.unit.dialect is None:
        return parts
    if setup.model_name:
        parts.append(words.value(setup.model_name))
        if unit.model and unit.model.name.casefold() != setup.model_name.casefold():
            guessed = f", {words('assumption.guessed_from_name')}" if unit.model.guessed_from else ""
            parts[-1] += f" ({unit.model.id}{guessed})"
    claims = setup.do_train and not only_loads(unit.unit)
    if (claims or setup.method != "full") and setup.method_known:
        parts.append(words.named("method", setup.method))
    if setup.batch_known and claims:
        factors = [setup.per_device_train_batch_size, setup.gradient_accumulation_steps, setup.world_size]
        product = " × ".join(words.value(factor) for factor in (factors if setup.world_size > 1 else factors[:2]))
        parts.append(words("report.effective_batch", batch=setup.effective_batch_size, product=product))
        if (
            setup.world_size > 1
            and unit.unit.script is None
            and (said := unit.unit.settings.get("launch.num_processes"))
        ):
            parts[-1] += f" ({shown_path(said.joined)})" if said.joined else ""
    return parts


def finding_lines(finding: Finding, unit: UnitResult, words: Words, style: Style, sources: SourceLines) -> list[str]:
    """One finding: place and rule, message, the line of source, the facts behind it, the fixes."""
    span = finding.span
    place = f"{shown_path(unit.unit.path)}:{span.line}:{span.column}:"
    cell = sources.cell(unit.unit.path, span)
    if cell is not None:
        place += f" {words('report.cell', cell=cell.cell, line=cell.row)}:"
    severity = style.paint(words.named("severity", finding.severity), finding.severity)
    lines = [f"{style.paint(place, 'heading')} {severity} {finding.rule}"]
    lines += wrap(words.message(finding), style.width, INDENT)
    source, quoted = sources.quoted(unit.unit.path, span)
    if source is not None and source.strip():
        lines += quote_line(source, quoted, style, finding.severity)
    lines += _facts(finding, words, style)
    lines += _related(finding, unit, words, style)
    first = True
    for fix in sorted(finding.fixes, key=lambda fix: not fix.certain):
        lines += _fix(fix, words.fix_title(fix, finding), first, unit, words, style, sources)
        first = False
    return lines


SAID = ("written", "joined", "given", "pinned", "ranged")
"""Origins of facts that the reader wrote or gave."""


def _facts(finding: Finding, words: Words, style: Style) -> list[str]:
    """What the reader wrote or gave that decided it, each with its place; the message and the quoted line say the rest.
    And what was assumed, with where to say it.
    """
    lines: list[str] = []
    shown = [_fact(each, words) for each in finding.because if _is_worth_saying(each, finding, words)]
    if shown:
        lines += style.lines(f"{words('report.facts')} {', '.join(shown)}", "dim", INDENT, INDENT * 2)
    if finding.if_so and (ways := words.ways_to_say(finding.if_so)):
        lines += style.lines(f"{words('report.settle')} {ways}", "dim", INDENT, INDENT * 2)
    return lines


def _is_worth_saying(each: Because, finding: Finding, words: Words) -> bool:
    said = finding.message.placeholders() | {name for name, span in finding.related}
    if each.origin not in SAID or not each.place or each.name in said or each.name not in words.facts:
        return False
    if each.name.startswith("versions.") and (finding.on_releases or _stands_for_others(each.value)):
        return False  # the message says it, with its range; or no release is meant, but all that the pin allows
    here = f"{finding.span.line}:{finding.span.column}"
    return each.place != here and not each.name.startswith("written.")


def _stands_for_others(version: object) -> bool:
    """Whether a release is one that is only thinkable: the newest before another, or the next after one."""
    return isinstance(version, tuple) and (LATEST in version or (len(version) > 3 and version[-1] == 1))


def _fact(each: Because, words: Words) -> str:
    """``fp16 = true (8:7)``: a setting by its key, anything else by its meaning; the host's sizes in GB, as the rules'
    messages and the panel have them."""
    name, fact = each.name, words.facts[each.name]
    if name.startswith("versions."):
        return unbroken(f"{name.partition('.')[2]} {words.fact(name, each.value)} ({each.place})")
    called = name.rpartition(".")[2] if fact.setting else words.meaning(name).removeprefix("the ")
    in_gb = is_of_host(name) and fact.type == "bytes"
    value = words.fact(name, each.value, "GB") if in_gb else words.measured(name, each.value)
    return unbroken(f"{called} = {value} ({each.place})")


def _related(finding: Finding, unit: UnitResult, words: Words, style: Style) -> list[str]:
    """Other places by their names, in the file's order; those that come with a text of their own, each on a line."""
    named = {span: name for name, span in reversed(finding.related) if span != finding.span}
    ordered = sorted(named.items(), key=lambda place: (place[0].line, place[0].column))
    places: list[str] = []
    quotes: list[str] = []
    for span, name in ordered:
        called = place_name(name, unit.unit, words)
        if called is None:
            quotes.append(cut(f"{span.line:>5} | {printable(name)}", style.width, style.ellipsis))
        else:
            places.append(unbroken(f"{span.line}:{span.column} {called}".rstrip()))
    if len(places) > MAX_RELATED:
        places[MAX_RELATED:] = [words("report.and_more", n=len(places) - MAX_RELATED)]
    lines = wrap(f"{words('report.related')} {', '.join(places)}", style.width, INDENT, INDENT * 2) if places else []
    return [style.paint(line, "dim") for line in (*lines, *quotes[:MAX_RELATED])]


def _fix(
    fix: Fix, title: str, first: bool, unit: UnitResult, words: Words, style: Style, sources: SourceLines
) -> list[str]:
    """What it does; of one that is only offered, the condition under which it would be right."""
    safety = words.named("safety", fix.safety)
    if fix.certain:
        label = words("report.fix" if first else "report.other_fix", safety=safety)
    else:
        from kb.report.condition import condition_text  # hardly a fix has one

        label = f"{words('report.offered', condition=condition_text(fix, words))} {words('report.fix', safety=safety)}"
    changes = describe_fix(fix, unit.unit, words, style, sources)
    text = f"{label} {title}" + (f" {changes}" if changes else "")
    head, *others = wrap(text, style.width, INDENT, INDENT * 2)
    return [head.replace(label, style.paint(label, "fix"), 1), *others]


def summary_line(result: CheckResult, words: Words) -> str:
    """``2 files, 3 sections: 2 errors, 1 warning; 1 suppressed. 1 can be fixed with --fix.``"""
    return tally_line(tally_of(result.units), words)


def marked(finding: Finding, path: str, words: Words, lines: Sequence[str]) -> list[str]:
    """The lines of a finding, as one text that says which it is, by its message and what decided it, and where."""
    because = (f"{each.name}={each.value}" for each in finding.because)
    told = " ".join((finding.severity, finding.certainty, finding.rule, words.message(finding), *because))
    parts = (told, finding.rule, f"{path}:{finding.span.line}", "\n".join(lines))
    return [_MARK + _PART.join(parts) + _MARK]


class Repeated:
    """Unmarks the texts of one report, in their order. ``places``: by the finding, its rule and where it stands too."""

    def __init__(self, words: Words, style: Style) -> None:
        self._words, self._style = words, style
        self._places: dict[str, tuple[str, list[str]]] = {}

    def unmarked(self, text: str) -> str:
        """The text with each finding that was not told yet, and a line of those that were."""
        return re.sub(_RUN, self._of_unit, text) if _MARK in text else text

    def _of_unit(self, found: re.Match[str]) -> str:
        kept, again = [], []
        for parts in re.findall(_MARKED, found[0]):
            told, rule, place, block = parts.split(_PART)
            if told in self._places:
                self._places[told][1].append(place)
                again.append(unbroken(f"{rule}:{place.rpartition(':')[2]}"))
            else:
                self._places[told] = (rule, [])
                kept.append(block)
        if again:
            said = self._words("report.told_above", findings=", ".join(again))
            lines = wrap(said, self._style.width, "  ", "    ")
            kept.append("\n".join(self._style.paint(line, "dim") for line in lines))
        return "".join(GAP + each for each in kept)

    def lines(self) -> list[str]:
        """Where else each finding stands, most often first."""
        made = []
        for rule, places in sorted(self._places.values(), key=lambda each: -len(each[1])):
            if not places:
                continue
            said = self._words.count("report.repeated", len(places))
            made += wrap(f"{rule}: {said} {_some(places, self._words)}", self._style.width, "", "  ")
        return made
