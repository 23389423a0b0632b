"""Fixes over whole files: choose, apply, check again, until nothing more can be done; then write or show."""

import os
import sys
from collections.abc import Callable, Collection, Sequence

from kb.config.encoding import encode
from kb.config.fixes import Fixer, FixResult, Request, unified_diff
from kb.config.places import Places
from kb.config.saving import save
from kb.core.document import Unit
from kb.core.errors import UserError
from kb.core.finding import Finding, Fix, Span
from kb.core.result import CheckResult
from kb.linting.file import FileChecker, FileResult, Kind, kind_of
from kb.linting.run import STDIN, Run

# A fix may make room for another (a renamed key, then its value); more passes than this are a circle.
MAX_PASSES = 8
COMMAND = "--command"


def chosen_fix(finding: Finding, unsafe: bool) -> Fix | None:
    """The fix to apply: the first safe one whose condition is known to hold, else, where allowed, the first unsafe."""
    for safety in ("safe", "unsafe") if unsafe else ("safe",):
        for fix in finding.fixes:
            if fix.certain and fix.safety == safety:
                return fix
    return None


def fix_once(
    checker: FileChecker, file: FileResult, kind: Kind, *, rules: Collection[str] | None = None, unsafe: bool
) -> FixResult:
    """One pass over one file: the chosen fix of every finding that counts, of ``rules`` or of all."""
    requests = [
        Request(fix=fix, unit=result.unit, at=finding.span, rule=finding.rule)
        for result in file.results
        for finding in result.counted()
        if (rules is None or finding.rule in rules) and (fix := chosen_fix(finding, unsafe)) is not None
    ]
    fixer = Fixer(checker.catalog.dialects, checker.catalog.facts)
    return fixer.apply(file.text, file.path, requests, shell=kind != "config")


def fix_files(run: Run, checker: FileChecker, *, unsafe: bool, write: bool, notice: Callable[..., None]) -> Run:
    """Fix every file of a run and return the run as it then stands.

    Args:
        write: write the files; otherwise print a unified diff. Standard input's and a command line's fixed text goes
            to standard output either way.
        notice: says something to the user: an i18n key, then its values.
    """
    return run._replace(files=tuple(_fix_file(file, checker, unsafe, write, notice) for file in run.files))


def _fix_file(
    file: FileResult, checker: FileChecker, unsafe: bool, write: bool, notice: Callable[..., None]
) -> FileResult:
    kind = "command" if file.path == COMMAND else kind_of(file.path)
    before, applied, to_utf8 = file, 0, False
    for _ in range(MAX_PASSES):
        outcome = fix_once(checker, file, kind, unsafe=unsafe)
        applied += len(outcome.applied)
        to_utf8 = to_utf8 or outcome.to_utf8
        if outcome.text == file.text:
            break
        file = checker.check(outcome.text.encode(), file.path, kind)
    for refused in outcome.refused:
        span = refused.request.at
        place = {"path": file.path, "line": span.line, "rule": refused.request.rule}
        notice("fix.refused", **{**refused.values, **place, "reason": refused.key})
    encoding = "utf-8" if to_utf8 else before.encoding
    if file.text != before.text or to_utf8:
        _deliver(before, file._replace(encoding=encoding), write)
        if write:
            notice("fix.applied", path=file.path, count=applied)
    return file._replace(encoding=encoding)


def _deliver(before: FileResult, after: FileResult, write: bool) -> None:
    if not write:
        sys.stdout.write(unified_diff(after.path, before.text, after.text))
    elif after.path in (STDIN, COMMAND):
        sys.stdout.write(after.text if after.text.endswith("\n") else after.text + "\n")
    else:
        write_file(after.path, encode(after.text, after.encoding))


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
