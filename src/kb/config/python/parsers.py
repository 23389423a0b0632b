"""Which flags a program takes, where its source shows every one: what its parser refuses stops it at its start.

Read off the source, never run. Of argparse's own parser each use is looked at: one that is handed on, or given its
flags by anything but ``add_argument``, may take more. Of ``HfArgumentParser`` the classes must be the project's own, or
a library's whose names are all listed.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kb.config.python.declared import nodes_of
from kb.config.python.syntax import called_name, dotted_name

Classes = Mapping[str, Mapping[str, Any]]
# What takes flags besides, or reads the command line by itself.
_MAY_TAKE_MORE = (
    r"sys\.argv|parse_known_args|add_subparsers|add_parser|fromfile_prefix|return_remaining_strings|args_filename"
    r"|parse_intermixed|absl|\bclick\b|\btyper\b|\bfire\b|jsonargparse|configargparse|simple_parsing|\btap\b|\btyro\b"
    r"|LightningCLI|\bHfArg\(|\baliases\b|\bhydra\b|\bflags\.DEFINE|TrlParser|H4ArgumentParser|argcomplete"
    r"|\bREMAINDER\b|\bargparse\.PARSER\b|nargs\s*=\s*[\"']A?\.\.\.[\"']"
)
_PLAIN = frozenset(("description", "prog", "usage", "epilog", "formatter_class", "add_help", "conflict_handler"))
_OWN_METHODS = frozenset((
    "add_argument", "add_argument_group", "add_mutually_exclusive_group", "parse_args", "set_defaults", "print_help",
    "print_usage", "format_help", "error", "exit",
))  # fmt: skip
_PARSED = ("parse_args_into_dataclasses", "parse_dict", "parse_json_file", "parse_yaml_file")
MAX_BASES = 20


def flags_taken(own: str, imported: str = "", libraries: Mapping[str, Mapping[str, Any]] = {}) -> frozenset[str] | None:
    """The long flags that a program takes, without dashes and with _ for -; None where that cannot be told.

    Args:
        own: its source.
        imported: that of the project's modules that it imports.
        libraries: every name that a library's class takes in some release, as ``classes`` of a dialect has them.
    """
    parses = "parse_args()" in own or _PARSED[0] + "()" in own
    if not parses or any(re.search(_MAY_TAKE_MORE, text) for text in (own, imported)):
        return None
    nodes = nodes_of(own)
    made = [node for node in nodes if isinstance(node, ast.Call) and (called_name(node) or "").endswith("Parser")]
    if len(made) != 1 or "ArgumentParser(" in imported:
        return None
    if called_name(made[0]) == "ArgumentParser":
        return _of_argparse(nodes, made[0])
    if called_name(made[0]) != "HfArgumentParser" or "unsloth" in own or "unsloth" in imported:
        return None  # Unsloth puts classes of its own in the place of TRL's
    parsers = {name for node in nodes for name in _named(node, made[0], ())}
    if "add_argument" in own or "add_argument" in imported or _handed_on(nodes, parsers, _PARSED):
        return None  # flags beside the classes' fields
    return _of_classes(made[0], (*nodes_of(imported), *nodes), libraries)


def _of_argparse(nodes: list[ast.AST], made: ast.Call) -> frozenset[str] | None:
    """The flags of an ``argparse.ArgumentParser`` that is given each by its name, and to nothing else."""
    plain = not made.args and all(each.arg in _PLAIN for each in made.keywords)
    if not plain or not _is_argparse(nodes, made):
        return None
    parsers = {name for node in nodes for name in _named(node, made, ())}
    used = parsers | {name for node in nodes for name in _named(node, made, parsers)}
    if not parsers or _handed_on(nodes, used, _OWN_METHODS):
        return None
    taken = {"help"}
    for node in nodes:
        if isinstance(node, ast.Call) and called_name(node) == "add_argument":
            flags = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if not flags or len(flags) < len(node.args) or any(each.arg is None for each in node.keywords):
                return None
            names = {flag[2:].replace("-", "_") for flag in flags if flag.startswith("--")}
            taken |= names | {f"no_{name}" for name in names}  # as BooleanOptionalAction has it
    return frozenset(taken)


def _is_argparse(nodes: list[ast.AST], made: ast.Call) -> bool:
    """Whether the parser's class is that of the standard library."""
    if isinstance(made.func, ast.Attribute):
        return isinstance(made.func.value, ast.Name) and made.func.value.id == "argparse"
    return any(
        isinstance(node, ast.ImportFrom) and node.module == "argparse" and any(a.asname is None for a in node.names)
        for node in nodes
    )


def _named(node: ast.AST, made: ast.Call, parsers: "set[str] | tuple[()]") -> Iterator[str]:
    """The name that a statement gives to the parser, or to a group of its flags."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return
    value = node.value
    group = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr.endswith("_group")
    of_parser = group and isinstance(value.func.value, ast.Name) and value.func.value.id in parsers  # type: ignore[attr-defined]
    if value is made or of_parser:
        yield node.targets[0].id


def _handed_on(nodes: Sequence[ast.AST], names: set[str], methods: Collection[str]) -> bool:
    """Whether a parser is used for anything but to call these methods: ``add = parser.add_argument`` is."""
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    used = {id(each.value) for each in called if isinstance(each, ast.Attribute) and each.attr in methods}
    loads = (n for n in nodes if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load))
    stored = [n for n in nodes if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Store)]
    parameters = any(isinstance(node, ast.arg) and node.arg in names for node in nodes)
    return parameters or len(stored) != len(names) or any(id(node) not in used for node in loads)


def _of_classes(made: ast.Call, nodes: Sequence[ast.AST], libraries: Classes) -> frozenset[str] | None:
    """The fields of the classes that ``HfArgumentParser`` is given, each of which can be told."""
    if len(made.args) + len(made.keywords) != 1:
        return None
    classes: dict[str, ast.ClassDef | frozenset[str]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                row = libraries.get(alias.name)
                if row is not None and (node.module or "").partition(".")[0] == row["package"]:
                    classes[alias.asname or alias.name] = names_of(alias.name, libraries)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                of_package = [name for name, row in libraries.items() if row["package"] == alias.name]
                classes |= {f"{alias.asname or alias.name}.{n}": names_of(n, libraries) for n in of_package}
    classes |= {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    given = made.args[0] if made.args else made.keywords[0].value
    taken = {"help"}
    for each in given.elts if isinstance(given, ast.Tuple | ast.List) else [given]:
        fields = _fields(dotted_name(each) or "", classes)
        if fields is None:
            return None
        taken |= fields | {f"no_{name}" for name in fields}
    return frozenset(taken)


def names_of(name: str, libraries: Classes) -> frozenset[str]:
    """Every name that a library's class takes, its base's among them."""
    row = libraries[name]
    return frozenset(row["names"]) | (names_of(row["base"], libraries) if "base" in row else frozenset())


def _fields(name: str, classes: Mapping[str, ast.ClassDef | frozenset[str]], depth: int = 0) -> frozenset[str] | None:
    """The fields of a dataclass and of what it is built on; None where one of them cannot be told."""
    found = classes.get(name)
    if found is None or isinstance(found, frozenset):
        return found
    if depth > MAX_BASES or found.keywords:
        return None
    declared = (node.target for node in found.body if isinstance(node, ast.AnnAssign))
    fields = frozenset(target.id for target in declared if isinstance(target, ast.Name))
    for base in found.bases:
        named = dotted_name(base) or ""
        more = _fields(named, classes, depth + 1) if named != name else None
        if more is None:
            return None
        fields |= more
    return fields
