"""The names of a program's arguments as its code lists them: dataclasses, argparse, configs, or YAML of defaults."""

import ast
import os
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from kb.config.python.assigned import parse_assigned
from kb.core.text import UserError

PYTHON, CONFIGS = (".py",), (".yaml", ".yml")
MOST_FILES = 2000
Classes = Mapping[str, ast.ClassDef]


def arguments_in(path: str) -> dict[str, None]:
    """The names in a file, or in every Python file of a folder, each once and in their order.

    Of Python: the fields of dataclasses and of pydantic's models, of one that is a field of another by their dotted
    path, and the long options of ``add_argument``; of a file that assigns ``dict(…)``, the dotted paths of its names at
    the top. Of YAML: the dotted paths of all values. Nothing is run.

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
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in sorted(names)
        if name.endswith(PYTHON)
    ]
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
    within = {
        inner.name
        for node in classes.values()
        for _, annotation in _fields(node)
        if (inner := _class(annotation, classes)) is not None
    }
    for node in nodes:
        if isinstance(node, ast.ClassDef) and classes.get(node.name) is node and node.name not in within:
            yield from _paths(node, classes, "", ())
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield from _options(node)


def _holds_fields(node: ast.ClassDef) -> bool:
    """Whether it is a dataclass or a model of pydantic."""
    return any(map(_is_dataclass, node.decorator_list)) or any(ast.unparse(b).endswith("BaseModel") for b in node.bases)


def _is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "dataclass"


def _paths(node: ast.ClassDef, classes: Classes, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    """The fields of a dataclass, each one that is a dataclass itself by its fields."""
    for name, annotation in _fields(node):
        inner = _class(annotation, classes)
        if inner is None or inner.name in above:
            yield prefix + name
        else:
            yield from _paths(inner, classes, f"{prefix}{name}.", (*above, node.name))


def _class(annotation: ast.expr, classes: Classes) -> ast.ClassDef | None:
    """The dataclass that a field is annotated with, perhaps as ``"Name"`` or ``Name | None``."""
    names = [each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)]
    if isinstance(annotation, ast.Constant):
        names = [str(annotation.value)]
    found = [classes[name] for name in names if name in classes]
    return found[0] if found and not any(name in ("list", "dict", "List", "Dict", "tuple") for name in names) else None


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
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
