"""A result in the format that was asked for. Each report is imported only when it is the one."""

import argparse
import os
from typing import TextIO

from kb.core.finding import SEVERITIES, Severity
from kb.core.result import CheckResult, Unusable
from kb.core.text import UserError
from kb.report.words import Words
from kb.session.file import FileChecker
from kb.session.run import internal_fault


def render(options: argparse.Namespace, result: CheckResult, checker: FileChecker, words: Words, stream: TextIO) -> str:
    """The whole output of one check, as ``stream`` is to show it."""
    if options.format == "json":
        from kb.report.check.json_report import json_report

        return json_report(result, words)
    if options.format == "sarif":
        from kb.report.ci.sarif import sarif_report
        from kb.session.fixing import replacements_of

        replace = replacements_of(result, checker)
        return sarif_report(result, words, checker.catalog.rules, replacements=replace, base=os.getcwd())
    if options.format == "github":
        from kb.report.ci.formats import github_report

        return github_report(result, words, base=os.getcwd())
    if options.format == "gitlab":
        from kb.report.ci.formats import gitlab_report

        return gitlab_report(result, words, base=os.getcwd())
    if options.format == "junit":
        from kb.report.ci.formats import junit_report

        fail_on: Severity = options.fail_on if options.fail_on in SEVERITIES else "error"
        return junit_report(result, words, fail_on=fail_on, base=os.getcwd())
    if options.format == "markdown":
        from kb.report.ci.formats import markdown_report

        return markdown_report(result, words, base=os.getcwd())
    return _text(options, result, checker, words, stream)


def rendered(
    options: argparse.Namespace, result: CheckResult, checker: FileChecker, words: Words, stream: TextIO
) -> tuple[str, CheckResult]:
    """The output, and the result that it shows: a file whose part kb fails to word is left out, and that is said."""
    try:
        return render(options, result, checker, words, stream), result
    except UserError:
        raise
    except Exception as error:
        faults: dict[str, Unusable] = {}
        for path in dict.fromkeys(unit.unit.path for unit in result.units):
            own = tuple(unit for unit in result.units if unit.unit.path == path)
            try:
                render(options, result._replace(units=own, unusable=()), checker, words, stream)
            except Exception as fault:
                faults[path] = internal_fault(path, fault)
        if not faults:
            raise error
    units = tuple(unit for unit in result.units if unit.unit.path not in faults)
    result = result._replace(units=units, unusable=(*result.unusable, *faults.values()))
    text = "" if options.format == "text" and not units else render(options, result, checker, words, stream)
    return text, result


def _text(options: argparse.Namespace, result: CheckResult, checker: FileChecker, words: Words, stream: TextIO) -> str:
    from kb.report.terminal import choose_style

    style = choose_style(stream, options.color)
    if options.statistics:
        from kb.report.check.tally import statistics_report

        return statistics_report(result, words, style, checker.catalog.rules)
    if options.explain:
        return _explained(options.explain, result, checker, words, style)
    from kb.report.check.text import text_report

    return text_report(result, words, style, panel=not options.quiet, verbose=options.verbose)


def _explained(rule: str, result: CheckResult, checker: FileChecker, words: Words, style: object) -> str:
    """The rule once for each unit, with that unit's own numbers in its formula."""
    from kb.report.rules.explain import explain
    from kb.report.terminal import Style

    assert isinstance(style, Style)
    texts = []
    for unit in result.units:
        where = unit.unit.path + (f" [{unit.unit.section}]" if unit.unit.section else "")
        facts = checker.facts(unit.unit)
        texts.append(
            explain(
                checker.catalog.rules[rule],
                words,
                style,
                sources=checker.catalog.sources,
                lookup=facts.get,
                where=where,
            )
        )
    return "\n".join(texts)
