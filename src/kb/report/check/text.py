"""The report a person reads: findings by file and section with the line of source, then the fit panel."""

from typing import Any

from kb.core.finding import Finding, Fix
from kb.core.result import CheckResult, UnitResult
from kb.report.check.changes import condition_of, describe_fix, place_name
from kb.report.check.panel import fit_panel
from kb.report.check.source_line import SourceLines, quote_line
from kb.report.check.tally import closing_lines, tally_line, tally_of
from kb.report.style import Style
from kb.report.values import printable
from kb.report.width import columns, cut, joined, unbroken, wrap
from kb.report.words import Words

INDENT = "  "
MAX_RELATED = 4


def text_report(result: CheckResult, words: Words, style: Style, *, panel: bool = True) -> str:
    """The whole report, with a line break at its end. ``panel=False`` leaves the fit panels out."""
    blocks = [*_unit_blocks(result, words, style, panel), closing_lines(tally_of(result.units), words, style)]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def units_text(result: CheckResult, words: Words, style: Style, *, panel: bool = True) -> str:
    """The part of the report that is about these units alone, without a line break at its end."""
    return "\n\n".join("\n".join(block) for block in _unit_blocks(result, words, style, panel) if block)


def _unit_blocks(result: CheckResult, words: Words, style: Style, panel: bool) -> list[list[str]]:
    sources = SourceLines(result.sources_text)
    blocks: list[list[str]] = []
    for unit in result.units:
        blocks.append(_heading(unit, words, style))
        blocks += [finding_lines(finding, unit, words, style, sources) for finding in unit.counted()]
        if panel:
            blocks.append(fit_panel(unit, result.machine, words, style))
    return blocks


def _heading(unit: UnitResult, words: Words, style: Style) -> list[str]:
    name = printable(unit.unit.path) + (f" [{printable(unit.unit.section)}]" if unit.unit.section else "")
    tail = style.rule * max(style.width - columns(name) - 4, 3)
    first = style.paint(f"{style.rule * 2} {name} {tail}", "heading")
    second = joined(about(unit, words), style.dot)
    return [first, *(style.paint(line, "dim") for line in wrap(second, style.width, INDENT))]


def about(unit: UnitResult, words: Words) -> list[str]:
    """Format, model, method and batch: what the reader should see was understood."""
    parts = [words("report.dialect", name=unit.unit.dialect) if unit.unit.dialect else words("report.no_dialect")]
    setup = unit.setup
    if setup is None or unit.unit.dialect is None:
        return parts
    if setup.model_name:
        parts.append(words.value(setup.model_name))
        if unit.model and unit.model.name.casefold() != setup.model_name.casefold():
            guessed = f", {words('assumption.guessed_from_name')}" if unit.model.guessed_from else ""
            parts[-1] += f" ({unit.model.id}{guessed})"
    if setup.do_train or setup.method != "full":
        parts.append(words.named("method", setup.method))
    if setup.batch_known:
        factors = [setup.per_device_train_batch_size, setup.gradient_accumulation_steps, setup.world_size]
        product = " × ".join(words.value(factor) for factor in (factors if setup.world_size > 1 else factors[:2]))
        parts.append(words("report.effective_batch", batch=setup.effective_batch_size, product=product))
    return parts


def finding_lines(finding: Finding, unit: UnitResult, words: Words, style: Style, sources: SourceLines) -> list[str]:
    """One finding: place and rule, message, the line of source, the facts behind it, the fixes."""
    span = finding.span
    place = f"{printable(unit.unit.path)}:{span.line}:{span.column}:"
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


def _facts(finding: Finding, words: Words, style: Style) -> list[str]:
    """The facts of the condition that the message does not already give."""
    said = finding.message.placeholders().union(*(fix.title.placeholders() for fix in finding.fixes))
    shown = [
        unbroken(f"{_fact_name(name, words)} = {_fact_value(name, value, words)}")
        for name, value in finding.facts.items()
        if name not in said and name in words.facts and not name.startswith("written.")
    ]
    if not shown:
        return []
    return [
        style.paint(line, "dim")
        for line in wrap(f"{words('report.facts')} {', '.join(shown)}", style.width, INDENT, INDENT * 2)
    ]


def _fact_value(name: str, value: Any, words: Words) -> str:
    """The host's sizes in GB, as the rules' messages and the panel have them."""
    of_host = name.startswith(("memory.host.", "host.")) and words.facts[name].type == "bytes"
    return words.fact(name, value, "GB") if of_host else words.measured(name, value)


def _fact_name(name: str, words: Words) -> str:
    """A setting by its key, anything else by its meaning."""
    return name.rpartition(".")[2] if words.facts[name].setting else words.meaning(name).removeprefix("the ")


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
        label = f"{words('report.offered', condition=condition_of(fix))} {words('report.fix', safety=safety)}"
    changes = describe_fix(fix, unit.unit, words, style, sources)
    text = f"{label} {title}" + (f" {changes}" if changes else "")
    head, *others = wrap(text, style.width, INDENT, INDENT * 2)
    return [head.replace(label, style.paint(label, "fix"), 1), *others]


def summary_line(result: CheckResult, words: Words) -> str:
    """``2 files, 3 sections: 2 errors, 1 warning; 1 suppressed. 1 can be fixed with --fix.``"""
    return tally_line(tally_of(result.units), words)
