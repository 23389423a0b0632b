"""The guide's knowledge (presets, formulas, remedies, …): plain data whose expressions and texts are checked.

An expression stands under ``when``, ``compute`` or ``expression``, at any depth; its checked tree is put beside it
under ``when_tree`` and so on. A file's own ``variables`` are names that its expressions may use, besides the facts;
the ``inputs`` of a mapping are numbers that the expressions in it may use.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from kb.core.grammar import ExpressionError, parse
from kb.knowledge.problems import Problem
from kb.knowledge.source import Located, Path, placeholders_apart

EXPRESSIONS = {"when": "bool", "compute": None, "expression": None}
PATTERNS = ("match", "unless", "find")  # regular expressions
TREE = "_tree"


def compile_entry(
    located: Located, types: Mapping[str, str], problems: list[Problem], values: Mapping[str, Collection[str]] = {}
) -> dict[str, Any]:
    """One file's data with its trees; faults go to ``problems``. ``values`` are the closed sets of facts."""
    variables = located.data.get("variables", {})
    names = {**types, **{name: row.get("type", "number") for name, row in variables.items()}}
    closed = {name: known for name, known in values.items() if name not in variables}
    compiled = _walk(located, located.data, (), names, problems, closed)
    assert isinstance(compiled, dict)
    return compiled


def _walk(
    located: Located,
    data: Any,
    path: Path,
    names: Mapping[str, str],
    problems: list[Problem],
    values: Mapping[str, Collection[str]],
) -> Any:
    if isinstance(data, list):
        return [_walk(located, item, (*path, index), names, problems, values) for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    if data.keys() == {"ko", "en"}:
        _check_text(located, data, path, problems)
    if isinstance(data.get("inputs"), dict):
        names = {**names, **dict.fromkeys(data["inputs"], "number")}
    made: dict[str, Any] = {}
    for key, value in data.items():
        made[key] = _walk(located, value, (*path, key), names, problems, values)
        where = ".".join(map(str, (*path, key)))
        if key in EXPRESSIONS and isinstance(value, str):
            try:
                made[key + TREE] = parse(value, names, EXPRESSIONS[key], values)
            except ExpressionError as error:
                problems.append(located.problem((*path, key), f"{where}: {error}", f"{where}: {error.korean}"))
        elif key in PATTERNS and isinstance(value, str):
            try:
                re.compile(value)
            except re.error as error:
                korean = f"{where}: 정규 표현식이 아닙니다: {error}"
                problems.append(located.problem((*path, key), f"{where}: no regular expression: {error}", korean))
    return made


def _check_text(located: Located, text: Mapping[str, Any], path: Path, problems: list[Problem]) -> None:
    apart = placeholders_apart(str(text["ko"]), str(text["en"]))
    if apart is not None:
        problems.append(located.problem((*path, "en"), *apart))
