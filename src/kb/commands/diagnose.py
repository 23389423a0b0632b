"""``kb.diagnose``: from a log to its cause: which resource ran short, which lines say so, and what to do about it."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.expression import Unknown
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.session import cli

STDIN = "-"
_OF_THE_MACHINE = ("gpu.", "host.", "versions.")


class _Values(NamedTuple):
    """Where concrete values come from: a lookup of facts, and the config that they are of."""

    lookup: Any
    unit: Unit | None


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Diagnose a log; 0 where it shows no known cause, 1 where it does."""
    from kb.advice.diagnosis import diagnose
    from kb.config.log.text import log_lines

    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    if options.log is None:
        if sys.stdin.isatty():
            raise UserError("diagnose.nothing_named")
        options.log = STDIN
    if options.log == options.config == STDIN:
        raise UserError("diagnose.both_standard_input")
    catalog = load_catalog(options.rules)
    values = _values(options, catalog)
    result = diagnose(log_lines(options.log), load_guide(options.rules).get("remedies", {}), values.lookup)
    if options.format == "json":
        from kb.report.diagnosis_report import diagnosis_json

        cli.put(diagnosis_json(result, language))
    else:
        from kb.report.diagnosis_report import diagnosis_text
        from kb.report.terminal import choose_style
        from kb.report.words import Words

        style = choose_style(sys.stdout, options.color)
        cli.put(diagnosis_text(result, options.log, Words(language, messages, catalog.facts), style, values.unit))
    return cli.FINDINGS if result.causes else cli.CLEAN


def build_parser(words: cli.Words) -> cli.Parser:
    def say(key: str) -> str:
        return cli.said(words, f"cli.diagnose.{key}")

    def shared(key: str) -> str:
        return cli.said(words, f"cli.check.{key}")

    parser = cli.Parser(words=words, prog="kb diagnose", description=say("about"), epilog=say("examples"))
    parser.add_argument("log", nargs="?", metavar="LOG", help=say("log"))
    config = parser.add_argument_group(say("group_config"))
    config.add_argument("--config", metavar="FILE", help=say("config"))
    config.add_argument("--section", metavar="NAME", help=say("section"))
    config.add_argument("--dialect", metavar="ID", help=shared("dialect"))
    config.add_argument("--model-config", metavar="FILE", help=shared("model_config"))
    machine = parser.add_argument_group(shared("group_machine"))
    machine.add_argument("--gpu", metavar="ID", help=say("gpu"))
    machine.add_argument("--gpus", type=int, metavar="N", help=shared("gpus"))
    machine.add_argument("--host-memory", metavar="SIZE", help=say("host_memory"))
    machine.add_argument("--cpus", metavar="N", help=say("cpus"))
    output = parser.add_argument_group(shared("group_output"))
    output.add_argument("--format", choices=("text", "json"), default="text", help=say("format"))
    output.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    output.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=shared("color"))
    output.add_argument("--rules", metavar="DIR", help=cli.said(words, "cli.option.rules"))
    return parser


def _values(options: argparse.Namespace, catalog: Catalog) -> _Values:
    """The facts of the config and of the machine named; of a machine nobody named nothing is assumed: the log may come
    from another one than this.
    """
    from kb.core.finding import Span
    from kb.session.prepare import Wanted, file_checker
    from kb.session.project import find_project

    folder = os.path.dirname(os.path.abspath(options.config)) if options.config not in (None, STDIN) else os.getcwd()
    project = find_project(folder)
    wanted = Wanted(
        gpu=options.gpu or project.gpu or "none",
        gpus=options.gpus,
        host_memory=options.host_memory or project.host_memory or "none",
        cpus=options.cpus or project.cpus or "none",
        dialect=options.dialect,
        model_config=options.model_config,
    )
    checker = file_checker(catalog, project, wanted)
    if options.config is None:
        empty = Unit(path="", section=None, dialect=None, settings={}, span=Span(1, 1, 1, 1, 0, 0))
        facts = checker.facts(empty)

        def machine_only(name: str) -> Any:
            return facts.get(name) if name.startswith(_OF_THE_MACHINE) else Unknown(frozenset((name,)))

        return _Values(machine_only, None)
    unit = _unit(options, checker)
    return _Values(checker.facts(unit).get, unit)


def _unit(options: argparse.Namespace, checker: Any) -> Unit:
    """The section named, or the first that trains, or the first.

    Raises:
        ConfigError: the file cannot be read as a config.
        UserError: there is no such section, or no known format.
    """
    from kb.config.files import ConfigError
    from kb.session.run import read_bytes

    try:
        results = checker.check(read_bytes(options.config), options.config).results
    except ConfigError as fault:
        fault.values.setdefault("path", options.config)
        raise
    if options.section is not None:
        named = {result.unit.section: result for result in results if result.unit.section is not None}
        if options.section not in named:
            key = "plan.no_section" if named else "plan.no_sections"
            raise UserError(key, path=options.config, section=options.section[:100], known=", ".join(named))
        results = (named[options.section],)
    known = [result for result in results if result.unit.dialect is not None]
    if not known:
        raise UserError("diagnose.no_dialect", path=options.config)
    training = [result.unit for result in known if result.setup and result.setup.do_train]
    unit: Unit = training[0] if training else known[0].unit
    return unit
