"""Fixes over whole files: each carried to where it rests; then written or shown.

A plan for a file's memory begins with the file without the faults that have nothing to do with memory, and reads it
again with the plan's keys in it.
"""

import os
from collections.abc import Callable, Collection, Iterable, Sequence

from kb.config.dialect.spelling import Written
from kb.config.files import ConfigError
from kb.config.fixing.fixes import Fixer, FixResult, Request, unified_diff
from kb.config.fixing.saving import ChangedMeanwhileError, save
from kb.config.text.encoding import encode
from kb.config.text.source import Places
from kb.core.document import Unit
from kb.core.finding import Finding, Fix, Span
from kb.core.record import NamedTuple
from kb.core.result import CheckResult, Unusable
from kb.core.setup import TrainingSetup
from kb.core.text import UserError
from kb.session.file import FileChecker
from kb.session.run import STDIN, FileResult, Kind, Run, decode_file, internal_fault, kind_of, read_bytes
from kb.session.settling import Choice, Settled, Settling, apply

# A file that was fixed may be one that another names; more rounds over all of them than this are a circle.
MAX_ROUNDS = 6
OF_MEMORY = ("fit",)  # the area of rules that a plan answers with its steps
MOST_PASSES = 6  # a fix may make room for another
COMMAND = "--command"
Notice = Callable[..., None]


class FixedRun(NamedTuple):
    """A run as it stands after its fixes. ``changed``: the files that differ; ``output``: what goes to standard
    output, the diffs or the fixed text of what is no file.
    """

    run: Run
    changed: tuple[str, ...]
    output: bytes


def fix_once(
    checker: FileChecker, file: FileResult, kind: Kind, *, rules: Collection[str] | None = None, unsafe: bool
) -> FixResult:
    """One pass over one file: the chosen fixes of the findings that count, of ``rules`` or of all."""
    candidates = Choice(checker.catalog.facts, unsafe=unsafe, rules=rules).candidates(file)
    return apply(checker, file, kind, candidates)


def fix_files(run: Run, checker: FileChecker, *, unsafe: bool, write: bool, notice: Notice) -> FixedRun:
    """Fix every file of a run. A file that cannot be written, or that was saved by someone since it was read, stays
    as it is and is among the unusable.

    Args:
        write: write the files; otherwise make a unified diff. Of standard input and a command line the text goes to
            ``output``, whether it changed or not.
        notice: says something to the user: an i18n key, then its values.
    """
    fixing = _Fixing(checker, unsafe=unsafe, write=write)
    files = fixing.round(run.files)
    for _ in range(MAX_ROUNDS if write else 0):
        if not fixing.touched_others:
            break
        files = fixing.round(fixing.read_again(files))
    fixing.tell(files, notice)
    changed = tuple(file.path for file in run.files if file.path in fixing.applied)
    return FixedRun(
        run._replace(files=tuple(files), unusable=(*run.unusable, *fixing.unusable)), changed, fixing.output
    )


class _Fixing:
    """The files of one run on their way: what was made of each, and what could not be."""

    def __init__(self, checker: FileChecker, *, unsafe: bool, write: bool) -> None:
        self._checker, self._write = checker, write
        self._settling = Settling(checker, unsafe=unsafe)
        self.applied: dict[str, int] = {}
        self.unusable: list[Unusable] = []
        self.output = b""
        self.touched_others = False
        self._said: dict[str, list[Settled]] = {}

    def round(self, files: Sequence[FileResult]) -> list[FileResult]:
        """Every file fixed once; one that cannot be written as it was."""
        self.touched_others = False
        self.output = b""
        return [self._fix(file) for file in files]

    def _fix(self, file: FileResult) -> FileResult:
        if any(fault.path == file.path for fault in self.unusable):
            return file
        kind = _kind(file)
        if self._write and file.part_of and self.touched_others:  # its primary config may have been written just now
            file = self._checker.again(file, encode(file.text, file.encoding), kind)
        try:
            settled = self._settling.settle(file, kind)
            self.output += _written(file, settled) if self._write else _diff(file, settled)
        except UserError as error:
            self.unusable.append(Unusable(path=file.path, key=error.key, values=error.values))
            return file
        except Exception as error:
            self.unusable.append(internal_fault(file.path, error))
            return file
        self._said.setdefault(file.path, []).append(settled)
        if settled.changes(file):
            self.applied[file.path] = self.applied.get(file.path, 0) + settled.applied
            self.touched_others |= bool(file.part_of or file.others) or self._is_named(file.path)
        return settled.after

    def _is_named(self, path: str) -> bool:
        """Whether a check has looked at a file of this name beside its own."""
        name = os.path.basename(path)
        return any(name == os.path.basename(other) for _, _, other, _ in self._checker.seen.rows)

    def read_again(self, files: Sequence[FileResult]) -> list[FileResult]:
        """The files as they are on disk now, each with those that it brings in and as its program, which may have been
        fixed too, now reads it."""
        self._checker.forget()
        found: list[FileResult] = []
        for file in files:
            if file.path in (STDIN, COMMAND) or any(fault.path == file.path for fault in self.unusable):
                found.append(file)
            elif not file.part_of:
                try:
                    anew = self._checker.check(read_bytes(file.path), file.path)
                except ConfigError:
                    found.append(file)
                else:
                    found += (anew, *anew.others)
        return found

    def tell(self, files: Sequence[FileResult], notice: Notice) -> None:
        """What was made, and what was not."""
        for path, every in self._said.items():
            after = next((file for file in files if file.path == path), every[-1].after)
            _say_refused(after, every[-1], notice)  # what is still there was refused in each round
            if self._write and path in self.applied:
                notice("fix.applied", path=path, n=self.applied[path])
            for circle in dict.fromkeys(settled.circle for settled in every if settled.circle):
                notice("fix.circle", path=path, rules=circle)
            _say_waiting(after, notice)


def _kind(file: FileResult) -> Kind:
    return "command" if file.path == COMMAND else kind_of(file.path)


def _say_refused(file: FileResult, settled: Settled, notice: Notice) -> None:
    """What could not be made, of the findings that are still there."""
    for candidate, reason in settled.refused:
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


def _diff(before: FileResult, settled: Settled) -> bytes:
    """The change as ``patch -p1`` takes it, in the file's own bytes."""
    if not settled.changes(before):
        return b""
    path = {STDIN: "stdin", COMMAND: "command"}.get(before.path) or _relative(before.path)
    mark = "\ufeff" if before.encoding == "utf-8-sig" else ""
    after = ("" if settled.to_utf8 else mark) + settled.after.text
    return unified_diff(path, mark + before.text, after).encode("utf-8")


def _relative(path: str) -> str:
    """From the working folder; of a file outside it, from the root."""
    relative = os.path.relpath(path) if os.path.isabs(path) else os.path.normpath(path)
    if relative.startswith(os.pardir):
        relative = os.path.splitdrive(os.path.abspath(path))[1].lstrip(os.sep)
    return relative.replace(os.sep, "/")


def _written(before: FileResult, settled: Settled) -> bytes:
    """Write the file; of what is no file, its text.

    Raises:
        UserError: it cannot be written, or was saved since it was read.
    """
    after, content = settled.after, settled.after.raw
    if content is None:
        content = encode(after.text, "utf-8" if settled.to_utf8 else before.encoding)
    if after.path == COMMAND:
        return content if content.endswith(b"\n") else content + b"\n"
    if after.path == STDIN:
        return content
    if settled.changes(before):
        as_read = (before.text, before.encoding) if before.raw is None else before.raw
        write_file(after.path, content, lambda raw: decode_file(raw, _kind(after)) == as_read)
    return b""


def write_file(path: str, raw: bytes, unchanged: Callable[[bytes], bool] | None = None) -> None:
    """Write a file whole, whether it exists yet or not.

    Args:
        unchanged: says of the bytes that are there whether they are those that ``raw`` was made of.

    Raises:
        UserError: it cannot be written, or was saved since.
    """
    try:
        if unchanged is not None or os.path.exists(path):
            save(path, raw, unchanged)
        else:
            with open(path, "xb") as stream:
                stream.write(raw)
    except ChangedMeanwhileError:
        raise UserError("fix.changed-meanwhile", path=path) from None
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
        shell = unit.path == COMMAND or kind_of(unit.path) in ("shell", "text")
        outcome = fixer.apply(text, unit.path, [request], shell=shell)
        if not outcome.applied or outcome.text == text:
            return None
        places = Places(text)
        return [
            (places.span(one.start, one.end), one.text)
            for one in sorted(outcome.splices, key=lambda one: (one.start, one.end))
        ]

    return replacements


class Mended(NamedTuple):
    """``file`` is the file after the fixes, ``diff`` what they change, ``rules`` those whose errors they mend, ``left``
    those whose errors no fix mends."""

    file: FileResult
    diff: str
    rules: tuple[str, ...]
    left: tuple[str, ...]


def mend(checker: FileChecker, file: FileResult, kind: Kind) -> Mended:
    """The file with every error's fix made, those of memory apart."""
    before = _errors(checker, file)
    after = file
    for _ in range(MOST_PASSES):
        wanted = _errors(checker, after)
        if not wanted:
            break
        text = fix_once(checker, after, kind, rules=wanted, unsafe=True).text
        if text == after.text:
            break
        after = checker.again(after, encode(text, after.encoding), kind)
    left = _errors(checker, after)
    rules = tuple(rule for rule in before if rule not in left)
    return Mended(after, unified_diff(file.path, file.text, after.text), rules, left)


def _errors(checker: FileChecker, file: FileResult) -> tuple[str, ...]:
    """Rules that call an error in the file, in the order of their places."""
    rules = checker.catalog.rules
    found = [each.rule for result in file.results for each in result.counted() if each.severity == "error"]
    return tuple(rule for rule in dict.fromkeys(found) if rule in rules and rules[rule].area not in OF_MEMORY)


def pasted(text: str, written: Iterable[Written]) -> str | None:
    """The text of one YAML or JSON document with the keys in it, as YAML; None where it is no such document."""
    import yaml  # a start that most runs do not need

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    for each in written:
        inside = data
        for step in each.path[:-1]:
            below = inside.get(step)
            if not isinstance(below, dict):
                below = inside[step] = {}
            inside = below
        inside[each.path[-1]] = each.value
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


class Pasting:
    """What one unit of a file says with keys pasted into it.

    Args:
        text: of the whole file.
        section: the unit's; None of the whole file.
    """

    def __init__(self, checker: FileChecker, path: str, text: str, section: str | None) -> None:
        self._checker, self._path, self._text, self._section = checker, path, text, section

    def __call__(self, written: Sequence[Written]) -> TrainingSetup | None:
        """The run that the file then describes; None where it can no longer be read."""
        text = pasted(self._text, written)
        if text is None:
            return None
        try:
            results = self._checker.check(text.encode(), self._path).results
        except ConfigError:
            return None
        return next((one.setup for one in results if one.unit.section == self._section), None)
