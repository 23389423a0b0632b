"""``kb.plan``: a config that does not fit, and the steps that make it fit: GPU and host memory apart."""

import argparse
import sys
from collections.abc import Sequence

from kb import __version__
from kb.advice.fit.estimator import Estimator
from kb.advice.fit.plan import steps_from
from kb.advice.fit.plan_unit import PlannedUnit, plan_unit
from kb.advice.run.no_prediction import unpredictable
from kb.advice.run.post_training import liger_kernels_by
from kb.commands.options import MACHINE, Options, question_of
from kb.config.dialect.spelling import Speller
from kb.config.files import ConfigError
from kb.core.catalog import Catalog
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.knowledge import load_guide
from kb.memory import UnsupportedArchitectureError
from kb.report.check.changes import SourceLines
from kb.report.plan_report import Faults, plan_json, plan_text
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session import cli
from kb.session.estimating import chosen_section, why_unusable
from kb.session.file import FileChecker
from kb.session.fixing import Mended, Pasting, mend
from kb.session.knowledge import open_knowledge
from kb.session.prepare import file_checker
from kb.session.project import find_project, folder_of
from kb.session.run import STDIN, FileResult, kind_of, read_bytes


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
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
    steps = steps_from(load_guide(options.rules), catalog.facts)
    mended = _mended(options.config, checker)
    for result in _units(options, mended.file.results, catalog):
        assert result.setup is not None and result.model is not None  # _units sees to it
        try:
            estimator = Estimator(result.model, machine, catalog.constants)
            steps = steps._replace(liger=liger_kernels_by(checker.prepare(result.unit).versions))
            # what says settings in the file's own format; None where it has none
            dialect = catalog.dialects.get(result.unit.dialect or "")
            speller = Speller(dialect, catalog.facts) if dialect is not None else None
            if speller is not None and not _is_written(result):
                planned.append(plan_unit(result, estimator, catalog.gpus, steps, naming=speller))
                continue
            pasting = _pasting(result, mended.file, checker) if speller is not None else None
            planned.append(plan_unit(result, estimator, catalog.gpus, steps, speller, pasting))
        except UnsupportedArchitectureError as error:
            raise unpredictable(error, result.model.name) from None
    _report(options, planned, mended, words, catalog)
    return cli.CLEAN if not mended.left and all(one.plan.reached for one in planned) else cli.FINDINGS


def _mended(path: str, checker: FileChecker) -> Mended:
    """The file without the faults that are none of memory.

    Raises:
        ConfigError: the file cannot be read as a config.
    """
    try:
        return mend(checker, checker.check(read_bytes(path), path), kind_of(path))
    except ConfigError as fault:
        fault.values.setdefault("path", path)
        raise


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "plan")
    made.parser.add_argument("config", metavar="CONFIG", help=made.say("config"))
    made.add(made.parser, "section", "dialect")
    made.add(made.group("machine"), *MACHINE, "model_config")
    made.output()
    return made.parser


def _is_written(result: UnitResult) -> bool:
    """Whether the file holds keys and values; code and command lines have arguments."""
    return result.unit.path.endswith((".yaml", ".yml", ".json")) or result.unit.path == STDIN


def _pasting(result: UnitResult, file: FileResult, checker: FileChecker) -> Pasting | None:
    """What reads the file again with the plan in it; None of a unit that another file says."""
    return Pasting(checker, file.path, file.text, result.unit.section) if result.unit.path == file.path else None


def _units(options: argparse.Namespace, results: Sequence[UnitResult], catalog: Catalog) -> list[UnitResult]:
    """The sections to plan: the named one, else each whose model is known.

    Raises:
        UserError: there is no such section, or no section with a model that kb knows.
    """
    results = chosen_section(results, options.config, options.section)
    known = [result for result in results if result.model is not None and result.prediction is not None]
    if known:
        return known
    raise why_unusable(results[0], options.config, catalog)


def _report(
    options: argparse.Namespace, planned: Sequence[PlannedUnit], mended: Mended, words: Words, catalog: Catalog
) -> None:
    faults = Faults(mended.diff, mended.rules, mended.left)
    if options.format == "json":
        cli.put(plan_json(planned, faults, words, __version__, catalog.version))
        return

    sources = SourceLines({mended.file.path: mended.file.text})
    cli.put(plan_text(planned, faults, words, choose_style(sys.stdout, options.color), sources))
