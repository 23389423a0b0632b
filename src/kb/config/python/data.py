"""What a Python text says, flat: the settings of its calls, and the code around them, to tell one text from another."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from kb.config.fixing.entries import CannotEditError
from kb.config.fixing.outcome import Region, form, meet
from kb.config.fixing.tree_edits import Path
from kb.config.python.calls import Call, Run, runs_of
from kb.config.python.given import Given
from kb.config.python.reader import Analysis, PythonReader
from kb.config.python.syntax import Module
from kb.config.text.nodes import MAPPING
from kb.config.text.source import Source
from kb.core.document import Unit
from kb.core.expression import is_unknown


class PythonData:
    """All that the recognised calls of a module say, by the call's number and the names within; and the other code.

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, source: Source, text: str, reader: PythonReader) -> None:
        self.module = Module(source, text)
        self.analysis = reader.analyse(self.module)
        self.data: dict[Path, str] = {}
        places: set[tuple[int, int]] = set()
        for given in _all(self.analysis):
            if given.value.kind != MAPPING:
                self.data[(*given.path,)] = value_form(given, self.module)
            elif not given.value.value:
                self.data[(*given.path,)] = form({})
            places.add((given.value.start.index, given.value.end.index if given.value.end else -1))
        self.data[("code",)] = _code(self.analysis, places)

    def run_of(self, unit: Unit) -> Run:
        """The run that a unit was made of.

        Raises:
            CannotEditError: none.
        """
        for run in runs_of(self.analysis.calls):
            call = run.own or next(iter((*run.certain, *run.doubtful)), None)
            if call is not None and self.analysis.span(call).start == unit.span.start:
                return run
        raise CannotEditError("config.fix.command-in-cell")

    def paths_at(self, regions: Sequence[Region]) -> set[Path]:
        found: set[Path] = set()
        for given in _all(self.analysis):
            spans = [self.module.source.span(node) for node in (given.key, given.value) if node.kind != MAPPING]
            if meet(spans, regions):
                found.add((*given.path,))
        return found


def _all(analysis: Analysis) -> list[Given]:
    return [given for call in analysis.calls for given in analysis.given[call.number].known]


def value_form(given: Given, module: Module) -> str:
    """The value; of one that cannot be told, the text of the expression."""
    value = given.value.plain()
    if is_unknown(value) and given.value.end is not None:
        return "code " + module.text[given.value.start.index : given.value.end.index]
    return form(value)


def _code(analysis: Analysis, places: set[tuple[int, int]]) -> str:
    """The tree of everything but the settings: what is called, in what order, with what else."""
    calls: Mapping[int, Call] = {id(call.node): call for call in analysis.calls}
    out: list[str] = []
    stack: list[Any] = [analysis.module.tree]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            out.append(f"[{len(node)}")
            stack += reversed(node)
        elif not isinstance(node, ast.AST):
            out.append(repr(node))
        elif isinstance(node, ast.expr) and _is_place(node, places, analysis.module):
            out.append("value")
        else:
            out.append(type(node).__name__)
            own = calls.get(id(node))
            fields = [(name, value) for name, value in ast.iter_fields(node) if name != "ctx"]
            if own is not None:  # its keywords are told apart as settings; what it unpacks is not
                fields = [(name, value) for name, value in fields if name != "keywords"]
                fields.append(("more", [each.value for each in own.node.keywords if each.arg is None]))
            elif isinstance(node, ast.Dict) or _is_dict_call(node):
                fields = _without_settings(node, places, analysis.module)
            stack += [value for _, value in reversed(fields)]
    return "\n".join(out)


def _is_place(node: ast.expr, places: set[tuple[int, int]], module: Module) -> bool:
    return module.extent(node) in places if hasattr(node, "lineno") else False


def _is_dict_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"


def _without_settings(node: ast.AST, places: set[tuple[int, int]], module: Module) -> list[tuple[str, Any]]:
    """The entries of a dictionary that are no settings of a call."""
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
        return [
            ("rest", [each for key, value in pairs if not _is_place(value, places, module) for each in (key, value)])
        ]
    assert isinstance(node, ast.Call)
    return [
        ("args", node.args),
        ("rest", [each for each in node.keywords if not _is_place(each.value, places, module)]),
    ]
