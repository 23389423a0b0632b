"""``kb.plan``: a config that does not fit, and the steps that make it fit: GPU and host memory apart."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb import __version__
from kb.advice.estimator import Estimator
from kb.advice.plan_gpu import plan_unit
from kb.commands.options import MACHINE, Options, question_of
from kb.core.catalog import Catalog
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.memory import UnsupportedArchitectureError
from kb.report.plan_report import plan_json, plan_text
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session import cli
from kb.session.file import FileChecker
from kb.session.knowledge import open_knowledge
from kb.session.prepare import file_checker
from kb.session.project import find_project, folder_of
from kb.session.sections import sections_of, why_unusable

if TYPE_CHECKING:
    from kb.advice.plan_gpu import PlannedUnit


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Plan; 0 where the config fits, as it is or after the steps, 1 where the steps do not reach that."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    question = question_of(options)
    project = find_project(folder_of(question.config))
    catalog, words = open_knowledge(options, project, language, messages)
    checker = file_checker(catalog, project, question)
    machine = checker.machine
    if not machine.gpus and machine.host_memory_bytes is None:
        raise UserError("plan.nothing_to_fit")
    planned = []
    for result in _units(options, checker, catalog):
        assert result.setup is not None and result.model is not None  # _units sees to it
        try:
            planned.append(plan_unit(result, Estimator(result.model, machine, catalog.constants), catalog.gpus))
        except UnsupportedArchitectureError as error:
            raise UserError("recommend.unsupported", model=result.model.name, reason=str(error)) from None
    _report(options, planned, words, catalog)
    return cli.CLEAN if all(one.plan.reached for one in planned) else cli.FINDINGS


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "plan")
    made.parser.add_argument("config", metavar="CONFIG", help=made.say("config"))
    made.add(made.parser, "section", "dialect")
    made.add(made.group("machine"), *MACHINE, "model_config")
    made.output()
    return made.parser


def _units(options: argparse.Namespace, checker: FileChecker, catalog: Catalog) -> list[UnitResult]:
    """The sections to plan: the named one, else each whose model is known.

    Raises:
        ConfigError: the file cannot be read as a config.
        UserError: there is no such section, or no section with a model that kb knows.
    """
    results = sections_of(options.config, options.section, checker)
    known = [result for result in results if result.model is not None and result.prediction is not None]
    if known:
        return known
    raise why_unusable(results[0], options.config, catalog)


def _report(options: argparse.Namespace, planned: "Sequence[PlannedUnit]", words: Words, catalog: Catalog) -> None:
    if options.format == "json":
        cli.put(plan_json(planned, words, __version__, catalog.version))
        return

    cli.put(plan_text(planned, words, choose_style(sys.stdout, options.color)))
