"""``kb history``: a config's versions side by side: settings, effective batch, predicted and measured memory.

The versions come from files, from git or from a note; what was measured of them from a file of its own.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kb import __version__
from kb.advice.history import (
    History,
    Measured,
    Version,
    distinct,
    history_of,
    noted_versions,
    preparing,
    with_measured,
    with_notes,
)
from kb.commands.options import MACHINE, Options, question_of
from kb.config.files import MAX_BYTES, ConfigError
from kb.config.text.encoding import decode
from kb.core.document import Unit
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.core.units import read_size
from kb.integrations.git_files import file_history
from kb.knowledge import KnowledgeError, load_guide
from kb.knowledge.source import read_source
from kb.report.history_plot import history_svg
from kb.report.history_report import LeftOut, fault_text, history_object, history_text
from kb.report.json_parts import head, to_json
from kb.report.terminal import choose_style
from kb.report.values import printable
from kb.report.words import Words
from kb.session import cli
from kb.session.file import FileChecker
from kb.session.knowledge import open_knowledge
from kb.session.lookups import contents
from kb.session.plot_file import write_plot
from kb.session.prepare import file_checker
from kb.session.project import find_project
from kb.session.run import kind_of, read_bytes

SEPARATORS = "._/\\- "
HEXADECIMAL = frozenset("0123456789abcdef")
Fault = tuple[str, Mapping[str, Any]]


class Given(NamedTuple):
    """The versions to compare. ``unchanged`` commits were left out for changing nothing; ``shallow``: git may lack
    earlier ones; ``remarks`` are a note's sentences about the whole."""

    versions: list[Version]
    unchanged: int = 0
    shallow: bool = False
    remarks: tuple[str, ...] = ()


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Compare the versions that the arguments name; 2 where one of the named files cannot be read."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    if options.plot and not options.plot.lower().endswith((".svg", ".png")):
        raise UserError("history.plot_kind", path=options.plot)
    project = find_project(_start(options))
    catalog, words = open_knowledge(options, project, language, messages)
    guide = load_guide(options.rules)
    checker = file_checker(catalog, project, question_of(options))
    given = _versions(options, checker, guide, words)
    versions = given.versions
    if options.measured:
        versions = with_measured(versions, read_measured(options.measured))
    if any(version.unit for version in versions):
        history = history_of(versions, preparing(checker.prepare), catalog.facts)
        _report(options, history, checker, words, given)
        if options.plot:
            _plot(options.plot, history, words)
    return _unreadable(versions, options, words)


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "history")
    parser, say = made.parser, made.say
    parser.add_argument("paths", nargs="*", metavar="FILE|NAME", help=say("paths"))
    parser.add_argument("--git", metavar="PATH", help=say("git"))
    parser.add_argument("--rev", metavar="RANGE", help=say("rev"))
    parser.add_argument("--last", type=cli.number(words), metavar="N", help=say("last"))
    made.add(parser, "section")
    parser.add_argument("--measured", metavar="FILE", help=say("measured"))
    made.add(made.group("machine"), *MACHINE, "model_config", "dialect")
    output = made.group("output")
    output.add_argument("--plot", metavar="FILE.svg|.png", help=say("plot"))
    made.output(group=output, color=False)
    return parser


def _start(options: argparse.Namespace) -> str:
    """Project settings are those nearest to the first config."""
    first = options.git or next(iter(options.paths), "")
    folder = os.path.dirname(os.path.abspath(first)) if first else os.getcwd()
    return folder if os.path.isdir(folder) else os.getcwd()


def _versions(options: argparse.Namespace, checker: FileChecker, guide: Mapping[str, Any], words: Words) -> Given:
    """What the arguments name.

    Raises:
        UserError: nothing, or both kinds of things, are named; or what is named cannot be used.
    """
    if options.git and options.paths:
        raise UserError("history.files_or_git")
    if options.rev and not options.git:
        raise UserError("history.rev_needs_git")
    if options.last is not None and options.last < 1:
        raise UserError("history.bad_last", value=options.last)
    rows = guide.get("histories", {})
    if options.git:
        found, shallow = git_versions(options.git, options.rev, checker, options.section, words("history.working"))
        kept, unchanged = distinct(found)
        return Given(with_notes(kept[-options.last :] if options.last else kept, rows), unchanged, shallow)
    if len(options.paths) == 1 and options.paths[0] in rows and not os.path.exists(options.paths[0]):
        return _noted(rows[options.paths[0]], guide.get("errata", {}).get("errata", ()), words)
    if len(options.paths) < 2:
        raise UserError("history.too_few", known=", ".join(sorted(rows)) or "–")

    return Given(with_notes(file_versions(options.paths, checker, options.section), rows))


def _noted(row: Mapping[str, Any], errata: Sequence[Mapping[str, Any]], words: Words) -> Given:
    """A note's own history: what it says came of each stage goes with it, and which errata are about it."""
    versions = noted_versions(row, words.language)
    outcomes = [stage["outcome"]["text"][words.language] for stage in row["stages"]]
    remarks = [f"{printable(version.label)}: {text}" for version, text in zip(versions, outcomes, strict=True)]
    if code := row.get("code"):
        remarks.append(code["text"][words.language])
    if confirmed := row.get("confirmed"):
        remarks.append(words("history.confirmed", when=confirmed["time"], source=confirmed["source"]))
    if about := [erratum["id"] for erratum in errata if erratum["claim"]["source"] == row["config"]["source"]]:
        remarks.append(f"{words('history.errata')} {', '.join(about)}")
    return Given(versions, remarks=tuple(remarks))


def _report(options: argparse.Namespace, history: History, checker: FileChecker, words: Words, given: Given) -> None:
    if options.format == "json":
        data = history_object(history, checker.machine, words, unchanged=given.unchanged, shallow=given.shallow)
        cli.put(to_json({**head(__version__, checker.catalog.version), **data}))
        return

    left_out = LeftOut(given.unchanged, given.shallow)
    cli.put(history_text(history, checker.machine, words, choose_style(sys.stdout), left_out, given.remarks))


def _unreadable(versions: Sequence[Version], options: argparse.Namespace, words: Words) -> int:
    """Of files that were named, a fault is the user's to mend; an old commit's is only worth saying."""
    faults = [version for version in versions if version.fault]
    if not faults:
        return cli.CLEAN

    if not options.git or len(faults) == len(versions):
        for version in faults:
            assert version.fault is not None
            print(fault_text(version.path, version.fault, words), file=sys.stderr)
        return cli.UNUSABLE
    return cli.CLEAN


def _plot(path: str, history: History, words: Words) -> None:
    """Write the drawing; a PNG through a converter, where one is installed.

    Raises:
        UserError: another kind of file is asked for, no converter is installed, or the file cannot be written.
    """
    write_plot(path, history_svg(history, words))
    print(words("history.plotted", path=path), file=sys.stderr)


def file_versions(paths: Sequence[str], checker: FileChecker, section: str | None) -> list[Version]:
    """One version for each file, in the order given; one that cannot be read keeps its place, with its fault.

    Raises:
        UserError: a file has no such section.
    """
    versions = []
    for path, label in zip(paths, labels_of(paths), strict=True):
        try:
            unit, fault = _read(read_bytes(path), path, checker, section)
        except ConfigError as error:
            unit, fault = None, _fault(error)
        commit = label if len(label) >= 7 and HEXADECIMAL.issuperset(label) else None
        versions.append(Version(label=label, path=path, unit=unit, fault=fault, commit=commit))
    return versions


def git_versions(
    path: str, revisions: str | None, checker: FileChecker, section: str | None, working_label: str
) -> tuple[list[Version], bool]:
    """The versions that git knows of ``path``, oldest first, and the file on disk where it differs from the last.

    A version that cannot be read keeps its place, with its fault. The second value is whether the clone is shallow.

    Raises:
        GitError: as :func:`kb.integrations.git_files.file_history`.
        UserError: a version has no such section.
    """
    history = file_history(path, revisions)
    versions = []
    for each in history.versions:
        unit, fault = _read(each.content, each.path, checker, section)
        versions.append(Version(each.short, each.path, unit, fault, each.commit, each.when, each.subject))
    if history.working is not None:
        unit, fault = _read(history.working, path, checker, section)
        versions.append(Version(working_label, path, unit, fault))
    return versions, history.shallow


def _read(raw: bytes | None, path: str, checker: FileChecker, section: str | None) -> tuple[Unit | None, Fault | None]:
    """The unit to compare, or why there is none; ``raw`` is None where git's blob is larger than a config may be."""
    if raw is None:
        return None, ("config.too-large", {"size": MAX_BYTES + 1, "limit": MAX_BYTES})
    try:
        made = checker.made_of_several(raw, path) if kind_of(path) == "config" else None
        if made is not None:
            if contents(path) != raw:  # its group files are those of today
                return None, ("history.made_of_several", {"path": path})
            return _chosen([result.unit for result in made.results], path, section), None
        decoded = decode(raw)
        text = decoded.text if decoded.text is not None else ""
        units = checker.read(text, path, kind_of(path), decoded.events, readable=decoded.text is not None)
    except ConfigError as error:
        return None, _fault(error)
    return _chosen(units, path, section), None


def _fault(error: ConfigError) -> Fault:
    return error.key, {**error.values, "line": error.line, "column": error.column}


def _chosen(units: Sequence[Unit], path: str, section: str | None) -> Unit:
    """The section that was asked for, else the first that trains, else the first."""
    if section is None:
        training = (unit for unit in units if any(name.startswith("training.") for name in unit.settings))
        return next(training, units[0])
    for unit in units:
        if unit.section == section:
            return unit
    known = ", ".join(unit.section for unit in units if unit.section) or "–"
    raise UserError("history.no_section", path=path, section=section, known=known)


def labels_of(paths: Sequence[str]) -> list[str]:
    """Short names that tell the paths apart: what differs between their first and their last common part."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) < len(names):
        names = [path.replace(os.sep, "/") for path in paths]
    if len(set(names)) < 2:
        return [f"{name} #{at}" if len(names) > 1 else name for at, name in enumerate(names, 1)]
    start = _common(names)
    end = _common([name[start:][::-1] for name in names])
    short = [name[start : len(name) - end].strip(SEPARATORS) for name in names]
    whole = all(short) and len(set(short)) == len(short)
    return short if whole else names


def _common(names: Sequence[str]) -> int:
    """How many characters the names begin with alike, back to where a name in them ends."""
    first, last = min(names), max(names)  # what these two share, all between them do
    length = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    while length and first[length - 1] not in SEPARATORS:
        length -= 1
    return length


def read_measured(path: str) -> dict[str, Measured]:
    """What was measured, by version: a size of the GPU's memory, or ``{gpu: …, host: …}``; YAML or JSON.

    A size is a text with its unit (``18.3GB``) or a number of bytes.

    Raises:
        UserError: the file cannot be read, or an entry is of another shape; said at its line where it has one.
    """
    raw = read_bytes(path)
    try:
        data = read_source(path, raw.decode("utf-8")).data
    except UnicodeDecodeError as error:
        raise UserError("history.measured_unreadable", path=path, reason=f"UTF-8, {error.start}") from None
    except KnowledgeError as error:
        raise UserError("history.measured_unreadable", path=path, reason=str(error.problems[0])) from None
    if not isinstance(data, dict) or not data:
        raise UserError("history.measured_shape", path=path, name="–")
    return {name: _measured(path, name, value) for name, value in data.items()}


def _measured(path: str, name: str, value: Any) -> Measured:
    sizes = value if isinstance(value, dict) else {"gpu": value}
    if not sizes or not sizes.keys() <= {"gpu", "host"}:
        raise UserError("history.measured_shape", path=path, name=name)
    found = {kind: _bytes(path, name, size) for kind, size in sizes.items()}
    said = {kind: size if isinstance(size, str) else "" for kind, size in sizes.items()}
    return Measured(found.get("gpu"), found.get("host"), said.get("gpu", ""), said.get("host", ""), path)


def _bytes(path: str, name: str, size: Any) -> int:
    if size is None or isinstance(size, bool | list | dict):
        raise UserError("history.measured_shape", path=path, name=name)
    try:
        return read_size(name, size)
    except UserError as error:
        error.values["within"] = path
        raise
