"""``kb.doctor``: what is installed, what was detected, what is missing, and what that costs."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb import __version__
from kb.core.errors import UserError
from kb.knowledge import load_catalog
from kb.report.words import Words
from kb.session import cli

if TYPE_CHECKING:
    from kb.report.releases import ProjectVersions
    from kb.session.project import Project


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Look around and say it; what is missing is no fault, so the exit code is 0.

    Raises:
        UserError: a path leads to nothing, or the project's settings cannot be used.
    """
    from kb.knowledge.locations import shipped
    from kb.machine.detect import detect
    from kb.machine.installation import look_around
    from kb.report.doctor import Health, doctor_json, doctor_text
    from kb.report.style import choose_style
    from kb.session.project import find_project

    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    catalog = load_catalog()
    path = options.path
    project = find_project(_folder_of(path) if path is not None else os.getcwd())
    health = Health(
        version=__version__,
        rules_version=catalog.version,
        rules_folder=shipped().rules,
        installation=look_around(),
        machine=detect(catalog.gpus),
        project=project.path,
        versions=_versions_of(path, project) if path is not None else None,
    )
    if options.format == "json":
        from kb.report.check.json_report import to_json

        cli.put(to_json(doctor_json(health)))
        return cli.CLEAN
    words = Words(language, messages, catalog.facts)
    cli.put(doctor_text(health, words, choose_style(sys.stdout, options.color)))
    return cli.CLEAN


def _folder_of(path: str) -> str:
    """The folder that is asked about by naming it or a file in it.

    Raises:
        UserError: there is nothing of that name.
    """
    if not os.path.exists(path):
        raise UserError("config.missing", path=path)
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def _versions_of(path: str, project: "Project") -> "ProjectVersions":
    """The releases that count for a file, with what its text says, or for the files of a folder."""
    from kb.report.releases import ProjectVersions
    from kb.session.file import kind_of
    from kb.session.project import LIBRARIES
    from kb.session.project_releases import ProjectReleases
    from kb.session.run import read_bytes

    named = {library: (text, project.path or "") for library, text in project.versions.items()}
    releases = ProjectReleases(named, root=_folder_of(path))
    if os.path.isdir(path):
        path = os.path.join(path, "")
    else:
        releases.hold(path, read_bytes(path).decode("utf-8", "replace"), kind_of(path))
    return ProjectVersions(path, releases.top(path), releases.of(path), LIBRARIES)


def build_parser(words: cli.Words) -> cli.Parser:
    def say(key: str) -> str:
        return cli.said(words, f"cli.doctor.{key}")

    parser = cli.Parser(words=words, prog="kb doctor", description=say("about"))
    parser.add_argument("path", nargs="?", metavar="PATH", help=say("path"))
    parser.add_argument("--format", choices=("text", "json"), default="text", help=say("format"))
    parser.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help=cli.said(words, "cli.check.color"),
    )
    return parser
