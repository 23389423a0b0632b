"""From what the user said to a checker that is ready: project settings, knowledge, machine, versions, rules."""

import datetime
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from kb.advice.check import Checker
from kb.core.catalog import Catalog
from kb.core.errors import UserError
from kb.core.hardware import Machine
from kb.core.version import parse_version
from kb.linting.file import FileChecker, Overrides
from kb.linting.model_config import model_in_folder, read_model_config
from kb.linting.project import Project, chosen_rules
from kb.machine.detect import detect
from kb.machine.software import installed_versions


class Wanted(NamedTuple):
    """What the command line asks for; None and empty leave it to the project's settings, then to detection."""

    gpu: str | None = None
    gpus: int | None = None
    host_memory: str | None = None
    cpus: str | None = None
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    dialect: str | None = None
    model_config: str | None = None
    versions: Mapping[str, str] | None = None


def file_checker(catalog: Catalog, project: Project, wanted: Wanted) -> FileChecker:
    """A checker for one run.

    Raises:
        UserError: a name or a value that cannot be used.
    """
    if wanted.dialect is not None and wanted.dialect not in catalog.dialects:
        raise UserError("config.unknown-dialect-id", name=wanted.dialect, known=", ".join(sorted(catalog.dialects)))
    gpu = wanted.gpu or project.gpu
    gpu_count = wanted.gpus if wanted.gpus is not None else project.gpus
    # who names a GPU plans for another machine than this one: of that machine nothing else is known
    unsaid = "none" if gpu not in (None, "auto", "none") else "auto"
    machine = detect(
        catalog.gpus,
        gpu=gpu,
        gpu_count=gpu_count,
        host_memory=wanted.host_memory or project.host_memory or unsaid,
        cpus=wanted.cpus or project.cpus or unsaid,
    )
    if not machine.gpus and unsaid == "auto":
        machine = _elsewhere(machine, wanted.host_memory or project.host_memory, wanted.cpus or project.cpus)
    areas = {rule.id: rule.area for rule in catalog.rules.values()}
    checker = Checker(
        catalog,
        machine,
        rules=chosen_rules(wanted.select or project.select, [*project.ignore, *wanted.ignore], areas),
        versions=_versions({**project.versions, **(wanted.versions or {})}),
        model=read_model_config(wanted.model_config) if wanted.model_config else None,
        model_in_folder=model_in_folder,
        gpu_count=gpu_count,
    )
    return FileChecker(
        catalog,
        checker,
        today=datetime.date.today(),
        dialect=wanted.dialect,
        overrides=_overrides(project, areas),
    )


def _elsewhere(machine: Machine, host_memory: str | None, cpus: str | None) -> Machine:
    """A machine without a GPU is not where the run is to happen: what of it nobody named says nothing of the run."""
    if host_memory is None:
        machine = machine._replace(
            host_memory_bytes=None, host_memory_used_bytes=None, host_memory_source="unknown", shm_bytes=None
        )
    return machine if cpus is not None else machine._replace(cpus=None, cpu_source="unknown")


def _versions(named: Mapping[str, str]) -> Callable[[str], tuple[int, ...] | None]:
    """A library's version: as named, else as installed beside kb."""
    known: dict[str, tuple[int, ...] | None] = {}
    for library, text in named.items():
        try:
            known[library] = parse_version(text)
        except ValueError:
            raise UserError("cli.bad_version", library=library, value=text) from None

    def version(library: str) -> tuple[int, ...] | None:
        if library not in known:
            text = installed_versions().get(library)
            known[library] = parse_version(text) if text and text[0].isdigit() else None
        return known[library]

    return version


def _overrides(project: Project, areas: Mapping[str, str]) -> Overrides:
    if not project.severity and not project.per_file_ignores:
        return Overrides.none()
    chosen_rules(list(project.severity), (), areas)  # a rule that does not exist is said, not passed over
    ignored = {pattern: chosen_rules(rules, (), areas) for pattern, rules in project.per_file_ignores.items() if rules}
    folder = project.folder()

    def ignored_in(path: str) -> Collection[str]:
        import fnmatch

        relative = os.path.relpath(path, folder).replace(os.sep, "/")
        matching = (rules for pattern, rules in ignored.items() if _matches(fnmatch.fnmatch, relative, pattern))
        return {rule for rules in matching for rule in rules}

    return Overrides(severity=project.severity, ignored=ignored_in)


def _matches(fnmatch: Callable[[str, str], bool], relative: str, pattern: str) -> bool:
    """A pattern without a slash is for the file's name, as in .gitignore."""
    return fnmatch(relative, pattern) or ("/" not in pattern and fnmatch(relative.rpartition("/")[2], pattern))
