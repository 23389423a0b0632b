"""``kb.check``: does this config fit, and what is wrong with it? The main job.

Thin: arguments in, :mod:`kb.session` does the work, :mod:`kb.report` words it.
"""

import argparse
import gc
import os
from collections.abc import Sequence

from kb.commands.options import MACHINE, Options, question_of
from kb.core.text import UserError
from kb.session import cli
from kb.session.around import Checking
from kb.session.cache import CheckRequest, kept_answer
from kb.session.knowledge import open_knowledge
from kb.session.output import FORMATS
from kb.session.project import FAIL_ON, NAMEABLE, find_project, unknown_rule
from kb.session.run import STDIN


def main(arguments: Sequence[str] | None = None) -> int:
    collecting = gc.isenabled()
    gc.disable()  # nothing of a short run is worth collecting, and looking for it takes a tenth of it
    try:
        return cli.run(command, arguments)
    finally:
        if collecting:
            gc.enable()


def command(arguments: Sequence[str], language: str) -> int:
    """Check what the arguments name; exit codes as :mod:`kb.session.cli` says."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_intermixed_args(arguments)
    _refuse(options)
    project = find_project(_start(options))
    if options.lang is None and project.lang is not None and project.lang != language:
        language, messages = project.lang, cli.load_words_or_none(project.lang)
    options.spoken = language
    options.fail_on = options.fail_on or project.fail_on or "error"
    options.fix = (options.fix or options.unsafe_fixes) and not options.diff
    whole = bool(options.explain) or options.format == "sarif"
    catalog, words = open_knowledge(options, project, language, messages, whole=whole)
    if options.explain and options.explain not in catalog.rules:
        raise unknown_rule(options.explain, list(catalog.rules))
    versions = {name: getattr(options, name) for name in NAMEABLE if getattr(options, name)}
    request = CheckRequest(options, project, question_of(options)._replace(versions=versions), _checking(options))
    kept = kept_answer(request, catalog)
    answer = kept.get() if kept is not None else None
    if answer is not None:
        cli.put(answer.text)
        return answer.code
    # what reads and judges is half of what a check loads; an answer that is kept needs none of it
    cli.import_with_late_patterns("yaml")
    from kb.commands.check_run import check_anew, explain_alone  # what was asked before and is as it was does without

    if options.explain and not options.paths and options.command is None:
        return explain_alone(options, catalog, words)
    return check_anew(request, catalog, words, kept)


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "check")
    parser, say = made.parser, made.say
    parser.add_argument("paths", nargs="*", metavar="PATH", help=say("paths"))
    parser.add_argument("--command", metavar="TEXT", help=say("command"))
    machine = made.group("machine")
    made.add(machine, *MACHINE, "model_config")
    machine.add_argument("--online", action="store_true", help=say("online"))
    for library in NAMEABLE:
        shown = say("version") if library == NAMEABLE[0] else argparse.SUPPRESS
        machine.add_argument(f"--{library}", metavar="VERSION", help=shown)
    rules = made.group("rules")
    rules.add_argument("--select", action="append", default=[], metavar="RULE,…", help=say("select"))
    rules.add_argument("--ignore", action="append", default=[], metavar="RULE,…", help=say("ignore"))
    made.add(rules, "dialect")
    rules.add_argument("--skip-unknown", action="store_true", help=say("skip_unknown"))
    made.add(rules, "rules", "skip_broken_overlays")
    rules.add_argument("--baseline", metavar="FILE", help=say("baseline"))
    rules.add_argument("--write-baseline", metavar="FILE", help=say("write_baseline"))
    rules.add_argument("--prune-baseline", action="store_true", help=say("prune_baseline"))
    rules.add_argument("--notes", action="store_true", help=say("notes"))
    certainty = rules.add_mutually_exclusive_group()
    certainty.add_argument("--strict", action="store_true", help=say("strict"))
    certainty.add_argument("--assume-nothing", action="store_true", help=say("assume_nothing"))
    rules.add_argument("--fail-on", choices=FAIL_ON, help=say("fail_on"))
    fixing = made.group("fix")
    fixing.add_argument("--fix", action="store_true", help=say("fix"))
    fixing.add_argument("--unsafe-fixes", action="store_true", help=say("unsafe_fixes"))
    fixing.add_argument("--diff", action="store_true", help=say("diff"))
    output = made.group("output")
    output.add_argument("--format", choices=tuple(FORMATS), default="text", help=say("format"))
    made.add(output, "lang")
    made.add(output, "color", default="auto")
    output.add_argument("--explain", metavar="RULE", help=say("explain"))
    output.add_argument("--statistics", action="store_true", help=say("statistics"))
    output.add_argument("-q", "--quiet", action="store_true", help=say("quiet"))
    output.add_argument("-v", "--verbose", action="store_true", help=say("verbose"))
    output.add_argument("--jobs", type=cli.number(words, low=1, high=256), metavar="N", help=say("jobs"))
    output.add_argument("--no-cache", action="store_true", help=say("no_cache"))
    output.add_argument("--watch", action="store_true", help=say("watch"))
    return parser


def _refuse(options: argparse.Namespace) -> None:
    """Arguments that cannot be meant.

    Raises:
        UserError: an empty path, or a watch over what is no file.
    """
    if "" in options.paths:
        raise UserError("cli.empty_path")
    if options.watch and (options.command is not None or STDIN in options.paths or not options.paths):
        raise UserError("cli.watch_needs_files")


def _start(options: argparse.Namespace) -> str:
    """Project settings are those nearest to the first thing that is checked."""
    first: str | None = next((path for path in options.paths if path != STDIN), None)
    if first is None:
        return os.getcwd()
    return first if os.path.isdir(first) else os.path.dirname(os.path.abspath(first))


def _checking(options: argparse.Namespace) -> Checking:
    return Checking(
        select=_names(options.select),
        ignore=_names(options.ignore),
        online=options.online,
        notes=options.notes or bool(options.select) or options.fail_on == "info",
        root=_start(options),
        strict=options.strict,
        assume_nothing=options.assume_nothing,
    )


def _names(given: Sequence[str]) -> list[str]:
    return [name.strip() for text in given for name in text.split(",") if name.strip()]
