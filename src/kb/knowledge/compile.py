"""rules/ and i18n/ as text → one checked, plain-data bundle. Everything that can be wrong is said here, with its place.

The bundle has parts, so that a start reads only what it needs: ``hot`` (what linting needs), ``cold`` (whys, examples,
sources, meanings), ``guide`` (presets, remedies, …), and the words of each language.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from kb.core.text import LANGUAGES
from kb.knowledge.catalog import TABLE, names_of
from kb.knowledge.compile_checks import checked, closed_sets, fact_types, with_own_names
from kb.knowledge.compile_rules import RuleCompiler, compile_entry
from kb.knowledge.compile_tables import TableCompiler
from kb.knowledge.locations import Location, files_under, opened
from kb.knowledge.problems import KnowledgeError, Problem
from kb.knowledge.readings import Readings
from kb.knowledge.rows import check_model, gpu_row, sources_of
from kb.knowledge.schema import GUIDE, KINDS, SchemaSet
from kb.knowledge.source import KEY, Located, placeholders_apart, read_source
from kb.memory import architecture_from_config

Parts = dict[str, Any]
NAMED = ("keys", "known", "calls", "classes")  # of a format
# What is asked of every format whatever a file is in: the marks that tell one from others, and who names a file of it.
OF_EVERY_FORMAT: dict[str, Any] = {
    "id": None, "reader": None, "layout": None, "recognise": None,
    "sections": {}, "priority": 0, "named_by": (), "wrapped": {},
}  # fmt: skip
PARTS_OF_A_FORMAT = ("dialects", "formats", "names")
Files = dict[str, list[Located]]
NONE_BELOW: Mapping[str, Sequence[Located]] = {"hardware": (), "models": ()}


def compile_knowledge(location: Location, files: Files | None = None, *, released: str | None = None) -> Parts:
    """The bundle of a rules folder; ``files`` where they have been read.

    Its version is a hash of what the files say, whatever form kb gives it, after the day of its release (``released``,
    ISO 8601) where it has one.

    Raises:
        KnowledgeError: with every fault found, each at file:line:column.
    """
    files = read_rules_folder(location) if files is None else files
    parts, problems = compile_files(files)
    words, word_problems = _words(opened(location))
    problems += word_problems
    if problems:
        raise KnowledgeError(sorted(problems, key=lambda problem: (problem.path, problem.line, problem.column)))
    said = {
        each.path.removeprefix(location.rules).replace(os.sep, "/"): each.data
        for kind in files.values()
        for each in kind
    }
    digest = hashlib.sha256(json.dumps([sorted(said.items()), words], ensure_ascii=False).encode()).hexdigest()[:8]
    parts["hot"]["version"] = f"{released}.{digest}" if released else digest
    return {**parts, **words}


def read_one_file(location: Location, name: str) -> Located:
    """One file under rules/, checked with what it refers to and with what could bear the same name.

    Raises:
        KnowledgeError: it has faults.
    """
    location = opened(location)
    kind, stem = name.split("/", 1)[0], name.rpartition("/")[2]
    beside = [other for other in files_under(location.rules) if _goes_with(other, kind, stem)]
    files, problems = _read_all(location, sorted({name, *beside}), trusted=set(beside) - {name})
    path = os.path.join(location.rules, name)
    if not problems:
        below = {each: [located for located in files[each] if located.path != path] for each in NONE_BELOW}
        files |= {each: [located for located in files[each] if located.path == path] for each in NONE_BELOW}
        problems = [problem for problem in compile_files(files, below=below)[1] if problem.path == path]
    if problems:
        raise KnowledgeError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return next(located for located in files[kind] if located.path == path)


def _goes_with(other: str, kind: str, stem: str) -> bool:
    """Whether a file of ``kind`` and of that name is checked with ``other`` beside it."""
    theirs, _, rest = other.partition("/")
    if theirs in ("vocabulary.yaml", "constants.yaml", "sources.yaml", "sources"):
        return True
    if kind == "tables" and theirs in ("checks", "dialects"):
        return True  # the rules that word its rows, and the formats that they hold of
    if theirs == kind:  # aliases are unique over all files of a kind, rules by their name
        return kind in ("hardware", "models") or rest.rpartition("/")[2] == stem
    return theirs == "hardware" and kind == "measurements"


def compile_files(
    files: Files, ids: Mapping[str, Collection[str]] | None = None, below: Mapping[str, Sequence[Located]] = NONE_BELOW
) -> tuple[Parts, list[Problem]]:
    """The parts of the bundle without the words, and what is wrong with the files.

    Args:
        ids: those of each folder, where more lie there than what is compiled; None reads the folders.
        below: GPUs and models that were found right before: their names are taken, and nothing else of them is asked.
    """
    problems: list[Problem] = []
    vocabulary = files["vocabulary.yaml"][0].data
    types, values = fact_types(vocabulary), closed_sets(files["vocabulary.yaml"][0], ids)
    sources = sources_of([*files["sources.yaml"], *files["sources"]], problems)
    compiler = RuleCompiler(
        types=types, facts=vocabulary["facts"], events=vocabulary["events"], sources=sources, values=values
    )
    rules = {located.data["id"]: compiler.compile(located) for located in files["checks"]}
    problems += compiler.problems
    classes = {name: row for located in files["dialects"] for name, row in located.data.get("classes", {}).items()}
    tables = TableCompiler(
        types=types,
        settings=_settings(vocabulary),
        values=values,
        rules={located.data["id"]: located.data.get("on") for located in files["checks"]},
        formats=[located.data["id"] for located in files["dialects"]],
        classes=classes,
    )
    for located in files["tables"]:
        tables.compile(located)
    problems += tables.problems
    gpus = {located.data["id"]: gpu_row(located) for located in (*below["hardware"], *files["hardware"])}
    models = {located.data["id"]: _model(located, problems) for located in files["models"]}
    for name, judged in tables.calls.items():
        classes[name]["judged"] = judged
    dialects = {located.data["id"]: _dialect(located.data, vocabulary) for located in files["dialects"]}
    guide = _guide(files, types, values, problems)
    problems += checked(files, types, sources, gpus, below)
    hot = {
        "version": "",  # of the whole, once it is whole
        "facts": {name: _fact_row(fact) for name, fact in vocabulary["facts"].items()},
        "lists": {"settings": " ".join(_settings(vocabulary)), "unmodelled": vocabulary["unmodelled"]},
        "events": {name: event["values"] for name, event in vocabulary["events"].items()},
        "rules": {name: rules[name]["hot"] for name in sorted(rules)},
        "outlines": {name: rules[name]["outline"] for name in sorted(rules)},
        "wordings": {name: rules[name]["wording"] for name in sorted(rules)},
        "gpus": gpus,
        "models": models,
        "called": names_of(models),
        **{kind: {name: parts[at] for name, parts in dialects.items()} for at, kind in enumerate(PARTS_OF_A_FORMAT)},
        "tables": tables.triggers,
        "same_tables": tables.same,
        "constants": {name: entry["value"] for name, entry in files["constants.yaml"][0].data["constants"].items()},
    }
    rows = {TABLE + name: part for name, part in tables.parts.items() if name not in tables.same}
    cold = _cold(rules, vocabulary, sources, tables)
    return {"hot": hot, "cold": cold, "guide": guide, "serving": guide["serving"], **rows}, problems


def _cold(
    rules: Mapping[str, Any], vocabulary: Mapping[str, Any], sources: Mapping[str, Any], tables: TableCompiler
) -> Parts:
    """What explaining a rule needs, and linting does not."""
    return {
        "rules": {name: rules[name]["cold"] for name in sorted(rules)},
        "meanings": {name: [fact["ko"], fact["en"]] for name, fact in vocabulary["facts"].items()},
        "sources": sources,
        "tables": tables.cold,
        "table_examples": tables.examples,
    }


def _settings(vocabulary: Mapping[str, Any]) -> list[str]:
    """The facts that a config can say."""
    return [name for name, fact in vocabulary["facts"].items() if fact.get("setting")]


def _guide(
    files: Files, types: Mapping[str, str], values: Mapping[str, Collection[str]], problems: list[Problem]
) -> Parts:
    """What the guide shows and few commands read: kind → id → the file's data."""
    guide: Parts = {}
    for kind in GUIDE:
        entries = {
            located.data.get("id", kind): compile_entry(located, types, problems, values) for located in files[kind]
        }
        guide[kind.removesuffix(".yaml")] = entries if not kind.endswith(".yaml") else entries.get(kind, {})
    guide |= {kind: {located.data["id"]: located.data for located in files[kind]} for kind in ("hardware", "models")}
    guide["constants"] = files["constants.yaml"][0].data["constants"]
    guide["arguments"] = {
        name: [located.data["library"], group["has"]]
        for located in files["tables"]
        for name, group in located.data.get("names", {}).items()
    }
    return guide


def read_rules_folder(location: Location) -> Files:
    """Every file under rules/, by kind, read and checked against its schema.

    Raises:
        KnowledgeError: a file is missing, is not YAML, or does not answer to its schema.
    """
    files, problems = _read_all(opened(location))
    if problems:
        raise KnowledgeError(problems)
    return files


def _read_all(
    location: Location, names: list[str] | None = None, trusted: Set[str] = frozenset()
) -> tuple[Files, list[Problem]]:
    """Files under rules/ by kind: ``names``, or all. Those that are ``trusted`` are not held against their schema."""
    files: Files = {kind: [] for kind in KINDS}
    problems: list[Problem] = []
    schema_folder = os.path.join(location.rules, "schema")
    if not os.path.isdir(schema_folder):
        message = "no schema folder here: is this a rules directory of kb?"
        return files, [Problem.of_file(location.rules, message)]
    schemas, readings = SchemaSet(schema_folder), Readings(location)
    for name in files_under(location.rules) if names is None else names:
        kind = name.split("/", 1)[0]
        if kind == "schema":
            continue
        path = os.path.join(location.rules, name)
        if kind not in KINDS:
            problems.append(Problem.of_file(path, f"no kind of file has this place; kinds: {', '.join(sorted(KINDS))}"))
            continue
        try:
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
            read_before = readings.known(path, text, schemas.text(KINDS[kind]))
            located = read_before or read_source(path, text)
        except UnicodeDecodeError as error:
            problems.append(Problem.of_file(path, f"not UTF-8 at byte {error.start}"))
            continue
        except KnowledgeError as error:
            problems += error.problems
            continue
        faults = [] if read_before or name in trusted else schemas.check(KINDS[kind], located, text)
        problems += faults
        if not faults:
            files[kind].append(located)
            if names is None and not read_before:
                readings.keep(text, schemas.text(KINDS[kind]), located.data)
    if names is None:
        readings.write()
    for name in ("vocabulary.yaml", "constants.yaml", "sources.yaml"):
        if not files[name] and not problems:
            problems.append(Problem.of_file(os.path.join(location.rules, name), "this file is missing"))
    return files, problems


def _fact_row(fact: dict[str, Any]) -> list[Any]:
    """Positional, since there are hundreds and they are read at every start."""
    return [
        fact["type"],
        fact.get("default"),
        fact.get("unit"),
        fact.get("setting", False),
        fact.get("renamed"),
        fact.get("at", []),
        fact.get("given", False),
        fact.get("moved", []),
        fact.get("model_types", []),
    ]


def _dialect(data: dict[str, Any], vocabulary: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """What is asked of every format, by position; apart from it what a file of the format needs; and its many names."""
    whole = with_own_names(data, vocabulary["own_names"], vocabulary["facts"])
    row = [whole.get(name, usual) for name, usual in OF_EVERY_FORMAT.items()]
    own = {name: value for name, value in whole.items() if name not in (*OF_EVERY_FORMAT, *NAMED)}
    return row, own, {name: whole[name] for name in NAMED if name in whole}


def _model(located: Located, problems: list[Problem]) -> dict[str, Any]:
    data = located.data
    problems += check_model(located)
    try:
        found = architecture_from_config(data["architecture"])
    except ValueError:  # which is among the problems
        architecture = {}
    else:
        # a model of one family has few of the others' fields: what is as by default need not be read at every start
        usual = found._field_defaults
        architecture = {
            name: value for name, value in found._asdict().items() if name not in usual or usual[name] != value
        }
    stored = data.get("weights_dtype", [])
    return {
        "id": data["id"],
        "name": data["name"],
        "aliases": data.get("aliases", []),
        "architecture": architecture,
        "parameters": data["parameters"][0]["value"],
        "max_length": data.get("max_length", {}).get("value"),
        "weights_dtype": next((row["value"] for row in stored), None),
        "other_weights": [[row["of"], row["value"]] for row in stored[1:]],
    }


def _words(location: Location) -> tuple[Parts, list[Problem]]:
    """The words of each language; both must have the same keys and the same placeholders."""
    problems: list[Problem] = []
    located: dict[str, Located] = {}
    for language in LANGUAGES:
        path = os.path.join(location.i18n, f"{language}.yaml")
        try:
            with open(path, encoding="utf-8") as stream:
                located[language] = read_source(path, stream.read())
        except FileNotFoundError:
            return {}, [Problem.of_file(path, "this file is missing")]
        except KnowledgeError as error:
            problems += error.problems
    if problems:
        return {}, problems
    korean, english = (located[language].data or {} for language in LANGUAGES)
    for key in sorted({*korean, *english}):
        if key not in korean or key not in english:
            missing = "ko" if key not in korean else "en"
            present = located["en" if missing == "ko" else "ko"]
            problems.append(present.problem((key, KEY), f"{key!r} has no text in {missing}.yaml"))
        else:
            apart = placeholders_apart(str(korean[key]), str(english[key]))
            if apart is not None:
                problems.append(located["en"].problem((key,), *(f"{key!r}: {said}" for said in apart)))
    return {"ko": korean, "en": english}, problems
