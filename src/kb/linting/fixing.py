"""Fixes over whole files: choose, apply, check again, until nothing more can be done; then write or show."""

import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from kb.config.fixing.fixes import Fixer, FixResult, Refused, Request, unified_diff
from kb.config.fixing.saving import save
from kb.config.text.encoding import encode
from kb.config.text.places import Places
from kb.core.document import Unit
from kb.core.errors import UserError
from kb.core.finding import Finding, Fix, Span
from kb.core.result import CheckResult, Unusable
from kb.linting.choosing import Candidate, Choice, request_of
from kb.linting.file import FileChecker, FileResult, Kind, kind_of
from kb.linting.run import STDIN, Run

# A fix may make room for another (a renamed key, then its value); more passes than this are a circle.
MAX_PASSES = 12
COMMAND = "--command"
Notice = Callable[..., None]


class FixedRun(NamedTuple):
    """A run as it stands after its fixes. ``changed``: the files that differ; ``output``: what goes to standard
    output, the diffs or the fixed text of what is no file.
    """

    run: Run
    changed: tuple[str, ...]
    output: bytes


class _FixedFile(NamedTuple):
    before: FileResult
    after: FileResult
    applied: int
    to_utf8: bool

    @property
    def changed(self) -> bool:
        return self.to_utf8 or self.after.text != self.before.text


def fix_once(
    checker: FileChecker, file: FileResult, kind: Kind, *, rules: Collection[str] | None = None, unsafe: bool
) -> FixResult:
    """One pass over one file: the chosen fixes of the findings that count, of ``rules`` or of all."""
    candidates = Choice(checker.catalog.facts, unsafe=unsafe, rules=rules).candidates(file)
    return _apply(checker, file, kind, candidates)


def _apply(checker: FileChecker, file: FileResult, kind: Kind, candidates: Sequence[Candidate]) -> FixResult:
    fixer = Fixer(checker.catalog.dialects, checker.catalog.facts)
    requests = [request_of(candidate, file) for candidate in candidates]
    return fixer.apply(file.text, file.path, requests, shell=kind in ("shell", "command", "text"))


def fix_files(run: Run, checker: FileChecker, *, unsafe: bool, write: bool, notice: Notice) -> FixedRun:
    """Fix every file of a run. A file that cannot be written stays as it was and is among the unusable.

    Args:
        write: write the files; otherwise make a unified diff. Of standard input and a command line the text goes to
            ``output``, whether it changed or not.
        notice: says something to the user: an i18n key, then its values.
    """
    files: list[FileResult] = []
    changed: list[str] = []
    unusable = list(run.unusable)
    output = b""
    for file in run.files:
        fixed = _fix_file(file, checker, unsafe, notice)
        try:
            output += _written(fixed) if write else _diff(fixed)
        except UserError as error:
            unusable.append(Unusable(path=file.path, key=error.key, values=error.values))
            files.append(file)
            continue
        files.append(fixed.after)
        if fixed.changed:
            changed.append(file.path)
            if write:
                notice("fix.applied", path=file.path, n=fixed.applied)
        _say_waiting(fixed.after, notice)
    return FixedRun(run._replace(files=tuple(files), unusable=tuple(unusable)), tuple(changed), output)


def _fix_file(file: FileResult, checker: FileChecker, unsafe: bool, notice: Notice) -> _FixedFile:
    kind = "command" if file.path == COMMAND else kind_of(file.path)
    before, applied, to_utf8 = file, 0, False
    choice = Choice(checker.catalog.facts, unsafe=unsafe)
    refused: list[tuple[Candidate, Refused]] = []
    for _ in range(MAX_PASSES):
        candidates = choice.candidates(file)
        outcome = _apply(checker, file, kind, candidates)
        reasons = {id(each.request.fix): each for each in outcome.refused}
        refusals = [(each, reasons[id(each.fix)]) for each in candidates if id(each.fix) in reasons]
        for candidate in candidates:
            if id(candidate.fix) not in reasons:
                choice.made(candidate)
        applied += len(outcome.applied)
        unchanged = outcome.text == file.text and outcome.to_utf8 <= to_utf8
        to_utf8 = to_utf8 or outcome.to_utf8
        if unchanged:
            if not refusals:
                break
            refused += refusals
            for candidate, _ in refusals:
                choice.give_up(candidate)
            continue
        encoding = "utf-8" if to_utf8 else before.encoding
        file = checker.again(file, encode(outcome.text, encoding), kind)
    _say_refused(file, refused, notice)
    return _FixedFile(before, file, applied, to_utf8)


def _say_refused(file: FileResult, refused: Sequence[tuple[Candidate, Refused]], notice: Notice) -> None:
    """What could not be made, of the findings that are still there."""
    for candidate, reason in refused:
        number, rule = candidate.number, candidate.finding.rule
        if number < len(file.results) and any(one.rule == rule for one in file.results[number].counted()):
            place = {"path": file.path, "line": reason.request.at.line, "rule": rule}
            notice("fix.refused", **{**reason.values, **place, "reason": reason.key})


def _say_waiting(file: FileResult, notice: Notice) -> None:
    """The safe fixes that were left alone because a fact they depend on is not known."""
    findings = [finding for result in file.results for finding in result.counted()]
    waiting = {finding.rule: fix for finding in findings if (fix := finding.depending()) is not None}
    if waiting:
        needs = sorted({name for fix in waiting.values() for name in fix.needs})
        notice("fix.waiting", path=file.path, n=len(waiting), rules=sorted(waiting), needs=needs)


def _diff(fixed: _FixedFile) -> bytes:
    """The change as ``patch -p1`` takes it, in the file's own bytes."""
    if not fixed.changed:
        return b""
    path = {STDIN: "stdin", COMMAND: "command"}.get(fixed.before.path) or _relative(fixed.before.path)
    marked = fixed.before.encoding == "utf-8-sig"
    before = "\ufeff" + fixed.before.text if marked else fixed.before.text
    after = "\ufeff" + fixed.after.text if marked and not fixed.to_utf8 else fixed.after.text
    return unified_diff(path, before, after).encode("utf-8")


def _relative(path: str) -> str:
    """From the working folder; of a file outside it, from the root."""
    relative = os.path.relpath(path) if os.path.isabs(path) else os.path.normpath(path)
    if relative.startswith(os.pardir):
        relative = os.path.splitdrive(os.path.abspath(path))[1].lstrip(os.sep)
    return relative.replace(os.sep, "/")


def _written(fixed: _FixedFile) -> bytes:
    """Write the file; of what is no file, its text.

    Raises:
        UserError: it cannot be written.
    """
    after = fixed.after
    if after.raw is not None:
        content = after.raw
    else:
        content = encode(after.text, "utf-8" if fixed.to_utf8 else fixed.before.encoding)
    if after.path == COMMAND:
        return content if content.endswith(b"\n") else content + b"\n"
    if after.path == STDIN:
        return content
    if fixed.changed:
        write_file(after.path, content)
    return b""


def write_file(path: str, raw: bytes) -> None:
    """Write a file whole, whether it exists yet or not.

    Raises:
        UserError: it cannot be written.
    """
    try:
        if os.path.exists(path):
            save(path, raw)
        else:
            with open(path, "xb") as stream:
                stream.write(raw)
    except OSError as error:
        raise UserError("fix.unwritable", path=path, reason=error.strerror or str(error)) from None


def replacements_of(
    result: CheckResult, checker: FileChecker
) -> Callable[[Unit, Finding, Fix], Sequence[tuple[Span, str]] | None]:
    """What each fix would do to the text, for reports that carry fixes: spans, and what goes in the place of each."""
    fixer = Fixer(checker.catalog.dialects, checker.catalog.facts)

    def replacements(unit: Unit, finding: Finding, fix: Fix) -> Sequence[tuple[Span, str]] | None:
        text = result.sources_text.get(unit.path)
        if text is None:
            return None
        request = Request(fix=fix, unit=unit, at=finding.span, rule=finding.rule)
        shell = unit.path == COMMAND or kind_of(unit.path) == "shell"
        outcome = fixer.apply(text, unit.path, [request], shell=shell)
        if not outcome.applied or outcome.text == text:
            return None
        places = Places(text)
        return [
            (places.span(one.start, one.end), one.text)
            for one in sorted(outcome.splices, key=lambda one: (one.start, one.end))
        ]

    return replacements
