"""Which releases of a library a run can be of, by the names that it hands to the library's own classes.

A name that a release lacks stops the run as it starts (TypeError). So where no file of the project says the release, or
it allows several, a run that has worked is of one that has all its names. What is about the names themselves is still
decided by what the project says.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from kb.advice.facts.unit_facts import UnitFacts
from kb.advice.findings.tables import Tables
from kb.core.catalog import Catalog, Rule
from kb.core.document import Event, Unit, locate
from kb.core.facts import FactType
from kb.core.finding import Finding, OnRelease, Span
from kb.core.lint import Linter, LintResult, Release, place_of
from kb.core.release import LATEST, ProjectRelease, agree, parse_version

PROGRAMS = (".py", ".ipynb")
NO_RELEASE = "name-in-no-release"
MOST_LISTED = 190  # letters of a list of settings


class NamesInReleases:
    """What is said of names that some releases lack, so that a run with them does not start.

    Args:
        catalog: the knowledge.
        rules: the ids of those that are active.
        tables: names by release, class by class.
    """

    def __init__(self, catalog: Catalog, rules: Iterable[str], tables: Tables) -> None:
        self._catalog, self._tables, self._rules = catalog, tables, rules

    @cached_property
    def _linter(self) -> Linter:
        rules = self._catalog.rules
        return Linter(rules, [name for name in self._rules if rules[name].names and rules[name].severity == "error"])

    def narrowed(self, prepared: UnitFacts) -> Mapping[str, ProjectRelease]:
        """The releases of libraries that a unit's names narrow, by the library.

        Those of a call in a program, which are the class's own; and of TRL's arguments, whose defaults moved the most.
        """
        unit = prepared.unit
        of_a_call = unit.reader == "library" and unit.path.endswith(PROGRAMS)
        of_trl = unit.dialect == "trl" and not unit.path.startswith("<")  # what is asked of dicts keeps many apart
        if not (of_a_call or of_trl):
            return {}
        return releases_by_names(prepared.release, refusing(*self._found(prepared)))

    def added(
        self, result: LintResult, rules: Mapping[str, Rule], prepared: UnitFacts
    ) -> tuple[LintResult, Mapping[str, Rule]]:
        """With what is said of the names themselves, judged by the releases that the project says."""
        result = _of_releases_known(result, prepared.said)
        if prepared.said is prepared.release:
            return result, rules
        names, more = self._found(prepared.as_said())
        there = {(each.rule, each.span) for each in result.findings}
        found = (*result.findings, *(each for each in names.findings if (each.rule, each.span) not in there))
        waiting = {rule.id for rule, _ in result.by_release}
        by_release = (*result.by_release, *(each for each in names.by_release if each[0].id not in waiting))
        return LintResult(tuple(sorted(found, key=place_of)), result.not_evaluated, by_release), {**rules, **more}

    def _found(self, prepared: UnitFacts) -> tuple[LintResult, Mapping[str, Rule]]:
        """What rules and tables say of such names, and the rules by the names of the findings."""
        unit, known, facts = prepared.unit, self._catalog.facts, prepared.facts(self._catalog.fact_types())
        result = self._linter.lint(facts, lambda name: locate(unit, known, name), (), unit.span, prepared.release)
        exempt = self._catalog.dialects[unit.dialect].exempt if unit.dialect else ()
        more, rules = self._tables.lint_names(unit, facts, prepared.release, exempt)
        both = LintResult(result.findings + more.findings, (), result.by_release + more.by_release)
        return both, {**self._catalog.rules, **rules}


def refusing(result: LintResult, rules: Mapping[str, Rule]) -> Iterator[tuple[str, OnRelease]]:
    """The releases at which a run does not start: of each name that some lack, the setting and these releases.

    ``rules`` are those that the findings are of. A rule that waits for releases of two libraries says it of neither.
    """
    found = [(rules[finding.rule], finding.on_releases) for finding in result.findings]
    for rule, on in (*result.by_release, *found):
        if len(on) == 1:
            yield rule.at[0], on[0]


def releases_by_names(release: Release, refused: Iterable[tuple[str, OnRelease]]) -> Mapping[str, ProjectRelease]:
    """The releases of each library that a unit's names narrow: what the project says, without those that refuse one.

    Where each release is refused that the project allows, what it says stays: that is a finding of its own.
    """
    by_library: dict[str, list[tuple[str, OnRelease]]] = {}
    for name, on in refused:
        if (on.since is None) != (on.before is None):
            by_library.setdefault(on.library, []).append((name, on))
    narrowed = {library: _narrowed(library, release(library), each) for library, each in by_library.items()}
    return {library: each for library, each in narrowed.items() if each is not None}


def _narrowed(library: str, said: ProjectRelease | None, refused: list[tuple[str, OnRelease]]) -> ProjectRelease | None:
    last = min(((on.since, name) for name, on in refused if on.since is not None), default=None)
    first = max(((on.before, name) for name, on in refused if on.before is not None), default=None)
    if last and first and first[0] >= last[0]:
        return None
    ends = [*([(">=", *first)] if first else []), *([("<", *last)] if last else [])]
    allowed = ",".join(sign + ".".join(map(str, bound)) for sign, bound, _ in ends)
    if said is None or not said.specifier:
        return ProjectRelease(library, "", None, "assumed", names=allowed)
    return said._replace(names=allowed) if agree(said.specifier, allowed) else None


def _of_releases_known(result: LintResult, release: Release) -> LintResult:
    """Without what is said of names that no release has, where the project's is newer than any that was looked at, or
    none of the released."""

    def is_newer(finding: Finding) -> bool:
        known = release(str(finding.facts["library"])) if finding.rule == NO_RELEASE else None
        newest = parse_version(str(finding.facts["newest"])) if known is not None else ()
        if known is not None and known.floating:
            return True
        return known is not None and known.exact is not None and known.exact > (*newest, LATEST)

    return result._replace(findings=tuple(each for each in result.findings if not is_newer(each)))


def depending(result: LintResult, unit: Unit, facts: Mapping[str, FactType]) -> Event | None:
    """One event for everything in the unit whose fate depends on a release that nothing says: never many findings."""
    if not result.by_release:
        return None
    named: dict[str, list[OnRelease]] = {}
    places: list[Span] = []
    for rule, releases in result.by_release:
        setting = next((each for name in rule.at if (each := unit.setting(name)) is not None), None)
        key = str(setting.path[-1]).lstrip("-") if setting is not None and setting.path else rule.id
        named.setdefault(key, []).extend(each for each in releases if each not in named.get(key, ()))
        places += [setting.span] if setting is not None else []
    rows = [f"{key} ({', '.join(map(bounds_text, _widest(each)))})" for key, each in sorted(named.items())]
    shown = [row for at, row in enumerate(rows) if len(", ".join(rows[: at + 1])) <= MOST_LISTED]
    more = ", …" if len(shown) < len(rows) else ""
    libraries = sorted({each.library for releases in named.values() for each in releases})
    values = {"names": ", ".join(shown) + more, "libraries": ", ".join(libraries)}
    return Event("depends-on-release", min(places, default=unit.span), values)


def _widest(releases: list[OnRelease]) -> list[OnRelease]:
    """The spans of releases less those that lie within another of the same library."""
    spans = {each: (each.since or (), each.before or (math.inf,)) for each in releases}
    return [
        each for each, (since, before) in spans.items()
        if not any(other != each and other.library == each.library and low <= since and before <= high
                   for other, (low, high) in spans.items())
    ]  # fmt: skip


def bounds_text(on: OnRelease) -> str:
    """``transformers >= 5.2``, as every language writes it."""
    bounds = [f"{sign} {'.'.join(map(str, at))}" for sign, at in ((">=", on.since), ("<", on.before)) if at is not None]
    return f"{on.library} {', '.join(bounds)}"
