"""Fixes put into a text: every change is checked by reading the result, and refused unless it changed just what it said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kb.config.command_edits import CommandEdits
from kb.config.dialects import CompiledDialect
from kb.config.encoding import TO_UTF8
from kb.config.entries import CannotEditError
from kb.config.faults import ConfigError
from kb.config.parsing import Parsed, parse
from kb.config.splices import Splice, overlaps, splice
from kb.config.tree_edits import GONE, Change, Path, TreeEdits, data_of, flatten_into
from kb.core.catalog import Dialect
from kb.core.document import Unit
from kb.core.facts import FactType
from kb.core.finding import Edit, Fix, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A fix to make: of which unit, for a finding of which rule at which place."""

    fix: Fix
    unit: Unit
    at: Span
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A fix that was not made; ``key`` says why (i18n), filled with ``values``."""

    request: Request
    key: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixResult:
    """``text`` with the applied fixes. ``to_utf8``: the file is to be written as UTF-8 without a byte order mark."""

    text: str
    applied: tuple[Request, ...]
    refused: tuple[Refused, ...]
    to_utf8: bool = False


class Fixer:
    """Applies fixes to the texts of configs. Make one for many files."""

    def __init__(self, dialects: Mapping[str, Dialect], facts: Mapping[str, FactType]) -> None:
        self._dialects = dialects
        self._facts = facts
        self._compiled: dict[str, CompiledDialect] = {}

    def apply(self, text: str, path: str, requests: Sequence[Request], *, shell: bool = False) -> FixResult:
        """Make the fixes, in their order; of two that touch the same text the first is made.

        Args:
            text: what the units' spans count in.
            path: the file's name, to tell JSON from YAML.
            shell: the text is a script or a command line.

        A fix is made as a whole or not at all. One that is refused for overlapping may be made in a next pass.
        """
        session = _Session(text, path, shell)
        for request in requests:
            dialect = self._dialect(request.unit.dialect)
            session.take(request, dialect)
        return session.result()

    def _dialect(self, name: str | None) -> CompiledDialect | None:
        if name is None or name not in self._dialects:
            return None
        if name not in self._compiled:
            self._compiled[name] = CompiledDialect(self._dialects[name], self._facts)
        return self._compiled[name]


class _Session:
    """One text on its way: what has been accepted so far, and what that leads to."""

    def __init__(self, text: str, path: str, shell: bool) -> None:
        self._text, self._path, self._shell = text, path, shell
        self._parsed: Parsed | None = None
        self._splices: list[Splice] = []
        self._after: dict[Path, Any] = {}
        self._touched: list[Span] = []
        self._applied: list[Request] = []
        self._refused: list[Refused] = []
        self._to_utf8 = False

    def take(self, request: Request, dialect: CompiledDialect | None) -> None:
        try:
            self._take(request, dialect)
        except CannotEditError as error:
            self._refused.append(Refused(request=request, key=error.key, values=error.values))
        else:
            self._applied.append(request)

    def result(self) -> FixResult:
        return FixResult(
            text=splice(self._text, self._splices)[0],
            applied=tuple(self._applied),
            refused=tuple(self._refused),
            to_utf8=self._to_utf8,
        )

    def _take(self, request: Request, dialect: CompiledDialect | None) -> None:
        edits = tuple(edit for edit in request.fix.edits if edit.name != TO_UTF8)
        if len(edits) < len(request.fix.edits):
            self._to_utf8 = True
        if not edits:
            return
        change = self._plan(request, edits, dialect)
        new = [one for one in change.splices if one not in self._splices or one.start == one.end]
        same = {path for path, value in change.after.items() if path in self._after}
        if any(self._after[path] is not change.after[path] and self._after[path] != change.after[path] for path in same):
            raise CannotEditError("config.fix.overlap")
        if same and same == set(change.after):
            return  # an earlier fix has done the same
        if same or overlaps(new, self._splices):
            raise CannotEditError("config.fix.overlap")
        splices, after = [*self._splices, *new], {**self._after, **change.after}
        touched = [*self._touched, *change.touched]
        if not self._shell:
            self._check(splices, after, touched)
        self._splices, self._after, self._touched = splices, after, touched

    def _plan(self, request: Request, edits: tuple[Edit, ...], dialect: CompiledDialect | None) -> Change:
        if self._shell:
            return CommandEdits(self._text, request.unit, dialect).plan(edits, request.at)
        if all(edit.op == "replace" for edit in edits):
            change = Change()
            for edit in edits:
                assert edit.span is not None
                change.splices.append(Splice(edit.span.start, edit.span.end, str(edit.value)))
                change.touched.append(edit.span)
            return change
        return TreeEdits(self._before(), request.unit, dialect).plan(edits, request.at)

    def _before(self) -> Parsed:
        if self._parsed is None:
            try:
                self._parsed = parse(self._text, self._path)
            except ConfigError as error:
                raise CannotEditError("config.fix.unreadable") from error
        return self._parsed

    def _check(self, splices: list[Splice], after: Mapping[Path, Any], touched: list[Span]) -> None:
        """Refuse unless the new text says what the old one said, but for what was to change."""
        text, regions = splice(self._text, splices)
        try:
            parsed = parse(text, self._path)
            found = data_of(parsed)
        except (ConfigError, RecursionError) as error:
            raise CannotEditError("config.fix.broken") from error
        try:
            before = data_of(self._before())
        except CannotEditError:
            return  # it could not be read before, and now it can
        expected = _expected(before, after)
        if found == expected:
            return
        differing = {path for path in found.keys() | expected.keys() if found.get(path) != expected.get(path)}
        places = [(span.start, span.end) for span in touched]
        allowed = _paths_at(self._before(), places) | _paths_at(parsed, regions if touched else [])
        if any(path not in allowed and not any(path[:n] in allowed for n in range(1, len(path))) for path in differing):
            raise CannotEditError("config.fix.side-effect")


def _expected(before: Mapping[Path, str], after: Mapping[Path, Any]) -> dict[Path, str]:
    flat = dict(before)
    for path, value in after.items():
        for known in [known for known in flat if known[: len(path)] == path]:
            del flat[known]
        if value is not GONE:
            flatten_into(flat, path, value)
    return flat


def _paths_at(parsed: Parsed, regions: list[tuple[int, int]]) -> set[Path]:
    """The paths of entries whose key or scalar value lies in one of the regions."""
    found: set[Path] = set()
    if not regions:
        return found
    for number, root in enumerate(parsed.documents):
        stack: list[tuple[Path, Any]] = [((number,), root)] if root is not None else []
        while stack:
            path, node = stack.pop()
            for key, value in node.pairs() if isinstance(node.value, list) and node.kind == 2 else ():
                inner = (*path, key.scalar())
                for part in (key, value) if value.kind != 2 else (key,):
                    span = parsed.source.span(part)
                    if any(start <= span.end and span.start <= end for start, end in regions):
                        found.add(inner)
                stack.append((inner, value))
    return found


def unified_diff(path: str, before: str, after: str) -> str:
    """The change as a unified diff, with a note where a text has no line end at its end; empty where nothing changed."""
    import difflib

    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
