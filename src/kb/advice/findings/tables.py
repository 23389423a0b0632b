"""Rules whose data is a table: what a library takes and refuses, a row for each. Only rows that a config names count.

A row becomes a rule of its own for the one unit that it may hold of, worded by the rule of the table, and is decided
as any other: by the facts, on the releases that the project allows.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count

from kb.config.dialect.dialects import Neighbours
from kb.core.catalog import Catalog, Rule, RuleFix, Wording
from kb.core.document import KEY, Setting, Unit, nth_call
from kb.core.expression import Lookup, Tree, Unknown, is_unknown
from kb.core.facts import Facts, Ground, coerce
from kb.core.finding import Finding
from kb.core.lint import Linter, LintResult, Release
from kb.core.record import NamedTuple
from kb.core.release import LATEST, ProjectRelease, bounds_of, parse_version
from kb.core.text import Text, nearest
from kb.core.typed import Any

EVERY_FORMAT = "every"
WRITTEN = "written."
MOST_OF_A_NUMBER = 64  # characters
BETWEEN = "/"  # parts the name of a row's rule: the rule that words it, and the row
UNWRITTEN: Mapping[str, Any] = {"bool": False, "text": "", "list": ()}
UNKNOWN_VALUE, OTHER_RELEASE, EMPTY, OTHER_PAIR, IMPORTED = (
    "value-not-known",
    "value-not-in-release",
    "setting-left-empty",
    "template-of-another-family",
    "import-gone",
)


class Row(NamedTuple):
    """A row that may hold of a unit: its rule, and what the rule's message says of it."""

    rule: Rule
    values: Mapping[str, Any]


class Tables:
    """The rows of every table, each format's read when a unit of it first names one of their settings."""

    def __init__(self, catalog: Catalog, rules: Iterable[str]) -> None:
        self._catalog, self._rules = catalog, frozenset(rules)
        self._parts: dict[str, Mapping[str, Any]] = {}

    def lint(
        self, unit: Unit, facts: Facts, release: Release, exempt: Collection[str] = ()
    ) -> tuple[LintResult, Mapping[str, Rule]]:
        """What the rows find in a unit, and their rules by the names that the findings have.

        Args:
            exempt: rules, by id or area, that do not hold of the unit's format.
        """
        parts = self._parts_of(unit)
        rows = [row for part in parts for row in self._rows(part, unit, release)]
        return self._lint(rows, parts, unit, facts, release, exempt)

    def lint_names(
        self, unit: Unit, facts: Facts, release: Release, exempt: Collection[str] = ()
    ) -> tuple[LintResult, Mapping[str, Rule]]:
        """As :meth:`lint`, of names that some releases lack alone: of arguments, and of what is imported."""
        parts = self._parts_of(unit)
        rows = [row for part in parts for group in part["names"] for row in self._of_names(group, unit)]
        imported = [row for part in parts for row in part["rows"] if row["rule"] == IMPORTED]
        rows += [self._of_row(row) for row in imported if any(_says(unit, each) for each in row["begins"])]
        return self._lint(rows, parts, unit, facts, release, exempt)

    def _parts_of(self, unit: Unit) -> list[Mapping[str, Any]]:
        formats = (EVERY_FORMAT, unit.dialect or "") if self._rules else ()
        return [self._part(name) for name in formats if self._concerns(name, unit)]

    def _lint(
        self,
        candidates: Iterable[Row],
        parts: Iterable[Mapping[str, Any]],
        unit: Unit,
        facts: Facts,
        release: Release,
        exempt: Collection[str],
    ) -> tuple[LintResult, Mapping[str, Rule]]:
        rows = {row.rule.id: row for row in candidates if self._is_chosen(row.rule, exempt)}
        if not rows:
            return LintResult((), ()), {}
        types = {name: kind for part in parts for name, kind in part["keys"].items()}
        result = Linter({name: row.rule for name, row in rows.items()}).lint(
            KeyFacts(facts, unit, types), lambda name: _place(unit, name), (), unit.span, release
        )
        found = tuple(self._said(each, rows[each.rule], unit, release) for each in result.findings)
        return result._replace(findings=found), {name: row.rule for name, row in rows.items()}

    def conditions(self, unit: Unit, facts: Facts, row: str) -> Iterator[tuple[Tree, Lookup]]:
        """The condition of a row as it is asked of a unit, in each table of the unit's format that has the row."""
        for name in (EVERY_FORMAT, unit.dialect or ""):
            part = self._part(name) if name in self._catalog.triggers else {"rows": (), "keys": {}}
            for each in part["rows"]:
                if each["id"] == row:
                    yield each["when"], KeyFacts(facts, unit, part["keys"]).get

    def _concerns(self, name: str, unit: Unit) -> bool:
        """Whether a row of the format begins with something that the unit says."""
        return any(
            unit.setting(each) is not None or each in unit.nulls for each in self._catalog.triggers.get(name, ())
        )

    def _part(self, name: str) -> Mapping[str, Any]:
        if name not in self._parts:
            self._parts[name] = self._catalog.table(name)
        return self._parts[name]

    def _is_chosen(self, rule: Rule, exempt: Collection[str]) -> bool:
        name = rule.id.partition(BETWEEN)[0]
        return name in self._rules and name not in exempt and rule.area not in exempt

    def _rows(self, part: Mapping[str, Any], unit: Unit, release: Release) -> Iterator[Row]:
        for row in part["rows"]:
            if any(_says(unit, each) for each in row["begins"]):
                yield self._of_row(row)
        for name, group in part["values"].items():
            setting = unit.setting(name)
            if setting is not None and not setting.joined:
                yield from self._of_values(name, group, setting, unit, release(group["library"]))
        for name, group in part["pairs"].items():
            yield from self._of_pairs(name, group, unit)
        for group in part["names"]:
            yield from self._of_names(group, unit)
        for name, library in part["filled"].items():
            if name in unit.nulls and name not in unit.settings:
                yield Row(
                    self._made(EMPTY, name, ["lit", True], (name,)), {"library": library, "key": _key(unit, name)}
                )

    def _made(
        self,
        worded: str,
        name: str,
        when: Tree,
        at: tuple[str, ...],
        fixes: tuple[RuleFix, ...] = (),
        message: Text | None = None,
        confidence: Any = None,
    ) -> Rule:
        rule = self._catalog.rules[worded]
        return rule._replace(
            id=f"{worded}{BETWEEN}{name}",
            when=when,
            on=None,
            at=at,
            wording=lambda: Wording(rule.title, message or rule.message, fixes),
            confidence=confidence or rule.confidence,
        )

    def _of_row(self, row: Mapping[str, Any]) -> Row:
        message = self._catalog.rules[row["rule"]].message
        if row["what"]:
            message = Text(*(text.replace("{what}", what) for text, what in zip(message, row["what"], strict=True)))
        fix = row["fix"]
        fixes = (_fix(fix["safety"], Text(*fix["title"]), fix),) if fix else ()
        rule = self._made(row["rule"], row["id"], row["when"], tuple(row["at"]), fixes, message, row["confidence"])
        return Row(rule, {"library": row["library"], "said": row["said"]})

    def _of_values(
        self, name: str, group: Mapping[str, Any], setting: Setting, unit: Unit, known: ProjectRelease | None
    ) -> Iterator[Row]:
        """A row for each thing written that no release has, or that some have not."""
        takes, own = group["takes"], group.get("also", {}).get(unit.dialect, ())
        newer = _is_newer(known, group)  # a release that nobody looked at, which may have more
        if "flags" in group and not _is_flag_said(setting, name):
            return
        written = _is_as_written(name, setting)
        for value in _texts(setting.value, group):
            asked = value.lower() if "folds" in group else value
            if asked in own or group.get("unless", "\0") in value or ("only" in group and value not in group["means"]):
                continue
            span = _span_of(asked, group)
            values = {"key": _key(unit, name), "value": value, "library": group["library"], "said": group["said"]}
            meant = group.get("means", {}).get(value)
            if span is None and meant is None and newer:
                continue
            if span is None:
                worded = group.get("rule", UNKNOWN_VALUE)
                shapes = "patterns" in group
                if not shapes:
                    meant = meant or (Neighbours(takes).meant_by(value) if "slips" in group else _nearest(value, takes))
                if meant is None and "slips" in group:
                    continue
                lacked = {each for each, its in takes.items() if _is_lacked(its, known)}
                guessed = "flags" in group and known is None and bool(takes.get(meant or ""))
                meant = None if guessed or meant in lacked else meant
                fixes = _written_instead(name, setting, value, meant)
                more = {"meant": meant} if meant else {}
                more |= {} if shapes else {"known": ", ".join(each for each in (*takes, *own) if each not in lacked)}
                yield Row(self._made(worded, f"{name}={value}", written, (name,), fixes), {**values, **more})
            elif span:
                tree = ["and", written, _outside(group["library"], span)]
                rule = self._made(group.get("rule", OTHER_RELEASE), f"{name}={value}", tree, (name,))
                yield Row(rule, {**values, "bounds": bounds_of(span)})

    def _of_pairs(self, name: str, group: Mapping[str, Any], unit: Unit) -> Iterator[Row]:
        """A row where a setting has the value that goes with another value of the other setting."""
        setting, other = unit.setting(name), unit.setting(group["by"])
        if setting is None or other is None or not isinstance(setting.value, str) or not isinstance(other.value, str):
            return
        of = other.value.rstrip("/").rpartition("/")[2]
        meant = group["of"].get(of.casefold())
        alike = [each for each in group["alike"] if meant in each or setting.value in each]
        if meant is None or len(alike) != 2:  # one group holds both, or none holds the value
            return
        fixes = _written_instead(name, setting, setting.value, meant)
        rule = self._made(OTHER_PAIR, name, ["fact", f"{WRITTEN}{name}"], (name, group["by"]), fixes)
        values = {"key": _key(unit, name), "value": setting.value, "library": group["library"]}
        yield Row(rule, {**values, "other": of, "meant": meant})

    def _of_names(self, group: Mapping[str, Any], unit: Unit) -> Iterator[Row]:
        worded, before = group["rule"], f"{group['class']}." if group["calls"] else ""
        alike: dict[
            Any, list[str]
        ] = {}  # by what is said of them: of one call the arguments of the same releases together
        for key, span in group["has"].items() if _is_class_of(group, unit) else ():
            if before + key in unit.keys:
                alike.setdefault(tuple(span.items()) if before else key, []).append(key)
        for keys in alike.values():
            span = group["has"][keys[0]]
            names = tuple(name for key in keys for name in _of_all_calls(before + key, unit))
            instead = [span[way] for way in ("was", "now") if way in span]
            free = [new for new in instead if before + new not in unit.keys]
            # what a release is too old for, it has not by its later name either
            since = (
                _outside(group["library"], {"before": span["before"]}) if "since" in span and "now" in span else None
            )
            fixes = tuple(_renamed(names, new, since) for new in free)
            message = _with_place(self._catalog.rules[worded].message) if "to" in span else None
            tree = _outside(group["library"], span)
            tree = ["and", group["when"], tree] if group["when"] else tree
            rule = self._made(worded, before + keys[0], tree, names, fixes, message)
            keys_written = (_key(unit, name) for name in names)
            flags = group["dashes"]  # a command's are kept with underscores
            written = ", ".join(dict.fromkeys(key.replace("_", "-") if flags else key for key in keys_written))
            values = {"key": written, "class": group["class"], "library": group["library"], "bounds": bounds_of(span)}
            yield Row(rule, {**values, **({"meant": (*instead, span.get("to"))[0]} if instead or "to" in span else {})})

    def _said(self, finding: Finding, row: Row, unit: Unit, release: Release) -> Finding:
        """The finding with what its message says: the settings as they are written, and the project's own release."""
        settings = _as_written(unit, row.rule.at)
        if row.rule.area == "serving":  # a command's flags are kept with underscores, and have no colon
            parts = (each.partition(": ") for each in settings)
            settings = (
                f"{key.replace('_', '-')} {value}" if key[:2] == "--" else key + colon + value
                for key, colon, value in parts
            )
        values = {**row.values, "settings": ", ".join(settings)}
        values.setdefault("key", _key(unit, row.rule.at[0]))
        known = release(row.values["library"])
        if known is not None and known.specifier:
            values["release"] = known.specifier.removeprefix("==").replace("|| ==", "|| ")
        return finding._replace(facts={**finding.facts, **values})


class KeyFacts(Facts):
    """The facts of a unit, and the keys of its own format beside them."""

    def __init__(self, facts: Facts, unit: Unit, types: Mapping[str, str]) -> None:
        super().__init__({}, {}, facts.ground)
        self._facts, self._unit, self._key_types = facts, unit, types
        self.ground = lambda name: Ground("written") if KEY in name[: len(WRITTEN + KEY)] else facts.ground(name)

    def get(self, name: str) -> Any:
        if name.startswith(WRITTEN + KEY):
            return self._written(name.removeprefix(WRITTEN))
        if name.startswith(KEY):
            return self._value(name)
        return self._facts.get(name)

    def _written(self, name: str) -> Any:
        setting = self._unit.setting(name)
        if setting is None and self._unit.hidden:
            return Unknown(frozenset((name,)), "code may fill it in")
        return setting is not None and setting.value is not None

    def _value(self, name: str) -> Any:
        kind, setting = self._key_types[name], self._unit.setting(name)
        if setting is None or setting.value is None:
            hidden = self._unit.hidden or name in self._unit.nulls
            return Unknown(frozenset((name,))) if hidden or kind not in UNWRITTEN else UNWRITTEN[kind]
        return _of_kind(setting.value, kind, name)


def _of_kind(value: Any, kind: str, name: str) -> Any:
    """A value as a program reads it that wants this kind."""
    if is_unknown(value):
        return value
    if isinstance(value, str) and "{" in value:
        return Unknown(frozenset((name,)), "filled in before the program reads the file")
    if kind == "text" and not isinstance(value, str):
        return _plain(value)
    if kind == "list":
        value = value if isinstance(value, tuple) else () if value is False else (value,)
        return tuple(map(_plain, value))
    if kind == "bool" and isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if kind == "bool" and not isinstance(value, bool):
        return bool(value) if isinstance(value, int | dict | tuple) else Unknown(frozenset((name,)), "no truth value")
    if kind == "number" and isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    return coerce(value, kind, name)


def _plain(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _says(unit: Unit, name: str) -> bool:
    setting = unit.setting(name)
    return setting is not None and setting.value is not None


def _place(unit: Unit, name: str) -> Any:
    setting = unit.setting(name.removeprefix(WRITTEN))
    return setting.span if setting is not None else unit.nulls.get(name)


def _key(unit: Unit, name: str) -> str:
    """The name as the file writes it."""
    setting = unit.setting(name)
    steps = setting.path if setting is not None else ()
    named = [step for step in steps[-1:] if isinstance(step, str)]
    return named[0] if named else name.rpartition(".")[2]


def _as_written(unit: Unit, names: Iterable[str]) -> Iterator[str]:
    """``load_in_8bit: true`` of each setting that is written, once for each place."""
    seen = set()
    for name in names:
        setting = unit.setting(name)
        if setting is None or name.startswith("script."):
            continue
        key = str(setting.path[-1]) if setting.path else name
        key = name if key.isdigit() else key  # what a call says by itself
        there = [each for each in unit.keys.values() if each.key_span == setting.key_span]
        spot = setting.key_span, key if len(there) > 1 else ""  # what a program says by itself has one place in all
        if spot in seen:
            continue
        seen.add(spot)
        written = there[0] if len(there) == 1 else unit.keys.get(key, setting)
        shown = _short(written.value)
        yield key if shown is None else f"{key}: {shown}"


def _short(value: Any) -> str | None:
    if (
        value is None
        or is_unknown(value)
        or isinstance(value, dict)
        or not isinstance(value, str | int | float | tuple)
    ):
        return None
    if isinstance(value, tuple):
        return f"[{', '.join(_plain(each) for each in value)}]" if len(value) <= 6 else None
    return _plain(value)


def _texts(value: Any, group: Mapping[str, Any]) -> list[str]:
    """The names that a value holds: of a list each, of one text what its parser makes of it."""
    if isinstance(value, str):
        texts = [value]
        if group.get("items") == "blanks":
            texts = value.replace(",", " ").split()
        elif group.get("items") == "commas":
            texts = [part.strip() for part in value.split(",")]
    else:
        texts = [each for each in value if isinstance(each, str)] if isinstance(value, tuple) else []
    return [text for text in texts if text and not set(text) & set("${}()[]|<>")]


def _span_of(value: str, group: Mapping[str, Any]) -> Mapping[str, str] | None:
    """The releases that take a value; None where none does."""
    takes: Mapping[str, Mapping[str, str]] = group["takes"]
    if "patterns" not in group:
        return takes.get(value)
    if len(value) > MOST_OF_A_NUMBER:
        return {}
    return next((span for pattern, span in takes.items() if re.fullmatch(pattern, value)), None)


def _is_lacked(span: Mapping[str, str], known: ProjectRelease | None) -> bool:
    """Whether the project's release has not what others have."""
    bounds = [parse_version(span[end]) for end in ("since", "before") if end in span]
    release = known.within(*bounds) if known is not None and bounds else None
    if release is None:
        return False
    return ("since" in span and release < parse_version(span["since"])) or (
        "before" in span and release >= parse_version(span["before"])
    )


def _is_flag_said(setting: Setting, name: str) -> bool:
    """Whether a command line says it, by a flag and a value: `--dtype DTYPE` and `[auto|half]` stand in a synopsis."""
    flagged = bool(setting.path) and str(setting.path[-1]).startswith("--")
    text = str(setting.value)
    placeholder = text.isupper() and not any(map(str.isdigit, text))
    return flagged and not placeholder and not (setting.by_default and name.startswith(KEY))


def _is_as_written(name: str, setting: Setting) -> Tree:
    """That the setting is written; of a default that its environment may change, that it is this very value."""
    tree: Tree = ["fact", f"{WRITTEN}{name}"]
    value = setting.value
    if not setting.by_default or not isinstance(value, str) or name.startswith(KEY):
        return tree
    return ["and", tree, ["compare", ["=="], ["fact", name], ["lit", value]]]


def _nearest(value: str, known: Iterable[str]) -> str | None:
    return next(iter(nearest(value, known)), None)


def _is_newer(known: ProjectRelease | None, group: Mapping[str, Any]) -> bool:
    """Whether the project's release is one after those that were looked at."""
    newest = group["newest"]
    return newest is not None and known is not None and known.exact is not None and known.exact > (*newest, LATEST)


def _is_class_of(group: Mapping[str, Any], unit: Unit) -> bool:
    setting = unit.settings.get("script.trainer")
    return not group["trainers"] or (setting is not None and setting.value in group["trainers"])


def _outside(library: str, span: Mapping[str, str]) -> Tree:
    """Whether the project's release lies outside of those that have it."""
    fact = ["fact", f"versions.{library}"]
    signs = (("since", "<"), ("before", ">="))
    trees = [["compare", [sign], fact, ["lit", list(parse_version(span[end]))]] for end, sign in signs if end in span]
    tree = trees[0] if len(trees) == 1 else ["or", *trees]
    again = ["compare", ["<"], fact, ["lit", list(parse_version(span["again"]))]] if "again" in span else None
    return ["and", tree, again] if again else tree


def _written_instead(name: str, setting: Setting, value: str, meant: str | None) -> tuple[RuleFix, ...]:
    if meant is None or setting.value != value:
        return ()
    title = Text(f"{meant} 값으로 적습니다.", f"Write {meant}.")
    return (RuleFix(when=None, safety="unsafe", title=title, set={name: meant}),)


def _with_place(message: Text) -> Text:
    """The message of a name that another class has now, with which one."""
    return Text(f"{message.ko} {{meant}} 쪽에 적습니다.", f"{message.en} Use {{meant}} for that.")


def _of_all_calls(key: str, unit: Unit) -> Iterator[str]:
    """The keys of an argument in each call of a program that gives it; of a config the key alone."""
    for number in count(1):
        if nth_call(key, number) not in unit.keys:
            return
        yield KEY + nth_call(key, number)


def _renamed(names: Iterable[str], new: str, when: Tree | None = None) -> RuleFix:
    title = Text(f"이름을 {new} 이름으로 바꿉니다.", f"Use the name {new}.")
    return RuleFix(when=when, safety="unsafe", title=title, set={}, rename=dict.fromkeys(names, new))


def _fix(safety: Any, title: Text, fix: Mapping[str, Any]) -> RuleFix:
    return RuleFix(None, safety, title, fix["set"], tuple(fix["remove"]), fix["rename"])
