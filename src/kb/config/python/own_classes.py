"""Classes of arguments by whose they are: a project's own, or the library's, and what that class never had."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kb.config.python.calls import Call
from kb.config.python.held import Sources
from kb.config.python.names import Names
from kb.config.python.places import Imported
from kb.config.python.syntax import Module, dotted_name

_TAKES_MORE = "unsloth"  # puts classes of its own in the place of TRL's, which take any name


def is_projects_own(call: Call, module: Module, names: Names, path: str, sources: Sources) -> bool:
    """Whether the called class is one of the project's that has nothing of a library: a dataclass ``SFTConfig``, say,
    in this module or in one that it is imported from.
    """
    if call.home is not None or not isinstance(call.node.func, ast.Name):
        return False
    if names.is_class(call.name):
        return _stands_alone(call.name, module.text)
    brought = [found for _, found in names.imports_of(call.name)]
    texts = [sources.module(path, each) for each in brought]
    return bool(texts) and all(found is not None and _stands_alone(call.name, found[1]) for found in texts)


def _stands_alone(name: str, text: str) -> bool:
    """Whether a text defines a class without a base."""
    return (
        re.search(rf"(?m)^class[ \t]+{re.escape(name)}[ \t]*(?:\([ \t]*(?:object)?[ \t]*\))?[ \t]*:", text) is not None
    )


def never_had(
    calls: Collection[Call], module: Module, names: Names, path: str, sources: Sources, classes: Mapping[str, Any]
) -> dict[int, list[tuple[ast.keyword, Mapping[str, Any]]]]:
    """The keywords, by the number of their call, that no release of its class has, each with what is said of it.

    Only of the library's own class, as the module imports it: not of one that the project defines or changes.

    Args:
        classes: classes of arguments, each with its library and every name that any release of it takes.
    """
    known = [call for call in calls if call.home is None and call.name in classes]
    if not known or any(_takes_more(text) for text in _texts(module, names, path, sources)):
        return {}
    found: dict[int, list[tuple[ast.keyword, Mapping[str, Any]]]] = {}
    for call in known:
        row = classes[call.name]
        takes = {*row["names"], *classes.get(row.get("base", ""), {"names": ()})["names"]}
        odd = [each for each in call.node.keywords if each.arg is not None and each.arg not in takes]
        if odd and _is_librarys_own(call, names, row["package"], path, sources) and not _is_tried(call, module.tree):
            said = {"class": call.name, "library": row["package"], "newest": row["newest"]}
            found[call.number] = [(each, {"key": str(each.arg), **said}) for each in odd]
    return found


def _is_librarys_own(call: Call, names: Names, package: str, path: str, sources: Sources) -> bool:
    """Whether the called name can be nothing but the library's class."""
    written = dotted_name(call.node.func) or ""
    first = written.partition(".")[0]
    brought = [found for _, found in names.imports_of(first)]
    if not brought or names.is_class(first) or names.is_changed_in_place(first) or names.stored & {"__init__"}:
        return False
    if any(each.level or each.module.partition(".")[0] != package for each in brought):
        return False
    whole = all(each.name in (None, call.name) for each in brought)  # `import TrainingArguments`, not of another name
    return whole and sources.module(path, Imported(package, 0, None)) is None


def _is_tried(call: Call, tree: ast.Module) -> bool:
    """Whether another call of the class waits for this one to fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(each is call.node for part in node.body for each in ast.walk(part)):
            handled = [each for handler in node.handlers for each in ast.walk(handler) if isinstance(each, ast.Call)]
            if any((dotted_name(each.func) or "").rpartition(".")[2] == call.name for each in handled):
                return True
    return False


def _takes_more(text: str) -> bool:
    return _TAKES_MORE in text


def _texts(module: Module, names: Names, path: str, sources: Sources) -> Iterator[str]:
    """The module's own text, and those of the project's modules that it imports."""
    yield module.text
    for imported in names.every_import():
        found = sources.module(path, imported)
        if found is not None:
            yield found[1]
