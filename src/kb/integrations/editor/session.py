"""What the server knows beside the texts: the language, the machine, each project's settings, and the checkers."""

import os
from collections.abc import Mapping
from typing import Any

from kb.advice.question import Question
from kb.core.catalog import Catalog
from kb.core.finding import Finding
from kb.core.record import NamedTuple
from kb.core.result import INTERNAL, UnitResult
from kb.core.text import LANGUAGES, UserError, described
from kb.knowledge import load_catalog, load_words
from kb.knowledge.entries import entries_of
from kb.knowledge.locations import Location, Rules, located, opened
from kb.knowledge.overlay import state_of
from kb.knowledge.problems import KnowledgeError
from kb.report.words import Words
from kb.session.file import FileChecker
from kb.session.knowledge import rules_of
from kb.session.prepare import file_checker
from kb.session.project import NAMEABLE, Project, find_project
from kb.session.run import FileResult, Kind, kind_of

PROJECT_FILES = ("kb.toml", "pyproject.toml")
KINDS: Mapping[str, Kind] = {"shellscript": "shell", "markdown": "text"}  # by the editor's language id


class Checked(NamedTuple):
    """A text and what was found in it; ``fault`` where it could not be read and is a config all the same."""

    text: str
    kind: Kind
    file: FileResult | None
    fault: UserError | None = None

    def units(self) -> tuple[UnitResult, ...]:
        """The parts that are configs of a known format."""
        return tuple(unit for unit in self.file.results if unit.unit.dialect) if self.file else ()

    def findings(self) -> list[tuple[UnitResult, Finding]]:
        return [(unit, finding) for unit in self.units() for finding in unit.counted()]


class Session:
    """Settings come from the command line, the client (which wins), and each project's own file."""

    def __init__(self, language: str, wanted: Mapping[str, Any]) -> None:
        self.catalog: Catalog = load_catalog(whole=True)  # as kb ships it
        self._first: dict[str, Any] = {"lang": language, **wanted}
        self._settings = dict(self._first)
        self._checkers: dict[str | None, tuple[Rules, str, FileChecker]] = {}
        self._words: dict[tuple[str, Rules, str], Words] = {}
        self._files: dict[Location, dict[str, str]] = {}  # rule → its file

    def configure(self, settings: object) -> None:
        """Take over what a client says of itself; what it does not name stays as the command line has it."""
        given = settings if isinstance(settings, dict) else {}
        given = given["kb"] if isinstance(given.get("kb"), dict) else given
        self._settings = {**self._first, **{key: value for key, value in given.items() if value not in (None, "")}}
        self.forget()

    def forget(self) -> None:
        """Read the projects' settings again at the next check."""
        self._checkers.clear()
        self._files.clear()

    def decides(self, path: str) -> bool:
        """Whether a file says how others are checked: the settings of a project, or what they lay over the rules."""
        if path.endswith(PROJECT_FILES):
            return True
        try:
            rules = rules_of(find_project(os.path.dirname(path) or os.getcwd()))
        except UserError:
            return False
        roots = [overlay.root for overlay in rules.overlays] if isinstance(rules, Location) else []
        return any(os.path.realpath(path).startswith(os.path.realpath(root) + os.sep) for root in roots)

    @property
    def words(self) -> Words:
        """The texts of the language that counts, as kb ships them."""
        return self._worded(None, "")

    def words_of(self, path: str) -> Words:
        """The same for a file, with what its project lays over them; as they are where that cannot be used."""
        try:
            _, rules, state = self._rules(path)
            return self._worded(rules, state)
        except (UserError, KnowledgeError):
            return self.words

    def _worded(self, rules: Rules, state: str) -> Words:
        language = self._settings.get("lang")
        language = language if language in LANGUAGES else self._first["lang"]
        key = (language, rules, state)
        if key not in self._words:
            texts = load_words(language, rules) if isinstance(rules, Location) else load_words(language)
            self._words[key] = Words(language, texts, self.catalog.facts)
        return self._words[key]

    def _rules(self, path: str) -> tuple[Project, Rules, str]:
        """The project of a file, its rules, and in which state the files are that it lays over kb's."""
        project = find_project(os.path.dirname(path) or os.getcwd())
        rules = rules_of(project)
        return project, rules, state_of(rules) if isinstance(rules, Location) else ""

    def said(self, fault: UserError) -> str:
        """A fault's sentence, after the file whose settings caused it where one did."""
        sentence = self.words(fault.key, **fault.values)
        within = fault.values.get("within")
        return f"{within}: {sentence}" if within else sentence

    def said_of_rules(self, error: KnowledgeError) -> list[str]:
        """What is wrong with the rules, each with its place."""
        return [problem.in_language(self.words.language) for problem in error.problems]

    def checker(self, path: str) -> FileChecker:
        """The checker for a file, by the project that it belongs to.

        Raises:
            UserError: the project's or the client's settings cannot be used.
            KnowledgeError: what the project lays over the rules has faults.
        """
        project, rules, state = self._rules(path)
        known = self._checkers.get(project.path)
        if known is None or known[:2] != (rules, state):
            catalog = load_catalog(rules, whole=True) if isinstance(rules, Location) else self.catalog
            known = rules, state, file_checker(catalog, project, self._question())
            self._checkers[project.path] = known
        return known[2]

    def rule_file(self, rule: str, path: str) -> str | None:
        """Where the rule of a finding in a file is written: beside kb, or in what the file's project lays over it."""
        location = located(rules_of(find_project(os.path.dirname(path) or os.getcwd())))
        if location not in self._files:
            entries = entries_of(location).values()
            self._files[location] = {each.id: each.path for each in entries if each.kind == "checks"}
        below = self._files[location].get(rule)
        return os.path.join(opened(location).rules, below) if below else None

    def check(self, text: str, path: str, language_id: str = "") -> Checked:
        """Everything found in a text as it stands in the editor.

        Raises:
            UserError: the project's or the client's settings cannot be used.
        """
        kind = KINDS.get(language_id) or kind_of(path)
        checker = self.checker(path)
        checker.forget()  # the project's files may have changed since the last letter
        try:
            return Checked(text, kind, checker.check(text.encode("utf-8", "replace"), path, kind))
        except UserError as fault:
            if not str(fault.key).startswith("config."):
                raise
            # Half a word is no config yet, and most YAML is none at all.
            known = checker.known.belongs(text.encode("utf-8", "replace"), kind)
            return Checked(text, kind, None, fault if known else None)
        except KnowledgeError:
            raise
        except Exception as error:  # one text's fault is that text's: it is said there, and the server goes on
            return Checked(text, kind, None, UserError(INTERNAL, **described(error)))

    def _question(self) -> Question:
        def named(key: str) -> str | None:
            value = self._settings.get(key)
            return None if value is None else str(value)

        gpus = self._settings.get("gpus")
        return Question.of(
            gpu=named("gpu"),
            gpus=gpus if isinstance(gpus, int) and not isinstance(gpus, bool) else None,
            host_memory=named("hostMemory"),
            cpus=named("cpus"),
            versions={name: str(self._settings[name]) for name in NAMEABLE if self._settings.get(name)},
        )
