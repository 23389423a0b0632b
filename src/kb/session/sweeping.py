"""A sweep file: every combination it may run is checked, and the worst one is told with what is wrong there."""

import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kb.config.files import ConfigError
from kb.config.reader import ConfigReader
from kb.config.sweep import Sweep, combinations, read_sweep
from kb.config.text.encoding import decode
from kb.config.text.parsing import Parsed, parse
from kb.core.document import Event, Unit
from kb.core.finding import SEVERITIES, Finding, Fix, Span
from kb.core.memory_report import STATUSES
from kb.core.record import NamedTuple
from kb.core.result import UnitResult
from kb.session.run import FileResult

if TYPE_CHECKING:
    from kb.session.file import FileChecker

MAX_CORNERS = 256
MAX_TOLD = 12  # combinations beside the worst that are told for what only they have
DIALECT = "sweep"
# An agent writes each value after a flag, where there is no difference between a number and its text.
_FLAGS_KNOW_NO = ("number-as-text", "quoted-number", "quoted-boolean", "word-as-boolean")


class Corner(NamedTuple):
    """One combination with its result."""

    name: str
    result: UnitResult

    def badness(self) -> tuple[int, int, int, int]:
        """Gravest finding, verdict, memory, number of findings."""
        found = self.result.counted()
        gravest = max((len(SEVERITIES) - SEVERITIES.index(finding.severity) for finding in found), default=0)
        report = self.result.prediction
        verdict = STATUSES.index(report.verdict.status) if report and report.verdict.status in STATUSES else -1
        peak = max((phase.process_used_bytes for phase in report.phases), default=0) if report else 0
        return gravest, verdict, peak, len(found)


def swept_result(files: "FileChecker", raw: bytes, path: str) -> FileResult | None:
    """The result of a sweep file; None where this is none, or one that cannot be read."""
    decoded = decode(raw)
    if decoded.text is None:
        return None
    try:
        results = sweep_results(decoded.text, path, files)
    except ConfigError:
        return None  # whatever reads it next says what is wrong
    if results is None:
        return None
    return FileResult(path, decoded.text, decoded.encoding, tuple(files.settle(results, decoded.text, path)))


def sweep_results(text: str, path: str, files: "FileChecker") -> list[UnitResult] | None:
    """The worst combination's result first, then those of others with findings of their own; None for no sweep.

    Up to MAX_CORNERS combinations are checked. Where there are more, numbers count by their ends, which bound memory:
    it grows with every batch, length and rank; beyond that a spread of the combinations stands for all of them. A
    finding says how many were checked.

    Raises:
        ConfigError: the text is no YAML or JSON.
    """
    parsed = parse(text, path)
    sweep = read_sweep(parsed)
    if sweep is None:
        return None
    known = _known(sweep, parsed, path, files.reader)
    ends, sizes = sweep, _sizes(sweep, known)
    if math.prod(sizes) > MAX_CORNERS:
        ends = sweep._replace(parameters=tuple(parameter.ends() for parameter in sweep.parameters))
        sizes = _sizes(ends, known)
    corners = sorted(
        (
            Corner(_name(ends, chosen, sizes), files.check_unit(unit))
            for chosen in combinations(sizes, MAX_CORNERS)
            for unit in _units(ends, chosen, parsed, path, files.reader)
        ),
        key=Corner.badness,
        reverse=True,
    )
    # what only a name, a seed or a folder varies is one combination to kb
    alike = math.prod(max(len(each.choices), 1) for each in sweep.parameters if each.name not in known)
    checked = sweep.corners if ends is sweep else min(len(corners) * alike, sweep.corners)
    told = _told(corners)
    told_of = any(each.result.prediction is not None or each.result.counted() for each in corners)
    if known and told_of:  # where kb knows no parameter, or no combination says anything, there is no worst one
        told[0] = _with_summary(told[0], corners, checked, sweep.corners, files)
    return told


def _sizes(sweep: Sweep, known: set[str]) -> list[int]:
    """How many choices each parameter has: of one that means no setting kb sees one alone."""
    return [max(len(each.choices), 1) if each.name in known else 1 for each in sweep.parameters]


def _known(sweep: Sweep, parsed: Parsed, path: str, reader: ConfigReader) -> set[str]:
    """The parameters that mean a setting: only these tell combinations apart."""
    first = [0] * len(sweep.parameters)
    settings = [setting for unit in _units(sweep, first, parsed, path, reader) for setting in unit.settings.values()]
    places = {setting.key_span for setting in settings}
    return {
        parameter.name
        for parameter in sweep.parameters
        if parsed.source.between(parameter.key.start, parameter.key.end or parameter.key.start) in places
    }


def _units(sweep: Sweep, chosen: Sequence[int], parsed: Parsed, path: str, reader: ConfigReader) -> Iterator[Unit]:
    corner = Parsed(parsed.source, [sweep.document(chosen)], [])
    corner.events = parsed.events
    units = reader.read_parsed(corner, path)
    if any(unit.dialect is None for unit in units):
        units = reader.read_parsed(corner, path, dialect=DIALECT)
    single = _single_values(sweep, parsed)
    for unit in units:
        settings = {
            name: setting._replace(path=single.get(setting.key_span, setting.path))
            for name, setting in unit.settings.items()
        }
        # a package that no spelling begins with: no fix adds a key to a sweep
        unit = unit._replace(settings=settings, package=("parameters",))
        yield _as_flags(unit, sweep.program) if sweep.program else unit


def _as_flags(unit: Unit, program: str) -> Unit:
    """The unit as the program gets it: a command line, read by a parser of its own."""
    events = tuple(event for event in unit.events if event.kind not in _FLAGS_KNOW_NO)
    return unit._replace(events=events, reader="script", script=os.path.basename(program), program=program)


def _single_values(sweep: Sweep, parsed: Parsed) -> dict[Span, tuple[str, ...]]:
    """The place of each parameter that is given as one ``value:``, which a fix may replace."""
    found: dict[Span, tuple[str, ...]] = {}
    for parameter in sweep.parameters:
        if len(parameter.choices) == 1 and len(parameter.path) == 1 and not parameter.choices[0].alias:
            span = parsed.source.between(parameter.key.start, parameter.key.end or parameter.key.start)
            found[span] = ("parameters", parameter.key.value, "value")
    return found


def _name(sweep: Sweep, chosen: Sequence[int], sizes: Sequence[int]) -> str:
    """The choices that tell a combination from others: ``per_device_train_batch_size=64, optim=adafactor``."""
    parts = []
    for parameter, at, size in zip(sweep.parameters, chosen, sizes, strict=True):
        if size > 1:
            value = parameter.choices[at].value
            parts.append(f"{parameter.name}={value if isinstance(value, str) else '…'}")
    return ", ".join(parts)


def _told(corners: Sequence[Corner]) -> list[UnitResult]:
    """The worst combination whole; of each next one what none before it has, where there is such a thing."""
    worst = corners[0]
    results = [_named(worst.result, worst.name)]
    told = {(finding.rule, finding.span) for finding in worst.result.findings}
    for corner in corners[1:]:
        new = [finding for finding in corner.result.findings if (finding.rule, finding.span) not in told]
        if new and len(results) <= MAX_TOLD:
            told |= {(finding.rule, finding.span) for finding in new}
            unit = corner.result.unit._replace(section=corner.name or None)
            results.append(UnitResult(unit=unit, findings=tuple(_without_additions(new, unit))))
    return results


def _named(result: UnitResult, name: str) -> UnitResult:
    unit = result.unit._replace(section=name or None)
    return result._replace(unit=unit, findings=tuple(_without_additions(result.findings, unit)))


def _without_additions(findings: Sequence[Finding], unit: Unit) -> Iterator[Finding]:
    """The findings with those fixes barred that would do more than replace a single value."""
    for finding in findings:
        fixes = tuple(fix if _only_replaces(fix, unit) else fix._replace(barred=True) for fix in finding.fixes)
        yield finding._replace(fixes=fixes)


def _only_replaces(fix: Fix, unit: Unit) -> bool:
    return all(
        edit.op == "replace"
        or (edit.op == "set" and (setting := unit.settings.get(edit.name)) is not None and setting.path[-1] == "value")
        for edit in fix.edits
    )


def _with_summary(
    worst: UnitResult, corners: Sequence[Corner], checked: int, total: int, files: "FileChecker"
) -> UnitResult:
    failing = sum(any(finding.severity == "error" for finding in corner.result.counted()) for corner in corners)
    # of errors the one that fewest other combinations share: that makes it the worst
    spread = [rule for corner in corners for rule in {finding.rule for finding in corner.result.counted()}]
    gravest = min(
        worst.counted(),
        key=lambda finding: (SEVERITIES.index(finding.severity), spread.count(finding.rule)),
        default=None,
    )
    event = Event(
        kind="sweep-corners",
        span=worst.unit.span._replace(end_line=worst.unit.span.line, end_column=worst.unit.span.column + 1),
        values={
            "corners": total,
            "checked": checked,
            "failing": failing,
            "runs": len(corners),
            "worst": worst.unit.section or "-",
            "rule": gravest.rule if gravest else "-",
        },
    )
    return worst._replace(findings=(*files.hear([event]), *worst.findings))
