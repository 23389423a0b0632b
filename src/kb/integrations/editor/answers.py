"""What the editor shows: diagnostics, explanations, fixes, what may stand at the cursor. From one checked text, in one
language; and the editor's places (from 0, in units of its encoding) for kb's (lines and columns from 1, in characters).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lsprotocol import types
from pygls.uris import from_fs_path

from kb.config.dialect.dialects import CompiledDialect
from kb.config.files import ConfigError
from kb.core.catalog import Catalog, Rule
from kb.core.document import Setting, Unit
from kb.core.facts import FactType
from kb.core.finding import Finding, Fix, Span
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.integrations.editor.session import Checked, Session
from kb.knowledge.locations import site_address
from kb.report.check.changes import place_name
from kb.report.check.panel import fit_panel
from kb.report.condition import condition_text
from kb.report.markdown import code, escaped, fenced
from kb.report.rules.explain import explain
from kb.report.terminal import Style
from kb.report.words import RulePages, Words
from kb.session.file import FileChecker
from kb.session.fixing import fix_once, replacements_of
from kb.session.run import Run

SOURCE = "kb"
FIX_ALL = "source.fixAll.kb"
SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Hint,
}
PANEL = Style(width=84)
_LINE_BREAK = re.compile("\n")  # a \r before it belongs to the line, as in kb's own places
_LINE = re.compile(r"(?P<indent> *)(?:- )?(?:(?P<key>[\w.-]+): +)?(?P<begun>[^\s:#]*)\Z")
_KEY = re.compile(r"( *)([\w.-]+):\s*(?:#.*)?\Z")
_GPU = re.compile(r"gpu\s*=\s*\"?[\w-]*\Z")  # of kb.toml
SETTINGS = ("kb.toml", "pyproject.toml")
MODEL = "model.name"


class Positions:
    """The places of one text. ``encoding`` is the one that the client agreed to; UTF-16 where it said nothing."""

    def __init__(self, text: str, encoding: types.PositionEncodingKind | str) -> None:
        self._lines = _LINE_BREAK.split(text)
        self._encoding = types.PositionEncodingKind(encoding)

    def range(self, span: Span) -> types.Range:
        """The editor's range of a span; one that reaches over the text's end stops there."""
        return types.Range(
            start=self._position(span.line, span.column),
            end=self._position(span.end_line, span.end_column),
        )

    def at(self, line: int | None, column: int | None) -> types.Range:
        """The range of the one character at a place; without a place, the text's beginning."""
        line, column = line or 1, column or 1
        return self.range(Span(line, column, line, column + 1))

    def place(self, position: types.Position) -> tuple[int, int]:
        """kb's line and column of an editor's position."""
        text = self._lines[position.line] if position.line < len(self._lines) else ""
        units = 0
        for index, character in enumerate(text):
            if units >= position.character:
                return position.line + 1, index + 1
            units += self._width(character)
        return position.line + 1, len(text) + 1

    def _position(self, line: int, column: int) -> types.Position:
        line = min(max(line, 1), len(self._lines))
        before = self._lines[line - 1][: max(column - 1, 0)]
        return types.Position(line=line - 1, character=sum(map(self._width, before)))

    def _width(self, character: str) -> int:
        if self._encoding == types.PositionEncodingKind.Utf32:
            return 1
        if self._encoding == types.PositionEncodingKind.Utf8:
            return len(character.encode("utf-8", "surrogatepass"))
        return 2 if ord(character) > 0xFFFF else 1


class Answers:
    """The answers about one text."""

    def __init__(self, session: Session, checked: Checked, uri: str, positions: Positions) -> None:
        self._session = session
        units = checked.units()
        self._words: Words = session.words_of(units[0].unit.path) if units else session.words
        self._checked = checked
        self._uri = uri
        self._positions = positions

    def diagnostics(self) -> list[types.Diagnostic]:
        """One for each finding that counts, and one for a text that cannot be read."""
        found = [self._diagnostic(unit, finding) for unit, finding in self._checked.findings()]
        fault = self._checked.fault
        if fault is not None:
            line, column = (fault.line, fault.column) if isinstance(fault, ConfigError) else (None, None)
            found.append(
                types.Diagnostic(
                    range=self._positions.at(line, column),
                    message=self._words(fault.key, **fault.values),
                    severity=types.DiagnosticSeverity.Error,
                    source=SOURCE,
                )
            )
        return found

    def _diagnostic(self, unit: UnitResult, finding: Finding) -> types.Diagnostic:
        related = [
            types.DiagnosticRelatedInformation(
                location=types.Location(uri=self._uri, range=self._positions.range(span)),
                message=place_name(name, unit.unit, self._words) or name,
            )
            for name, span in finding.related
            if span != finding.span
        ]
        return types.Diagnostic(
            range=self._positions.range(finding.span),
            message=self._words.message(finding),
            severity=SEVERITIES[finding.severity],
            source=SOURCE,
            code=finding.rule,
            code_description=self._described(finding.rule, unit.unit.path),
            related_information=related or None,
        )

    def _described(self, rule: str, path: str) -> types.CodeDescription | None:
        """The link under a finding's id: the rule's page, where a known site has it; else the rule's own file."""
        pages = RulePages(site_address(), self._session.checker(path).catalog.laid)
        if page := pages.address(rule, self._words.language):
            return types.CodeDescription(href=page)
        file = self._session.rule_file(rule, path)
        return types.CodeDescription(href=from_fs_path(file) or "") if file else None

    def hover(self, position: types.Position) -> types.Hover | None:
        """The rules that fired there, or the setting's meaning; then the ledger of the run it belongs to."""
        line, column = self._positions.place(position)
        here = [pair for pair in self._checked.findings() if covers(pair[1].span, line, column)]
        if here:
            unit, first = here[0]
            parts = [self._explained(unit, finding) for _, finding in here]
            return self._hover([*parts, self._ledger(unit)], first.span)
        for unit in self._checked.units():
            for name, setting in unit.unit.settings.items():
                places = (place for place in (setting.key_span, setting.span) if place is not None)
                span = next((place for place in places if covers(place, line, column)), None)
                if span is not None and not setting.inherited and not setting.joined:
                    return self._hover([self._meaning(name, setting), self._ledger(unit)], span)
        return None

    def _hover(self, parts: Sequence[str], span: Span) -> types.Hover:
        text = "\n\n---\n\n".join(part for part in parts if part)
        content = types.MarkupContent(kind=types.MarkupKind.Markdown, value=text)
        return types.Hover(contents=content, range=self._positions.range(span))

    def _explained(self, unit: UnitResult, finding: Finding) -> str:
        catalog = self._session.checker(unit.unit.path).catalog
        rule: Rule = catalog.rules[finding.rule]
        facts: Mapping[str, Any] = finding.facts
        lines = [f"**{code(finding.rule)}** {escaped(self._words.message(finding))}", ""]
        whole = explain(rule, self._words, PANEL, sources=catalog.sources, lookup=facts.get)
        return "\n".join([*lines, *fenced(whole.rstrip().splitlines()[1:])])

    def _meaning(self, name: str, setting: Setting) -> str:
        fact = self._session.catalog.facts.get(name)
        said = f"{code(name)} = {code(self._words.value(setting.value))}"
        return f"{said}\n\n{escaped(self._words.meaning(name))}" if fact else said

    def _ledger(self, unit: UnitResult) -> str:
        machine = self._session.checker(unit.unit.path).machine
        lines = fit_panel(unit, machine, self._words, PANEL)
        return "\n".join(fenced(lines)) if lines else ""

    def actions(self, wanted: types.Range, only: Sequence[str] | None) -> list[types.CodeAction]:
        """The fixes of the findings that touch a range: safe ones first; those that wait for something say for what."""
        if self._checked.file is None:
            return []
        checker = self._session.checker(self._checked.file.path)
        actions: list[types.CodeAction] = []
        if _asked(only, types.CodeActionKind.QuickFix):
            actions += self._quick_fixes(wanted, checker)
        if _asked(only, FIX_ALL):
            actions += self._fix_all(checker)
        return actions

    def _quick_fixes(self, wanted: types.Range, checker: FileChecker) -> Iterator[types.CodeAction]:
        assert self._checked.file is not None
        replacements = replacements_of(Run((self._checked.file,), ()).result(checker), checker)
        for unit, finding in self._checked.findings():
            if not _touch(self._positions.range(finding.span), wanted):
                continue
            diagnostic = self._diagnostic(unit, finding)
            for fix in sorted(finding.fixes, key=lambda fix: (not fix.certain, fix.safety != "safe")):
                spans = replacements(unit.unit, finding, fix)
                if spans:
                    yield types.CodeAction(
                        title=self._title(fix, finding, unit.unit),
                        kind=types.CodeActionKind.QuickFix,
                        diagnostics=[diagnostic],
                        is_preferred=fix is finding.ready("safe"),
                        edit=self._edit([self._text_edit(span, text) for span, text in spans]),
                    )

    def _title(self, fix: Fix, finding: Finding, unit: Unit) -> str:
        title = self._words.fix_title(fix, finding)
        safety = self._words.named("safety", fix.safety)
        if fix.certain:
            return f"{self._words('report.fix', safety=safety)} {title}"
        return f"{self._words('report.offered', condition=condition_text(fix, self._words))} {title}"

    def _fix_all(self, checker: FileChecker) -> list[types.CodeAction]:
        assert self._checked.file is not None
        outcome = fix_once(checker, self._checked.file, self._checked.kind, unsafe=False)
        if not outcome.applied:
            return []
        last = len(self._checked.text.split("\n"))
        whole = self._positions.range(Span(1, 1, last, len(self._checked.text) + 1))
        edit = self._edit([types.TextEdit(range=whole, new_text=outcome.text)])
        return [types.CodeAction(title=self._words("editor.fix_all"), kind=FIX_ALL, edit=edit)]

    def _text_edit(self, span: Span, text: str) -> types.TextEdit:
        return types.TextEdit(range=self._positions.range(span), new_text=text)

    def _edit(self, edits: Sequence[types.TextEdit]) -> types.WorkspaceEdit:
        return types.WorkspaceEdit(changes={self._uri: list(edits)})


def _asked(only: Sequence[str] | None, kind: str) -> bool:
    """Whether a client that asks for these kinds, or for all, wants this one."""
    return only is None or any(kind == each or kind.startswith(f"{each}.") for each in only)


def _touch(one: types.Range, other: types.Range) -> bool:
    def at(position: types.Position) -> tuple[int, int]:
        return position.line, position.character

    return at(one.start) <= at(other.end) and at(other.start) <= at(one.end)


def covers(span: Span, line: int, column: int) -> bool:
    """Whether a place lies in a span, or at its end, where a cursor rests after a word."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


class Completer:
    """Completions of one client's texts; each format's keys are spelt out once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._formats: dict[str, CompiledDialect] = {}

    def items(self, text: str, path: str, language: str, line: int, column: int) -> list[types.CompletionItem]:
        """What may stand at a place (kb's own: from 1, in characters); nothing in a text of no known format.

        Raises:
            UserError: the project's or the client's settings cannot be used.
        """
        lines = text.split("\n")
        before = lines[line - 1][: column - 1]
        catalog = self._session.checker(path).catalog
        if path.endswith(SETTINGS):
            return [_item(gpu.id, gpu.name) for gpu in catalog.gpus.values()] if _GPU.match(before) else []
        found = _LINE.match(before)
        others = "\n".join([*lines[: line - 1], "", *lines[line:]])  # half a line is often what cannot be read
        units = self._session.check(others, path, language).units()
        if found is None or not units:
            return []
        dialect = units[0].unit.dialect or ""
        parents = _parents(lines[: line - 1], len(found["indent"]))
        if found["key"]:
            return list(self._values(dialect, [*parents, found["key"]], catalog))
        return list(self._keys(dialect, parents, catalog))

    def _keys(self, dialect: str, parents: list[str], catalog: Catalog) -> Iterator[types.CompletionItem]:
        targets = self._format(dialect, catalog).targets
        for start in _prefixes(parents):
            names = {path[len(start) :].partition(".")[0]: path for path in sorted(targets) if path.startswith(start)}
            for name, path in names.items():
                yield _item(name, self._about(targets[path][0].fact), types.CompletionItemKind.Property, ": ")
            if names:
                return

    def _values(self, dialect: str, path: list[str], catalog: Catalog) -> Iterator[types.CompletionItem]:
        targets = self._format(dialect, catalog).targets
        fact = next((targets[each[:-1]][0].fact for each in _prefixes(path) if each[:-1] in targets), None)
        if fact is None:
            return
        if fact.name == MODEL:
            yield from (_item(model.name, model.id) for model in catalog.models.values())
        elif fact.type == "bool":
            yield from (_item(value, self._about(fact)) for value in ("true", "false"))
        else:
            for value in _listed(fact.name, dialect, catalog):
                yield _item(value, self._about(fact))

    def _format(self, dialect: str, catalog: Catalog) -> CompiledDialect:
        if dialect not in self._formats:
            self._formats[dialect] = CompiledDialect(catalog.dialects[dialect], catalog.facts)
        return self._formats[dialect]

    def _about(self, fact: FactType) -> str:
        return self._session.words.meaning(fact.name)


def complete(
    completer: Completer, text: str, path: str, language: str, place: tuple[int, int]
) -> types.CompletionList | None:
    """The answer to a client; None where the project's settings cannot be used, which its diagnostics say."""
    try:
        return types.CompletionList(is_incomplete=False, items=completer.items(text, path, language, *place))
    except UserError:
        return None


def _listed(name: str, dialect: str, catalog: Catalog) -> list[str]:
    """The values that libraries take for a setting in this format, of those that every table of it knows."""
    if dialect not in catalog.triggers:
        return []
    group = catalog.table(dialect)["values"].get(name)
    return sorted(group["takes"]) if group else []


def _parents(above: list[str], indent: int) -> list[str]:
    """The keys that a line of that indent stands under, the outermost first."""
    found: list[str] = []
    for line in reversed(above):
        match = _KEY.match(line)
        if match is not None and len(match[1]) < indent:
            found.append(match[2])
            indent = len(match[1])
    return found[::-1]


def _prefixes(path: list[str]) -> Iterator[str]:
    """The path as a format has it; below a section of any name, without that name."""
    for start in range(min(2, len(path) + 1)):
        yield "".join(f"{step}." for step in path[start:])


def _item(
    label: str, detail: str, kind: types.CompletionItemKind = types.CompletionItemKind.Value, after: str = ""
) -> types.CompletionItem:
    return types.CompletionItem(label=label, detail=detail, kind=kind, insert_text=f"{label}{after}")
