"""What is known of a library's release where a unit is to run: named by the user, said by the project's files, or the
environment's own. A version beside kb that is not the project's says nothing.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kb.config.releases.reader import LIBRARIES as CARED_FOR
from kb.config.releases.reader import NOTHING, ReleaseReader, Releases
from kb.core.document import Event, Unit
from kb.core.finding import Span
from kb.core.release import ProjectRelease, Source, agree, exact_release
from kb.core.text import UserError
from kb.machine.software import environment_of, installed_versions
from kb.session.project import LIBRARIES, Project
from kb.session.seen import Seen, contents

if TYPE_CHECKING:
    from kb.config.releases.statements import Problem
    from kb.core.lint import Release

NO_FILES = ("-", "--command", "<config>.json")  # paths of what lies in no folder: the one kb runs in stands for it
OPTION, SETTINGS = "--{library}", "kb.toml"


class ProjectReleases:
    """Releases by unit, each folder read once.

    Args:
        named: versions that the user names, with where: an option, or ``kb.toml``.
        root: the folder that the user named: the top of a project without ``.git``.
        here: the runs happen in this very process, so that what it has installed is what they use.
        reading: whether to look at files at all.
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
        reading: bool = True,
        seen: Seen | None = None,
        installed: Callable[[], Mapping[str, str]] = installed_versions,
        environment: Callable[[str], str | None] = environment_of,
    ) -> None:
        self._named = {library: _named(library, *each) for library, each in named.items()}
        self._root, self._here, self._reading = root, here, reading
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
        known: dict[str, ProjectRelease | None] = {}

        def release(library: str) -> ProjectRelease | None:
            if library not in known:
                each = found.of(library)
                known[library] = each if each is None or each.place is None else each._replace(place=shown(each.place))
            return known[library]

        return release

    def of(self, path: str) -> Releases:
        """All that is known for the file at ``path``, and for its text where :meth:`hold` was given it."""
        if path not in self._found:
            found = self._in_files(path) if self._reading else NOTHING
            self._found[path] = found._replace(known=self._with_named(self._with_installed(found.known, path)))
        return self._found[path]

    def disagreements(self, path: str) -> list[Event]:
        """An event for each library of which two files of the project say different things."""
        nowhere = Span(1, 1, 1, 1, 0, 0)
        events = []
        for library in LIBRARIES:
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
        folders = {os.path.dirname(path): path for path in paths if path not in NO_FILES} if self._reading else {}
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
        versions = {library: self._installed().get(library.replace("-", "_")) for library in CARED_FOR}
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
    named = {library: (text, project.path or SETTINGS) for library, text in project.versions.items()}
    found = ProjectReleases(named, root=None).of(os.path.join(os.curdir, "recommended.yaml"))
    releases = {library: found.of(library) for library in libraries}
    return {
        library: ".".join(map(str, release.exact))
        for library, release in releases.items()
        if release is not None and release.exact is not None
    }
