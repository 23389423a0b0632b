"""How a run checks, for which machine, and what lies around the files that it checks: releases and programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb.advice.question import NamedMachine, Question
from kb.core.catalog import Catalog
from kb.core.hardware import Machine
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.machine.detect import detect
from kb.session.model_files import LOOKUPS
from kb.session.project import Project
from kb.session.project_releases import OPTION, SETTINGS, ProjectReleases
from kb.session.seen import Lookup, ProjectPrograms, Seen, read_below, read_named

if TYPE_CHECKING:
    from kb.config.reader import ConfigReader
    from kb.session.models import HubModels


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


class Around(NamedTuple):
    """What lies around a file; None where nothing is looked at.

    ``hub`` is where models come from that the catalogue lacks, and knows what could not be had; ``releases`` are what
    the files of a project say of its libraries; ``programs`` are those of the project that read its configs; ``seen``
    remembers what a check looks at beside the file; ``reader`` is one that another checker has used.
    """

    hub: "HubModels | None" = None
    releases: "ProjectReleases | None" = None
    programs: ProjectPrograms | None = None
    seen: Seen | None = None
    reader: "ConfigReader | None" = None


def beside_files(
    project: Project, question: Question, checking: Checking, seen: Seen
) -> tuple[ProjectReleases, ProjectPrograms]:
    """The releases and the programs of the projects of the files that a run checks, each looked for when it is needed.

    Raises:
        UserError: a version that the user names is none.
    """
    releases = ProjectReleases(versions_named(project, question), root=checking.root, here=checking.here, seen=seen)
    return releases, ProjectPrograms((lambda path: None) if checking.loose else releases.top, seen)


def lookups_of(releases: ProjectReleases, programs: ProjectPrograms) -> dict[str, Lookup]:
    """What a check looks up beside a file, by its kind, for a stored result to be held against."""
    return {**LOOKUPS, "named": read_named, "beside": read_below, **releases.lookups, **programs.lookups}


def versions_named(project: Project, question: Question) -> dict[str, tuple[str, str]]:
    """The versions that the user names, by library, each with where."""
    named = {library: (text, project.path or SETTINGS) for library, text in project.versions.items()}
    return named | {library: (text, OPTION.format(library=library)) for library, text in question.versions.items()}


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


def _elsewhere(machine: Machine, host_memory: str | None, cpus: str | None) -> Machine:
    """A machine without a GPU is not where the run is to happen: what of it nobody named says nothing of the run."""
    if host_memory is None:
        machine = machine._replace(
            host_memory_bytes=None, host_memory_used_bytes=None, host_memory_source="unknown", shm_bytes=None
        )
    return machine if cpus is not None else machine._replace(cpus=None, cpu_source="unknown")
