"""A rule's examples, run as a user would meet them: all the way from bytes to findings and the fixed text."""

import base64
import datetime
import json
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from kb.advice.check import Checker, Disk
from kb.advice.findings.tables import Tables
from kb.config.programs import ProgramReader
from kb.config.reader import ConfigReader
from kb.core.catalog import Catalog, Rule
from kb.core.document import Unit
from kb.core.expression import Lookup, Tree
from kb.core.hardware import Machine
from kb.core.model import Model, ModelIdentity
from kb.core.program import Program
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.core.units import parse_bytes
from kb.machine.detect import detect
from kb.session.around import Around, ProjectReleases
from kb.session.file import FileChecker
from kb.session.fixing import fix_once
from kb.session.lookups import ProjectPrograms, Seen
from kb.session.models import identity_of_config, model_of_config
from kb.session.project import given_facts
from kb.session.run import FileResult, Kind

# Suppression examples name dates; they are judged on this day, so that none expires on its own.
TODAY = datetime.date(2026, 11, 1)
AROUND = ("gpu", "gpus", "host_memory", "cpus", "shm", "gpu_processes", "versions", "facts")
KINDS: Mapping[str, Kind] = {"command": "command", "shell": "shell", "python": "python"}


def _config_beside(files: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """The ``config.json`` of a model's folder among an example's files."""
    text = files.get(posixpath.normpath(f"{name}/config.json"))
    return None if text is None else dict(json.loads(text))


class Failure(NamedTuple):
    """What an example does otherwise than it says: a key of i18n with its values, and the conditions that decided."""

    key: str
    values: Mapping[str, Any]
    conditions: Sequence[tuple[Tree, Lookup]] = ()


class _FindingsAlone(Checker):
    """An example asks for findings: what fits each GPU, the dearest part of a check, is no part of them."""

    def check(self, unit: Unit) -> UnitResult:
        return self.linted(unit, self.prepare(unit))


class ExampleRunner:
    """Runs examples against one catalogue (loaded whole)."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._reader = ConfigReader(catalog.dialects, catalog.facts)
        self._checkers: dict[str, FileChecker] = {}  # by what an example says of the machine and the project

    def run(self, rule: Rule, example: Mapping[str, Any]) -> Failure | None:
        """What is wrong with the example, or None: it fires, is silent or is not evaluated as it says."""
        return self.run_any((rule.id,), example)

    def run_any(self, rules: Collection[str], example: Mapping[str, Any], row: str = "") -> Failure | None:
        """As :meth:`run`, where any of several rules may word what is found; ``row`` is the row of a table."""
        if "project" not in example:
            return self._run(rules, example, None, row)
        import os
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            for name, text in example["project"].items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
                    stream.write(text)
            return self._run(rules, example, folder, row)

    def _run(self, rules: Collection[str], example: Mapping[str, Any], folder: str | None, row: str) -> Failure | None:
        try:
            checker = self._checker_for(example, folder, self._alone(rules, example, row), row)
            result = self._check(checker, example, folder)
        except UserError as fault:
            return Failure(fault.key, fault.values)
        fired = [f for unit in result.results for f in unit.findings if f.rule in rules and f.suppressed is None]
        needs = [row.needs for unit in result.results for row in unit.not_evaluated if row.rule in rules]
        needs += [("versions",) for unit in result.results if not set(rules).isdisjoint(unit.by_release)]
        outcome = "fires" if fired else "not-evaluated" if needs else "silent"
        if outcome != example["expect"]:
            conditions = [pair for unit in result.results for pair in self._asked(unit.unit, checker, rules, row)]
            return Failure(
                "rules.example_needs" if needs else "rules.example_otherwise",
                {"expected": example["expect"], "found": outcome, "needs": ", ".join(needs[0] if needs else ())},
                conditions,
            )
        if "fixed" in example:
            return self._check_fix(checker, rules, result, example)
        return None

    def _asked(
        self, unit: Unit, checker: FileChecker, rules: Collection[str], row: str
    ) -> Iterator[tuple[Tree, Lookup]]:
        """The conditions that decided, each with the facts that it was asked of."""
        facts = checker.facts(unit)
        for name in rules:
            tree = self.catalog.rules[name].when
            if tree is not None:
                yield tree, facts.get
        if row:
            yield from Tables(self.catalog, rules).conditions(unit, facts, row)

    def _alone(self, rules: Collection[str], example: Mapping[str, Any], row: str) -> tuple[str, ...] | None:
        """The rules to apply: those of the example alone, where nothing that others find can matter to them."""
        conditions = row or all(self.catalog.rules[name].when is not None for name in rules)
        return tuple(rules) if conditions and "kb:" not in example["config"] else None

    def _checker_for(
        self, example: Mapping[str, Any], folder: str | None, rules: tuple[str, ...] | None, row: str
    ) -> FileChecker:
        """The checker of an example; of those alike in all but their text, one."""
        if folder is not None or "files" in example:
            return self.checker(example, folder, rules, row)
        key = json.dumps([rules, row, {name: example.get(name) for name in AROUND}], sort_keys=True)
        if key not in self._checkers:
            self._checkers[key] = self.checker(example, folder, rules, row)
        return self._checkers[key]

    def checker(
        self,
        example: Mapping[str, Any],
        folder: str | None = None,
        rules: Collection[str] | None = None,
        row: str = "",
    ) -> FileChecker:
        files: Mapping[str, str] = example.get("files", {})

        def model(name: str) -> Model | None:
            data = _config_beside(files, name)
            return None if data is None else model_of_config(data, name)

        def identity(name: str) -> ModelIdentity | None:
            data = _config_beside(files, name)
            return None if data is None else identity_of_config(data)

        def beside(path: str, name: str) -> bytes | None:
            return files[name].encode() if name in files else None

        releases = ProjectReleases({}, root=folder) if folder is not None else None
        versions = {name: parse_version(text) for name, text in example.get("versions", {}).items()}
        checker = _FindingsAlone(
            self.catalog,
            self.machine(example),
            rules=rules,
            versions=versions.get,
            release_of=releases,
            disk=Disk(
                model_in_folder=model,
                identity_of=identity,
                programs=self._programs(folder, row.rpartition("/")[2]),
            ),
            given=given_facts(example.get("facts", {}), self.catalog.facts, "facts"),
        )
        # the programs beside an example that has a project are those by which its config is read
        programs = None if folder is None else ProjectPrograms(lambda path: folder, Seen())
        return FileChecker(
            self.catalog,
            checker,
            today=TODAY,
            read=lambda path, named: files.get(named),
            beside=beside,
            around=Around(releases=releases, programs=programs, reader=self._reader),
        )

    def _programs(self, folder: str | None, made: str) -> Callable[[Unit], Sequence[Program]]:
        """An example is read by a program that hands its names on, to the class ``made`` that a row may be of; one with
        a project, by what lies there.
        """
        handing_on = (Program("", f"HfArgumentParser((TrainingArguments, {made}))"),)
        if folder is None:
            return lambda unit: handing_on
        reader = ProgramReader(lambda path: folder)
        return lambda unit: reader.programs(unit.path, unit.program) or handing_on

    def machine(self, example: Mapping[str, Any]) -> Machine:
        """The machine an example names; what it does not name is unknown, never that of this machine."""
        found = detect(
            self.catalog.gpus,
            gpu=example.get("gpu", "none"),
            gpu_count=example.get("gpus"),
            host_memory=example.get("host_memory", "none"),
            cpus=str(example.get("cpus", "none")),
        )
        if "shm" in example:
            found = found._replace(shm_bytes=parse_bytes(example["shm"]))
        if "gpu_processes" in example:
            processes = tuple((1000 + number, None) for number in range(example["gpu_processes"]))
            gpus = tuple(gpu._replace(processes=processes) for gpu in found.gpus)
            found = found._replace(gpus=gpus, gpu_source="nvml")
        return found

    def _check(self, checker: FileChecker, example: Mapping[str, Any], folder: str | None) -> FileResult:
        text = example["config"]
        raw = base64.b64decode(text) if example.get("base64") else text.encode()
        kind = KINDS.get(example.get("dialect", ""), "config")
        # JSON is read by JSON's own rules, which the file's name decides
        is_json = kind == "config" and text.removeprefix("\ufeff").lstrip().startswith("{")
        name = "example.json" if is_json else "example.py" if kind == "python" else "example.yaml"
        return checker.check(raw, f"{folder}/{name}" if folder is not None else name, kind)

    def _check_fix(
        self, checker: FileChecker, rules: Collection[str], result: FileResult, example: Mapping[str, Any]
    ) -> Failure | None:
        kind = KINDS.get(example.get("dialect", ""), "config")
        fixed = fix_once(checker, result, kind, rules=set(rules), unsafe=True)
        if fixed.text != example["fixed"]:
            return Failure("rules.example_fixed", {"found": fixed.text, "expected": example["fixed"]})
        return None
