"""The releases that count for a file: as the user gives them, as the project's files say, as its environment holds."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from kb.config.releases.reader import ReleaseReader, Releases
from kb.core.errors import UserError
from kb.core.release import ProjectRelease, Source, agree, exact_release
from kb.linting.file import kind_of
from kb.linting.project import LIBRARIES, Project
from kb.linting.run import read_bytes
from kb.linting.seen import Seen, contents
from kb.machine.software import environment_of, installed_versions
from kb.report.releases import ProjectVersions


class ProjectReleases:
    """Asked once for each file of a run; folders are read once.

    Args:
        given: by library, what the command line or ``kb.toml`` says; it wins over every file.
        root: the folder that the user named, as :class:`ReleaseReader` has it.
        seen: remembers what was looked at, so that a stored result is not taken for one of today.
        installed: the versions beside kb, by distribution, ``_`` for ``-``.
        environment: the environment that kb runs in, where it is that of the project whose top it is asked about.
    """

    def __init__(
        self,
        given: Mapping[str, ProjectRelease] = {},
        *,
        root: str | None = None,
        seen: Seen | None = None,
        installed: Callable[[], Mapping[str, str]] = installed_versions,
        environment: Callable[[str], str | None] = environment_of,
    ) -> None:
        self._given = given
        self._root = root
        self._installed, self._environment = installed, environment
        self._own: dict[str, Mapping[str, ProjectRelease]] = {}
        self.lookups: dict[str, Callable[[str, str], Any]] = {
            "releases": self._said_of,
            "listed": lambda path, _: contents(path),
        }
        self._looks = {kind: seen.text(kind, look) for kind, look in self.lookups.items()} if seen else {}
        self.forget()

    def forget(self) -> None:
        """Read every folder anew at the next file: for a session that goes on while files change."""
        self._reader = ReleaseReader(self._root)
        self._texts: dict[tuple[str, str], str] = {}

    def top(self, path: str) -> str | None:
        """The top of the project that a file or folder belongs to; None where the path is none."""
        try:
            absolute = os.path.abspath(path)
        except (OSError, ValueError):  # the working folder is gone
            return None
        folder = absolute if os.path.isdir(absolute) else os.path.dirname(absolute)
        return self._reader.top(folder, relative=not os.path.isabs(path))

    def of(self, path: str, text: str | None = None, kind: str | None = None) -> Releases:
        """What counts for one file. ``.of(library)`` of it is None where nothing is known.

        Args:
            text: the file's own, which may say releases where ``kind`` is ``shell``, ``python`` or ``notebook``.
        """
        found = self._reader.find(path, text, kind)
        if self._looks:
            self._remember(path, found)
        top = self.top(path)
        whole = self._with_environment(found.known, top) if top is not None else found.known
        if self._given:
            whole = {**whole, **{library: _over(each, whole.get(library)) for library, each in self._given.items()}}
        return found if whole is found.known else found._replace(known=whole)

    def _with_environment(self, known: Mapping[str, ProjectRelease], top: str) -> Mapping[str, ProjectRelease]:
        """The releases with those of the project's own environment, where no file names one."""
        if top not in self._own:
            self._own[top] = self._releases_in(self._environment(top))
        environment = self._own[top]
        if not environment:
            return known
        whole = dict(known)
        for library, there in environment.items():
            said = known.get(library)
            if said is None or (said.origin == "assumed" and not said.specifier):
                whole[library] = there
            elif there.place is not None and not agree(said.specifier, there.specifier):
                whole[library] = said._replace(others=(*said.others, (there.place, there.specifier)))
        return whole

    def _releases_in(self, folder: str | None) -> Mapping[str, ProjectRelease]:
        if folder is None:
            return {}
        from kb.config.releases.requirement import LIBRARIES

        found = {library: self._installed().get(library.replace("-", "_")) for library in LIBRARIES}
        return {
            library: exact_release(library, version, "detected", Source(folder))
            for library, version in found.items()
            if version is not None and version[:1].isdigit()
        }

    def _remember(self, path: str, found: Releases) -> None:
        """Note what the result rests on: what the folders say, and the files that the text itself brings in."""
        absolute = os.path.abspath(path)
        self._looks["releases"](os.path.dirname(absolute), "" if os.path.isabs(path) else "relative")
        folder = self._reader.find(os.path.join(os.path.dirname(path), "."))
        if found is not folder:
            beside = {stamp[0] for stamp in folder.files}
            for stamp in found.files:
                if stamp[0] not in beside:
                    self._looks["listed"](stamp[0], "")

    def _said_of(self, folder: str, relative: str) -> str:
        """All that the files for a folder say, as a text; made once for each folder."""
        key = (folder, relative)
        if key not in self._texts:
            found = self._reader.of_folder(folder, self._reader.top(folder, relative=bool(relative)))
            self._texts[key] = f"{found.known} {found.problems}"
        return self._texts[key]


def _over(given: ProjectRelease, said: ProjectRelease | None) -> ProjectRelease:
    """What is given, with the files that say something else."""
    if said is None or said.place is None:
        return given
    others = ((said.place, said.specifier), *said.others)
    return given._replace(others=tuple(each for each in others if not agree(each[1], given.specifier)))


def given_releases(project: Project) -> dict[str, ProjectRelease]:
    """What the project's settings say (``[versions]``)."""
    place = Source(project.path) if project.path else None
    return {library: exact_release(library, text, "given", place) for library, text in project.versions.items()}


def folder_of(path: str) -> str:
    """The folder that is asked about by naming it or a file in it.

    Raises:
        UserError: there is nothing of that name.
    """
    if not os.path.exists(path):
        raise UserError("config.missing", path=path)
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def versions_of(path: str, project: Project) -> ProjectVersions:
    """What counts for a file or a folder, for a report; of a file as much as its text says.

    Raises:
        ConfigError: the file cannot be read.
    """
    releases = ProjectReleases(given_releases(project))
    text, kind = None, None
    if os.path.isfile(path):
        kind = kind_of(path)
        text = read_bytes(path).decode("utf-8", "replace")
    return ProjectVersions(path, releases.top(path) or path, releases.of(path, text, kind), LIBRARIES)
