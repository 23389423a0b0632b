"""How a run checks, for which machine, and what lies around the files that it checks: releases and programs.

A library's release is that where a unit is to run: named by the user, said by the project's files, or the environment's
own. A version beside kb that is not the project's says nothing.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from kb.advice.question import NamedMachine, Question
from kb.config.releases.reader import ReleaseReader, Releases
from kb.config.releases.statements import LIBRARIES
from kb.core.catalog import Catalog
from kb.core.document import Event, Unit
from kb.core.finding import Span
from kb.core.hardware import Machine
from kb.core.record import NamedTuple
from kb.core.release import ProjectRelease, Source, agree, exact_release
from kb.core.text import UserError
from kb.core.typed import TYPE_CHECKING, Any
from kb.machine.detect import detect
from kb.machine.software import environment_of, installed_versions
from kb.session.lookups import LOOKUPS, Lookup, ProjectPrograms, Seen, contents, read_below, read_named
from kb.session.project import NAMEABLE, Project

if TYPE_CHECKING:
    from kb.config.reader import ConfigReader
    from kb.config.releases.statements import Problem
    from kb.core.lint import Release
    from kb.session.models import HubModels

NO_FILES = ("-", "--command", "<config>.json")  # paths of what lies in no folder: the one kb runs in stands for it
OPTION, SETTINGS = "--{library}", "kb.toml"


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
) -> "tuple[ProjectReleases, ProjectPrograms]":
    """The releases and the programs of the projects of the files that a run checks, each looked for when it is needed.

    Raises:
        UserError: a version that the user names is none.
    """
    releases = ProjectReleases(versions_named(project, question), root=checking.root, here=checking.here, seen=seen)
    return releases, ProjectPrograms((lambda path: None) if checking.loose else releases.top, seen)


def lookups_of(releases: "ProjectReleases", programs: ProjectPrograms) -> dict[str, Lookup]:
    """What a check looks up beside a file, by its kind, for a stored result to be held against."""
    return {**LOOKUPS, "named": read_named, "beside": read_below, **releases.lookups, **programs.lookups}


def versions_named(project: Project, question: Question) -> dict[str, tuple[str, str]]:
    """The versions that the user names, by library, each with where."""
    named = {library: (text, project.path or SETTINGS) for library, text in project.versions.items()}
    return named | {library: (text, OPTION.format(library=library)) for library, text in question.versions.items()}


class ProjectReleases:
    """Releases by unit, each folder read once.

    Args:
        named: versions that the user names, with where: an option, or ``kb.toml``.
        root: the folder that the user named: the top of a project without ``.git``.
        here: the runs happen in this very process, so that what it has installed is what they use.
        seen: remembers what was looked at, so that a stored result is not taken for one of today.
        installed: the versions beside kb, by distribution, ``_`` for ``-``.
        environment: the environment that kb runs in, where it is that of the project whose top it is asked about.
    """

    def __init__(
        self,
        named: Mapping[str, tuple[str, str]],
        *,
        root: str | None,
        here: bool = False,
        seen: Seen | None = None,
        installed: Callable[[], Mapping[str, str]] = installed_versions,
        environment: Callable[[str], str | None] = environment_of,
    ) -> None:
        self._named = {library: _named(library, *each) for library, each in named.items()}
        self._root, self._here = root, here
        self._installed, self._environment = installed, environment
        self._own: dict[str, Mapping[str, ProjectRelease]] = {}
        self._texts: dict[str, tuple[str, str]] = {}
        self.lookups: dict[str, Callable[[str, str], Any]] = {
            "releases": self._said_of,
            "listed": lambda path, _: contents(path),
        }
        self._seen = seen
        self._looks = {kind: seen.text(kind, look) for kind, look in self.lookups.items()} if seen else {}
        self.forget()

    def forget(self) -> None:
        """Read every folder anew at the next file: for a session that goes on while files change."""
        self._reader = ReleaseReader(self._root)
        self._said: dict[tuple[str, str], str] = {}
        self._found: dict[str, Releases] = {}

    def hold(self, path: str, text: str, kind: str) -> None:
        """Remember the text of the file that is being read: it may say releases itself."""
        self._texts = {path: (text, kind)}
        self._found = {}

    def __call__(self, unit: Unit) -> "Release":
        """The releases that hold for a unit."""
        found = self.of(unit.path)

        @cache
        def release(library: str) -> ProjectRelease | None:
            each = found.of(library)
            return each if each is None or each.place is None else each._replace(place=shown(each.place))

        return release

    def of(self, path: str) -> Releases:
        """All that is known for the file at ``path``, and for its text where :meth:`hold` was given it."""
        if path not in self._found:
            found = self._in_files(path)
            self._found[path] = found._replace(known=self._with_named(self._with_installed(found.known, path)))
        return self._found[path]

    def disagreements(self, path: str) -> list[Event]:
        """An event for each library of which two files of the project say different things."""
        nowhere = Span(1, 1, 1, 1, 0, 0)
        events = []
        for library in NAMEABLE:
            known = self.of(path).of(library)
            if known is None or library in self._named or known.place is None or not known.others:
                continue
            other, specifier = known.others[0]
            values = {
                "library": library,
                "taken": known.specifier,
                "place": shown(known.place).text(),
                "other": specifier,
                "other_place": shown(other).text(),
            }
            events.append(Event("releases-disagree", nowhere, values))
        return events

    def problems(self, paths: Iterable[str]) -> "list[Problem]":
        """What is wrong with the files that say the releases of the projects of these paths, each once."""
        folders = {os.path.dirname(path): path for path in paths if path not in NO_FILES}
        return list(dict.fromkeys(each for path in folders.values() for each in self.of(path).problems))

    def top(self, path: str) -> str:
        """The top of the project that a file belongs to."""
        try:
            folder = os.path.dirname(os.path.abspath(path))
        except OSError:  # the working folder is gone
            return os.path.dirname(path)
        return self._reader.top(folder, relative=not os.path.isabs(path))

    def _in_files(self, path: str) -> Releases:
        text, kind = self._texts.get(path, (None, None))
        where = os.path.join(os.curdir, path) if path in NO_FILES else path
        found = self._reader.find(where, text, kind)
        if self._seen is not None and os.path.isabs(self.top(where)):
            self._remember(where, found)
        return found

    def _remember(self, path: str, found: Releases) -> None:
        """Note what a result rests on: what the folders say, and the files that the text itself brings in."""
        assert self._seen is not None
        folder = os.path.dirname(os.path.abspath(path))
        self._looks["releases"](folder, "" if os.path.isabs(path) else "relative")
        paths = [stamp[0] for stamp in found.files]
        self._seen.also.update(dict.fromkeys(paths))
        beside = self._reader.of_folder(folder, self.top(path))
        if found is not beside:
            known = {stamp[0] for stamp in beside.files}
            for each in paths:
                if each not in known:
                    self._looks["listed"](each, "")

    def _said_of(self, folder: str, relative: str) -> str:
        """All that the files for a folder say, and whether kb runs in its environment, as a text made once."""
        key = (folder, relative)
        if key not in self._said:
            top = self._reader.top(folder, relative=bool(relative))
            found = self._reader.of_folder(folder, top)
            self._said[key] = f"{found.known} {found.problems} {self._environment(top)}"
        return self._said[key]

    def _with_installed(self, known: Mapping[str, ProjectRelease], path: str) -> Mapping[str, ProjectRelease]:
        """The releases with those of the project's own environment, where no file names one; in this very process they
        win over every file.
        """
        top = self.top(os.path.join(os.curdir, path) if path in NO_FILES else path)
        if top not in self._own:
            self._own[top] = self._in_environment(self._environment(top))
        if not self._own[top]:
            return known
        whole = dict(known)
        for library, there in self._own[top].items():
            said = known.get(library)
            if said is None or self._here or (said.origin == "assumed" and not said.specifier):
                whole[library] = there
            elif there.place is not None and not agree(said.specifier, there.specifier):
                whole[library] = said._replace(others=(*said.others, (there.place, there.specifier)))
        return whole

    def _in_environment(self, folder: str | None) -> Mapping[str, ProjectRelease]:
        if folder is None and not self._here:
            return {}
        place = Source(folder) if folder is not None else None
        versions = {library: self._installed().get(library.replace("-", "_")) for library in LIBRARIES}
        return {
            library: exact_release(library, version, "detected", place)
            for library, version in versions.items()
            if version and version[0].isdigit()
        }

    def _with_named(self, known: Mapping[str, ProjectRelease]) -> Mapping[str, ProjectRelease]:
        """The releases with those that the user names, and the files that say something else."""
        if not self._named:
            return known
        whole = {**known, **self._named}
        for library, given in self._named.items():
            said = known.get(library)
            if said is not None and said.place is not None:
                others = ((said.place, said.specifier), *said.others)
                disagreeing = tuple(each for each in others if not agree(each[1], given.specifier))
                whole[library] = given._replace(others=disagreeing)
        return whole


def shown(place: Source) -> Source:
    """The place relative to the working folder, where it lies below it."""
    try:
        relative = os.path.relpath(place.path)
    except (OSError, ValueError):  # the working folder is gone, or on another drive
        return place
    return place if relative.startswith("..") else place._replace(path=relative)


def _named(library: str, version: str, where: str) -> ProjectRelease:
    try:
        return exact_release(library, version, "given", Source(where))
    except ValueError:
        raise UserError("cli.bad_version", library=library, value=version) from None


def releases_here(project: Project, libraries: Iterable[str]) -> dict[str, str]:
    """The one release of each library that the project in the working folder uses, where that is known."""
    named = versions_named(project, Question())
    found = ProjectReleases(named, root=None).of(os.path.join(os.curdir, "recommended.yaml"))
    releases = {library: found.of(library) for library in libraries}
    return {
        library: ".".join(map(str, release.exact))
        for library, release in releases.items()
        if release is not None and release.exact is not None
    }


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
