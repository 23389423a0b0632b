"""Answers that were given before: what one check of one file said, told again while nothing that it rests on changed.

An answer is found by all that decides it (:func:`decided_by`) and by the file's bytes. What the check looked at beside
the file lies with the answer, and is looked at again.
"""

import argparse
import datetime
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kb import __version__
from kb.advice.question import Question
from kb.config.files import MAX_BYTES, read_if_any
from kb.core.catalog import Catalog
from kb.core.hardware import Machine
from kb.core.record import NamedTuple
from kb.knowledge.locations import cache_folder, located, site_address
from kb.machine.software import installed_versions
from kb.report.terminal import choose_style
from kb.session.around import Checking, beside_files, lookups_of, named_machine
from kb.session.cache import ResultCache, context_of, installs, key_of
from kb.session.model_files import hub_folder
from kb.session.project import Project
from kb.session.seen import Row, Seen, still

ANSWERS = "answers"
# Options that ask for more than a report of what is there, or for what no file says.
_NOT_KEPT = (
    *("no_cache", "online", "watch", "fix", "diff", "explain", "baseline", "write_baseline", "prune_baseline"),
    *("command", "model_config"),
)


class CheckRequest(NamedTuple):
    """What a check is asked: the command line, the project's settings, and what follows from both."""

    options: argparse.Namespace
    project: Project
    question: Question
    checking: Checking


class Answer(NamedTuple):
    """What a check wrote to standard output, and its exit code."""

    text: str
    code: int


class KeptAnswer:
    """The place of one answer among those that are kept. It never raises: what cannot be read is not there.

    Args:
        path: the file that is checked.
        raw: its bytes.
        key: all that decides the answer but what is looked up beside the file.
        lookups: what a check looks up beside it, by kind.
        machine: what the answer is for, found for the key.
    """

    def __init__(self, path: str, raw: bytes, key: bytes, lookups: Mapping[str, Any], machine: Machine) -> None:
        self._path, self._raw = path, raw
        self._key, self._lookups, self.machine = key, dict(lookups), machine
        self._cache = ResultCache(cache_folder(), ANSWERS)

    def get(self) -> Answer | None:
        """The answer, where there is one and all that was looked at beside the file is as it was."""
        try:
            text, code, seen = self._cache.get(self._key)
            return Answer(str(text), int(code)) if still(seen, self._lookups) else None
        except (TypeError, ValueError):  # none, or not whole
            return None

    def put(self, answer: Answer, seen: Sequence[Row]) -> None:
        """Keep an answer, with what was looked at beside the file; not where that was saved meanwhile."""
        if read_if_any(self._path, MAX_BYTES) == self._raw:
            self._cache.put([(self._key, [*answer, seen])])


def kept_answer(request: CheckRequest, catalog: Catalog) -> KeptAnswer | None:
    """Where the answer to this check is kept; None where it is no check of one file, or no answer of such is kept.

    Raises:
        UserError: the machine, or a version, cannot be used.
    """
    options, project, question, checking = request
    if any(getattr(options, name) for name in _NOT_KEPT) or project.baseline or len(options.paths) != 1:
        return None
    (path,) = options.paths
    raw = read_if_any(path, MAX_BYTES)
    if raw is None or installs(raw):
        return None
    machine = named_machine(catalog, project, question.machine)
    # what of host memory is in use changes with every look, and JSON alone shows it
    shown = machine if options.format == "json" else machine._replace(host_memory_used_bytes=None)
    style = repr(choose_style(sys.stdout, options.color))
    decided = decided_by(options, project, shown, catalog, style) | {"fail on": options.fail_on}
    lookups = lookups_of(*beside_files(project, question, checking, Seen()))
    key = key_of(context_of(decided, code_folders(options)), path, True, raw)
    return KeptAnswer(path, raw, key, lookups, machine)


def decided_by(
    options: argparse.Namespace, project: Project, machine: Machine, catalog: Catalog, style: str
) -> dict[str, Any]:
    """All that decides what is said of a file, but for the file and what lies beside it."""
    ignored = ("paths", "jobs", "no_cache", "watch", "fail_on", "color")
    return {
        **{f"option {name}": value for name, value in vars(options).items() if name not in ignored},
        "project": project,
        "machine": machine,
        "style": style,
        "versions": sorted(installed_versions().items()),
        "environment": (sys.prefix, os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX")),
        "python": sys.version,
        "kb": __version__,
        "rules": catalog.version,  # with what is laid over them
        "day": datetime.date.today(),
        "folder": os.getcwd(),
        "language": options.spoken,
        "hub": hub_folder(os.environ),
        "site": site_address(),
        "in": code_folders(options),
    }


def code_folders(options: argparse.Namespace) -> list[str]:
    """kb's own code, and the rules and texts."""
    place = located(options.rules)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [package, place.rules, place.i18n]
