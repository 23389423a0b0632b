"""How a run checks, and what lies around the files that it checks: their project's releases and programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb.advice.question import Question
from kb.core.record import NamedTuple
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
