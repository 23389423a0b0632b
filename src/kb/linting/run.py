"""A whole run: paths in, one :class:`CheckResult` out, with what could not be read said apart."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kb import __version__
from kb.config.faults import ConfigError
from kb.config.text.guard import MAX_BYTES, most_bytes, too_large
from kb.core.finding import Finding
from kb.core.result import CheckResult, UnitResult, Unusable
from kb.linting.file import FileChecker, FileResult, Kind

STDIN = "-"


class Input(NamedTuple):
    """Something to check. ``named``: the user named this very file, so that a fault in it is theirs to hear."""

    path: str
    kind: Kind | None = None
    raw: bytes | None = None
    named: bool = True


class Run(NamedTuple):
    """Every file's result, in order, and the inputs that could not be checked."""

    files: tuple[FileResult, ...]
    unusable: tuple[Unusable, ...]

    def result(self, checker: FileChecker) -> CheckResult:
        return CheckResult(
            machine=checker.checker.machine,
            units=tuple(unit for file in self.files for unit in file.results),
            sources_text={file.path: file.text for file in self.files},
            version=__version__,
            rules_version=checker.catalog.version,
            unusable=self.unusable,
        )


def run(inputs: Iterable[Input], checker: FileChecker, faults: Sequence[Unusable] = ()) -> Run:
    """Check each input in turn. A file found in a folder that turns out to be no config is passed over in silence,
    unless every one is.

    Args:
        faults: what is already known to be unusable: paths that lead to nothing.
    """
    files: list[FileResult] = []
    unusable = list(faults)
    groups = None
    for given in inputs:
        if not given.named:
            if groups is None:
                from kb.linting.composed import GroupFolders

                groups = GroupFolders()
            if groups.owner(given.path) is not None:
                continue
        outcome = check_input(given, checker)
        if isinstance(outcome, Unusable):
            if given.named or outcome.path != given.path:
                unusable.append(outcome)
        else:
            files += shown_files(given, outcome)
    if not files and not unusable:
        unusable.append(Unusable(path="", key="config.none-recognised", values={}))
    return Run(files=tuple(files), unusable=tuple(unusable))


def shown_files(given: Input, outcome: FileResult) -> list[FileResult]:
    """The result with those of the files that it brings in; nothing where it is not worth showing."""
    if given.named or any(_worth_showing(unit) for unit in outcome.results):
        return [outcome, *outcome.others]
    return []


def check_input(given: Input, checker: FileChecker) -> FileResult | Unusable:
    """One input's result, or why there is none."""
    try:
        raw = given.raw if given.raw is not None else read_bytes(given.path)
        return checker.check(raw, given.path, given.kind)
    except ConfigError as error:
        return Unusable(
            path=getattr(error, "path", None) or given.path,
            key=error.key,
            values=error.values,
            line=error.line,
            column=error.column,
        )


def _worth_showing(unit: UnitResult) -> bool:
    """In a folder, a file of another kind is not ours to speak of, unless its text itself is at fault."""
    if unit.unit.dialect is None:
        return any(finding.rule in ("mojibake", "not-utf8") for finding in unit.findings) and bool(unit.unit.known_keys)
    return True


def read_bytes(path: str) -> bytes:
    """The file's bytes, or standard input's for ``-``; one byte past the limit is enough to refuse it.

    Raises:
        ConfigError: it is missing, cannot be read, is a folder, or is larger than any config.
    """
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as stream:
                raw = stream.read(most_bytes(path) + 1)
    except OSError as error:
        raise ConfigError(f"config.{_reason(error)}", path=path, reason=error.strerror or str(error)) from None
    if len(raw) > most_bytes(path):
        raise too_large(os.path.getsize(path) if path != STDIN else len(raw), most_bytes(path))
    return raw


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "missing"
    return "unreadable"


def findings_of(result: CheckResult) -> Iterator[tuple[UnitResult, Finding]]:
    """Every finding with its unit, suppressed ones too."""
    for unit in result.units:
        for finding in unit.findings:
            yield unit, finding


def with_findings(result: CheckResult, findings: Sequence[Finding]) -> CheckResult:
    """The result with its findings replaced, one for one, in the order of :func:`findings_of`."""
    shares = iter(findings)
    units = tuple(unit._replace(findings=tuple(next(shares) for _ in unit.findings)) for unit in result.units)
    return result._replace(units=units)
