"""Fixes put into a text. The result is read again: a fix is refused unless it changed just what it said it would."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from kb.config.dialect.dialects import CompiledDialect
from kb.config.files import ConfigError, is_dockerfile
from kb.config.fixing.changes import (
    CannotEditError,
    Change,
    CommandData,
    Outcome,
    Path,
    Splice,
    TreeData,
    overlaps,
    same_but_for,
    splice,
)
from kb.config.fixing.command_edits import CommandEdits
from kb.config.fixing.tree_edits import TreeEdits
from kb.config.fixing.written import as_words
from kb.config.notebook.edits import CodeText
from kb.config.python.reader import DIALECT, PythonReader
from kb.config.shell.command import CommandReader
from kb.config.text.encoding import TO_UTF8
from kb.config.text.source import Places
from kb.core.catalog import Dialect
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.facts import FactType
from kb.core.finding import Edit, Fix, Span
from kb.core.record import NamedTuple

CODE = (".py", ".ipynb")
CONTAINED = "serving.contained"  # a setting of what a container's command says
ReadCode = Callable[[str, str], CodeText]


class Request(NamedTuple):
    """A fix to make: of which unit, for a finding of which rule at which place."""

    fix: Fix
    unit: Unit
    at: Span
    rule: str


class Refused(NamedTuple):
    """A fix that was not made; ``key`` says why (i18n), filled with ``values``."""

    request: Request
    key: str
    values: Mapping[str, object]


class FixResult(NamedTuple):
    """``text`` with the applied fixes, which ``splices`` made of the text before.

    ``to_utf8``: the file is to be written as UTF-8 without a byte order mark.
    """

    text: str
    applied: tuple[Request, ...]
    refused: tuple[Refused, ...]
    to_utf8: bool = False
    splices: tuple[Splice, ...] = ()


def _in_container(edits: Sequence[Edit], unit: Unit, text: str) -> list[Edit]:
    """The edits of a command that a manifest holds: each a value at its place, within its quotes.

    Raises:
        CannotEditError: one is no such value. A new flag has no place that is known among a manifest's keys.
    """
    made = []
    for edit in edits:
        setting = unit.setting(edit.name)
        own = setting is not None and not (setting.bare or setting.joined or setting.inherited or setting.alias)
        if setting is None or not own or edit.op != "set" or is_unknown(setting.value):
            raise CannotEditError("config.fix.no-place")
        old = text[setting.span.start : setting.span.end]
        if isinstance(setting.value, int) and old.strip("'\"") != str(setting.value):  # a macro says it elsewhere
            raise CannotEditError("config.fix.no-place")
        begin = old[: len(old) - len(old.lstrip("'\""))]
        end = old[len(old.rstrip("'\"")) :]
        made.append(Edit("replace", edit.name, begin + as_words(edit.value) + end, setting.span))
    return made


class Fixer:
    """Applies fixes to the texts of configs. Make one for many files."""

    def __init__(self, dialects: Mapping[str, Dialect], facts: Mapping[str, FactType]) -> None:
        self._dialects = dialects
        self._facts = facts
        self._compiled: dict[str, CompiledDialect] = {}
        self._commands: CommandReader | None = None

    def apply(self, text: str, path: str, requests: Sequence[Request], *, shell: bool = False) -> FixResult:
        """Make the fixes, in their order; of two that touch the same text the first is made.

        Args:
            text: what the units' spans count in.
            path: the file's name, to tell JSON from YAML, Python and notebooks.
            shell: the text is a script or a command line.

        A fix is made as a whole or not at all. One that is refused for overlapping may be made in a next pass.
        """
        if shell and self._commands is None:
            self._commands = CommandReader(self._dialects, self._facts)
        code = self._code if path.endswith(CODE) and not shell else None
        session = _Session(text, path, self._commands if shell else None, code)
        for request in requests:
            session.take(request, self._dialect(request.unit.dialect))
        return session.result()

    @cached_property
    def _code(self) -> ReadCode:
        """Reads Python files and notebooks; most runs meet none."""
        reader, constants = PythonReader(self._dialects, self._facts), self._dialects[DIALECT].constants
        return lambda text, path: CodeText(text, path, reader, constants)

    def _dialect(self, name: str | None) -> CompiledDialect | None:
        if name is None or name not in self._dialects:
            return None
        if name not in self._compiled:
            self._compiled[name] = CompiledDialect(self._dialects[name], self._facts)
        return self._compiled[name]


class _Session:
    """One text on its way: what has been accepted so far, and what that leads to."""

    def __init__(self, text: str, path: str, commands: CommandReader | None, code: ReadCode | None) -> None:
        self._text, self._path, self._commands, self._code = text, path, commands, code
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
            splices=tuple(self._splices),
        )

    def _take(self, request: Request, dialect: CompiledDialect | None) -> None:
        edits = tuple(edit for edit in request.fix.edits if edit.name != TO_UTF8)
        if edits:
            self._accept(self._plan(request, edits, dialect))
        self._to_utf8 = self._to_utf8 or len(edits) < len(request.fix.edits)

    def _accept(self, change: Change) -> None:
        new = [one for one in change.splices if one not in self._splices or one.start == one.end]
        same = change.after.keys() & self._after.keys()
        if any(self._after[path] != change.after[path] for path in same):
            raise CannotEditError("config.fix.overlap")
        added = all(one in self._splices or one.start == one.end for one in change.splices)
        if same and len(same) == len(change.after) and added:
            return  # an earlier fix has done the same
        if same or overlaps(new, self._splices):
            raise CannotEditError("config.fix.overlap")
        splices, after = [*self._splices, *new], {**self._after, **change.after}
        touched = [*self._touched, *change.touched]
        self._check(splices, after, touched)
        self._splices, self._after, self._touched = splices, after, touched

    def _plan(self, request: Request, edits: tuple[Edit, ...], dialect: CompiledDialect | None) -> Change:
        if is_dockerfile(self._path) or (self._path.endswith(".py") and request.unit.script is not None):
            raise CannotEditError("config.fix.no-place")
        if self._code is not None and any(edit.op != "replace" or edit.span != self._whole() for edit in edits):
            assert isinstance(self._before, CodeText)
            return self._before.plan(edits, request.unit, request.at)
        if all(edit.op == "replace" for edit in edits):
            return Change.of_text(edits)
        before = self._before
        if isinstance(before, CommandData):
            number = before.number_of(request.unit)
            return CommandEdits(self._text, request.unit, number, dialect).plan(edits, request.at)
        assert isinstance(before, TreeData)
        if CONTAINED in request.unit.settings:
            return Change.of_text(_in_container(edits, request.unit, self._text))
        return TreeEdits(before.parsed, request.unit, dialect).plan(edits, request.at)

    def _whole(self) -> Span:
        return Places(self._text).span(0, len(self._text))

    def _read(self, text: str) -> Outcome:
        if self._code is not None:
            return self._code(text, self._path)
        if self._commands is not None:
            return CommandData(text, self._path, self._commands)
        return TreeData(text, self._path)

    @cached_property
    def _before(self) -> Outcome:
        """What the text said before any fix."""
        try:
            return self._read(self._text)
        except ConfigError as error:
            raise CannotEditError("config.fix.unreadable") from error

    def _check(self, splices: list[Splice], after: Mapping[Path, Any], touched: list[Span]) -> None:
        """Refuse unless the new text says what the old one said, but for what was to change."""
        text, regions = splice(self._text, splices)
        try:
            found = self._read(text)
        except (ConfigError, RecursionError) as error:
            raise CannotEditError("config.fix.broken") from error
        try:
            before = self._before
        except CannotEditError:
            return  # it could not be read before, and now it can
        if not same_but_for(before, found, after, touched, regions):
            raise CannotEditError("config.fix.side-effect")


def unified_diff(path: str, before: str, after: str) -> str:
    """The change as a unified diff; empty where nothing changed."""
    import difflib

    old, new = (text.splitlines(keepends=True) for text in (before, after))
    named = path.lstrip("/")  # as git names what stands at the root
    lines = difflib.unified_diff(old, new, f"a/{named}", f"b/{named}")
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
