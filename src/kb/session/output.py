"""A result in the format that was asked for. Each report is imported only when it is the one."""

import argparse
import os
from collections.abc import Callable, Mapping

from kb.core.catalog import Catalog
from kb.core.finding import SEVERITIES, Severity
from kb.core.record import NamedTuple
from kb.core.result import CheckResult, Unusable
from kb.core.text import UserError
from kb.core.typed import TYPE_CHECKING, Any, TextIO
from kb.report.terminal import Style, choose_style
from kb.report.words import Words
from kb.session.run import internal_fault

if TYPE_CHECKING:
    from kb.session.file import FileChecker


class Shown(NamedTuple):
    """A check's result, and how the command line wants to see it on ``stream``."""

    options: argparse.Namespace
    result: CheckResult
    checker: "FileChecker"
    words: Words
    stream: TextIO


def _text(shown: Shown) -> str:
    options, result, checker, words = shown.options, shown.result, shown.checker, shown.words
    from kb.report.check import text  # an answer that was kept is text already

    style = choose_style(shown.stream, options.color)
    if options.statistics:
        return text.statistics_report(result, words, style, checker.catalog.rules)
    if options.explain:
        return _explained(options.explain, result, checker, words, style)
    fold = options.several and not options.verbose
    return text.text_report(result, words, style, panel=not options.quiet, verbose=options.verbose, fold=fold)


def _json(shown: Shown) -> str:
    from kb.report.check.json_report import json_report  # one format of many

    return json_report(shown.result, shown.words)


def _sarif(shown: Shown) -> str:
    from kb.report.ci_formats import sarif_report  # likewise
    from kb.session.fixing import replacements_of  # which SARIF alone has

    replace = replacements_of(shown.result, shown.checker)
    rules = shown.checker.catalog.rules
    return sarif_report(shown.result, shown.words, rules, replacements=replace, base=os.getcwd())


def _of_ci(shown: Shown) -> str:
    from kb.report.ci_formats import REPORTS, junit_report  # as SARIF

    options = shown.options
    if options.format == "junit":
        fail_on: Severity = options.fail_on if options.fail_on in SEVERITIES else "error"
        return junit_report(shown.result, shown.words, fail_on=fail_on, base=os.getcwd())
    return REPORTS[options.format](shown.result, shown.words, base=os.getcwd())


# Every format of a check, once; each one's own report is imported where it is the one that is asked for.
FORMATS: Mapping[str, Callable[[Shown], str]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "github": _of_ci,
    "gitlab": _of_ci,
    "junit": _of_ci,
    "markdown": _of_ci,
}
STREAMED = ("text", "json")  # those that can be written file by file


def render(
    options: argparse.Namespace, result: CheckResult, checker: "FileChecker", words: Words, stream: TextIO
) -> str:
    """The whole output of one check, as ``stream`` is to show it."""
    return FORMATS[options.format](Shown(options, result, checker, words, stream))


def rendered(
    options: argparse.Namespace, result: CheckResult, checker: "FileChecker", words: Words, stream: TextIO
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


def _explained(rule: str, result: CheckResult, checker: "FileChecker", words: Words, style: Style) -> str:
    """The rule once for each unit, with that unit's own numbers in its formula."""
    texts = []
    for unit in result.units:
        where = unit.unit.path + (f" [{unit.unit.section}]" if unit.unit.section else "")
        facts = checker.facts(unit.unit)
        texts.append(explained(checker.catalog, rule, words, style, lookup=facts.get, where=where))
    return "\n".join(texts)


def explained(catalog: Catalog, rule: str, words: Words, style: Style, **known: Any) -> str:
    """A rule in full; ``known`` as of :func:`kb.report.rules.explain.explain`."""
    from kb.report.rules.explain import explain  # --explain alone asks

    return explain(catalog.rules[rule], words, style, sources=catalog.sources, **known)
