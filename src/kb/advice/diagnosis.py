"""From a log to its cause: the numbers that it tells, the remedies that follow with their steps in a config's values;
and why a watched command ended. Pure.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Literal

from kb.advice.exported import NameRelease, releases_of
from kb.advice.log_errors import ErrorLine, telling_errors
from kb.advice.log_scan import Evidence, LogLine, LogScanner, Scan
from kb.core.expression import Tree, Unknown, compile_tree, is_unknown
from kb.core.finding import Confidence
from kb.core.record import NamedTuple
from kb.core.text import Text, text_of
from kb.core.units import parse_bytes

Lookup = Callable[[str], Any]

# What only a prediction gives. A step that needs one is no use to a reader without it; other unknowns they can see.
_PREDICTED = ("fit.", "memory.", "saving.")


class Change(NamedTuple):
    """One setting to change; None where a value is not known."""

    name: str
    old: Any
    new: Any


class Step(NamedTuple):
    """One thing to do: a sentence, settings to change, a command to paste.

    ``when``: the condition that it is for, where it is not known to hold; ``needs``: the facts that would decide.
    """

    text: Text
    changes: tuple[Change, ...] = ()
    run: str | None = None
    when: Tree | None = None
    needs: frozenset[str] = frozenset()


def steps_of(rows: Sequence[Mapping[str, Any]], lookup: Lookup, variables: Container[str] = ()) -> tuple[Step, ...]:
    """The steps that are not ruled out, in the order of the file; none that changes what an earlier one does.

    Args:
        rows: ``steps`` of a remedy, with checked trees.
        lookup: facts and the log's numbers by name.
        variables: names of the log's numbers. A step that needs one which the log does not tell says nothing.
    """
    steps: list[Step] = []
    for row in rows:
        applies: Any = compile_tree(row["when_tree"])(lookup) if "when" in row else True
        if not _applies(applies, variables):
            continue
        changes = _changes(row.get("set", {}), lookup)
        known = changes and all(change.new is not None for change in changes)
        if not known or all(changes != step.changes for step in steps):
            open_when = (row["when_tree"], applies.needs) if is_unknown(applies) else (None, frozenset())
            steps.append(Step(text_of(row["text"]), changes, row.get("run"), *open_when))
    return tuple(steps)


def _applies(value: Any, variables: Container[str]) -> bool:
    if is_unknown(value):
        return not any(name.startswith(_PREDICTED) or name in variables for name in value.needs)
    return bool(value)


def _changes(settings: Mapping[str, Any], lookup: Lookup) -> tuple[Change, ...]:
    changes = []
    for name, given in settings.items():
        new = compile_tree(given["compute_tree"])(lookup) if isinstance(given, Mapping) else given
        old = lookup(name)
        if isinstance(new, float) and new.is_integer():
            new = int(new)
        # a change to what it is already tells nothing
        unknown = is_unknown(new) or (not is_unknown(old) and new == old)
        changes.append(Change(name, None if is_unknown(old) else old, None if unknown else new))
    return tuple(changes)


LARGEST_SIZE = 2**50  # of a machine's memory; a counter that went below zero is written as more


class Numbers:
    """The variables of a remedy for one piece of evidence, by name; found in the text, else computed from others.

    Args:
        variables: the remedy's ``variables``: ``find`` reads a value from the text, ``compute`` gives one without.
        text: the evidence, with the lines that go on with it.
        given: values known otherwise (the phase, the confidence, the package that raised it).
        facts: looks up every other name.
    """

    def __init__(
        self, variables: Mapping[str, Mapping[str, Any]], text: str, given: Mapping[str, Any], facts: Lookup
    ) -> None:
        self._variables = variables
        self._text = text
        self._known: dict[str, Any] = dict(given)
        self._facts = facts

    def get(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        if name not in self._variables:
            return self._facts(name)
        self._known[name] = Unknown(frozenset((name,)))  # while its own expression is evaluated
        value = self._found(self._variables[name])
        if value is None and self._variables[name]["type"] == "text":
            value = ""  # the log does not say it
        tree = self._variables[name].get("compute_tree")
        if value is None and tree is not None:
            value = compile_tree(tree)(self.get)
        if value is not None and not is_unknown(value):
            self._known[name] = value
        return self._known.pop(name) if is_unknown(self._known[name]) else self._known[name]

    def known(self) -> dict[str, int]:
        """Every size that is known and not negative, in the order of the file."""
        values = {name: self.get(name) for name, row in self._variables.items() if row["type"] == "bytes"}
        return {name: round(value) for name, value in values.items() if not is_unknown(value) and value >= 0}

    def _found(self, row: Mapping[str, Any]) -> float | str | None:
        match = re.search(row["find"], self._text) if "find" in row else None
        written = next((group for group in match.groups() if group), None) if match else None
        if written is None or row["type"] == "text":
            return written
        try:
            if row["type"] == "number":
                return float(written.replace(",", "")) if "." in written else int(written.replace(",", ""))
            written = re.sub(r"\bbytes?\b", "B", written)
            size = parse_bytes(re.sub(r"(?<=[KMGT])B", "iB", written) if row.get("binary") else written)
            return size if size < LARGEST_SIZE else None
        except ValueError:
            return None


Remedies = Mapping[str, Mapping[str, Any]]
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")
MOST_SHOWN = 3


class Cause(NamedTuple):
    """One cause: what says so (line, text), the sizes in bytes that it names, and what to do about it, best first.

    ``release``: of a name that is not there, in which releases it is.
    """

    id: str
    resource: str
    confidence: Confidence
    title: Text
    means: Text
    evidence: tuple[tuple[int, str], ...]
    numbers: Mapping[str, int]
    names: Mapping[str, Text]  # what the numbers are called
    phase: str
    steps: tuple[Step, ...]
    release: NameRelease | None = None


class Diagnosis(NamedTuple):
    """The causes, best first; none where the log shows no known trouble. ``lines``: how many were read.

    ``unexplained``: the lines of the error that ended the run, where none of the causes is its cause.
    """

    lines: int
    causes: tuple[Cause, ...]
    unexplained: tuple[ErrorLine, ...] = ()


class _Found(NamedTuple):
    id: str
    data: Mapping[str, Any]
    confidence: Confidence
    evidence: tuple[Evidence, ...]


def nothing_known(name: str) -> Unknown:
    """Facts where no config is given."""
    return Unknown(frozenset((name,)))


def diagnose(
    lines: Iterable[LogLine], remedies: Remedies, facts: Lookup = nothing_known, guide: Mapping[str, Any] = {}
) -> Diagnosis:
    """What a log says went wrong.

    Args:
        lines: the log, in order; consumed once, a few hundred lines held at a time.
        remedies: ``rules/remedies`` as ``load_guide()`` gives them.
        facts: the config's facts, for concrete values in the steps.
        guide: what ``load_guide()`` gives, for names by release.
    """
    scan = LogScanner(remedies).read(lines)
    found = [row for name, data in remedies.items() if (row := _found(name, data, scan)) is not None]
    found = _without_echoes(found)
    found.sort(key=lambda row: (CONFIDENCES.index(row.confidence), row.evidence[0].line, row.id))
    raised_in = {each.line: each.library for each in scan.errors}
    causes = tuple(_cause(row, remedies, facts, guide, raised_in) for row in found)
    return Diagnosis(scan.lines, causes, _unexplained(found, scan))


def _found(name: str, data: Mapping[str, Any], scan: Scan) -> _Found | None:
    """The remedy's evidence that still counts, if there is any."""
    graded: list[tuple[Confidence, Evidence]] = []
    for match in scan.matches:
        row = match.wording.row
        if match.wording.name != name or match.count_of_lines < row.get("times", 1):
            continue
        settled = max((scan.contexts.get(context, 0) for context in row.get("unless_later", ())), default=0)
        ends_run = data.get("ends_run", True) and match.wording.at != "anywhere"
        for evidence in match.evidence:
            confidence = _after_recovery(evidence, row["confidence"], scan) if ends_run else row["confidence"]
            if confidence is not None and evidence.line >= settled:
                graded.append((confidence, evidence))
    if not graded:
        return None
    best = min((confidence for confidence, _ in graded), key=CONFIDENCES.index)
    return _Found(name, data, best, tuple(sorted((evidence for _, evidence in graded), key=lambda row: row.line)))


def _unexplained(found: Sequence[_Found], scan: Scan) -> tuple[ErrorLine, ...]:
    """The errors that nothing was seen to go on after, unless a cause that was found ends a run or was raised."""
    for row in found:
        ends = row.data.get("ends_run", True) or any(evidence.raised for evidence in row.evidence)
        if ends and row.confidence != "low":
            return ()
    if scan.errors and scan.errors[0].spoken and any(row.confidence != "low" for row in found):
        return ()  # nothing was raised: the cause that was found is what these lines speak of
    over = max(scan.moved_on, scan.ended_well)
    told = {evidence.line for row in found for evidence in row.evidence}
    left = [each for each in scan.errors if (each.died or each.line > over) and each.line not in told]
    return telling_errors(left, MOST_SHOWN)


def _after_recovery(evidence: Evidence, confidence: Confidence, scan: Scan) -> Confidence | None:
    """A fault that ends a run cannot have ended one that went on: it was caught, or is another text's.

    What nothing caught has ended its process all the same; another run wrote the rest of the log.
    """
    if evidence.died:
        return confidence
    if scan.ended_well > evidence.line:
        return None
    if scan.moved_on > evidence.line:
        return "low" if evidence.raised else None
    return confidence


def _without_echoes(found: Sequence[_Found]) -> list[_Found]:
    causing = {row.id for row in found if row.confidence != "low"}
    return [row for row in found if causing.isdisjoint(row.data.get("echo_of", ()))]


def _cause(
    found: _Found, remedies: Remedies, facts: Lookup, guide: Mapping[str, Any], raised_in: Mapping[int, str]
) -> Cause:
    base = found.data
    variables = base.get("variables", {})
    telling, numbers = _telling(found, variables, facts, raised_in)
    data, name = base, found.id
    for other, row in sorted(remedies.items()):
        if row.get("variant_of") == found.id and compile_tree(row["when_tree"])(numbers.get) is True:
            data, name = row, other
            break
    return Cause(
        id=name,
        resource=data["resource"],
        confidence=found.confidence,
        title=text_of(data["title"]),
        means=text_of(data["means"]),
        evidence=_shown(found.evidence, telling),
        numbers=numbers.known(),
        names={each: text_of(row) for each, row in variables.items()},
        phase=numbers.get("phase"),
        steps=steps_of(data["steps"], numbers.get, variables),
        release=releases_of(telling.text, guide) if guide else None,
    )


def _telling(
    found: _Found, variables: Mapping[str, Any], facts: Lookup, raised_in: Mapping[int, str]
) -> tuple[Evidence, Numbers]:
    """The evidence with the most numbers, the first of equals, and its numbers.

    ``raised_in``: of lines that raise an error, the installed package whose code did.
    """
    told = []
    for evidence in found.evidence:
        text = " ".join([evidence.text, *evidence.after]) if variables else ""
        phase = next((name for name in found.data.get("phase", ()) if name in evidence.near), "unknown")
        given = {"phase": phase, "confidence": found.confidence, "raised_in": raised_in.get(evidence.line, "")}
        told.append((evidence, Numbers(variables, text, given, facts)))
    return max(told, key=lambda row: len(row[1].known()))


def _shown(evidence: Sequence[Evidence], telling: Evidence) -> tuple[tuple[int, str], ...]:
    """Up to three lines, the most telling among them, in the log's order; no text twice."""
    texts: dict[str, int] = {telling.text: telling.line}
    for each in evidence:
        if len(texts) < MOST_SHOWN:
            texts.setdefault(each.text, each.line)
    return tuple(sorted((line, text) for text, line in texts.items()))


Kind = Literal["normal", "code", "signal", "oom_kill", "asked"]
KILLED = 9
SIGNAL_BASE = 128  # what a shell adds to the number of a signal


class ExitCause(NamedTuple):
    """``code`` is what a shell would give; ``signal`` its number, if one ended the command or a program that it ran."""

    kind: Kind
    code: int
    signal: int | None = None
    oom_kills: int = 0
    cause: Cause | None = None


def exit_cause(code: int, oom_kills: int, diagnosis: Diagnosis | None, asked: bool = False) -> ExitCause:
    """What ended the command.

    Args:
        code: as Python gives it: the exit code, or less than 0 for a signal.
        oom_kills: processes that the kernel killed in the run's control group while it ran.
        diagnosis: of the output; a cause counts only where the run did not end well.
        asked: the user sent the signal.
    """
    number = -code if code < 0 else code - SIGNAL_BASE if SIGNAL_BASE < code <= SIGNAL_BASE + 64 else None
    shown = SIGNAL_BASE + number if number is not None else code
    if code == 0:
        return ExitCause("normal", 0, oom_kills=oom_kills)
    cause = next((each for each in (diagnosis.causes if diagnosis else ()) if each.confidence != "low"), None)
    if asked:
        return ExitCause("asked", shown, number, oom_kills, cause)
    if number == KILLED and oom_kills:
        return ExitCause("oom_kill", shown, number, oom_kills, cause)
    return ExitCause("signal" if number is not None else "code", shown, number, oom_kills, cause)
