"""The releases of a project's libraries in words and as JSON: what was found, where, and what says otherwise."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kb.config.releases.reader import Releases
from kb.config.releases.statements import Problem
from kb.core.record import NamedTuple
from kb.core.release import OR, ProjectRelease, Source, pinned_version
from kb.report.json_parts import fields, release_text
from kb.report.terminal import INDENT, Style, table, wrap
from kb.report.values import printable
from kb.report.words import Words


class ProjectVersions(NamedTuple):
    """``path``: what was asked about. ``top``: the project's top. ``libraries``: those to show even where nothing is
    known of them."""

    path: str
    top: str
    releases: Releases
    libraries: Sequence[str]


def versions_lines(versions: ProjectVersions, words: Words, style: Style) -> list[str]:
    """A row for each library; below it what the other places say; then what is wrong with the files."""
    known = versions.releases.known
    names = [*versions.libraries, *sorted(known.keys() - set(versions.libraries))]
    rows = table([_row(name, known.get(name), versions.top, words) for name in names], left=(0, 1, 2, 3))
    lines = [INDENT + words("releases.top", path=printable(versions.top))]
    for name, row in zip(names, rows, strict=True):
        lines.append(row)
        release = known.get(name)
        for place, specifier in release.others if release else ():
            says = words(
                "releases.other", place=place_text(place, versions.top), specifier=specifier_text(specifier, words)
            )
            lines += wrap(says, style.width, INDENT * 3, INDENT * 4)
    for problem in versions.releases.problems:
        said = f"{place_text(problem.place, versions.top)}: {problem_text(problem, words)}"
        lines += wrap(said, style.width, INDENT, INDENT * 2)
    return lines


def _row(name: str, release: ProjectRelease | None, top: str, words: Words) -> list[str]:
    if release is None:
        return [name, words("releases.unknown"), "", ""]
    place = place_text(release.place, top) if release.place else ""
    origin: str = "partly" if release.partly else release.origin
    if origin == "ranged" and OR in release.specifier:
        origin = "either"
    return [name, specifier_text(release.specifier, words), place, words(f"releases.origin.{origin}")]


def specifier_text(specifier: str, words: Words) -> str:
    """``4.54.0``, ``>=4.40,<5``, ``4.40.0 or 4.45.0``; of an empty one that any is allowed."""
    if not specifier:
        return words("releases.any")
    parts = [pinned_version(part) or part for part in specifier.split(OR)]
    return printable(f" {words('releases.or')} ".join(parts))


def place_text(place: Source, top: str) -> str:
    """``configs/requirements.txt:3``, from the project's top; a path outside it is shown whole."""
    path = os.path.abspath(place.path)
    inside = path.startswith(top.rstrip(os.sep) + os.sep)
    return printable(place._replace(path=os.path.relpath(path, top) if inside else path).text())


def problem_text(problem: Problem, words: Words) -> str:
    """What is wrong with a file that says releases; its place is said beside."""
    return words(f"releases.problem.{problem.key}", **dict(problem.values))


def versions_json(versions: ProjectVersions) -> dict[str, Any]:
    """As ``rules/schema/output/doctor.json`` has it; a release that nothing says is null."""
    known = versions.releases.known
    names = [*versions.libraries, *sorted(known.keys() - set(versions.libraries))]
    return {
        "path": versions.path,
        "top": versions.top,
        "libraries": [{"name": name, "release": _release_json(known.get(name))} for name in names],
        "problems": [
            {"key": each.key, **fields(each.place, "path", "line"), "values": dict(each.values)}
            for each in versions.releases.problems
        ],
        "files": [path for path, _, _ in versions.releases.files],
    }


def _release_json(release: ProjectRelease | None) -> Mapping[str, Any] | None:
    if release is None:
        return None
    return {
        "specifier": release.specifier,
        "exact": release_text(release.exact),
        **fields(release, "origin", "partly"),
        "place": fields(release.place, "path", "line") if release.place else None,
        "others": [{**fields(place, "path", "line"), "specifier": specifier} for place, specifier in release.others],
    }
