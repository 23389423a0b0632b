"""``kb.plan``: a config that does not fit, and the steps that make it fit: GPU and host memory apart."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb import __version__
from kb.core.catalog import Catalog
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.knowledge import load_catalog
from kb.report.words import Words
from kb.session import cli
from kb.session.file import FileChecker

if TYPE_CHECKING:
    from kb.advice.plan_gpu import PlannedUnit


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Plan; 0 where the config fits, as it is or after the steps, 1 where the steps do not reach that."""
    from kb.advice.estimator import Estimator
    from kb.advice.plan_gpu import plan_unit
    from kb.memory import UnsupportedArchitectureError
    from kb.session.prepare import Wanted, file_checker
    from kb.session.project import find_project

    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    catalog = load_catalog(options.rules)
    wanted = Wanted(
        gpu=options.gpu,
        gpus=options.gpus,
        host_memory=options.host_memory,
        cpus=options.cpus,
        dialect=options.dialect,
        model_config=options.model_config,
    )
    project = find_project(os.path.dirname(os.path.abspath(options.config)) if options.config != "-" else os.getcwd())
    checker = file_checker(catalog, project, wanted)
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
    _report(options, planned, Words(language, messages, catalog.facts), catalog)
    return cli.CLEAN if all(one.plan.reached for one in planned) else cli.FINDINGS


def build_parser(words: cli.Words) -> cli.Parser:
    def say(key: str) -> str:
        return cli.said(words, f"cli.plan.{key}")

    parser = cli.Parser(words=words, prog="kb plan", description=say("about"), epilog=say("examples"))
    parser.add_argument("config", metavar="CONFIG", help=say("config"))
    parser.add_argument("--section", metavar="NAME", help=say("section"))
    parser.add_argument("--dialect", metavar="ID", help=cli.said(words, "cli.check.dialect"))
    machine = parser.add_argument_group(say("group_machine"))
    machine.add_argument("--gpu", metavar="ID", help=say("gpu"))
    machine.add_argument("--gpus", type=int, metavar="N", help=say("gpus"))
    machine.add_argument("--host-memory", metavar="SIZE", help=say("host_memory"))
    machine.add_argument("--cpus", metavar="N", help=say("cpus"))
    machine.add_argument("--model-config", metavar="FILE", help=say("model_config"))
    output = parser.add_argument_group(say("group_output"))
    output.add_argument("--format", choices=("text", "json"), default="text", help=say("format"))
    output.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    output.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=say("color"))
    output.add_argument("--rules", metavar="DIR", help=cli.said(words, "cli.option.rules"))
    return parser


def _units(options: argparse.Namespace, checker: FileChecker, catalog: Catalog) -> list[UnitResult]:
    """The sections to plan: the named one, else each whose model is known.

    Raises:
        ConfigError: the file cannot be read as a config.
        UserError: there is no such section, or no section with a model that kb knows.
    """
    from kb.session.sections import sections_of, why_unusable

    results = sections_of(options.config, options.section, checker)
    known = [result for result in results if result.model is not None and result.prediction is not None]
    if known:
        return known
    raise why_unusable(results[0], options.config, catalog)


def _report(options: argparse.Namespace, planned: "Sequence[PlannedUnit]", words: Words, catalog: Catalog) -> None:
    if options.format == "json":
        from kb.report.plan_report import plan_json

        cli.put(plan_json(planned, words, __version__, catalog.version))
        return
    from kb.report.plan_report import plan_text
    from kb.report.terminal import choose_style

    cli.put(plan_text(planned, words, choose_style(sys.stdout, options.color)))
