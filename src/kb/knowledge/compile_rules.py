"""One rule file → its compiled form: expressions as checked trees, names and placeholders that exist;
and the guide's knowledge (presets, formulas, remedies, …), checked in the same way.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from kb.core.catalog import needed_by
from kb.core.expression import Tree
from kb.core.grammar import ExpressionError, parse
from kb.core.text import did_you_mean, placeholders_in
from kb.knowledge.problems import Problem
from kb.knowledge.source import KEY, Located, Path, placeholders_apart


class RuleCompiler:
    """Compiles rule files, gathering every fault in ``problems``."""

    def __init__(
        self,
        *,
        types: Mapping[str, str],
        facts: Mapping[str, Any],
        events: Mapping[str, Any],
        sources: Mapping[str, Any],
        values: Mapping[str, Collection[str]] = {},
    ) -> None:
        self.types = types
        self.facts = facts
        self.events = events
        self.sources = sources
        self.values = values
        self.problems: list[Problem] = []

    def compile(self, located: Located) -> dict[str, Any]:
        """``{"hot": […], "outline": …, "wording": …, "cold": …}`` of one rule."""
        data = located.data
        when = self._expression(located, ("when",), data["when"], "bool") if "when" in data else None
        self._check_event(located)
        self._check_texts(located)
        for index, name in enumerate(data["sources"]):
            if name not in self.sources:
                self._fail(
                    located,
                    ("sources", index),
                    f"source {name!r} is not in sources.yaml or sources/",
                    f"출처 {name!r} 항목이 sources.yaml에도 sources/에도 없습니다",
                    name,
                    self.sources,
                )
        for index, name in enumerate(data.get("at", [])):
            self._check_setting(located, ("at", index), name)
        fixes = [self._fix(located, index, fix) for index, fix in enumerate(data.get("fix", []))]
        self._check_examples(located, bool(fixes))
        hot = [  # positional, since there are hundreds
            data["id"],
            data["version"],
            data["since"],
            data["severity"],
            data["confidence"],
            data["area"],
            when,
            data.get("on"),
            data.get("at", []),
            data.get("names", False),
        ]
        wording = {
            "title": [data["title"]["ko"], data["title"]["en"]],
            "message": [data["message"]["ko"], data["message"]["en"]],
            "fix": fixes,
        }
        heard = self.events.get(data.get("on"), {})
        cold = {
            "heard": [heard["ko"], heard["en"]] if "ko" in heard else [],
            "source": data.get("when", ""),
            "why": [data["why"]["ko"], data["why"]["en"]],
            "examples": data["examples"],
            "sources": data["sources"],
            "deprecated": data.get("deprecated"),
            "replaced_by": data.get("replaced_by"),
        }
        outline = (data["area"], data.get("on", ""), ",".join(needed_by(when)), data.get("deprecated", ""))
        return {"hot": hot, "outline": " ".join(outline), "wording": wording, "cold": cold}

    def _fix(self, located: Located, index: int, fix: Mapping[str, Any]) -> dict[str, Any]:
        path: Path = ("fix", index)
        when = self._expression(located, (*path, "when"), fix["when"], "bool") if "when" in fix else None
        for group in ("set", "rename"):
            for name in fix.get(group, {}):
                self._check_setting(located, (*path, group, name, KEY), name)
        for position, name in enumerate(fix.get("remove", [])):
            self._check_setting(located, (*path, "remove", position), name)
        if "on" not in located.data and not any(fix.get(group) for group in ("set", "remove", "rename")):
            self._fail(
                located,
                path,
                "a fix needs set, remove or rename",
                "수정에는 set, remove, rename 가운데 하나가 있어야 합니다",
            )
        values = {
            name: {"compute": self._expression(located, (*path, "set", name, "compute"), value["compute"], None)}
            if isinstance(value, dict)
            else value
            for name, value in fix.get("set", {}).items()
        }
        return {
            "when": when,
            "safety": fix["safety"],
            "title": [fix["title"]["ko"], fix["title"]["en"]],
            "set": values,
            "remove": fix.get("remove", []),
            "rename": fix.get("rename", {}),
        }

    def _expression(self, located: Located, path: Path, source: str, want: str | None) -> Tree | None:
        try:
            return parse(source, self.types, want, self.values)
        except ExpressionError as error:
            where = ".".join(map(str, path))
            self._fail(located, path, f"{where}: {error}", f"{where}: {error.korean}")
            return None

    def _check_event(self, located: Located) -> None:
        event = located.data.get("on")
        if event is not None and event not in self.events:
            self._fail(
                located,
                ("on",),
                f"event {event!r} is not in vocabulary.yaml",
                f"{event!r}: vocabulary.yaml에 없는 사건입니다",
                event,
                self.events,
            )

    def _check_texts(self, located: Located) -> None:
        """Placeholders: the same in both languages, each one a fact, or a value of the event."""
        data = located.data
        event = self.events.get(data.get("on"), {}).get("values")
        allowed = self.types if event is None else event
        pairs: list[tuple[Path, Mapping[str, str]]] = [((key,), data[key]) for key in ("title", "message", "why")]
        pairs += [(("fix", index, "title"), fix["title"]) for index, fix in enumerate(data.get("fix", []))]
        for path, text in pairs:
            _check_text(located, text, path, self.problems)
            for name, _, _ in placeholders_in(text["ko"]):
                if name not in allowed:
                    self._fail(
                        located,
                        (*path, "ko"),
                        f"placeholder {name!r} is not known",
                        f"{name!r}: 모르는 자리 표시입니다",
                        name,
                        allowed,
                    )

    def _check_setting(self, located: Located, path: Path, name: str) -> None:
        if not self.facts.get(name, {}).get("setting"):
            settings = [fact for fact, row in self.facts.items() if row.get("setting")]
            self._fail(
                located,
                path,
                f"{name!r} is not a setting of vocabulary.yaml",
                f"{name!r}: vocabulary.yaml의 설정이 아닙니다",
                name,
                settings,
            )

    def _check_examples(self, located: Located, has_fix: bool) -> None:
        firing = [example for example in located.data["examples"] if example["expect"] == "fires"]
        if has_fix and not any("fixed" in example for example in firing):
            self._fail(
                located,
                ("examples",),
                "the rule has a fix: one firing example needs `fixed`",
                "수정이 있는 규칙입니다. 걸리는 예 하나에 `fixed` 항목이 필요합니다",
            )

    def _fail(self, located: Located, path: Path, message: str, korean: str, name: str = "", known: Any = ()) -> None:
        hint, hint_ko = did_you_mean(name, known) if name else ("", "")
        self.problems.append(located.problem(path, message + hint, korean + hint_ko))


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
