"""``kb.diagnose``: from a log to its cause: which resource ran short, which lines say so, and what to do about it."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from kb.advice.diagnosis import diagnose
from kb.advice.question import NamedMachine
from kb.commands.options import MACHINE, Options, question_of
from kb.config.log import STDIN, log_lines
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.knowledge import load_guide
from kb.report.diagnosis_report import diagnosis_json, diagnosis_text
from kb.report.terminal import choose_style
from kb.session import cli
from kb.session.estimating import sections_of
from kb.session.knowledge import open_knowledge
from kb.session.prepare import file_checker, first_training, machine_alone
from kb.session.project import Project, find_project, folder_of


class _Values(NamedTuple):
    """Where concrete values come from: a lookup of facts, and the config that they are of."""

    lookup: Any
    unit: Unit | None


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Diagnose a log; 0 where it shows no known cause, 1 where it does."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    if options.log is None:
        if sys.stdin.isatty():
            raise UserError("diagnose.nothing_named")
        options.log = STDIN
    if options.log == options.config == STDIN:
        raise UserError("diagnose.both_standard_input")
    project = find_project(folder_of(options.config))
    catalog, words = open_knowledge(options, project, language, messages)
    values = _values(options, project, catalog)
    guide = load_guide(options.rules)
    result = diagnose(log_lines(options.log), guide.get("remedies", {}), values.lookup, guide)
    if options.format == "json":
        cli.put(diagnosis_json(result, words))
    else:
        style = choose_style(sys.stdout, options.color)
        cli.put(diagnosis_text(result, options.log, words, style, values.unit))
    return cli.FINDINGS if result.causes else cli.CLEAN


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "diagnose")
    made.parser.add_argument("log", nargs="?", metavar="LOG", help=made.say("log"))
    config = made.group("config")
    config.add_argument("--config", metavar="FILE", help=made.say("config"))
    made.add(config, "section", "dialect", "model_config")
    made.add(made.group("machine"), *MACHINE)
    made.output()
    return made.parser


def _values(options: argparse.Namespace, project: Project, catalog: Catalog) -> _Values:
    """The facts of the config and of the machine named; of a machine nobody named nothing is assumed: the log may come
    from another one than this.
    """
    question = question_of(options)
    named = question.machine
    machine = NamedMachine(
        named.gpu or project.gpu or "none",
        named.gpus,
        named.host_memory or project.host_memory or "none",
        named.cpus or project.cpus or "none",
    )
    checker = file_checker(catalog, project, question._replace(machine=machine))
    if options.config is None:
        return _Values(machine_alone(checker), None)
    unit = _unit(options, checker)
    return _Values(checker.facts(unit).get, unit)


def _unit(options: argparse.Namespace, checker: Any) -> Unit:
    """The section named, or the first that trains, or the first.

    Raises:
        ConfigError: the file cannot be read as a config.
        UserError: there is no such section, or no known format.
    """
    unit = first_training(sections_of(options.config, options.section, checker))
    if unit is None:
        raise UserError("diagnose.no_dialect", path=options.config)
    return unit
