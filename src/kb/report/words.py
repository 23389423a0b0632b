"""One language: the texts of i18n, the facts' meanings and units, and how they are put together."""

import re
from collections.abc import Collection, Mapping, Sequence

from kb.core.expression import is_unknown
from kb.core.facts import FactType
from kb.core.finding import Finding, Fix, OnRelease
from kb.core.memory_report import Phase
from kb.core.record import NamedTuple
from kb.core.setup import Assumption
from kb.core.text import Text, fill, os_reasons, placeholders_in
from kb.core.typed import Any
from kb.core.units import GIB, rounded_down, rounded_up
from kb.report.values import UNKNOWN, format_value, host_size, is_of_host

FEW = 2  # so many conditions stand before what they are of; more come behind it


class RulePages(NamedTuple):
    """The rules' pages: the address of the site, empty where it is not known, and the rules that it has no page of."""

    site: str = ""
    without: Collection[str] = ()

    def path(self, rule: str, language: str) -> str | None:
        """A rule's page below the root of the site."""
        if rule in self.without:
            return None
        return f"{'' if language == 'ko' else f'{language}/'}rules/{rule}/"

    def address(self, rule: str, language: str) -> str | None:
        """A rule's page, to be opened; None where there is none, or none is known."""
        below = self.path(rule, language)
        return f"{self.site}{below}" if self.site and below else None


NO_SITE = RulePages()


class Words:
    """What a report needs to speak: the language (``ko`` or ``en``), its texts by key, the vocabulary, the pages."""

    __slots__ = ("facts", "language", "messages", "pages")

    def __init__(
        self, language: str, messages: Mapping[str, str], facts: Mapping[str, FactType], pages: RulePages = NO_SITE
    ) -> None:
        self.language = language
        self.messages = messages
        self.facts = facts
        self.pages = pages

    def __call__(self, key: str, /, **values: Any) -> str:
        """The text of ``key`` with its placeholders filled; a key without a text shows itself."""
        values = os_reasons(values, self.messages)
        return fill(self.messages.get(key, key), lambda name, form: self.value(values.get(name), form))

    def named(self, group: str, name: str) -> str:
        """The text of ``group.name``, or the name itself: ``named("term", "logits")``."""
        return self.messages.get(f"{group}.{name}", name)

    def phase(self, phase: Phase) -> str:
        """A phase's name; generation for inference, with a batch of its own, is told from evaluation's."""
        return self.named("phase", "inference" if phase.use == "inference" else phase.name)

    def count(self, key: str, number: int) -> str:
        """A counted noun: the text of ``key.one`` for 1, of ``key.many`` for any other number."""
        return self(f"{key}.{'one' if number == 1 else 'many'}", n=number)

    def text(self, text: Text, values: Mapping[str, Any]) -> str:
        """A rule's sentence with the numbers in it."""
        return fill(text.in_language(self.language), lambda name, form: self.fact(name, values.get(name), form))

    def described(self, text: Text) -> str:
        """A rule's sentence without numbers: each placeholder as what it stands for, in angle quotes."""
        return fill(text.in_language(self.language), lambda name, form: f"‹{self.meaning(name)}›")

    def message(self, finding: Finding) -> str:
        """What it says; of one that is not certain, under which condition first. Many conditions come behind it."""
        said = self.text(_without_unknown(finding.message, finding.facts), finding.facts)
        conditions = [self("certainty.likely")] if finding.as_likely else []
        conditions += [self._releases(each) for each in finding.on_releases]
        clauses = self._clauses(finding.if_so)
        if len(clauses) > FEW:
            said = f"{said} {self._all('certainty.rests', clauses)}"
        elif clauses:
            conditions.append(self.if_so(finding.if_so))
        if not conditions:
            return said
        condition = ", ".join(conditions)
        if self.language == "en":  # a Korean condition may begin with a library's name, which stays as it is
            condition = f"{condition[0].upper()}{condition[1:]}"
        return f"{condition}: {said}"

    def if_so(self, assumed: Sequence[Assumption]) -> str:
        """``if this runs on one GPU and inputs reach 512 tokens``: the assumptions that something rests on."""
        clauses = self._clauses(assumed)
        if len(clauses) > FEW:
            return self._all("certainty.if_all", clauses)
        both, two = clauses[0], self.messages.get("certainty.two", "{first}, {rest}")
        for clause in clauses[1:]:
            both = two.replace("{first}", both).replace("{rest}", clause)
        return self.messages.get("certainty.if", "{clauses}").replace("{clauses}", both)

    def ways_to_say(self, assumed: Sequence[Assumption]) -> str:
        """Where to say what was assumed: options, and names for ``[facts]``."""
        ways = [
            "--model-config FILE" if each.name == "model.name" else self.messages.get(f"certainty.say.{each.name}", "")
            for each in assumed
        ]
        return ", ".join(dict.fromkeys(way for way in ways if way))

    def _all(self, key: str, clauses: Sequence[str]) -> str:
        return self.messages.get(key, "{clauses}").replace("{clauses}", "; ".join(clauses))  # filled, it would be cut

    def _clauses(self, assumed: Sequence[Assumption]) -> list[str]:
        """One for each that reads differently."""
        return list(dict.fromkeys(self._clause(each) for each in assumed))

    def _clause(self, each: Assumption) -> str:
        names = (f"certainty.clause.{each.name}.{each.reason}", f"certainty.clause.{each.name}")
        values = {"name": each.name.rpartition(".")[2], "value": each.value}
        kind = "default" if each.reason == "library_default" else "other"
        return self(next((key for key in names if key in self.messages), f"certainty.clause.{kind}"), **values)

    def _releases(self, on: OnRelease) -> str:
        """``with transformers 5.15 or newer, which ">=5.0" (requirements.txt:3) allows``."""
        kind = "between" if on.since and on.before else "since" if on.since else "before"
        since, before = (".".join(map(str, bound)) if bound else "" for bound in (on.since, on.before))
        allowed = f"{on.specifier} ({on.place})" if on.place else on.specifier
        return self(f"certainty.release.{kind}", library=on.library, since=since, before=before, allowed=allowed)

    def fix_title(self, fix: Fix, finding: Finding) -> str:
        """A fix's sentence; it may name the facts of the finding and the values that the fix sets."""
        return self.text(fix.title, {**finding.facts, **{edit.name: edit.value for edit in fix.edits}})

    def fact(self, name: str, value: Any, form: str = "") -> str:
        """A fact's value by its type, without its unit."""
        fact = self.facts.get(name)
        kind = fact.type if fact else None
        if value == "":  # a flag that has none
            return self.named("value", "nothing")
        if kind == "bytes" and not form and is_of_host(name) and isinstance(value, int | float):
            form = host_size(round(value)).rpartition(" ")[2]
        if kind == "bytes" and name.endswith((".low", ".high")) and isinstance(value, int | float):
            outward = rounded_down if name.endswith(".low") else rounded_up  # "at least" and "up to" stay true
            value = outward(value, form or "GiB") if value >= GIB else value
        return self.value(value, form, kind)

    def value(self, value: Any, form: str = "", kind: str | None = None) -> str:
        return format_value(value, form, kind, self.messages)

    def unit(self, name: str) -> str:
        """The fact's unit as a word, or nothing; sizes carry theirs in the value."""
        fact = self.facts.get(name)
        return self.named("unit", fact.unit) if fact and fact.unit and fact.type != "bytes" else ""

    def measured(self, name: str, value: Any) -> str:
        """The value with its unit: ``40 samples``, ``21.3 GiB``."""
        unit, shown = self.unit(name), self.fact(name, value)
        return self("report.measured", value=shown, unit=unit) if unit and shown != UNKNOWN else shown

    def meaning(self, name: str) -> str:
        """What the fact is, in words; its name where the meanings are not loaded."""
        fact = self.facts.get(name)
        return (fact.meaning.in_language(self.language) if fact else "") or name


# ", at least {memory.train.low:GiB}" and " (최소 {memory.train.low:GiB})"
_LOW_END = r"(?:, [^,;.{}]*| \([^(){}]*)\{(\w[\w.]*\.low)(?::\w+)?\}\)?"


def _without_unknown(text: Text, facts: Mapping[str, Any]) -> Text:
    """The message less its sentences with a fact that has no value: "5 workers stay within it" where none do. Of a low
    end that is not known the words around it alone go."""

    def known(part: str) -> str:
        if ".low" in part and not any(name.endswith(".low") for name in facts):  # most messages need no pattern
            part = re.sub(_LOW_END, "", part)
        if says_all(part):  # most do
            return part
        sentences = _sentences(part)
        return " ".join([one for one in sentences if says_all(one)] or sentences)

    def says_all(part: str) -> bool:
        found = (facts.get(name) for name, _, _ in placeholders_in(part))
        return not any(value is None or is_unknown(value) for value in found)

    return Text(known(text.ko), known(text.en))


def _sentences(text: str) -> list[str]:
    """The text, parted at the blanks behind full stops."""
    found, start, stop = [], 0, text.find(".")
    while stop >= 0:
        behind = text[stop + 1 :]
        blanks = len(behind) - len(behind.lstrip())
        if 0 < blanks < len(behind):
            found.append(text[start : stop + 1])
            start = stop + 1 + blanks
        stop = text.find(".", stop + 1)
    return [*found, text[start:]]
