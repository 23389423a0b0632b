"""``kb.rules``: the maintainer's tools. Validate the knowledge, run its examples, read a rule, begin a new one."""

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kb import __version__
from kb.advice import rule_diff
from kb.advice.diagnosis import diagnose
from kb.advice.formulas import Basis
from kb.commands.options import Options
from kb.commands.rules.config_schemas import config_schemas
from kb.commands.rules.new_dialect import new_dialect
from kb.commands.rules.new_entry import new_gpu, new_model, particles_by_sound, untouched, write_new_rule
from kb.commands.rules.update import add_arguments, update_rules
from kb.commands.rules.versions import compare_versions, edition_at, edition_before
from kb.core.catalog import Catalog
from kb.core.text import LANGUAGES, UserError, nearest
from kb.knowledge import load_catalog, load_guide, load_table_examples, load_table_rows, load_words, load_words_alone
from kb.knowledge.bundle import build
from kb.knowledge.compile import compile_knowledge, read_one_file, read_rules_folder
from kb.knowledge.entries import ERRATA, Entry, entries_of, written
from kb.knowledge.locations import Location, Overlay, cache_folder, located, named, opened
from kb.knowledge.overlay import laid_entries
from kb.knowledge.problems import Problem
from kb.knowledge.source import read_source
from kb.memory.answers import keep_in
from kb.report.json_parts import head, to_json
from kb.report.rules.diff import rule_diff_markdown, rule_diff_object
from kb.report.rules.entry import entry_text, erratum_text, formula_text
from kb.report.rules.explain import explain, trial_lines
from kb.report.terminal import Style, choose_style
from kb.report.words import Words
from kb.session import cli
from kb.session.cache import Predictions
from kb.session.knowledge import rules_of
from kb.session.project import find_project, folder_of, unknown_rule
from kb.session.rule_examples import ExampleRunner, Failure

# What looks at the rules as a run does, with what the project in the working folder lays over them.
LAID_OVER = ("test", "show", "explain", "schemas")
ASKING = ("diff", "test")  # of the memory engine, the same again and again while rules are worked on


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    # the rules are changed and not compiled yet where they are validated: their texts do not wait for that
    words = load_words_alone(language) if "validate" in arguments[:1] else cli.load_words_or_none(language)
    options = build_parser(words).parse_args(arguments)
    if options.action in LAID_OVER:
        options.rules = rules_of(find_project(os.getcwd()), options.rules)
    if options.action in ASKING:
        keep_in(Predictions(cache_folder()))
    location = located(getattr(options, "rules", None))
    action = {
        "validate": _validate,
        "test": _test,
        "show": _show,
        "explain": _explain,
        "new": _new,
        "new-model": new_model,
        "new-gpu": new_gpu,
        "new-dialect": new_dialect,
        "lock": _lock,
        "diff": _diff,
        "schemas": _schemas,
        "update": update_rules,
    }[options.action]
    return action(options, location, words)


def build_parser(words: cli.Words) -> cli.Parser:
    options = Options(words, "rules")
    say = options.say
    actions = options.parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str) -> cli.Parser:
        made: cli.Parser = actions.add_parser(name, words=words, help=say(name), description=say(name))
        if name != "update":  # whose rules are always kb's own
            options.add(made, "rules", "lang")
        return made

    add("validate").add_argument("file", nargs="?", metavar="FILE|DIR", help=say("validate_file"))
    add("test").add_argument("ids", nargs="*", metavar="ID", help=say("ids"))
    add("show").add_argument("ids", nargs="*", metavar="ID", help=say("entry_ids"))
    explain = add("explain")
    explain.add_argument("ids", nargs="+", metavar="ID", help=say("entry_ids"))
    new = add("new")
    new.add_argument("ids", nargs=1, metavar="ID", help=say("new_id"))
    new.add_argument("--area", required=True, help=say("area"))
    new.add_argument("--into", metavar="DIR", help=say("new_into"))
    model = add("new-model")
    model.add_argument("config", nargs=1, metavar="CONFIG|HUB-ID", help=say("new_config"))
    gpu = add("new-gpu")
    gpu.add_argument("--memory", metavar="SIZE", help=say("new_memory"))
    gpu.add_argument("--compute-capability", metavar="X.Y", help=say("new_capability"))
    gpu.add_argument("--measured", action="store_true", help=say("new_measured"))
    for each, of in ((model, "model"), (gpu, "gpu")):
        each.add_argument("--name", metavar="NAME", help=say(f"new_{of}_name"))
        each.add_argument("--id", metavar="ID", help=say("new_entry_id"))
        each.add_argument("--into", metavar="DIR", help=say("new_into"))
    dialect = add("new-dialect")
    dialect.add_argument("project", metavar="PROJECT", help=say("new_dialect_id"))
    dialect.add_argument("paths", nargs="+", metavar="[RELEASE=]PATH", help=say("new_dialect_paths"))
    dialect.add_argument("--into", metavar="DIR", help=say("new_into"))
    lock = add("lock")
    for name in ("--check", "--rewrite"):  # of a lock that was kept once
        lock.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    lock.add_argument("--base", metavar="REV", help=say("base"))
    schemas = add("schemas")
    schemas.add_argument("--out", metavar="DIR", required=True, help=say("schemas_out"))
    diff = add("diff")
    diff.add_argument("revision", metavar="REV", help=say("revision"))
    diff.add_argument("--format", choices=("text", "json"), default="text", help=say("diff_format"))
    add_arguments(add("update"), options)
    return options.parser


def _validate(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """Schemas, names, types, references, both languages; and, of the shipped rules, the version lock."""
    only = hot = None
    laid = _laid_over(options)
    if laid is not None:
        return _validate_overlays(laid, options, words)
    if options.file is not None:
        location, only = _file_of(options, location)
        located = read_one_file(location, only)
        files = {only.split("/", 1)[0]: [located]}
    else:
        files = read_rules_folder(location)
        hot = (compile_knowledge if location.sealed else build)(location, files)["hot"]
    problems = [problem for located in files.get("checks", ()) for problem in untouched(located)]
    problems += [problem for kind in files.values() for located in kind for problem in particles_by_sound(located)]
    if not location.sealed:
        problems += compare_versions(
            location, files, only=os.path.join(location.rules, only) if only else None
        ).problems
    if _told(problems, options):
        return cli.FINDINGS
    if hot is None:
        print(cli.said(words, "rules.file_valid", path=options.file))
        return cli.CLEAN
    counts = {kind: len(hot[kind]) for kind in ("rules", "gpus", "models", "dialects", "facts")}
    print(cli.said(words, "rules.valid", path=location.rules, **counts))
    return cli.CLEAN


def _told(problems: Sequence[Problem], options: argparse.Namespace) -> bool:
    """Say them; whether there are any."""
    language = _language(options)
    for problem in problems:
        print(problem.in_language(language), file=sys.stderr)
    return bool(problems)


def _laid_over(options: argparse.Namespace) -> Location | None:
    """The overlays that are meant: a folder that is named, those of the project that a named file lies in or that is
    here; None where kb's own rules, or those of ``--rules``, are."""
    path = options.file
    if path is not None and os.path.isdir(path):
        return located(options.rules)._replace(overlays=(Overlay(path, os.path.abspath(path)),))
    if options.rules is not None or (path is not None and not os.path.isfile(path)):
        return None
    rules = rules_of(find_project(folder_of(path)))
    if not isinstance(rules, Location):
        return None
    inside = [overlay for overlay in rules.overlays if path and os.path.abspath(path).startswith(overlay.root + os.sep)]
    return rules if path is None or inside else None


def _validate_overlays(location: Location, options: argparse.Namespace, words: cli.Words) -> int:
    """Raises: OverlayError: they have faults."""
    entries = laid_entries(location)
    problems = []
    for entry in entries:
        if entry.kind == "checks":
            with open(entry.path, encoding="utf-8") as stream:
                located = read_source(entry.path, stream.read())
            problems += untouched(located) + particles_by_sound(located)
    if _told(problems, options):
        return cli.FINDINGS
    found = [entry.overlay for entry in entries]
    for overlay in location.overlays:
        print(cli.counted(words, "rules.overlay_valid", found.count(overlay.name), path=overlay.root))
    return cli.CLEAN


def _file_of(options: argparse.Namespace, location: Location) -> tuple[Location, str]:
    """The rules folder that a file lies in, and its name there. Without ``--rules`` it may be any above the file."""
    path = os.path.abspath(options.file)
    if not os.path.isfile(path):
        raise UserError("rules.no_file", path=options.file)
    folders = [os.path.abspath(location.rules)]
    if options.rules is None:
        above = os.path.dirname(path)
        while above != os.path.dirname(above):
            folders.append(above)
            above = os.path.dirname(above)
    for folder in folders:
        if path.startswith(folder + os.sep) and os.path.isfile(os.path.join(folder, "vocabulary.yaml")):
            name = os.path.relpath(path, folder).replace(os.sep, "/")
            if name.endswith(".yaml") and not name.startswith("schema/"):
                return named(folder) if folder != folders[0] else location, name
    raise UserError("rules.file_elsewhere", path=options.file)


def _test(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """Run the examples of rules, tables and remedies, all or those that are named; of one that fails, say what decided.

    Raises:
        UserError: a name is none of a rule, a table or a remedy.
    """
    catalog = load_catalog(options.rules, whole=True)
    rows = load_table_examples(options.rules)
    remedies = load_guide(options.rules)["remedies"]
    known = list(dict.fromkeys((*catalog.rules, *(row["of"].partition("/")[0] for row in rows), *remedies)))
    for name in options.ids:
        if name not in known:
            raise unknown_rule(name, known)
    speaker, style = _speaker(options, words, catalog), choose_style(sys.stdout)
    failed = total = 0
    for name, fault in _examples(options.ids, catalog, rows, remedies, words):
        total += 1
        if fault is not None:
            failed += 1
            print(f"{name}: {speaker(fault.key, **fault.values)}")
            for tree, lookup in fault.conditions:
                print("\n".join(trial_lines(tree, lookup, speaker, style)))
    print(cli.counted(words, "rules.tested", total, failed=failed))
    return cli.FINDINGS if failed else cli.CLEAN


def _examples(
    ids: Collection[str],
    catalog: Catalog,
    rows: Iterable[Mapping[str, Any]],
    remedies: Mapping[str, Any],
    words: cli.Words,
) -> Iterator[tuple[str, Failure | None]]:
    """Each example run: its name, and what is wrong with it."""
    runner = ExampleRunner(catalog)
    for name in [name for name in ids if name in catalog.rules] if ids else sorted(catalog.rules):
        for index, example in enumerate(catalog.rules[name].examples, 1):
            yield _numbered(name, index, words), runner.run(catalog.rules[name], example)
    for row in rows:
        if not ids or not {*row["rules"], row["of"].partition("/")[0]}.isdisjoint(ids):
            yield row["of"], runner.run_any(row["rules"], row["example"], row["of"])
    for name, remedy in remedies.items():
        for index, example in enumerate(remedy["examples"] if not ids or name in ids else (), 1):
            yield _numbered(name, index, words), _of_remedy(name, example, remedies)


def _numbered(name: str, index: int, words: cli.Words) -> str:
    return f"{name}, {cli.said(words, 'rules.example', number=index)}"


def _of_remedy(name: str, example: Mapping[str, Any], remedies: Mapping[str, Any]) -> Failure | None:
    """What is wrong with a remedy's example: its log leads to the remedy before all others, or not to it at all."""
    found = [cause.id for cause in diagnose(enumerate(example["log"].split("\n"), 1), remedies).causes]
    right = found[:1] == [name] if example["expect"] == "found" else name not in found
    if right:
        return None
    if example["expect"] == "found" and name in found:
        return Failure("rules.example_shared", {"others": ", ".join(found[: found.index(name)]), "name": name})
    return Failure("rules.example_otherwise", {"expected": example["expect"], "found": ", ".join(found) or "silent"})


def _show(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """Rules as a table, the entries of a kind as a list, or one entry as it is written."""
    if not options.ids:
        catalog = load_catalog(options.rules)
        language = _language(options)
        width = max(map(len, catalog.rules), default=0)
        for rule in sorted(catalog.rules.values(), key=lambda rule: (rule.area, rule.id)):
            print(f"{rule.area:16} {rule.severity:8} {rule.id:{width}}  {rule.title.in_language(language)}")
        return cli.CLEAN

    found = entries_of(location)
    kinds = {entry.kind for entry in found.values()}
    for name in options.ids:
        if name in kinds:
            print("\n".join(sorted({entry.id for entry in found.values() if entry.kind == name})))
        else:
            print(written(location, find_entry(name, found)), end="")
    return cli.CLEAN


def _explain(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    found = entries_of(location)
    entries = [find_entry(name, found) for name in options.ids]
    catalog = load_catalog(options.rules, whole=True)
    speaker = _speaker(options, words, catalog)
    guide, style = load_guide(options.rules), choose_style(sys.stdout)
    for entry in entries:
        print(explain_entry(entry, location, catalog, guide, speaker, style), end="")
    return cli.CLEAN


def find_entry(name: str, found: dict[str, Entry]) -> Entry:
    """The entry of an id, or of ``kind/id``.

    Raises:
        UserError: there is none; it names the nearest that there is.
    """
    if name in found:
        return found[name]
    meant = nearest(name, [other for other in found if ("/" in other) == ("/" in name)])
    key = "rules.no_entry_meant" if meant else "rules.no_entry"
    raise UserError(key, name=name, meant=meant[0] if meant else "")


def explain_entry(
    entry: Entry, location: Location, catalog: Catalog, guide: Mapping[str, Any], words: Words, style: Style
) -> str:
    """The entry in the reader's language, each figure with its source; an erratum's computed again.

    Args:
        catalog: the whole one, with sources.
        guide: the bundle's part of that name.
    """
    if entry.kind == "checks":
        rule = catalog.rules[entry.id]
        rows = load_table_rows(rule.id, location) if rule.on == rule.id else ()
        return explain(rule, words, style, sources=catalog.sources, rows=rows)
    errata = guide.get(ERRATA, {}).get(ERRATA, [])
    if entry.kind == ERRATA:
        row = next(row for row in errata if row["id"] == entry.id)
        basis = Basis(models=catalog.models, gpus=catalog.gpus, constants=catalog.constants)
        return erratum_text(row, basis, words, style, sources=catalog.sources)
    if entry.kind == "formulas":
        return formula_text(guide["formulas"][entry.id], words, style, errata=errata, sources=catalog.sources)

    data = guide.get(entry.kind, {}).get(entry.id) if os.path.isabs(entry.path) else None  # an overlay's, filled in
    if data is None:
        with open(os.path.join(opened(location).rules, entry.path), encoding="utf-8") as stream:
            data = read_source(entry.path, stream.read()).data
    return entry_text(entry.kind, data, words, style, errata=errata, sources=catalog.sources)


def _new(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    if location.sealed and options.into is None:
        raise UserError("rules.sealed", path=location.rules)
    path = write_new_rule(location, options.ids[0], options.area, options.into)
    print(cli.said(words, "rules.created", path=path))
    return cli.CLEAN


def _lock(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """Hold the versions against git's history. Nothing is written: no lock is kept."""
    if location.sealed:
        raise UserError("rules.sealed", path=location.rules)
    compared = compare_versions(location, base=options.base)
    if _told(compared.problems, options):
        return cli.FINDINGS
    if compared.base is None:
        assert compared.reason is not None  # one of the two
        reason = cli.said(words, compared.reason.key, **compared.reason.values)
        raise UserError("rules.no_base", reason=reason)
    print(cli.said(words, "rules.locked", base=compared.base[:9]))
    return cli.CLEAN


def _schemas(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """JSON Schemas of the config formats, for editors; without --lang in both languages."""
    import json

    catalog = load_catalog(options.rules, whole=True)
    chosen = (options.lang,) if options.lang else LANGUAGES
    languages = {language: Words(language, load_words(language), catalog.facts) for language in chosen}
    try:
        os.makedirs(options.out, exist_ok=True)
        for name, schema in config_schemas(catalog, languages):
            path = os.path.join(options.out, f"{name}.json")
            with open(path, "w", encoding="utf-8") as stream:
                json.dump(schema, stream, ensure_ascii=False, indent=1)
            print(path)
    except OSError as error:
        raise UserError("fix.unwritable", path=error.filename or options.out, reason=error.strerror) from None
    return cli.CLEAN


def _diff(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """What the rules' change since a revision does, as Markdown; findings are version bumps that are missing."""
    if location.sealed:
        raise UserError("rules.sealed", path=location.rules)
    now = edition_at(location)
    with edition_before(location, options.revision) as (then, commit):
        entries, flips = rule_diff.entries_of(then, now), rule_diff.flips_of(then, now)
        if options.format == "json":
            data = rule_diff_object(options.revision, commit, entries, flips)
            cli.put(to_json({**head(__version__, now.catalog.version), **data}))
        else:
            speaker = _speaker(options, words, now.catalog)
            cli.put(rule_diff_markdown(options.revision, commit, entries, flips, then, now, speaker))
    return cli.FINDINGS if entries.unbumped else cli.CLEAN


def _language(options: argparse.Namespace) -> str:
    return cli.language_of(["--lang", options.lang] if options.lang else [], os.environ)


def _speaker(options: argparse.Namespace, words: cli.Words, catalog: Catalog) -> Words:
    return Words(_language(options), words, catalog.facts)
