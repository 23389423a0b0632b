"""From what the user said to a checker that is ready: project settings, knowledge, machine, versions, rules."""

import datetime
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kb.advice.check import Checker, Disk
from kb.advice.project_lengths import LENGTHS
from kb.advice.question import NamedMachine, Question
from kb.config.files import unknown_dialect
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.expression import Unknown
from kb.core.finding import Span
from kb.core.hardware import Machine
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.result import UnitResult
from kb.core.setup import LENGTH_SHARES, DataLengths
from kb.core.text import UserError
from kb.machine.detect import detect
from kb.machine.software import installed_versions
from kb.session.file import Around, FileChecker
from kb.session.file_result import Overrides
from kb.session.models import (
    HubModels,
    cached_config_of,
    folder_config,
    identity_on_disk,
    model_in_folder,
    read_model_config,
)
from kb.session.project import Project, chosen_rules, given_facts
from kb.session.project_releases import OPTION, SETTINGS, ProjectReleases
from kb.session.seen import ProjectPrograms, Seen


class Checking(NamedTuple):
    """How configs are checked; empty leaves it to the project's settings."""

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    notes: bool = True  # keep findings of severity `info`
    strict: bool = False  # each rule's own severity, however certain its facts are
    assume_nothing: bool = False  # leave out what rests on an assumption
    root: str | None = None  # the top of a project without `.git`
    here: bool = False  # the runs happen in this process: what is installed beside kb is what they use
    loose: bool = False  # the text lies in no folder: no program beside it reads it
    online: bool = False  # ask the hub for models that nothing here knows
    rough: bool = False  # from models of few layers: for many predictions at once


AS_SET = Checking()


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
    areas = {rule.id: rule.area for rule in catalog.rules.values()}
    given = {**given_facts(project.facts, catalog.facts, project.path or ""), **known}
    if project.lengths:
        given[LENGTHS] = _lengths(project)
    named = {library: (text, project.path or SETTINGS) for library, text in project.versions.items()}
    named |= {library: (text, OPTION.format(library=library)) for library, text in question.versions.items()}
    machine = machine or named_machine(catalog, project, question.machine)
    hub, seen = HubModels(online=checking.online), Seen()
    releases = ProjectReleases(named, root=checking.root, here=checking.here, seen=seen)
    programs = ProjectPrograms((lambda path: None) if checking.loose else releases.top, seen)
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


def named_machine(catalog: Catalog, project: Project, named: NamedMachine) -> Machine:
    """The machine that is named, on the command line or in the project's settings, or that is found.

    Raises:
        UserError: a name or a value that cannot be used.
    """
    gpu = named.gpu or project.gpu
    gpu_count = named.gpus if named.gpus is not None else project.gpus
    # who names a GPU plans for another machine than this one: of that machine nothing else is known
    unsaid = "none" if gpu not in (None, "auto", "none") else "auto"
    memory, cpus = named.host_memory or project.host_memory, named.cpus or project.cpus
    try:
        machine = detect(catalog.gpus, gpu=gpu, gpu_count=gpu_count, host_memory=memory or unsaid, cpus=cpus or unsaid)
    except UserError as error:
        about = next((name for keys, name in _FAULTS if error.key.startswith(keys)), None)
        if about is None or getattr(named, about) is not None:
            raise
        if "name" in error.values and about == "host_memory":
            error.values["name"] = about  # as the file calls it
        raise project.answers_for(error) from None
    if not machine.gpus and unsaid == "auto":
        machine = _elsewhere(machine, memory, cpus)
    return machine


# Which argument a fault of the machine's arguments is about.
_FAULTS = (
    (("machine.unknown_gpu",), "gpu"),
    (("machine.bad_gpu_count",), "gpus"),
    (("size.",), "host_memory"),
    (("machine.bad_cpus",), "cpus"),
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


def _elsewhere(machine: Machine, host_memory: str | None, cpus: str | None) -> Machine:
    """A machine without a GPU is not where the run is to happen: what of it nobody named says nothing of the run."""
    if host_memory is None:
        machine = machine._replace(
            host_memory_bytes=None, host_memory_used_bytes=None, host_memory_source="unknown", shm_bytes=None
        )
    return machine if cpus is not None else machine._replace(cpus=None, cpu_source="unknown")


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
        matching = (rules for pattern, rules in ignored.items() if _matches(fnmatch.fnmatch, relative, pattern))
        return {rule for rules in matching for rule in rules}

    return Overrides(severity=severity, ignored=ignored_in)


def _matches(fnmatch: Callable[[str, str], bool], relative: str, pattern: str) -> bool:
    """A pattern without a slash is for the file's name, as in .gitignore."""
    return fnmatch(relative, pattern) or ("/" not in pattern and fnmatch(relative.rpartition("/")[2], pattern))


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
