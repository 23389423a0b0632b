"""rules/tables → what a check reads of them: a part for each format, and which names of a config have a row at all."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kb.core.expression import Tree
from kb.core.grammar import ExpressionError, parse
from kb.core.release import bounds_of, parse_version
from kb.core.text import did_you_mean
from kb.knowledge.problems import Problem
from kb.knowledge.source import KEY, Located, Path

EVERY_FORMAT = "every"
OF_KEY, WRITTEN = "key.", "written."


class TableCompiler:
    """Compiles tables, gathering every fault in ``problems``.

    Args:
        types: the vocabulary's types, ``written.`` names included.
        settings: what a config can say.
        values: the closed sets of the vocabulary.
        rules: the ids of all rules → the event that each hears.
        formats: the ids of all dialects.
        classes: those that Python calls and whose names are known.
    """

    def __init__(
        self,
        *,
        types: Mapping[str, str],
        settings: Collection[str],
        values: Mapping[str, Collection[str]],
        rules: Mapping[str, str | None],
        formats: Collection[str],
        classes: Collection[str] = (),
    ) -> None:
        self._types, self._settings, self._values = types, settings, values
        self._rules, self._formats, self._classes = rules, formats, classes
        self.problems: list[Problem] = []
        self.parts: dict[str, dict[str, Any]] = {}
        self.cold: dict[str, list[Any]] = {}
        self.examples: list[dict[str, Any]] = []
        # class → the arguments of its call that not every release takes, each with its newer name
        self.calls: dict[str, dict[str, str | None]] = {}

    @property
    def same(self) -> dict[str, str]:
        """Format → an earlier one with the same rows, whose part stands for both."""
        first: dict[str, str] = {}
        written = {name: json.dumps(part, sort_keys=True) for name, part in self.parts.items()}
        return {name: first[text] for name, text in written.items() if first.setdefault(text, name) != name}

    @property
    def triggers(self) -> dict[str, list[str]]:
        """Format → the settings and keys that a row of it begins with."""
        found = {}
        for name, part in self.parts.items():
            keys = {each for row in part["rows"] for each in row["begins"]} | set(part["filled"])
            keys |= part["values"].keys() | part["pairs"].keys()
            for each in part["names"]:
                keys |= {OF_KEY + key for key in ([each["class"]] if each["calls"] else each["has"])}
            found[name] = sorted(keys)
        return found

    def compile(self, located: Located) -> None:
        """Add the rows of one file."""
        data = located.data
        types = self._types_with(data.get("keys", {}))
        formats = self._known_formats(located, ("formats",), data.get("formats")) or [EVERY_FORMAT]
        for part in map(self._part, formats):
            part["keys"] |= {OF_KEY + key: kind for key, kind in data.get("keys", {}).items()}
        seen: set[str] = set()
        for index, row in enumerate(data.get("rows", [])):
            path: Path = ("rows", index)
            if row["id"] in seen:
                self._fail(located, (*path, "id"), f"id {row['id']!r} is also above")
            seen.add(row["id"])
            made = self._row(located, path, row, types)
            for part in map(self._part, formats):
                part["rows"].append(made)
        self._add_values(located, types, formats)
        for name, group in data.get("pairs", {}).items():
            for path, setting in ((("pairs", name, KEY), name), (("pairs", name, "by"), group["by"])):
                self._check_setting(located, path, setting, types)
            goes = {other.casefold(): value for value, others in group["of"].items() for other in others}
            paired = {"by": group["by"], "alike": group.get("alike", []), "of": goes, "library": data["library"]}
            for part in map(self._part, formats):
                part["pairs"][name] = paired
        for name, group in data.get("names", {}).items():
            has = group["has"]
            if data.get("dashes"):
                has = has | {key.replace("_", "-"): span for key, span in has.items()}
            made = {
                "class": name,
                "library": data["library"],
                "trainers": group.get("trainers", []),
                "has": has,
                "calls": data.get("calls", False),
                "rule": _wording(data),
                "dashes": data.get("dashes", False),
                "when": self._when(located, ("names", name), group, data["library"], types)
                if "when" in group
                else None,
            }
            if made["calls"]:
                if name in self._classes:
                    self.calls[name] = {key: span.get("now") for key, span in group["has"].items()}
                else:
                    self._fail(located, ("names", name, KEY), f"{name!r} is no class of rules/dialects/python.yaml")
            for part in map(self._part, formats):
                part["names"].append(made)
            self.cold.setdefault(_wording(data), []).extend(
                [data["library"], key, f"{name}.{key} {bounds_of(span)}", ""] for key, span in group["has"].items()
            )
        filled = data.get("filled", {}).get("settings", [])
        for index, name in enumerate(filled):
            self._check_setting(located, ("filled", "settings", index), name, types)
        for part in map(self._part, formats):
            part["filled"] |= dict.fromkeys(filled, data["library"])
        self._check_rules(located)
        self._add_examples(data)

    def _add_examples(self, data: Mapping[str, Any]) -> None:
        """Every example of a file, with the rules that may word what it shows."""
        groups = [(row["id"], row, [row.get("rule") or data.get("rule", "")]) for row in data.get("rows", ())]
        for name, group in data.get("values", {}).items():
            groups.append((name, group, [group.get("rule", "value-not-known"), "value-not-in-release"]))
        groups += [(name, group, [_wording(data)]) for name, group in data.get("names", {}).items()]
        groups += [(name, group, ["template-of-another-family"]) for name, group in data.get("pairs", {}).items()]
        if "filled" in data:
            groups.append(("filled", data["filled"], ["setting-left-empty"]))
        before = data.get("example", "")
        for name, group, rules in groups:
            for expect in ("fires", "silent"):
                for example in group.get(expect, ()):
                    made = {**example, "expect": expect, "config": before + example["config"]}
                    if "fixed" in example:
                        made["fixed"] = before + example["fixed"]
                    self.examples.append({"of": f"{data['id']}/{name}", "rules": rules, "example": made})

    def _part(self, name: str) -> dict[str, Any]:
        return self.parts.setdefault(
            name, {"keys": {}, "rows": [], "values": {}, "pairs": {}, "names": [], "filled": {}}
        )

    def _types_with(self, keys: Mapping[str, str]) -> dict[str, str]:
        own = {OF_KEY + key: kind for key, kind in keys.items()}
        return {**self._types, **own, **dict.fromkeys((WRITTEN + key for key in own), "bool")}

    def _known_formats(self, located: Located, path: Path, formats: list[str] | None) -> list[str]:
        for index, name in enumerate(formats or ()):
            if name not in self._formats:
                self._fail(located, (*path, index), f"{name!r} is no format of rules/dialects", name, self._formats)
        return list(formats or ())

    def _row(self, located: Located, path: Path, row: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
        data = located.data
        library = row.get("library", data["library"])
        when = self._when(located, path, row, library, types)
        at = row.get("at") or list(dict.fromkeys(name for name in _settings_of(when) if self._is_setting(name, types)))
        if not at:
            self._fail(located, (*path, "when"), "the row names no setting")
        for index, name in enumerate(row.get("at", ())):
            self._check_setting(located, (*path, "at", index), name, types)
        rule = row.get("rule") or data.get("rule", "")
        self.cold.setdefault(rule, []).append([library, row["id"], " ".join(row["when"].split()), row.get("said", "")])
        what = row.get("what")
        return {
            "id": f"{data['id']}/{row['id']}",
            "rule": rule,
            "library": library,
            "when": when,
            "at": at or [""],
            "begins": at[:1] if "at" in row else list(dict.fromkeys(_begins(when, at))) or [""],
            "said": row.get("said", ""),
            "what": [what["ko"], what["en"]] if what else None,
            "confidence": row.get("confidence"),
            "fix": self._fix(located, (*path, "fix"), row.get("fix"), types),
        }

    def _when(
        self, located: Located, path: Path, row: Mapping[str, Any], library: str, types: Mapping[str, str]
    ) -> Tree:
        """The row's condition, with the releases that it holds for."""
        release = f"versions.{library}"
        trees: list[Tree] = []
        try:
            trees.append(parse(row["when"], types, "bool", self._values))
        except ExpressionError as error:
            where = f"{'.'.join(map(str, path))}.when"
            at = (*path, "when")
            self.problems.append(located.problem(at, f"{where}: {error}", f"{where}: {error.korean}"))
        for name, sign in (("since", ">="), ("before", "<")):
            if name in row:
                if release not in types:
                    self._fail(located, (*path, name), f"{release!r} is not in vocabulary.yaml")
                trees.append(["compare", [sign], ["fact", release], ["lit", list(parse_version(row[name]))]])
        return trees[0] if len(trees) == 1 else ["and", *trees]

    def _fix(
        self, located: Located, path: Path, fix: Mapping[str, Any] | None, types: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """The fix as a rule's, with a title that says what it writes."""
        if fix is None:
            return None
        for group in ("set", "remove", "rename"):
            for index, name in enumerate(fix.get(group, ())):
                place = (*path, group, index) if group == "remove" else (*path, group, name, KEY)
                self._check_setting(located, place, name, types)
        said = [f"{_last(name)}: {_shown(value)}" for name, value in fix.get("set", {}).items()]
        said += [f"{_last(name)} → {new}" for name, new in fix.get("rename", {}).items()]
        gone = [_last(name) for name in fix.get("remove", ())]
        ko = [f"{', '.join(said)} 값으로 적습니다."] * bool(said) + [f"{', '.join(gone)} 설정을 지웁니다."] * bool(gone)
        en = [f"Write {', '.join(said)}."] * bool(said) + [f"Remove {', '.join(gone)}."] * bool(gone)
        return {
            "when": None,
            "safety": "safe" if fix.get("safe") else "unsafe",
            "title": [" ".join(ko), " ".join(en)],
            "set": fix.get("set", {}),
            "remove": fix.get("remove", []),
            "rename": fix.get("rename", {}),
        }

    def _add_values(self, located: Located, types: Mapping[str, str], formats: list[str]) -> None:
        newest = list(parse_version(located.data["newest"])) if "newest" in located.data else None
        for name, group in located.data.get("values", {}).items():
            self._check_setting(located, ("values", name, KEY), name, types)
            own = self._known_formats(located, ("values", name, "formats"), group.get("formats")) or formats
            for index, value in enumerate(group.get("means", {}).values()):
                if value not in group["takes"]:
                    self._fail(located, ("values", name, "means", list(group["means"])[index]), f"{value!r} is none")
            made = {key: value for key, value in group.items() if key not in ("fires", "silent", "formats")}
            for part in map(self._part, own):
                part["values"][name] = {**made, "library": located.data["library"], "newest": newest}

    def _check_rules(self, located: Located) -> None:
        """Every rule that words a row is there, and hears an event of its own name."""
        data = located.data
        named: list[tuple[Path, str]] = [(("rule",), data["rule"])] if "rule" in data else []
        for index, row in enumerate(data.get("rows", ())):
            if "rule" in row:
                named.append((("rows", index, "rule"), row["rule"]))
            elif "rule" not in data:
                self._fail(located, ("rows", index), "no rule words this row")
        for path, name in named:
            if name not in self._rules:
                self._fail(located, path, f"rule {name!r} is not in rules/checks", name, self._rules)
            elif self._rules[name] != name:
                self._fail(located, path, f"rule {name!r} is not one of a table: its `on` is not {name!r}")

    def _is_setting(self, name: str, types: Mapping[str, str]) -> bool:
        return name in self._settings or (name.startswith(OF_KEY) and name in types)

    def _check_setting(self, located: Located, path: Path, name: str, types: Mapping[str, str]) -> None:
        if not self._is_setting(name, types):
            known = [each for each in types if self._is_setting(each, types)]
            self._fail(located, path, f"{name!r} is neither a setting nor a key of this table", name, known)

    def _fail(
        self,
        located: Located,
        path: Path,
        message: str,
        name: str = "",
        known: Collection[str] | Mapping[str, Any] = (),
    ) -> None:
        hint = did_you_mean(name, known)[0] if name else ""
        self.problems.append(located.problem(path, message + hint))


def _settings_of(tree: Tree) -> Iterator[str]:
    """The facts that a tree names, in their order; whether one is written counts as the setting."""
    if tree[0] == "fact":
        yield tree[1].removeprefix(WRITTEN)
    elif tree[0] != "lit":
        for child in tree[2:] if tree[0] in ("compare", "call") else tree[1:]:
            yield from _settings_of(child)


def _begins(tree: Tree, settings: Collection[str]) -> Iterator[str]:
    """The settings of which one is written wherever a row holds: the first, of alternatives the first of each."""
    if tree[0] == "or":
        for child in tree[1:]:
            yield from _begins(child, settings)
    elif tree[0] == "and":
        yield from next(filter(None, (tuple(_begins(child, settings)) for child in tree[1:])), ())
    else:
        yield from [name for name in _settings_of(tree) if name in settings][:1]


def _last(name: str) -> str:
    """A setting as a reader of the file knows it."""
    return name.removeprefix(OF_KEY).removeprefix("training.")


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else str(value)


def _wording(data: Mapping[str, Any]) -> str:
    """The rule that words the names of a table."""
    return data.get("rule") or ("argument-not-in-release" if data.get("calls") else "name-not-in-release")
