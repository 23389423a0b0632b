"""JSON Schema checks of rules/, each fault at its line and column. jsonschema is imported only here, when needed."""

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from kb.core.text import did_you_mean
from kb.knowledge.problems import Problem
from kb.knowledge.source import KEY, Located, Path

# Knowledge that linting does not need: what the guide shows and the other commands act on.
GUIDE = {
    "presets": "preset",
    "formulas": "formula",
    "remedies": "remedy",
    "decisions": "decision",
    "tradeoffs": "tradeoff",
    "runbooks": "runbook",
    "histories": "history",
    "runtimes": "runtime",
    "measurements": "measurement",
    "serving": "serving",
    "exports": "export",
    "errata.yaml": "errata",
}
# Which schema a file answers to: the first part of its path under rules/, or its name.
KINDS = {
    "checks": "check",
    "hardware": "hardware",
    "models": "model",
    "dialects": "dialect",
    "tables": "table",
    "vocabulary.yaml": "vocabulary",
    "constants.yaml": "constants",
    "sources.yaml": "sources",
    "sources": "sources",  # files beside it, so that two branches that each add a source have no line in common
    **GUIDE,
}
# Folders whose files are an entry each, with an id and a version.
FOLDERS = (
    "checks",
    "hardware",
    "models",
    "dialects",
    "tables",
    *(kind for kind in GUIDE if not kind.endswith(".yaml")),
)
_RIGHT: set[bytes] = set()  # digests of schema and text, of files without a fault


class SchemaSet:
    """The schemas of one ``rules/schema`` folder."""

    def __init__(self, folder: str, changed: Callable[[Any], Any] = lambda schema: schema) -> None:
        self._folder = folder
        self._changed = changed  # from a schema as it is written to the one that counts
        self._texts: dict[str, bytes] = {}
        self._validators: dict[str, Any] = {}

    def text(self, kind: str) -> bytes:
        """A schema as text, which tells it from others."""
        if kind not in self._texts:
            with open(os.path.join(self._folder, f"{kind}.json"), encoding="utf-8") as stream:
                schema = self._changed(json.load(stream))
            self._texts[kind] = json.dumps(schema).encode()
        return self._texts[kind]

    def _validator(self, kind: str) -> Any:
        if kind not in self._validators:
            self._validators[kind] = library().Draft202012Validator(json.loads(self.text(kind)))
        return self._validators[kind]

    def check(self, kind: str, located: Located, text: str | None = None) -> list[Problem]:
        """Every fault of the file, deepest first where one is the cause of another.

        Args:
            text: the file as it is written; one that was found right under this schema is not asked again in this
                process, as an editor or a watch would for every file with each change of one.
        """
        key = None if text is None else hashlib.blake2b(self.text(kind) + b"\0" + text.encode()).digest()
        if key in _RIGHT:
            return []
        problems = []
        for error in self._validator(kind).iter_errors(located.data):
            worst = _most_telling(error)
            path: Path = tuple(worst.absolute_path)
            problems += _unknown_keys(located, path, worst) or [_problem(located, path, worst)]
        if key is not None and not problems:
            _RIGHT.add(key)
        return sorted(set(problems), key=lambda problem: (problem.line, problem.column))


def library() -> Any:
    """jsonschema, without the grammars of addresses: building them takes seconds, and no schema needs them."""
    if "jsonschema" in sys.modules or _GRAMMARS in sys.modules:
        return importlib.import_module("jsonschema")
    sys.modules[_GRAMMARS] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        return importlib.import_module("jsonschema")
    finally:
        del sys.modules[_GRAMMARS]


_GRAMMARS = "rfc3987_syntax"
_KOREAN = {  # of what jsonschema words in English alone
    "pattern": "{instance} 값은 정규식 {wanted} 꼴이어야 합니다",
    "type": "{instance} 값은 {wanted} 형이어야 합니다",
    "minLength": "비어 있습니다",
    "minItems": "비어 있습니다",
}
_BOUNDS = {"minimum": ("less than", "작습니다"), "maximum": ("more than", "큽니다")}


def _most_telling(error: Any) -> Any:
    """For anyOf/oneOf: the branch that got furthest into the data, since the others were not meant."""
    while error.context:
        error = max(error.context, key=lambda sub: (len(sub.absolute_path), sub.validator != "type"))
    return error


def _unknown_keys(located: Located, path: Path, error: Any) -> list[Problem]:
    """Every key of a mapping that the schema does not know, each with the one that was probably meant."""
    if error.validator != "additionalProperties" or not isinstance(error.instance, dict):
        return []
    named = ".".join(str(part) for part in path)
    where, ko = named or "the file", named or "이 파일"
    allowed = error.schema.get("properties", {})
    problems = []
    for extra in (key for key in error.instance if key not in allowed):
        hint, hint_ko = did_you_mean(str(extra), allowed)
        hint = hint or f"; known here: {', '.join(sorted(allowed))}"
        hint_ko = hint_ko or f". 여기에서 아는 이름: {', '.join(sorted(allowed))}"
        problems.append(
            located.problem(
                (*path, extra, KEY),
                f"{where}: {extra!r} is not known{hint}",
                f"{ko}: {extra!r} 모르는 이름입니다{hint_ko}",
            )
        )
    return problems


def _problem(located: Located, path: Path, error: Any) -> Problem:
    named = ".".join(str(part) for part in path)
    where, ko = named or "the file", named or "이 파일"
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        listed = ", ".join(map(repr, missing))
        return located.problem(path, f"{where}: {listed} is missing", f"{ko}: {listed} 항목이 없습니다")
    if error.validator == "enum":
        hint, hint_ko = did_you_mean(str(error.instance), [str(value) for value in error.validator_value])
        allowed_values = ", ".join(map(str, error.validator_value))
        return located.problem(
            path,
            f"{where}: {error.instance!r} is not one of {allowed_values}{hint}",
            f"{ko}: {error.instance!r} 값은 쓸 수 없습니다. 쓸 수 있는 값: {allowed_values}{hint_ko}",
        )
    if error.validator in _BOUNDS:
        english, korean = _BOUNDS[error.validator]
        bound = error.validator_value
        return located.problem(
            path,
            f"{where}: {error.instance} is {english} {bound}",
            f"{ko}: {error.instance} 값이 {bound}보다 {korean}",
        )
    if error.validator == "contains":
        wanted = error.validator_value.get("properties", {})
        need = ", ".join(f"{name}: {row['const']}" for name, row in wanted.items() if "const" in row)
        if need:
            return located.problem(
                path, f"{where}: none has `{need}`; add one", f"{ko}: `{need}` 항목이 없습니다. 하나 더하십시오"
            )
    told = _KOREAN.get(error.validator)
    korean = f"{ko}: {told.format(instance=repr(error.instance)[:80], wanted=error.validator_value)}" if told else ""
    return located.problem(path, f"{where}: {error.message[:300]}", korean)
