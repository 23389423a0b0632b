"""One file from its bytes to its results: decoded, read, checked, suppressions applied."""

import datetime
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from types import ModuleType

from kb.advice.check import Checker
from kb.advice.facts.unit_facts import UnitFacts
from kb.config.files import ConfigError
from kb.config.programs import DOCUMENTS
from kb.config.reader import ConfigReader, Joiner, ReadNamed
from kb.config.text.parsing import parse
from kb.core.catalog import Catalog
from kb.core.document import Event, Unit
from kb.core.facts import Facts
from kb.core.finding import Finding, Span
from kb.core.hardware import Machine
from kb.core.lint import place_of
from kb.core.result import UnitResult
from kb.core.typed import TYPE_CHECKING
from kb.session.around import Around
from kb.session.command_units import Commands, as_launched, as_started, starts_no_run
from kb.session.lookups import Seen, read_below, read_named
from kb.session.run import CHARTS, CODE, SERVERS, FileResult, Kind, Overrides, decode_kind, each_once, kind_of

if TYPE_CHECKING:
    from kb.config.suppressions import Suppressed
    from kb.session.config_names import ConfigNames  # few texts ask for it

_CONTROLS = "[\x80-\x9f]"
_DAMAGE = ("mojibake", "not-utf8")  # what is wrong with a text that may be why no parser takes it
_CONFLICT = r"(?ms)^<{7} .*?^={7}\r?\n.*?^>{7} "
_WRITES = r"(?<!<)<<-?[ \t]*['\"]?[A-Za-z_]"  # a here-document may hold anything
_NOTHING = {"config": "config.empty", "python": "config.no-python-call", "notebook": "config.no-cell-call"}


def _raise_at_conflict(text: str) -> None:
    """Refuse a text in which git left the marks of a merge, at the first of them."""
    found = re.search(_CONFLICT, text) if "<<<<<<< " in text and not re.search(_WRITES, text) else None
    if found is not None:
        raise ConfigError("config.merge-conflict", text.count("\n", 0, found.start()) + 1, 1)


class FileChecker:
    """Reader and rules, made ready once, for many files.

    Args:
        today: suppressions that end before it have expired.
        dialect: the dialect of every config; None recognises each by its marks.
        overrides: the project's own severities and ignored rules.
        read: looks up a file that a config names.
        beside: reads a group file below a config's folder; None takes the disk's.
        notes: keep findings of severity `info`; without, their number alone is kept.
        assumed: keep findings that rest on an assumption.
        around: what lies around the file.
    """

    def __init__(
        self,
        catalog: Catalog,
        checker: Checker,
        *,
        today: datetime.date,
        dialect: str | None = None,
        overrides: Overrides | None = None,
        read: ReadNamed = read_named,
        beside: Callable[[str, str], bytes | None] | None = None,
        around: "Around | None" = None,
        notes: bool = True,
        assumed: bool = True,
    ) -> None:
        around = around or Around()
        self.releases, self._programs = releases, programs = around.releases, around.programs
        self.catalog = catalog
        self.notes = notes
        self._keeps_assumed = assumed
        self._checker = checker
        self.hub = around.hub
        self._today = today
        self.dialect = dialect
        self._overrides = overrides or Overrides.none()
        self.reader = around.reader or ConfigReader(catalog.dialects, catalog.facts)
        self.seen = around.seen or Seen()
        self.lookups = {"named": read, "beside": beside or read_below}
        if releases is not None:
            self.lookups |= releases.lookups
        if programs is not None:
            self.lookups |= programs.lookups
        self.beside = self.seen.text("beside", self.lookups["beside"])
        self._commands = Commands(catalog, programs)
        self._named = self.seen.text("named", read)
        self.joiner = Joiner(self.reader, catalog.dialects, self._named, checker.given)

    def forget(self) -> None:
        """Look at the project's files anew: for a session that goes on while they change."""
        for each in (self.releases, self._programs):
            if each is not None:
                each.forget()

    def check(self, raw: bytes, path: str, kind: Kind | None = None) -> FileResult:
        """Everything found in one file.

        Raises:
            ConfigError: the bytes are no text, or the text no config that can be read, at its line and column.
        """
        kind = kind or kind_of(path)
        made = self.made_of_several(raw, path) if kind == "config" else None
        if made is not None:
            return made
        decoded = decode_kind(raw, kind, path)
        text = decoded.text if decoded.text is not None else ""
        if self.releases is not None:
            self.releases.hold(path, text, kind)
        units = self.read(text, path, kind, decoded.events, raw=raw, readable=decoded.text is not None)
        results = self.settle(self._check_all(units, kind), text, path)
        undecoded = raw if decoded.text is None else None
        return FileResult(path=path, text=text, encoding=decoded.encoding, results=tuple(results), raw=undecoded)

    @property
    def machine(self) -> Machine:
        """Where the runs are to happen."""
        return self._checker.machine

    def prepare(self, unit: Unit) -> UnitFacts:
        """A unit's setup, model and predictions on the machine, without the rules."""
        return self._checker.prepare(unit)

    def facts(self, unit: Unit) -> Facts:
        """A unit's facts alone."""
        return self._checker.facts(unit)

    def hear(self, events: Iterable[Event]) -> list[Finding]:
        """The findings of events that no unit holds."""
        return self._checker.hear(events)

    @cached_property
    def known(self) -> "ConfigNames":
        """The names of every format, made ready when a text is met that cannot be read."""
        from kb.session.config_names import ConfigNames  # few texts ask for it

        return ConfigNames(self.catalog)

    @cached_property
    def _of_trees(self) -> ModuleType:
        from kb.session import composed  # most runs meet no Hydra tree

        return composed

    def again(self, file: FileResult, raw: bytes, kind: Kind) -> FileResult:
        """A file's result with other bytes; of one that another brings in, as a part of that one."""
        if not file.part_of:
            return self.check(raw, file.path, kind)
        found: FileResult = self._of_trees.part_again(self, file, raw)
        return found

    def made_of_several(self, raw: bytes, path: str) -> FileResult | None:
        """The result of a config that stands for several: a Hydra tree or a sweep; None of any other."""
        if b"defaults" in raw:
            found: FileResult | None = self._of_trees.composed_result(self, raw, path)
            return found
        if b"parameters" in raw and b"method" in raw and self.dialect is None:
            from kb.session.sweeping import swept_result  # of sweeps alone

            return swept_result(self, raw, path)
        return None

    def _check_all(self, units: Sequence[Unit], kind: Kind) -> list[UnitResult]:
        joined = [self._joined(unit) for unit in units]
        if kind in ("shell", "notebook", "text"):
            joined = [unit for unit in joined if not starts_no_run(unit)] or joined[:1]
        results = [self._checker.check(unit) for unit in joined]
        if kind not in ("config", "python") or self._programs is None:
            return results
        if kind == "config":
            results = [as_started(result, self._commands.set_by_commands, self._checker.check) for result in results]
        if any(name.startswith("launch.") for name in self._checker.given):
            return results
        launches, join, take = self._commands.launches_of, self.joiner.join, self._commands.with_program
        check, beside = self._checker.check, self._programs.several_beside
        return [as_launched(result, launches, join, take, check, beside) for result in results]

    def check_unit(self, unit: Unit) -> UnitResult:
        """One unit's result, with what the files it names say."""
        return self._checker.check(self._joined(unit))

    def _joined(self, unit: Unit) -> Unit:
        """A unit with what the files that it names say, and its program with those that this names."""
        joined = self.joiner.join(unit)
        told = self._commands.with_program(joined)
        return told if told is joined else self.joiner.join_named(told)

    def read(
        self, text: str, path: str, kind: Kind, events: Sequence[Event] = (), *, raw: bytes = b"", readable: bool = True
    ) -> list[Unit]:
        """The file's units; what is wrong with the file as a whole goes with the first.

        Args:
            raw: the file's bytes, to be looked through where no unit can be read.
            readable: whether there is a text at all.

        Raises:
            ConfigError: the text is no config that can be read, and nothing is known of it that would explain why.
        """
        try:
            if kind == "shell":  # its reader would go past the marks, where a shell stops
                _raise_at_conflict(text)
            units = self._units(text, path, kind) if readable else []
        except ConfigError:
            _raise_at_conflict(text)
            if all(event.kind not in _DAMAGE for event in events):
                raise
            units = self._behind_damage(text, path, kind) if any(event.kind == "mojibake" for event in events) else []
        if not units and (events or kind == "text"):
            familiar = self.known.familiar(raw, kind) if raw and kind != "text" else ()
            first = Span(1, 1, 1, 1, 0, 0)
            units = [Unit(path=path, section=None, dialect=None, settings={}, span=first, known_keys=familiar)]
        if not units:
            raise self._nothing_in(text, path, kind)
        if self.releases is not None and units[0].dialect is not None:
            events = (*events, *self.releases.disagreements(path))
        return [units[0]._replace(events=(*events, *units[0].events)), *units[1:]] if events else units

    def _nothing_in(self, text: str, path: str, kind: Kind) -> ConfigError:
        """What to tell of a file without a run; of a script also the program that it starts."""
        if kind == "shell" and self._programs is not None:
            started = self._code_files.trainer_started(text, path, self._commands.reader, self._programs)
            if started is not None:
                return ConfigError("config.no-command-but-program", program=started)
        return ConfigError(_NOTHING.get(kind, "config.no-command"))

    def _behind_damage(self, text: str, path: str, kind: Kind) -> list[Unit]:
        """The units of a text whose damage left control characters that YAML refuses: it is a config all the same."""
        try:
            return self._units(re.sub(_CONTROLS, "\ufffd", text), path, kind)
        except ConfigError:
            return []

    def _units(self, text: str, path: str, kind: Kind) -> list[Unit]:
        if kind == "text" and not (path.endswith(DOCUMENTS) and "```" in text):
            return []
        if kind == "command":
            return [unit for unit in (self._commands.reader.read(text, path),) if unit]
        if kind == "image":
            return self._servers(text, path, image=True)
        units: list[Unit] = []
        if kind == "config":
            if "\nrun:" in text and "resources:" in text and self.dialect is None:
                units = self._code_files.task_units(text, path, self._commands.reader)
                if units:
                    return units
            units = self._servers(text, path) or list(self.reader.read(text, path, dialect=self.dialect))
            if self.dialect is not None or not self._has_own_names(units):
                return units
        read: Callable[..., list[Unit]] = self._code_files.code_units
        return read(text, path, kind, self.catalog, self._commands.reader, self._programs, units)

    @property
    def _code_files(self) -> ModuleType:
        from kb.session import code_files  # most runs meet no Python file, and no config of one's own

        return code_files

    def _has_own_names(self, units: Sequence[Unit]) -> bool:
        """Whether a program of the project may read the config in a way of its own."""
        own = bool(units) and all(each.reader == "script" for each in units)
        return own and self._programs is not None and any(each.trains for each in self._programs(units[0]))

    def _servers(self, text: str, path: str, *, image: bool = False) -> list[Unit]:
        """The inference servers that the containers of a manifest, or the image of a Dockerfile, start; none of any
        other file.
        """
        contained = image or any(key in text for key in ("image:", "command:", "cmd:"))
        names_one = any(mark in text for mark in (SERVERS if contained else ())) or any(mark in text for mark in CHARTS)
        if not names_one or self.dialect is not None:
            return []
        from kb.config.manifest import server_in_image, servers_in  # few files are manifests

        if image:
            return server_in_image(text, path, self._commands.reader)
        return servers_in(parse(text, path), path, self._commands.reader, self._named)

    def settle(self, results: list[UnitResult], text: str, path: str) -> list[UnitResult]:
        """Apply the project's overrides and the file's suppression comments; hear what is wrong with the comments."""
        ignored = set(self._overrides.ignored(path))
        kept = [
            tuple(self._own(finding) for finding in findings if finding.rule not in ignored)
            for findings in each_once(results)
        ]
        if "kb:" in text:
            undecided = {row.rule for result in results for row in result.not_evaluated}
            found = [finding for findings in kept for finding in findings]
            outcome = self._suppressed(found, text, path, self._checker.rule_ids - undecided - ignored)
            shares = iter(outcome.findings)
            kept = [tuple(next(shares) for _ in findings) for findings in kept]
            heard = [self._own(finding) for finding in self.hear(outcome.events)]
            heard = [finding for finding in heard if finding.rule not in ignored]
            kept[0] = tuple(sorted((*kept[0], *heard), key=place_of))
        return [self._without_notes(result, found) for result, found in zip(results, kept, strict=True)]

    def _without_notes(self, result: UnitResult, findings: tuple[Finding, ...]) -> UnitResult:
        """The result with the findings that this run is to tell; of notes that it is not, the number."""
        if not self._keeps_assumed:
            findings = tuple(finding for finding in findings if finding.certainty != "assumed")
        hidden = 0
        if not self.notes:
            kept = tuple(finding for finding in findings if finding.severity != "info")
            hidden = sum(finding.suppressed is None for finding in findings) - sum(
                finding.suppressed is None for finding in kept
            )
            findings = kept
        if findings == result.findings and not hidden:
            return result
        return result._replace(findings=findings, hidden_notes=hidden)

    def _suppressed(self, findings: Sequence[Finding], text: str, path: str, decided: Collection[str]) -> "Suppressed":
        """The findings of one file with its suppression comments applied."""
        known, kind = self.catalog.rules.keys(), kind_of(path)
        if kind in CODE:
            suppressed: Suppressed = self._code_files.suppressed_in_code(
                findings, text, kind, today=self._today, known=known, decided=decided
            )
            return suppressed
        from kb.config.suppressions import read_suppressions, suppress  # few files hold such comments

        return suppress(findings, read_suppressions(text), today=self._today, known=known, decided=decided)

    def _own(self, finding: Finding) -> Finding:
        severity = self._overrides.severity.get(finding.rule)
        return finding._replace(severity=severity) if severity else finding
