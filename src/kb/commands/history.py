"""``kb.history``: a config's versions side by side: settings, effective batch, predicted and measured memory."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kb import __version__
from kb.advice.history import History, Version, distinct, history_of, noted_versions, with_measured, with_notes
from kb.advice.memory_facts import PredictedFacts
from kb.commands.history_versions import file_versions, git_versions, read_measured
from kb.commands.options import MACHINE, Options, question_of
from kb.core.document import Unit
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.text import UserError
from kb.knowledge import load_guide
from kb.report.history_plot import history_svg
from kb.report.history_report import LeftOut, fault_text, history_object, history_text
from kb.report.json_parts import head, to_json
from kb.report.terminal import choose_style
from kb.report.values import printable
from kb.report.words import Words
from kb.session import cli
from kb.session.file import FileChecker
from kb.session.knowledge import open_knowledge
from kb.session.plot_file import write_plot
from kb.session.prepare import file_checker
from kb.session.project import find_project


class Given(NamedTuple):
    """The versions to compare. ``unchanged`` commits were left out for changing nothing; ``shallow``: git may lack
    earlier ones; ``remarks`` are a note's sentences about the whole."""

    versions: list[Version]
    unchanged: int = 0
    shallow: bool = False
    remarks: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
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
        history = history_of(versions, _preparing(checker), catalog.facts)
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


def _preparing(checker: FileChecker) -> Any:
    def prepare(unit: Unit) -> tuple[TrainingSetup, str | None, PredictedFacts]:
        facts = checker.prepare(unit)
        return facts.setup, facts.model.id if facts.model else None, facts.predicted

    return prepare


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
