"""A check that is made: files read and judged, mended where that is asked for, and told.

Apart from the command line, which tells an answer that it has kept without any of this.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from kb.config.discovery import discover
from kb.core.catalog import Catalog
from kb.core.finding import SEVERITIES
from kb.core.result import CheckResult, Unusable
from kb.core.text import UserError
from kb.core.typed import Any, TextIO
from kb.knowledge import load_table_rows
from kb.report.check.panel import need_of
from kb.report.check.text import fault_line, summary_line
from kb.report.terminal import choose_style
from kb.report.values import printable
from kb.report.words import Words
from kb.session import cli
from kb.session.around import shown
from kb.session.cache import Answer, CheckRequest, KeptAnswer
from kb.session.file import FileChecker
from kb.session.output import explained, rendered
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import STDIN, Input, run


def check_anew(request: CheckRequest, catalog: Catalog, words: Words, kept: KeptAnswer | None) -> int:
    """Check what the arguments name, and where they say so again after each change, without end.

    Args:
        kept: where the answer is kept; None where it is not.

    Raises:
        UserError: a name or a value that cannot be used.
    """
    options, project, question, checking = request
    machine = kept.machine if kept is not None else None  # a GPU's driver takes its time to answer
    checker = file_checker(catalog, project, question, checking, machine=machine)
    if not options.watch:
        return _check(options, project, checker, words, kept)
    from kb.session.tree import watch  # a check of one file has no tree

    gc.enable()

    def paths() -> list[str]:
        return [given.path for given in _inputs(options)[0]]

    return watch(paths, lambda: _check(options, project, checker, words), _notice(words), checker.seen.files)


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


def _check(
    options: argparse.Namespace,
    project: Project,
    checker: FileChecker,
    words: Words,
    kept: KeptAnswer | None = None,
) -> int:
    """One pass: check, fix, report; the exit code."""
    inputs, faults = _inputs(options)
    options.several = len(inputs) > 1
    checker.forget()
    if len(inputs) > 1:
        gc.enable()
        from kb.session.tree import is_for, stream_report  # likewise

        if is_for(options, project, inputs):
            tally, unusable = stream_report(options, project, checker, inputs, faults, words, cli.put)
            _say_unfetched(checker, words)
            _say_unread(checker, inputs, words)
            _say_unusable(unusable, words)
            return _code_of(tally.severities(), unusable, options.fail_on)
    baseline, known = options.baseline or (project.baseline and os.path.join(project.folder(), project.baseline)), None
    if baseline and not options.write_baseline:  # one that cannot be read is told before anything is fixed
        from kb.session.baseline import read

        known = read(baseline)
    outcome = run(inputs, checker, faults, none_is_fine=options.skip_unknown)
    stream, mendable = sys.stdout, False
    if options.fix or options.diff:
        from kb.session.fixing import fix_files  # only --fix and --diff write

        outcome, changed, text = fix_files(
            outcome, checker, unsafe=options.unsafe_fixes, write=options.fix, notice=_notice(words)
        )
        mendable = options.diff and bool(changed)
        if options.fix and any(given.path in (STDIN, "--command") for given in inputs):
            stream = sys.stderr  # standard output is the fixed text's
        cli.put(text)
    result = outcome.result(checker)
    if baseline or options.write_baseline:
        from kb.session.baseline import with_baseline  # few projects have one

        result = with_baseline(result, baseline, known, write=options.write_baseline, prune_gone=options.prune_baseline)
    told, result = _report(options, result, checker, words, stream)
    _say_unfetched(checker, words)
    said = _say_unread(checker, inputs, words)
    _say_unusable(result.unusable, words)
    if mendable and not result.unusable:
        return cli.FINDINGS
    code = _code_of(result.summary(), result.unusable, options.fail_on)
    if kept is not None and not said and not result.unusable:
        kept.put(Answer(told, code), checker.seen.take())
    return code


def _code_of(counts: Mapping[str, int], unusable: Sequence[Unusable], fail_on: str) -> int:
    if unusable:
        return cli.INTERNAL if any(fault.internal for fault in unusable) else cli.UNUSABLE
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on in SEVERITIES else ()
    return cli.FINDINGS if any(counts[severity] for severity in failing) else cli.CLEAN


def _say_unfetched(checker: FileChecker, words: Words) -> None:
    for fault in checker.hub.faults.values() if checker.hub else ():
        _notice(words)(fault.key, **fault.values)


def _say_unread(checker: FileChecker, inputs: Sequence[Input], words: Words) -> bool:
    """What is wrong with the files that say which releases the project uses, each once; whether there is anything."""
    problems = checker.releases.problems(given.path for given in inputs) if checker.releases is not None else ()
    if problems:
        from kb.report.releases import problem_text  # few files say a release that is none

        for problem in problems:
            print(f"kb: {printable(shown(problem.place).text())}: {problem_text(problem, words)}", file=sys.stderr)
    return bool(problems)


def _report(
    options: argparse.Namespace, result: CheckResult, checker: FileChecker, words: Words, stream: TextIO
) -> tuple[str, CheckResult]:
    """The report, and the result that it shows; beside a diff only what it would leave, on standard error."""
    if options.diff:
        print(words("fix.would_leave", summary=summary_line(result, words)), file=sys.stderr)
        return "", result
    if not result.units and options.format == "text":
        return "", result
    text, result = rendered(options, result, checker, words, stream)
    if stream is sys.stdout:
        cli.put(text)
    else:
        stream.write(text)
    return text, result


def explain_alone(options: argparse.Namespace, catalog: Catalog, words: Words) -> int:
    """A rule in full, without a config."""
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
