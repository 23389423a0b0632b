"""Rules over facts: findings, and what could not be decided. Pure; nothing is worded here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kb.core.document import Event
from kb.core.expression import Evaluator, Unknown, compile_tree, fact_names, is_unknown
from kb.core.facts import Facts
from kb.core.finding import Edit, Finding, Fix, NotEvaluated, Span
from kb.core.rule import Computed, Rule, RuleFix

Locate = Callable[[str], Span | None]
"""Where a fact's setting stands in the file; None for a fact that no setting gives."""


class LintResult(NamedTuple):
    findings: tuple[Finding, ...]
    not_evaluated: tuple[NotEvaluated, ...]


class Linter:
    """A set of rules, compiled once, to be run over many units."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._conditions: list[tuple[Rule, Evaluator, tuple[str, ...]]] = []
        self._listeners: dict[str, list[Rule]] = {}
        for rule in rules:
            if rule.when is not None:
                self._conditions.append((rule, compile_tree(rule.when), tuple(sorted(fact_names(rule.when)))))
            elif rule.on is not None:
                self._listeners.setdefault(rule.on, []).append(rule)

    def lint(self, facts: Facts, locate: Locate, events: Sequence[Event], whole: Span) -> LintResult:
        """Findings of every rule, in the order of their places; ``whole`` is where a finding without one goes."""
        findings: list[Finding] = []
        undecided: list[NotEvaluated] = []
        for rule, condition, names in self._conditions:
            value = condition(facts.get)
            if is_unknown(value):
                undecided.append(NotEvaluated(rule=rule.id, needs=tuple(sorted(value.needs))))
            elif value:
                findings.append(_fire(rule, names, facts, locate, whole))
        findings += self.hear(events)
        return LintResult(tuple(sorted(findings, key=place_of)), tuple(undecided))

    def hear(self, events: Iterable[Event]) -> list[Finding]:
        """The findings of events alone."""
        return [_hear(rule, event) for event in events for rule in self._listeners.get(event.kind, ())]


def place_of(finding: Finding) -> tuple[int, int, str]:
    """Findings are shown in this order."""
    return finding.span.line, finding.span.column, finding.rule


def _fire(rule: Rule, names: tuple[str, ...], facts: Facts, locate: Locate, whole: Span) -> Finding:
    places = [(name, span) for name in (rule.at or names) if (span := locate(name)) is not None]
    mentioned = {*names, *rule.message.placeholders()}
    fixes = tuple(fix for candidate in rule.fixes if (fix := _resolve(candidate, facts)) is not None)
    mentioned |= frozenset[str]().union(*(fix.title.placeholders() for fix in fixes))
    values = {name: value for name in sorted(mentioned) if not is_unknown(value := facts.get(name))}
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        confidence=rule.confidence,
        message=rule.message,
        span=places[0][1] if places else whole,
        facts=values,
        related=tuple(places[1:]),
        fixes=fixes,
    )


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


def _resolve(fix: RuleFix, facts: Facts) -> Fix | None:
    """The fix with its values computed; None where its condition is known false or a value is unknown."""
    applies: Any = True if fix.when is None else compile_tree(fix.when)(facts.get)
    if not is_unknown(applies) and not applies:
        return None
    edits: list[Edit] = []
    for name, given in fix.set.items():
        value = compile_tree(given.tree)(facts.get) if isinstance(given, Computed) else given
        if isinstance(value, Unknown):
            return None
        edits.append(Edit("set", name, _plain(value)))
    edits += [Edit("remove", name) for name in fix.remove]
    edits += [Edit("rename", name, key) for name, key in fix.rename.items()]
    if is_unknown(applies):
        return Fix(
            fix.safety, fix.title, tuple(edits), certain=False, when=fix.when, needs=tuple(sorted(applies.needs))
        )
    return Fix(safety=fix.safety, title=fix.title, edits=tuple(edits))


def _plain(value: Any) -> Any:
    """A computed whole number as an int, so that a fix writes 14 and not 14.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def facts_of(rule: Rule) -> frozenset[str]:
    """Every fact a rule reads: to test its condition, to word its message, to compute its fixes."""
    trees = [rule.when, *(fix.when for fix in rule.fixes)]
    trees += [value.tree for fix in rule.fixes for value in _values(fix.set) if isinstance(value, Computed)]
    names = frozenset[str]().union(*(fact_names(tree) for tree in trees if tree is not None))
    return names | (rule.message.placeholders() if rule.on is None else frozenset())


def _values(mapping: Mapping[str, Any]) -> Iterable[Any]:
    return mapping.values()
