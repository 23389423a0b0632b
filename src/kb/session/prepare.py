"""From what the user said to a checker that is ready: project settings, knowledge, machine, versions, rules."""

import datetime
import os
from collections.abc import Callable, Collection, Mapping, Sequence

from kb.advice.check import Checker, Disk
from kb.advice.question import Question
from kb.advice.run.row_lengths import LENGTHS
from kb.config.files import unknown_dialect
from kb.core.catalog import Catalog, outlines_of
from kb.core.document import Unit
from kb.core.expression import Unknown
from kb.core.finding import Span
from kb.core.hardware import Machine
from kb.core.model import Model
from kb.core.result import UnitResult
from kb.core.setup import LENGTH_SHARES, DataLengths
from kb.core.text import UserError
from kb.core.typed import Any
from kb.machine.software import installed_versions
from kb.session.around import AS_SET, Around, Checking, beside_files, named_machine, versions_named
from kb.session.file import FileChecker
from kb.session.lookups import Seen, cached_config_of, folder_config
from kb.session.models import HubModels, identity_on_disk, model_in_folder, read_model_config
from kb.session.project import Project, chosen_rules, given_facts
from kb.session.run import Overrides


def file_checker(
    catalog: Catalog,
    project: Project,
    question: Question,
    checking: Checking = AS_SET,
    *,
    machine: Machine | None = None,
    model: Model | None = None,
    known: Mapping[str, Any] = {},
) -> FileChecker:
    """A checker for one run.

    Args:
        machine: where the runs are to happen, as it is; None takes what ``question`` and the project name, or finds it.
        model: the model of every config, where the caller holds it.
        known: facts that the caller knows of the run; they win over what the project says of itself.

    Raises:
        UserError: a name or a value that cannot be used.
    """
    if question.dialect is not None and question.dialect not in catalog.dialects:
        raise unknown_dialect(question.dialect, catalog.dialects)
    areas = {name: outline.area for name, outline in outlines_of(catalog.rules).items()}
    named = versions_named(project, question)
    given = {**given_facts(project.facts, catalog.facts, project.path or ""), **known}
    if project.lengths:
        given[LENGTHS] = _lengths(project)
    machine = machine or named_machine(catalog, project, question.machine)
    hub = HubModels(online=checking.online)
    seen = Seen()
    releases, programs = beside_files(project, question, checking, seen)
    checker = Checker(
        catalog,
        machine,
        rules=_rules(project, checking, areas),
        release_of=releases,
        model=read_model_config(question.model_config) if question.model_config else model,
        given=given,
        disk=Disk(
            model_in_folder=seen.model("folder", model_in_folder, folder_config),
            model_elsewhere=seen.model("hub", hub, cached_config_of),
            identity_of=identity_on_disk,
            installed=_installed(named, here=bool(machine.gpus) and machine.gpu_source != "named"),
            programs=programs,
            models=project.models,
        ),
        notes=checking.notes,
        strict=checking.strict,
    )
    checker.rough = checking.rough
    return FileChecker(
        catalog,
        checker,
        today=datetime.date.today(),
        dialect=question.dialect,
        overrides=_overrides(project, areas),
        notes=checking.notes,
        assumed=not checking.assume_nothing,
        around=Around(hub, releases, programs, seen),
    )


def _lengths(project: Project) -> DataLengths:
    """``[lengths]`` in the order of their shares.

    Raises:
        UserError: a length is below one that fewer samples exceed, or no sample has a token.
    """
    parts = []
    for name in ("input", "target"):
        said = project.lengths.get(name, {})
        lengths = tuple(said[share] for share in LENGTH_SHARES) if said else ()
        if lengths and (list(lengths) != sorted(lengths) or not lengths[-1]):
            raise UserError("project.lengths_disorder", path=project.path or "", name=f"lengths.{name}")
        parts.append(lengths)
    return DataLengths(*parts)


def _rules(project: Project, checking: Checking, areas: Mapping[str, str]) -> list[str]:
    try:
        chosen_rules(project.select, project.ignore, areas)
    except UserError as fault:
        raise project.answers_for(fault) from None
    return chosen_rules(checking.select or project.select, [*project.ignore, *checking.ignore], areas)


def _installed(named: Collection[str], here: bool) -> Callable[[str], bool | None]:
    """Whether a library is installed where the runs happen: kb knows only of the environment that it stands in itself.

    A library whose version is named is there. One that is missing here is known to be missing there only where this
    is where the runs happen: a GPU was found ``here``, and transformers is installed whose version nobody named.
    """

    def installed(library: str) -> bool | None:
        beside = installed_versions()
        if library in named or library in beside:
            return True
        return False if here and "transformers" in beside and "transformers" not in named else None

    return installed


def _overrides(project: Project, areas: Mapping[str, str]) -> Overrides:
    if not project.severity and not project.per_file_ignores:
        return Overrides.none()
    try:
        # an area's severity goes first, so that a rule's own wins; a name that does not exist is said, not passed over
        named = sorted(project.severity.items(), key=lambda row: row[0] in areas)
        severity = {rule: chosen for name, chosen in named for rule in chosen_rules((name,), (), areas)}
        ignored = {name: chosen_rules(rules, (), areas) for name, rules in project.per_file_ignores.items() if rules}
    except UserError as fault:
        raise project.answers_for(fault) from None
    folder = project.folder()

    def ignored_in(path: str) -> Collection[str]:
        import fnmatch

        relative = os.path.relpath(path, folder).replace(os.sep, "/")
        own_name = relative.rpartition("/")[2]
        found: set[str] = set()
        for pattern, rules in ignored.items():
            # a pattern without a slash is for the file's name, as in .gitignore
            if fnmatch.fnmatch(relative, pattern) or ("/" not in pattern and fnmatch.fnmatch(own_name, pattern)):
                found.update(rules)
        return found

    return Overrides(severity=severity, ignored=ignored_in)


_OF_THE_MACHINE = ("gpu.", "host.", "versions.")


def machine_alone(checker: FileChecker) -> Any:
    """A lookup of facts where no config is given: what is known of the machine, and nothing else."""
    empty = Unit(path="", section=None, dialect=None, settings={}, span=Span(1, 1, 1, 1, 0, 0))
    facts = checker.facts(empty)

    def lookup(name: str) -> Any:
        return facts.get(name) if name.startswith(_OF_THE_MACHINE) else Unknown(frozenset((name,)))

    return lookup


def first_training(results: Sequence[UnitResult]) -> Unit | None:
    """The first section that trains, or the first of a known format; None where no format is known."""
    known = [result for result in results if result.unit.dialect is not None]
    training = [result.unit for result in known if result.setup and result.setup.do_train]
    return training[0] if training else known[0].unit if known else None
