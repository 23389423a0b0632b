"""Comments that set a finding aside: ``# kb: ignore[rule-a, rule-b] reason; until 2027-01-31``.

At the end of a line it counts for that line. Alone on a line it counts for the next one, with everything nested under
that: a section, or a command with its continuation lines. ``# kb: ignore-file[rule] reason`` counts for the file.
"""

import datetime
import re
from collections.abc import Collection, Iterable, Sequence

from kb.config.text.source import Places
from kb.core.document import Event
from kb.core.finding import Edit, Finding, Span, Suppression
from kb.core.record import NamedTuple
from kb.core.text import nearest

_DIRECTIVE = re.compile(r"(?:^|(?<=[ \t]))#[ \t]*kb:[ \t]*(ignore(?:-file)?)\b[ \t]*(\[[^\]\n]*\])?([^\r\n]*)", re.M)
_UNTIL = re.compile(r"(?:;[ \t]*until\b[ \t]*([^;]*?)|\buntil[ \t]+([0-9]{4}-[0-9-]*))[ \t]*$")
_MARKER = "kb:"


class Directive(NamedTuple):
    """One suppression comment. It counts for findings that begin on ``lines``; ``fault`` is why it counts for none."""

    rules: tuple[str, ...]
    reason: str
    until: datetime.date | None
    span: Span
    lines: range
    removal: Span  # what to delete to be rid of it
    fault: str | None = None  # "unreadable" or "without-reason"


class Suppressed(NamedTuple):
    """The findings in their order, some now carrying a suppression, and what is wrong with the comments."""

    findings: tuple[Finding, ...]
    events: tuple[Event, ...]


def read_suppressions(text: str, quoted: Sequence[tuple[int, int]] | None = None) -> tuple[Directive, ...]:
    """Every suppression comment of a YAML, shell or Python text, in order. A JSON text has none.

    Args:
        quoted: where texts in quotes stand, in which a comment mark is none; None to find those of YAML.
    """
    if _MARKER not in text:
        return ()
    matches = list(_DIRECTIVE.finditer(text))
    if not matches:
        return ()
    quoted = _scalars(text) if quoted is None else quoted
    lines, places = text.split("\n"), Places(text)
    return tuple(
        _directive(match, lines, places)
        for match in matches
        if not any(start < match.start() < end for start, end in quoted)
    )


def suppress(
    findings: Sequence[Finding],
    directives: Iterable[Directive],
    *,
    today: datetime.date,
    known: Collection[str],
    decided: Collection[str],
) -> Suppressed:
    """Set aside the findings of one file that a comment covers.

    Args:
        findings: of all the file's units.
        today: an expiry date that lies before it has passed.
        known: every rule id there is; an id that is not among them is an event.
        decided: the rules that were evaluated here. A comment for a rule that could not be decided, or that was not
            selected, is not called unused.
    """
    result = list(findings)
    events: list[Event] = []
    for directive in directives:
        if directive.fault is not None:
            events.append(_event(f"suppression-{directive.fault}", directive, rules=directive.rules))
            continue
        for rule in (rule for rule in directive.rules if rule not in known):
            meant = nearest(rule, known)
            events.append(_event("suppression-unknown-rule", directive, rules=rule, meant=meant[0] if meant else ()))
        if directive.until is not None and directive.until < today:
            until = directive.until.isoformat()
            events.append(_event("suppression-expired", directive, rules=", ".join(directive.rules), until=until))
            continue
        used = _cover(result, directive)
        unused = [rule for rule in directive.rules if rule in known and rule in decided and rule not in used]
        if unused:
            edits = (Edit("replace", "", "", directive.removal),) if len(unused) == len(directive.rules) else ()
            events.append(_event("suppression-unused", directive, edits, rules=", ".join(unused)))
    return Suppressed(tuple(result), tuple(events))


def _cover(findings: list[Finding], directive: Directive) -> set[str]:
    """Suppress what the comment covers, in place; the rules that it was of use for."""
    until = directive.until.isoformat() if directive.until else None
    suppression = Suppression(kind="comment", reason=directive.reason, until=until, line=directive.span.line)
    used = set()
    for index, finding in enumerate(findings):
        if finding.rule in directive.rules and finding.span.line in directive.lines:
            used.add(finding.rule)
            if finding.suppressed is None:
                findings[index] = finding._replace(suppressed=suppression)
    return used


def _event(kind: str, directive: Directive, edits: tuple[Edit, ...] = (), **values: str | tuple[str, ...]) -> Event:
    return Event(kind=kind, span=directive.span, values=values, edits=edits)


def _directive(match: re.Match[str], lines: list[str], places: Places) -> Directive:
    span = places.span(match.start(), match.start() + len(match[0].rstrip()))
    rules = tuple(rule.strip() for rule in (match[2] or "")[1:-1].split(",") if rule.strip())
    reason, until, readable = _reason_and_date(match[3])
    alone = not lines[span.line - 1][: span.column - 1].strip()
    if match[1] == "ignore-file":
        covered = range(1, len(lines) + 1)
    else:
        covered = _block_below(lines, span.line) if alone else range(span.line, span.line + 1)
    fault = "unreadable" if not rules or not readable else "without-reason" if not reason else None
    return Directive(
        rules=rules,
        reason=reason,
        until=until,
        span=span,
        lines=covered,
        fault=fault,
        removal=_removal(match.string, span, alone),
    )


def _reason_and_date(rest: str) -> tuple[str, datetime.date | None, bool]:
    """The reason, the expiry date, and whether a date that is given is one."""
    dated = _UNTIL.search(rest)
    if dated is None:
        return rest.strip(" \t;"), None, True
    reason = rest[: dated.start()].strip(" \t;")
    try:
        return reason, datetime.date.fromisoformat(dated[1] or dated[2] or ""), True
    except ValueError:
        return reason, None, False


def _removal(text: str, span: Span, alone: bool) -> Span:
    """The comment with the blanks before it; with its whole line where nothing else is on it."""
    start = span.start
    while start and text[start - 1] in " \t":
        start -= 1
    end = text.find("\n", span.end) + 1 if alone else span.end
    return Places(text).span(start, end or len(text))


def _block_below(lines: list[str], above: int) -> range:
    """Line numbers of the first line below line ``above`` that says something, and of what belongs to it."""
    first = above
    while first < len(lines) and _says_nothing(lines[first]):
        first += 1
    if first == len(lines):
        return range(above, above)
    last = first
    while last + 1 < len(lines) and lines[last].rstrip().endswith("\\"):
        last += 1
    indent = _indent(lines[first])
    listed = lines[first].lstrip().startswith("- ")
    for index in range(last + 1, len(lines)):
        if _says_nothing(lines[index]):
            continue
        item = lines[index].lstrip().startswith("- ") and not listed
        if _indent(lines[index]) <= indent and not (item and _indent(lines[index]) == indent):
            break
        last = index
    return range(first + 1, last + 2)


def _says_nothing(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _scalars(text: str) -> list[tuple[int, int]]:
    """Where the scalars of a YAML text stand: a comment mark inside one is no comment. None where it is not YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return [
            (token.start_mark.index, token.end_mark.index)
            for token in yaml.scan(text, Loader=loader)
            if isinstance(token, yaml.ScalarToken)
        ]
    except yaml.YAMLError:
        return []
