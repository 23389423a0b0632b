"""The names of a program's arguments, as its own code lists them: dataclasses, argparse, or a YAML file of defaults."""

import ast
import os
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from kb.core.text import UserError

PYTHON, CONFIGS = (".py",), (".yaml", ".yml")
MOST_FILES = 2000


def arguments_in(path: str) -> dict[str, None]:
    """The names in a file, or in every Python file of a folder, each once and in their order.

    Of Python: the fields of dataclasses and the long options of ``add_argument``. Of YAML: the dotted paths of all
    values. Nothing is run.

    Raises:
        UserError: the path is not there, cannot be read, or holds no argument.
    """
    names: dict[str, None] = {}
    for file in _files(path):
        try:
            with open(file, encoding="utf-8") as stream:
                text = stream.read()
            found = _of_yaml(yaml.safe_load(text)) if file.endswith(CONFIGS) else _of_python(ast.parse(text))
            names |= dict.fromkeys(found)
        except (OSError, ValueError, SyntaxError, yaml.YAMLError, RecursionError) as error:
            reason = str(getattr(error, "strerror", None) or error).split("\n")[0]
            raise UserError("rules.new_dialect_unreadable", path=file, reason=reason) from None
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


def _of_python(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_is_dataclass(each) for each in node.decorator_list):
            yield from _fields(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield from _options(node)


def _is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "dataclass"


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name = each.target.id
            if not name.startswith("_") and "ClassVar" not in ast.unparse(each.annotation):
                yield name


def _options(node: ast.Call) -> Iterator[str]:
    for each in node.args:
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("--"):
            yield each.value[2:].replace("-", "_")


def _of_yaml(value: Any, prefix: str = "") -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        if not isinstance(key, str) or key in ("defaults", "_target_", "hydra"):
            continue
        if isinstance(inner, Mapping) and inner:
            yield from _of_yaml(inner, f"{prefix}{key}.")
        else:
            yield prefix + key
