"""``kb rules test``: every example run; of one that fails, what decided it."""

import argparse
import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from kb.advice.diagnosis import diagnose
from kb.knowledge import load_catalog, load_guide, load_table_examples
from kb.knowledge.locations import Location
from kb.report.rules.explain import trial_lines
from kb.report.terminal import Style, choose_style
from kb.report.words import Words
from kb.session import cli
from kb.session.project import unknown_rule
from kb.session.rule_examples import ExampleRunner, Failure


def run_examples(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """Run the examples of rules, tables and remedies, all or those that are named.

    Raises:
        UserError: a name is none of a rule, a table or a remedy.
    """
    catalog = load_catalog(options.rules, whole=True)
    rows = load_table_examples(options.rules)
    tables = {row["of"].partition("/")[0] for row in rows}
    remedies = load_guide(options.rules)["remedies"]
    for name in options.ids:
        _known(name, {**catalog.rules, **dict.fromkeys(tables), **remedies})
    runner = ExampleRunner(catalog)
    language = cli.language_of(["--lang", options.lang] if options.lang else [], os.environ)
    speaker, style = Words(language, words, catalog.facts), choose_style(sys.stdout)
    failed = total = 0
    for name in [name for name in options.ids if name in catalog.rules] or (
        () if options.ids else sorted(catalog.rules)
    ):
        for index, example in enumerate(catalog.rules[name].examples, 1):
            total += 1
            fault = runner.run(catalog.rules[name], example)
            if fault:
                failed += 1
                _tell(f"{name}, {cli.said(words, 'rules.example', number=index)}", fault, speaker, style)
    for row in rows:
        if options.ids and not set(options.ids) & {*row["rules"], row["of"].partition("/")[0]}:
            continue
        total += 1
        fault = runner.run_any(row["rules"], row["example"], row["of"])
        if fault:
            failed += 1
            _tell(row["of"], fault, speaker, style)
    for name, remedy in remedies.items():
        for index, example in enumerate(remedy["examples"] if not options.ids or name in options.ids else (), 1):
            total += 1
            fault = _of_remedy(name, example, remedies)
            if fault:
                failed += 1
                _tell(f"{name}, {cli.said(words, 'rules.example', number=index)}", fault, speaker, style)
    print(cli.counted(words, "rules.tested", total, failed=failed))
    return cli.FINDINGS if failed else cli.CLEAN


def _of_remedy(name: str, example: Mapping[str, Any], remedies: Mapping[str, Any]) -> Failure | None:
    """What is wrong with a remedy's example: its log leads to the remedy before all others, or not to it at all."""
    found = [cause.id for cause in diagnose(enumerate(example["log"].split("\n"), 1), remedies).causes]
    right = found[:1] == [name] if example["expect"] == "found" else name not in found
    if right:
        return None
    if example["expect"] == "found" and name in found:
        return Failure("rules.example_shared", {"others": ", ".join(found[: found.index(name)]), "name": name})
    return Failure("rules.example_otherwise", {"expected": example["expect"], "found": ", ".join(found) or "silent"})


def _tell(name: str, fault: Failure, words: Words, style: Style) -> None:
    """An example that failed: what came of it, and why."""
    print(f"{name}: {words(fault.key, **fault.values)}")
    for tree, lookup in fault.conditions:
        print("\n".join(trial_lines(tree, lookup, words, style)))


def _known(name: str, rules: Collection[str]) -> str:
    if name not in rules:
        raise unknown_rule(name, list(rules))
    return name
