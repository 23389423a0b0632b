"""What is known of a library's release where a unit is to run: named by the user, said by the project's files, or the
environment's own. A version beside kb that is not the project's says nothing.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kb.config.releases.reader import NOTHING, ReleaseReader, Releases
from kb.core.document import Event, Unit
from kb.core.errors import UserError
from kb.core.finding import Span
from kb.core.lint import Release
from kb.core.release import ProjectRelease, Source, exact_release
from kb.linting.project import LIBRARIES

if TYPE_CHECKING:
    from kb.config.releases.statements import Problem

NO_FILES = ("-", "--command", "<config>.json")  # paths of what lies in no folder: the one kb runs in stands for it
OPTION, SETTINGS = "--{library}", "kb.toml"


class ProjectReleases:
    """Releases by unit, each folder read once.

    Args:
        named: versions that the user names, with where: an option, or ``kb.toml``.
        root: the top of a project without ``.git``; None reads no file at all.
        here: the runs happen in this very process, so that what it has installed is what they use.
    """

    def __init__(
        self, named: Mapping[str, tuple[str, str]], *, root: str | None, here: bool = False, reading: bool = True
    ) -> None:
        self._named = {library: _named(library, *each) for library, each in named.items()}
        self._reader = ReleaseReader(root) if reading else None
        self._here = here
        self._texts: dict[str, tuple[str, str]] = {}
        self.problems: dict[Problem, None] = {}

    def hold(self, path: str, text: str, kind: str) -> None:
        """Remember the text of the file that is being read: it may say releases itself."""
        self._texts = {path: (text, kind)}

    def __call__(self, unit: Unit) -> Release:
        """The releases that hold for a unit."""
        found = self._found(unit.path)

        def release(library: str) -> ProjectRelease | None:
            known = self._named.get(library) or found.of(library) or self._installed(library, unit.path)
            return known if known is None or known.place is None else known._replace(place=shown(known.place))

        return release

    def disagreements(self, path: str) -> list[Event]:
        """An event for each library of which two files of the project say different things."""
        nowhere = Span(1, 1, 1, 1, 0, 0)
        events = []
        for library in LIBRARIES:
            known = self._found(path).of(library)
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

    def _found(self, path: str) -> Releases:
        if self._reader is None:
            return NOTHING
        text, kind = self._texts.get(path, (None, None))
        found = self._reader.find(os.path.join(os.getcwd(), "-") if path in NO_FILES else path, text, kind)
        self.problems |= dict.fromkeys(found.problems)
        return found

    def _installed(self, library: str, path: str) -> ProjectRelease | None:
        from kb.machine.software import environment_of, installed_versions

        start = os.getcwd() if path in NO_FILES else os.path.dirname(os.path.abspath(path))
        top = self._reader.top(start) if self._reader is not None else start
        folder = environment_of(top)
        if folder is None and not self._here:
            return None
        text = installed_versions().get(library)
        if not text or not text[0].isdigit():
            return None
        return exact_release(library, text, "detected", Source(folder) if folder else None)


def shown(place: Source) -> Source:
    """The place relative to the working folder, where it lies below it."""
    relative = os.path.relpath(place.path)
    return place if relative.startswith("..") else place._replace(path=relative)


def _named(library: str, version: str, where: str) -> ProjectRelease:
    try:
        return exact_release(library, version, "given", Source(where))
    except ValueError:
        raise UserError("cli.bad_version", library=library, value=version) from None
