"""``kb.check``: does this config fit, and what is wrong with it? The main job.

Thin: arguments in, :mod:`kb.linting` does the work, :mod:`kb.report` words it.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from kb.advice.question import Question
from kb.commands.options import MACHINE, Options, question_of
from kb.config.discovery import discover
from kb.core.catalog import Catalog
from kb.core.finding import SEVERITIES
from kb.core.result import CheckResult, Unusable
from kb.core.text import UserError
from kb.knowledge import load_table_rows
from kb.report.check.panel import need_of
from kb.report.check.tally import fault_line
from kb.report.check.text import summary_line
from kb.report.terminal import choose_style
from kb.report.values import printable
from kb.report.words import Words
from kb.session import cli
from kb.session.around import Checking
from kb.session.file import FileChecker
from kb.session.knowledge import open_knowledge
from kb.session.output import FORMATS, explained, rendered
from kb.session.prepare import file_checker
from kb.session.project import FAIL_ON, LIBRARIES, Project, find_project, unknown_rule
from kb.session.project_releases import shown
from kb.session.run import STDIN, Input, run


def main(arguments: Sequence[str] | None = None) -> int:
    collecting = gc.isenabled()
    gc.disable()  # nothing of a short run is worth collecting, and looking for it takes a tenth of it
    try:
        return cli.run(command, arguments)
    finally:
        if collecting:
            gc.enable()


def command(arguments: Sequence[str], language: str) -> int:
    """Check what the arguments name; exit codes as :mod:`kb.cli` says."""
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
    if options.explain and not options.paths and options.command is None:
        return _explain_alone(options, catalog, words)
    checker = file_checker(catalog, project, _question(options), _checking(options))
    if options.watch:
        from kb.session.streaming import watch

        gc.enable()

        def paths() -> list[str]:
            return [given.path for given in _inputs(options)[0]]

        return watch(paths, lambda: _check(options, project, checker, words), _notice(words), checker.seen.files)
    return _check(options, project, checker, words)


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "check")
    parser, say = made.parser, made.say
    parser.add_argument("paths", nargs="*", metavar="PATH", help=say("paths"))
    parser.add_argument("--command", metavar="TEXT", help=say("command"))
    machine = made.group("machine")
    made.add(machine, *MACHINE, "model_config")
    machine.add_argument("--online", action="store_true", help=say("online"))
    for library in LIBRARIES:
        shown = say("version") if library == LIBRARIES[0] else argparse.SUPPRESS
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


def _question(options: argparse.Namespace) -> Question:
    versions = {name: getattr(options, name) for name in LIBRARIES if getattr(options, name)}
    return question_of(options)._replace(versions=versions)


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


def _inputs(options: argparse.Namespace) -> tuple[list[Input], list[Unusable]]:
    """What to check, in order, and the paths that lead to nothing."""
    inputs = []
    if options.command is not None:
        inputs.append(Input(path="--command", kind="command", raw=options.command.encode()))
    paths = options.paths
    if not paths and not inputs:
        if sys.stdin.isatty():
            raise UserError("cli.nothing_named")
        paths = [STDIN]
    if not paths:
        return inputs, []
    found = discover(paths)
    inputs += [Input(path=file.path, named=file.named and not options.skip_unknown) for file in found.files]
    faults = [Unusable(path=path, key=fault.key, values=fault.values) for path, fault in found.faults]
    return inputs, faults


def _check(options: argparse.Namespace, project: Project, checker: FileChecker, words: Words) -> int:
    """One pass: check, fix, report; the exit code."""
    inputs, faults = _inputs(options)
    options.several = len(inputs) > 1
    checker.forget()
    if len(inputs) > 1:
        gc.enable()
        from kb.session.streaming import is_for, stream_report

        if is_for(options, project, inputs):
            tally, unusable = stream_report(options, project, checker, inputs, faults, words, cli.put)
            _say_unfetched(checker, words)
            _say_unread(checker, inputs, words)
            _say_unusable(unusable, words)
            return _code_of(tally.severities(), unusable, options.fail_on)
    outcome = run(inputs, checker, faults, none_is_fine=options.skip_unknown)
    stream, mendable = sys.stdout, False
    if options.fix or options.diff:
        from kb.session.fixing import fix_files

        outcome, changed, text = fix_files(
            outcome, checker, unsafe=options.unsafe_fixes, write=options.fix, notice=_notice(words)
        )
        mendable = options.diff and bool(changed)
        if options.fix and any(given.path in (STDIN, "--command") for given in inputs):
            stream = sys.stderr  # standard output is the fixed text's
        cli.put(text)
    result = outcome.result(checker)
    baseline = options.baseline or (project.baseline and os.path.join(project.folder(), project.baseline))
    if baseline or options.write_baseline:
        from kb.session.baseline import with_baseline

        result = with_baseline(result, baseline, write=options.write_baseline, prune_gone=options.prune_baseline)
    result = _report(options, result, checker, words, stream)
    _say_unfetched(checker, words)
    _say_unread(checker, inputs, words)
    _say_unusable(result.unusable, words)
    if mendable and not result.unusable:
        return cli.FINDINGS
    return _code_of(result.summary(), result.unusable, options.fail_on)


def _code_of(counts: Mapping[str, int], unusable: Sequence[Unusable], fail_on: str) -> int:
    if unusable:
        return cli.INTERNAL if any(fault.internal for fault in unusable) else cli.UNUSABLE
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on in SEVERITIES else ()
    return cli.FINDINGS if any(counts[severity] for severity in failing) else cli.CLEAN


def _say_unfetched(checker: FileChecker, words: Words) -> None:
    for fault in checker.hub.faults.values() if checker.hub else ():
        _notice(words)(fault.key, **fault.values)


def _say_unread(checker: FileChecker, inputs: Sequence[Input], words: Words) -> None:
    """What is wrong with the files that say which releases the project uses, each once."""
    problems = checker.releases.problems(given.path for given in inputs) if checker.releases is not None else ()
    if problems:
        from kb.report.releases import problem_text

        for problem in problems:
            print(f"kb: {printable(shown(problem.place).text())}: {problem_text(problem, words)}", file=sys.stderr)


def _report(
    options: argparse.Namespace, result: CheckResult, checker: FileChecker, words: Words, stream: TextIO
) -> CheckResult:
    """The report, and the result that it shows; beside a diff only what it would leave, on standard error."""
    if options.diff:
        print(words("fix.would_leave", summary=summary_line(result, words)), file=sys.stderr)
        return result
    if not result.units and options.format == "text":
        return result
    text, result = rendered(options, result, checker, words, stream)
    if stream is sys.stdout:
        cli.put(text)
    else:
        stream.write(text)
    return result


def _explain_alone(options: argparse.Namespace, catalog: Catalog, words: Words) -> int:
    style = choose_style(sys.stdout, options.color)
    rule = catalog.rules[options.explain]
    rows = load_table_rows(rule.id, options.rules) if rule.on == rule.id else ()
    cli.put(explained(catalog, rule.id, words, style, rows=rows))
    return cli.CLEAN


def _notice(words: Words) -> Callable[..., None]:
    """Says a sentence on standard error: data goes to standard output, everything else here.

    A reason may itself be a key of i18n, needs are facts, and a number ``n`` chooses between one and many.
    """

    def notice(key: str, **values: Any) -> None:
        if values.get("reason") in words.messages:
            values["reason"] = words(values["reason"], **values)
        if "needs" in values:
            values["needs"] = sorted({words(f"need.{need_of(name)}") for name in values["needs"]})
        if "n" in values:
            key = f"{key}.{'one' if values['n'] == 1 else 'many'}"
        print(words(key, **values), file=sys.stderr)

    return notice


def _say_unusable(faults: Sequence[Unusable], words: Words) -> None:
    for fault in faults:
        print(fault_line(fault, words), file=sys.stderr)
