"""``kb rules new-dialect``: a config format drafted from a program's own list of arguments, by release: its
dataclasses, argparse, configs, or YAML of defaults.
"""

import argparse
import ast
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from kb import __version__
from kb.commands.rules.new_entry import Draft, free_id, write_draft
from kb.config.python.assigned import parse_assigned
from kb.core.catalog import Catalog
from kb.core.release import parse_version
from kb.core.text import UserError
from kb.knowledge import load_catalog
from kb.knowledge.locations import Location
from kb.session import cli

RELEASE = re.compile(r"v?(\d+(?:\.\d+)+)=(.+)")
# Formats whose plain names of arguments are taken for what other programs mean by them.
LIKELY = ("hf", "trl", "llamafactory", "axolotl", "command-training")
MARKS, WIDTH = 12, 118
PYTHON, CONFIGS = (".py",), (".yaml", ".yml")
MOST_FILES = 2000
ENTRIES = ("setup", "main")
Classes = Mapping[str, ast.ClassDef]
Field = tuple[str, ast.expr]  # its name, and what it is annotated with


def new_dialect(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """A format whose keys mean what the same names mean in the formats that are known; a person checks each line."""
    catalog = load_catalog(options.rules)
    entry = free_id(options.project, [], {})
    if entry in catalog.dialects:
        raise UserError("rules.new_known", name=entry, known=entry)
    releases = _by_release(options.paths)
    names = list(dict.fromkeys(name for _, found in releases for name in found))
    meant = {name: setting for name in names if (setting := meaning_of(name, catalog)) is not None}
    dotted = sum("." in name for name in names) * 2 > len(names)
    marks = _marks(names, catalog)
    shown = json.dumps(options.project, ensure_ascii=False)
    source = f"{entry}-arguments"
    lines = [
        "# yaml-language-server: $schema=../schema/dialect.json",
        f"# Drafted by kb rules new-dialect from the arguments of {options.project}. What a key means was guessed",
        "# from its name: check each, with its default, and try the format on the project's own examples.",
        f"id: {entry}",
        "version: 1",
        f'since: "{__version__}"',
        f"title: {{ko: {shown}, en: {shown}}}",
        f"layout: {'grouped' if dotted else 'flat'}",
        "reader: library",
        "recognise:",
        "  least: 4",
        "  marks:",
        *(f"    {name}: 2" for name in marks),
        "keys:",
        *(f"  {name}: {setting}" for name, setting in meant.items()),
        *_known([(release, [name for name in found if name not in meant]) for release, found in releases]),
        f"sources: [{source}]",
    ]
    read = ", ".join(f"{'.'.join(map(str, release))}" for release, _ in releases if release)
    about = {
        "title": f"{options.project}, its own list of arguments",
        "kind": "source code",
        "note": f"Releases {read}." if read else "One release, read by kb rules new-dialect.",
    }
    text = "\n".join([*(lines if options.into is None else lines[1:]), ""])
    return write_draft(Draft("dialects", entry, text, source, about), options, location, words)


def meaning_of(name: str, catalog: Catalog) -> str | None:
    """The setting that most formats mean by a name; of a dotted path its last part counts. None where none knows it."""
    last = name.rpartition(".")[2]
    found = Counter(
        meant
        for known in LIKELY
        if (dialect := catalog.dialects.get(known)) is not None
        and isinstance(meant := dialect.keys.get(last), str)
        and not meant.endswith("*")
    )
    if found:
        return found.most_common(1)[0][0]
    setting = catalog.facts.get(f"training.{last}")
    return setting.name if setting is not None and setting.setting else None


def _by_release(paths: Sequence[str]) -> list[tuple[tuple[int, ...], dict[str, None]]]:
    """Each release with its arguments, the oldest first; a path without one is of no release."""
    found: dict[tuple[int, ...], dict[str, None]] = {}
    for path in paths:
        match = RELEASE.fullmatch(path)
        release = parse_version(match[1]) if match is not None else ()
        found.setdefault(release, {}).update(arguments_in(match[2] if match is not None else path))
    if () in found and len(found) > 1:
        raise UserError("rules.new_dialect_releases")
    return sorted(found.items())


def _marks(names: Iterable[str], catalog: Catalog) -> list[str]:
    """Names that no other format has a key or an argument for; all of them where there are none."""
    taken: set[str] = set()
    for dialect in catalog.dialects.values():
        taken |= dialect.keys.keys() | dialect.recognise["marks"].keys() | set(dialect.ignore)
        taken |= {name for listed in dialect.known.values() for name in listed}
    names = list(names)
    own = [name for name in names if name not in taken and f"training.{name}" not in catalog.facts]
    return (own or names)[:MARKS]


def _known(releases: Sequence[tuple[tuple[int, ...], list[str]]]) -> list[str]:
    """``known:`` of the draft: the arguments that mean no setting, by the releases that have them."""
    if not any(found for _, found in releases):
        return []
    spans: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for _, found in releases for name in found):
        having = [release for release, found in releases if name in found]
        since = "" if having[0] == releases[0][0] else ".".join(map(str, having[0]))
        until = "" if having[-1] == releases[-1][0] else ".".join(map(str, having[-1]))
        spans.setdefault(f"{since}..{until}", []).append(name)
    lines = ["known:"]
    for span, names in sorted(spans.items()):
        lines += [f'  "{span}":', "    [", *_wrapped(sorted(names)), "    ]"]
    return lines


def _wrapped(names: Sequence[str]) -> list[str]:
    lines, line = [], "     "
    for name in names:
        if len(line) + len(name) + 2 > WIDTH:
            lines.append(line)
            line = "     "
        line += f" {name},"
    return [*lines, line]


def arguments_in(path: str) -> dict[str, None]:
    """The names in a file, or in every Python file of a folder (every YAML file where it has none), each once.

    Of Python: the fields of dataclasses and of pydantic's models, of one that is a field of another by their dotted
    path, the long options of ``add_argument``, and what a function ``main`` or ``setup`` takes, as fire and
    jsonargparse call it; of a file that assigns ``dict(…)``, the dotted paths of its names at the top. Of YAML: the
    dotted paths of all values. Nothing is run.

    Raises:
        UserError: the path is not there, cannot be read, or holds no argument.
    """
    names: dict[str, None] = {}
    trees: list[ast.Module] = []
    for file in _files(path):
        try:
            with open(file, encoding="utf-8") as stream:
                text = stream.read()
            if file.endswith(CONFIGS):
                names |= dict.fromkeys(_of_mapping(yaml.safe_load(text)))
            else:
                trees.append(ast.parse(text))
                names |= dict.fromkeys(_of_config(text, trees[-1]))
        except (OSError, ValueError, SyntaxError, yaml.YAMLError, RecursionError) as error:
            reason = str(getattr(error, "strerror", None) or error).split("\n")[0]
            raise UserError("rules.new_dialect_unreadable", path=file, reason=reason) from None
    names |= dict.fromkeys(_of_python(trees))
    if not names:
        raise UserError("rules.new_dialect_nothing", path=path)
    return names


def _files(path: str) -> list[str]:
    if os.path.isfile(path) and path.endswith(PYTHON + CONFIGS):
        return [path]
    found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in sorted(names)]
    # a folder of code, else one of configs
    found = [each for each in found if each.endswith(PYTHON)] or [each for each in found if each.endswith(CONFIGS)]
    if not found:
        raise UserError("rules.new_dialect_no_file", path=path)
    return sorted(found)[:MOST_FILES]


def _of_config(text: str, tree: ast.Module) -> Iterator[str]:
    """The names of a Python file that is a config: one that assigns a dictionary of settings at its top."""
    values = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    if any(isinstance(each, ast.Call) and getattr(each.func, "id", "") == "dict" for each in values):
        (document,) = parse_assigned(text, {}).documents
        yield from _of_mapping({} if document is None else document.plain())


def _of_python(trees: list[ast.Module]) -> Iterator[str]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef) and _holds_fields(node)}
    entries = [found for tree in trees if (found := _entry(tree)) is not None]
    held = [*(_fields(node) for node in classes.values()), *(_parameters(node) for node in entries)]
    inner = (_class(annotation, classes) for fields in held for _, annotation in fields)
    within = {node.name for node in inner if node is not None}
    for entry in entries:
        yield from _paths(_parameters(entry), classes, "", ())
    for node in nodes:
        if isinstance(node, ast.ClassDef) and classes.get(node.name) is node and node.name not in within:
            yield from _paths(_fields(node), classes, "", (node.name,))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield from _options(node)


def _holds_fields(node: ast.ClassDef) -> bool:
    """Whether it is a dataclass or a model of pydantic."""
    return any(map(_is_dataclass, node.decorator_list)) or any(ast.unparse(b).endswith("BaseModel") for b in node.bases)


def _is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "dataclass"


def _paths(fields: Iterable[Field], classes: Classes, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    """The names of fields, of each one that is a dataclass itself by the dotted paths of its own."""
    for name, annotation in fields:
        inner = _class(annotation, classes)
        if inner is None or inner.name in above:
            yield prefix + name
        else:
            yield from _paths(_fields(inner), classes, f"{prefix}{name}.", (*above, inner.name))


def _entry(tree: ast.Module) -> ast.FunctionDef | None:
    """The function that a command line calls, as far as its name says."""
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return next((found[name] for name in ENTRIES if name in found), None)


def _parameters(node: ast.FunctionDef) -> Iterator[Field]:
    """What a function takes by name."""
    for each in (*node.args.args, *node.args.kwonlyargs):
        if each.annotation is not None:
            yield each.arg, each.annotation


def _class(annotation: ast.expr, classes: Classes) -> ast.ClassDef | None:
    """The dataclass that a field is annotated with, perhaps as ``"Name"`` or ``Name | None``."""
    names = [each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)]
    if isinstance(annotation, ast.Constant):
        names = [str(annotation.value)]
    found = [classes[name] for name in names if name in classes]
    return found[0] if found and not any(name in ("list", "dict", "List", "Dict", "tuple") for name in names) else None


def _fields(node: ast.ClassDef) -> Iterator[Field]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name = each.target.id
            if not name.startswith("_") and "ClassVar" not in ast.unparse(each.annotation):
                yield name, each.annotation


def _options(node: ast.Call) -> Iterator[str]:
    for each in node.args:
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("--"):
            yield each.value[2:].replace("-", "_")


def _of_mapping(value: Any, prefix: str = "") -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        if not isinstance(key, str) or key in ("defaults", "_target_", "hydra", "type"):
            continue
        if isinstance(inner, Mapping) and inner:
            yield from _of_mapping(inner, f"{prefix}{key}.")
        else:
            yield prefix + key
