"""`kb doctor`: what kb sees of this machine, of its own installation and of a project."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from kb import __version__
from kb.advice.question import Question
from kb.commands.options import Options
from kb.core.hardware import Machine
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.knowledge import load_catalog
from kb.knowledge.locations import Overlay, Rules, Update, cache_folder, current, located, shipped, updated
from kb.knowledge.overlay import OverlayError, laid_entries
from kb.machine.detect import detect
from kb.machine.installation import Installation, Package, look_around
from kb.report.json_parts import SCHEMA, fields, to_json
from kb.report.releases import ProjectVersions, versions_json, versions_lines
from kb.report.terminal import INDENT, Style, choose_style, in_blocks, section, table, wrap
from kb.report.values import host_limit, host_size, printable, size
from kb.report.words import Words
from kb.session import cli
from kb.session.around import ProjectReleases, versions_named
from kb.session.knowledge import overlays_of
from kb.session.project import NAMEABLE, Project, find_project
from kb.session.run import kind_of, read_bytes


class LaidOver(NamedTuple):
    """An overlay of the project or of an installed package; ``faults`` are what is wrong with it, with places."""

    overlay: Overlay
    entries: int
    faults: tuple[str, ...] = ()


class Health(NamedTuple):
    """``project`` is the settings file that counts in this folder; None where there is none. ``versions``: of the
    project that the user named."""

    version: str
    rules_version: str
    rules_folder: str
    installation: Installation
    machine: Machine
    project: str | None
    versions: ProjectVersions | None = None
    overlays: tuple[LaidOver, ...] = ()
    update: Update | None = None  # of the rules, where one counts


def doctor_text(health: Health, words: Words, style: Style) -> str:
    """The whole report."""
    missing = _missing(health.installation, words, style)
    blocks = {
        "versions": versions_lines(health.versions, words, style) if health.versions is not None else [],
        "itself": _itself(health, words),
        "machine": _machine(health.machine, words, style),
        "packages": _packages(health, words),
        "missing": missing,
    }
    sections = [section(words(f"doctor.heading.{name}"), block, style) for name, block in blocks.items()]
    return in_blocks(sections if missing else [*sections, [words("doctor.nothing_missing")]])


def _itself(health: Health, words: Words) -> list[str]:
    around = health.installation
    rows = [
        [words("doctor.version"), f"{health.version} ({words('doctor.rules', version=health.rules_version)})"],
        [words("doctor.rules_folder"), printable(health.rules_folder)],
        *([[words("doctor.update"), _update(health.update, words)]] if health.update else []),
        ["Python", f"{around.python}, {around.platform}"],
        [words("doctor.project"), printable(health.project) if health.project else words("doctor.none")],
        *([words("doctor.knowledge"), _laid_over(one, words)] for one in health.overlays),
        [words("doctor.cache"), printable(around.cache_folder)],
    ]
    faults = [fault for one in health.overlays for fault in one.faults]
    faults += [words("doctor.foreign", path=each) for each in around.foreign]
    lines = [line for fault in faults for line in fault.split("\n")]
    return [*table(rows, left=(0, 1)), *(f"{INDENT}{printable(line)}" for line in lines)]


def _update(update: Update, words: Words) -> str:
    return words("doctor.updated", release=update.release, source=printable(update.source), sha256=update.sha256[:12])


def _laid_over(one: LaidOver, words: Words) -> str:
    name, root = printable(one.overlay.name), one.overlay.root
    if not root:
        return f"{name}: {words('doctor.knowledge_missing')}"
    state = words("doctor.knowledge_broken") if one.faults else words.count("doctor.knowledge_entries", one.entries)
    return f"{name} ({printable(root)}): {state}"


def _machine(machine: Machine, words: Words, style: Style) -> list[str]:
    gpus = [f"{gpu.name} {size(gpu.memory_total)}" for gpu in machine.gpus]
    rows = [["GPU", style.dot.join(gpus) or words("doctor.none")]]
    unknown = words("doctor.unknown")
    rows += [
        [words("doctor.host"), _host(machine, words)],
        [words("doctor.cpus"), str(machine.cpus) if machine.cpus else unknown],
        ["/dev/shm", host_size(machine.shm_bytes) if machine.shm_bytes else unknown],
    ]
    lines = table(rows, left=(0, 1))
    for note in machine.sayings:
        lines += wrap(words(f"machine.{note}"), style.width, INDENT)
    return lines


def _host(machine: Machine, words: Words) -> str:
    if machine.host_memory_bytes is None:
        return words("doctor.unknown")
    source = words(f"doctor.source.{machine.host_memory_source}")
    return f"{host_limit(machine.host_memory_bytes)}, {source}"


def _packages(health: Health, words: Words) -> list[str]:
    return table(
        [
            [package.name, package.version or words("doctor.not_installed"), words(f"doctor.for.{package.purpose}")]
            for package in health.installation.packages
        ],
        left=(0, 1, 2),
    )


def _missing(around: Installation, words: Words, style: Style) -> list[str]:
    """One line for each extra that lacks something, then what is no package."""
    lines = []
    absent = [package for package in around.packages if package.version is None]
    for extra in dict.fromkeys(package.extra for package in absent):
        these = [package for package in absent if package.extra == extra]
        lines.append(_lacking(extra, these, words))
    if not around.libyaml:
        lines.append(words("doctor.no_libyaml"))
    if around.cuda_build is False and around.compiler is None:
        lines.append(words("doctor.no_compiler"))
    if not around.cache_writable:
        lines.append(words("doctor.cache_not_writable", path=around.cache_folder))
    return [part for line in lines for part in wrap(line, style.width, INDENT, INDENT * 2)]


def _lacking(extra: str | None, packages: list[Package], words: Words) -> str:
    what = list(dict.fromkeys(words(f"doctor.for.{package.purpose}") for package in packages))
    names = [package.name for package in packages]
    wanted = f"'gpu-memory-kb[{extra}]'" if extra else " ".join(names)
    return words("doctor.without", names=names, what=what, command=f"pip install {wanted}")


def doctor_json(health: Health) -> dict[str, Any]:
    """Schema 1: ``rules/schema/output/doctor.json`` says it in full. Sizes in bytes."""
    machine, around = health.machine, health.installation
    return {
        "schema": SCHEMA,
        "kb": health.version,
        "rules": {
            "version": health.rules_version,
            "folder": health.rules_folder,
            "update": fields(health.update, "release", "source", "sha256") if health.update else None,
        },
        "python": around.python,
        "platform": around.platform,
        "project": health.project,
        "knowledge": [
            {
                "name": one.overlay.name,
                "folder": one.overlay.root or None,
                "entries": one.entries,
                "faults": list(one.faults),
            }
            for one in health.overlays
        ],
        "versions": versions_json(health.versions) if health.versions else None,
        "machine": {
            "gpus": [{"name": gpu.name, "memory_total_bytes": gpu.memory_total} for gpu in machine.gpus],
            "gpu_source": machine.gpu_source,
            "notes": list(machine.sayings),
            **fields(machine, "host_memory_bytes", "host_memory_source", "cpus", "shm_bytes"),
        },
        "packages": [fields(package, "name", "version", "extra") for package in around.packages],
        "libyaml": around.libyaml,
        "compiler": around.compiler,
        "torch_cuda_build": around.cuda_build,
        "foreign": list(around.foreign),
        "cache": {"folder": around.cache_folder, "writable": around.cache_writable},
    }


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Look around and say it; what is missing is no fault, so the exit code is 0.

    Raises:
        UserError: a path leads to nothing, or the project's settings cannot be used.
    """
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    path = options.path
    project = find_project(_folder_of(path) if path is not None else os.getcwd())
    rules, overlays = _overlays(project, options.lang or language)
    catalog = load_catalog(rules)
    health = Health(
        version=__version__,
        rules_version=catalog.version,
        rules_folder=current().rules,
        update=updated() if shipped().sealed else None,
        installation=look_around(cache_folder()),
        machine=detect(catalog.gpus),
        project=project.path,
        versions=_versions_of(path, project) if path is not None else None,
        overlays=overlays,
    )
    if options.format == "json":
        cli.put(to_json(doctor_json(health)))
        return cli.CLEAN
    words = Words(language, messages, catalog.facts)
    cli.put(doctor_text(health, words, choose_style(sys.stdout, options.color)))
    return cli.CLEAN


def _overlays(project: Project, language: str) -> tuple[Rules, tuple[LaidOver, ...]]:
    """The rules that count in a project without the overlays that have faults, and every overlay with what it holds."""
    missing: list[UserError] = []
    overlays = overlays_of(project, missing.append)
    absent = [LaidOver(Overlay(str(each.values["name"]), ""), 0, (cli.worded(each, language),)) for each in missing]
    if not overlays:
        return None, tuple(absent)
    rules = located(None)._replace(overlays=overlays, cache=cache_folder())
    broken: tuple[Overlay, ...] = ()
    told: list[str] = []
    try:
        found = [entry.overlay for entry in laid_entries(rules)]
    except OverlayError as error:
        broken, told = error.overlays, [problem.in_language(language) for problem in error.problems]
        rules = rules._replace(overlays=tuple(one for one in overlays if one not in broken))
        found = [entry.overlay for entry in laid_entries(rules)]
    rows = [
        LaidOver(
            one, found.count(one.name), tuple(each for each in told if one in broken and each.startswith(one.root))
        )
        for one in overlays
    ]
    return rules, (*rows, *absent)


def _folder_of(path: str) -> str:
    """The folder that is asked about by naming it or a file in it.

    Raises:
        UserError: there is nothing of that name.
    """
    if not os.path.exists(path):
        raise UserError("config.missing", path=path)
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def _versions_of(path: str, project: Project) -> "ProjectVersions":
    """The releases that count for a file, with what its text says, or for the files of a folder."""
    releases = ProjectReleases(versions_named(project, Question()), root=_folder_of(path))
    if os.path.isdir(path):
        path = os.path.join(path, "")
    else:
        releases.hold(path, read_bytes(path).decode("utf-8", "replace"), kind_of(path))
    return ProjectVersions(path, releases.top(path), releases.of(path), NAMEABLE)


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "doctor")
    made.parser.add_argument("path", nargs="?", metavar="PATH", help=made.say("path"))
    made.output(made.parser, rules=False)
    return made.parser
