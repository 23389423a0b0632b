"""setup.cfg, and setup.py as far as it is literal: nothing of it is run."""

import ast
import os
import re
from collections.abc import Iterator

from kb.config.python.syntax import called_name, parsed
from kb.config.releases.project_files import say_itself
from kb.config.releases.requirement import library_of, read_requirement, read_requirements
from kb.config.releases.statements import DECLARED, OPTIONAL, Folder


def read_setup_cfg(folder: Folder, path: str) -> None:
    """``install_requires`` and ``options.extras_require``: the lines below a key."""
    text = folder.text(path)
    section, key = "", ""
    for number, line in enumerate((text or "").splitlines(), 1):
        value = line.strip()
        if not value or value.startswith(("#", ";")):
            continue
        if line[0] == "[":
            section, key = value.strip("[] \t"), ""
            continue
        if not line[0].isspace():
            key, _, value = re.sub("[=:]", "\n", line, count=1).partition("\n")
            key = key.strip()
        if section == "options" and key == "install_requires":
            folder.say(read_requirement(value), path, number, DECLARED)
        elif section == "options.extras_require":
            folder.say(read_requirement(value), path, number, OPTIONAL)


def read_setup_py(folder: Folder, path: str) -> None:
    """What ``install_requires`` names, directly, by a variable or by a table (``deps["torch"]``), is asked for; any
    other literal requirement is for an extra.
    """
    text = folder.text(path)
    if text is None or ("install_requires" not in text and "extras_require" not in text):
        return
    tree = parsed(text)
    if tree is None:
        folder.report("not_python", path)
        return
    setup = _Setup(tree)
    wanted, keys = setup.texts("install_requires")
    extras, _ = setup.texts("extras_require")
    asked = {library for each in keys if (library := library_of(each)) is not None}
    for item, line in _listed(tree):
        requirement = read_requirement(item)
        if requirement is None or (item not in wanted | extras and not requirement.specifier):
            continue
        direct = item in wanted or (requirement.library in asked and item not in extras)
        folder.say(requirement, path, line, DECLARED if direct else OPTIONAL)
    for name in sorted(each for each in wanted | keys if each.endswith(".txt")):
        file = os.path.join(os.path.dirname(path), name)
        if os.path.isfile(file) and folder.holds(file):
            read_requirements(folder, os.path.normpath(file), DECLARED)
    say_itself(folder, path, text, *map(setup.text, ("name", "version")))


class _Setup:
    """The arguments of ``setup()``, and the names that stand for their values."""

    def __init__(self, tree: ast.Module) -> None:
        self._named: dict[str, ast.expr] = {}
        self._given: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                self._named.update({each.id: node.value for each in node.targets if isinstance(each, ast.Name)})
            elif isinstance(node, ast.Call) and called_name(node) == "setup":
                self._given.update({word.arg: word.value for word in node.keywords if word.arg})

    def text(self, name: str) -> str | None:
        """An argument that is a text, literal or by a name."""
        node = self._given.get(name)
        node = self._named.get(node.id) if isinstance(node, ast.Name) else node
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    def texts(self, name: str) -> tuple[set[str], set[str]]:
        """The texts that an argument is made of; and those by which it asks a table or a function for others."""
        texts: set[str] = set()
        keys: set[str] = set()
        first = self._given.get(name) or self._named.get(name)
        pending: list[ast.AST] = [first] if first is not None else []
        followed: set[str] = set()
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.Name):
                if node.id in self._named and node.id not in followed:
                    followed.add(node.id)
                    pending.append(self._named[node.id])
            elif isinstance(node, ast.Subscript):
                keys.update(_constants([node.slice]))
            elif isinstance(node, ast.Call):
                keys.update(_constants(node.args))
            else:
                pending += ast.iter_child_nodes(node)
        return texts, keys


def _constants(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _listed(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The texts that stand in lists, tuples, sets and as values of tables, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            items: list[ast.expr | None] = list(node.elts)
        elif isinstance(node, ast.Dict):
            items = list(node.values)
        else:
            continue
        for each in items:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value, each.lineno
