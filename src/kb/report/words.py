"""One language: the texts of i18n, the facts' meanings and units, and how they are put together."""

from collections.abc import Mapping
from typing import Any

from kb.core.facts import FactType
from kb.core.finding import Finding, Fix
from kb.core.text import Text, fill
from kb.report.values import UNKNOWN, format_value


class Words:
    """What a report needs to speak: the language (``ko`` or ``en``), its texts by key, and the vocabulary."""

    __slots__ = ("facts", "language", "messages")

    def __init__(self, language: str, messages: Mapping[str, str], facts: Mapping[str, FactType]) -> None:
        self.language = language
        self.messages = messages
        self.facts = facts

    def __call__(self, key: str, /, **values: Any) -> str:
        """The text of ``key`` with its placeholders filled; a key without a text shows itself."""
        return fill(self.messages.get(key, key), lambda name, form: self.value(values.get(name), form))

    def named(self, group: str, name: str) -> str:
        """The text of ``group.name``, or the name itself: ``named("term", "logits")``."""
        return self.messages.get(f"{group}.{name}", name)

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
        return self.text(finding.message, finding.facts)

    def fix_title(self, fix: Fix, finding: Finding) -> str:
        """A fix's sentence; it may name the facts of the finding and the values that the fix sets."""
        return self.text(fix.title, {**finding.facts, **{edit.name: edit.value for edit in fix.edits}})

    def fact(self, name: str, value: Any, form: str = "") -> str:
        """A fact's value by its type, without its unit."""
        fact = self.facts.get(name)
        return self.value(value, form, fact.type if fact else None)

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
