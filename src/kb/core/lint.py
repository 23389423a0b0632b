"""Rules over facts: findings, and what could not be decided. Pure; nothing is worded here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from kb.core.catalog import WRITTEN, Computed, Rule, RuleFix, outlines_of
from kb.core.document import Event
from kb.core.expression import (
    Evaluator,
    Lookup,
    Tree,
    Unknown,
    compile_tree,
    deciding_facts,
    fact_names,
    is_unknown,
    literals_beside,
)
from kb.core.facts import CERTAINTIES, Certainty, Facts, Origin, certainty_of, weakest
from kb.core.finding import Because, Edit, Finding, Fix, NotEvaluated, OnRelease, Span
from kb.core.record import NamedTuple
from kb.core.release import Bound, ProjectRelease, just_below
from kb.core.typed import Any

Locate = Callable[[str], Span | None]
"""Where a fact's setting stands in the file; None for a fact that no setting gives."""
Release = Callable[[str], ProjectRelease | None]
"""What is known of a library's release, by the library's name; None where nothing says it."""
OF_RELEASE = "versions."
MOST_LIBRARIES = 2  # in one rule whose releases are all tried; none names more


class LintResult(NamedTuple):
    """``by_release``: rules that hold for some releases of a library that nothing pins, and not for others."""

    findings: tuple[Finding, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    by_release: tuple[tuple[Rule, tuple[OnRelease, ...]], ...] = ()


def nothing_pinned(library: str) -> None:
    """Nothing is known of any release."""


class _Condition:
    """A rule's condition, read and compiled when it is first evaluated: most rules are about settings that a config has
    not."""

    __slots__ = ("_compiled", "_id", "_needed", "_rules")

    def __init__(self, rules: Mapping[str, Rule], rule: str, needed: Sequence[str]) -> None:
        self._rules, self._id, self._needed = rules, rule, needed
        self._compiled: Evaluator | None = None

    @property
    def rule(self) -> Rule:
        return self._rules[self._id]

    def __call__(self, get: Lookup) -> Any:
        if self._needed and all(get(name) is False for name in self._needed):
            return False
        if self._compiled is None:
            when = self.rule.when
            self._compiled = compile_tree(["lit", False] if when is None else when)
        return self._compiled(get)


class Linter:
    """A set of rules, compiled once, to be run over many units; ``chosen`` are the ids of those to run, None is all."""

    def __init__(self, rules: Mapping[str, Rule], chosen: Iterable[str] | None = None) -> None:
        self._rules = rules
        self._conditions: list[_Condition] = []
        self._listeners: dict[str, list[str]] = {}
        outlines = outlines_of(rules)
        for rule in outlines if chosen is None else chosen:
            _, on, needed, _ = outlines[rule]
            if on:
                self._listeners.setdefault(on, []).append(rule)
            else:
                self._conditions.append(_Condition(rules, rule, needed))

    def lint(
        self, facts: Facts, locate: Locate, events: Sequence[Event], whole: Span, release: Release = nothing_pinned
    ) -> LintResult:
        """Findings of every rule, in the order of their places; ``whole`` is where a finding without one goes."""
        findings: list[Finding] = []
        undecided: list[NotEvaluated] = []
        by_release: list[tuple[Rule, tuple[OnRelease, ...]]] = []
        get = facts.get
        for condition in self._conditions:
            value = condition(get)
            if value is False:
                continue
            rule = condition.rule
            if value.__class__ is not Unknown:
                findings.append(_fire(rule, facts, get, locate, whole))
                continue
            tried = _over_releases(rule, condition, facts, value.needs, release)
            if tried is None:
                undecided.append(NotEvaluated(rule=rule.id, needs=tuple(sorted(value.needs))))
            elif tried.holds:
                if all(each.specifier for each in tried.on):
                    found = _on_releases(_fire(rule, facts, tried.get, locate, whole, settled=value.needs), tried.on)
                    findings.append(lowered(found, weakest((found.certainty, "likely"))) if tried.partly else found)
                else:
                    by_release.append((rule, tried.on))
        findings += self.hear(events)
        return LintResult(tuple(sorted(findings, key=place_of)), tuple(undecided), tuple(by_release))

    def hear(self, events: Iterable[Event]) -> list[Finding]:
        """The findings of events alone."""
        return [_hear(self._rules[rule], event) for event in events for rule in self._listeners.get(event.kind, ())]


def place_of(finding: Finding) -> tuple[int, int, str]:
    """Findings are shown in this order."""
    return finding.span.line, finding.span.column, finding.rule


class _Tried(NamedTuple):
    """What trying a rule on the releases that a project allows gave. ``on`` is empty where it holds for all;
    ``partly``: for all of some installations.
    """

    holds: bool
    on: tuple[OnRelease, ...]
    get: Lookup
    partly: bool = False


def _over_releases(
    rule: Rule, condition: Callable[[Lookup], Any], facts: Facts, needs: frozenset[str], release: Release
) -> _Tried | None:
    """The rule on each kind of release that the project allows; None where more than the release is unknown.

    Between two versions that the rule names nothing changes, so each of those, and what lies just below it, stands
    for all. Where a release is not known at all, every one is allowed.
    """
    if rule.when is None or not needs or len(needs) > MOST_LIBRARIES:
        return None
    if not all(name.startswith(OF_RELEASE) for name in needs):
        return None
    names = sorted(needs)
    known = [release(name.removeprefix(OF_RELEASE)) for name in names]
    allowed = [_kinds_of(rule.when, name, each) for name, each in zip(names, known, strict=True)]
    outcomes = [(kinds, condition(facts.assuming(dict(zip(names, kinds, strict=True))))) for kinds in product(*allowed)]
    if not outcomes or any(is_unknown(value) for _, value in outcomes):
        return None
    holding = [kinds for kinds, value in outcomes if value]
    if not holding:
        return _Tried(False, (), facts.get)
    on: list[OnRelease] = []
    for index, (name, each) in enumerate(zip(names, known, strict=True)):
        mine = {kinds[index] for kinds in holding}
        if mine != set(allowed[index]):
            on += _bounds(name, rule.when, allowed[index], mine, each)
    partly = any(each is not None and each.partly for each in known)
    return _Tried(True, tuple(on), facts.assuming(dict(zip(names, holding[-1], strict=True))), partly)


def _kinds_of(tree: Tree, name: str, known: ProjectRelease | None) -> list[Bound]:
    """One release of each kind that the rule tells apart and the project allows, the oldest first."""
    bounds = literals_beside(tree, name)
    kinds = sorted({*bounds, *map(just_below, bounds), *(known.edges() if known else ())})
    return [kind for kind in kinds if known is None or known.allows(kind)]


def _bounds(
    name: str, tree: Tree, allowed: Sequence[Bound], holding: set[Bound], known: ProjectRelease | None
) -> list[OnRelease]:
    """From which release on, and before which, the rule holds; both sides of a gap, of a name some releases had."""
    spans = [(min(holding), max(holding))]
    if spans == [(allowed[0], allowed[-1])]:
        gap = [at for at, kind in enumerate(allowed) if kind not in holding]
        spans = [(allowed[0], allowed[gap[0] - 1]), (allowed[gap[-1] + 1], allowed[-1])]
    named, found = sorted(literals_beside(tree, name)), []
    place = known.place.text() if known and known.place else ""
    for low, high in spans:
        since = next((bound for bound in reversed(named) if bound <= low), None) if low != allowed[0] else None
        before = next((bound for bound in named if bound > high), None) if high != allowed[-1] else None
        specifier = known.specifier if known else ""
        found.append(OnRelease(name.removeprefix(OF_RELEASE), since, before, specifier, place))
    return found


def _on_releases(finding: Finding, on: tuple[OnRelease, ...]) -> Finding:
    """The finding as likely, where it holds for some releases only, its fixes no longer safe; of two spans the new."""
    if not on:
        return finding
    last = tuple({each.library: each for each in on}.values())
    told = finding.severity if all(each.since for each in last) else "info"  # hardly anyone installs an old one
    return lowered(finding._replace(on_releases=last, severity=told), weakest((finding.certainty, "likely")))


def lowered(finding: Finding, certainty: Certainty) -> Finding:
    """The finding at this certainty: a fix is safe only where everything it rests on is certain."""
    if certainty == "certain":
        return finding
    fixes = tuple(fix._replace(safety="unsafe") for fix in finding.fixes)
    return finding._replace(certainty=certainty, fixes=fixes)


def _fire(
    rule: Rule,
    facts: Facts,
    get: Lookup,
    locate: Locate,
    whole: Span,
    settled: frozenset[str] = frozenset(),
) -> Finding:
    """``settled``: facts that were tried in every way they can be, so that how they are known decides nothing."""
    names = tuple(sorted(fact_names(rule.when))) if rule.when is not None else ()
    places = [(name, span) for name in (rule.at or names) if (span := locate(name)) is not None]
    because = _because(rule.when, facts, get) if rule.when is not None else ()
    certainty = weakest(certainty_of(each.origin) for each in because if each.name not in settled)
    mentioned = {*names, *rule.message.placeholders()}
    offered = [fix for candidate in rule.fixes if (fix := _resolve(candidate, facts, get)) is not None]
    sure = [fix if fix.certain else None for fix in offered]
    fixes = tuple(  # what a fix before it writes already is no other way
        fix for at, fix in enumerate(offered) if not any(each and each.edits == fix.edits for each in sure[:at])
    )
    mentioned |= frozenset[str]().union(*(fix.title.placeholders() for fix in fixes))
    values = {name: value for name in sorted(mentioned) if not is_unknown(value := get(name))}
    finding = Finding(
        rule=rule.id,
        severity=rule.severity,
        confidence=rule.confidence,
        message=rule.message,
        span=places[0][1] if places else whole,
        facts=values,
        related=tuple(places[1:]),
        fixes=fixes,
        because=because,
    )
    return lowered(finding, certainty)


def _because(tree: Tree, facts: Facts, get: Lookup) -> tuple[Because, ...]:
    """The facts that made the condition true, each with how it is known."""
    grounds: dict[str, tuple[Origin, str]] = {}

    def doubt(name: str) -> int:
        if name not in grounds:
            grounds[name] = facts.ground(name)
        return CERTAINTIES.index(certainty_of(grounds[name][0]))

    _, names = deciding_facts(tree, get, doubt)
    for name in names:
        doubt(name)
    return tuple(Because(name, get(name), *grounds[name]) for name in sorted(names))


def _hear(rule: Rule, event: Event) -> Finding:
    fixes = tuple(Fix(safety=fix.safety, title=fix.title, edits=event.edits) for fix in rule.fixes if event.edits)
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        confidence=rule.confidence,
        message=rule.message,
        span=event.span,
        facts=dict(event.values),
        related=event.related,
        fixes=fixes,
    )


def _resolve(fix: RuleFix, facts: Facts, get: Lookup) -> Fix | None:
    """The fix with its values computed, less what is written so; None where its condition is known false, a value is
    unknown, or nothing is left to change."""
    applies: Any = True if fix.when is None else compile_tree(fix.when)(get)
    if not is_unknown(applies) and not applies:
        return None
    edits: list[Edit] = []
    rests_on: frozenset[str] = frozenset()
    for name, given in fix.set.items():
        value = given
        if isinstance(given, Computed):
            value = compile_tree(given.tree)(get)
            rests_on |= fact_names(given.tree)
        if isinstance(value, Unknown):
            return None
        if get(WRITTEN + name) is not True or get(name) != value:
            edits.append(Edit("set", name, _plain(value)))
    edits += [Edit("remove", name) for name in fix.remove]
    edits += [Edit("rename", name, key) for name, key in fix.rename.items()]
    if not edits:
        return None
    if is_unknown(applies):
        return Fix(
            fix.safety, fix.title, tuple(edits), certain=False, when=fix.when, needs=tuple(sorted(applies.needs))
        )
    if fix.when is not None:
        rests_on |= {each.name for each in _because(fix.when, facts, get)}
    sure = weakest(certainty_of(facts.ground(name).origin) for name in rests_on) == "certain"
    return Fix(safety=fix.safety if sure else "unsafe", title=fix.title, edits=tuple(edits))


def _plain(value: Any) -> Any:
    """A computed whole number as an int, so that a fix writes 14 and not 14.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
