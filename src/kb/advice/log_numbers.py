"""The numbers and names that an error message gives, and what follows from them. Sizes in bytes. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kb.core.expression import Unknown, compile_tree, is_unknown
from kb.core.units import parse_bytes

Lookup = Callable[[str], Any]


class Numbers:
    """The variables of a remedy for one piece of evidence, by name; found in the text, else computed from others.

    Args:
        variables: the remedy's ``variables``: ``find`` reads a value from the text, ``compute`` gives one without.
        text: the evidence, with the lines that go on with it.
        given: values known otherwise (the phase).
        facts: looks up every other name.
    """

    def __init__(
        self, variables: Mapping[str, Mapping[str, Any]], text: str, given: Mapping[str, Any], facts: Lookup
    ) -> None:
        self._variables = variables
        self._text = text
        self._known: dict[str, Any] = dict(given)
        self._facts = facts

    def get(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        if name not in self._variables:
            return self._facts(name)
        self._known[name] = Unknown(frozenset((name,)))  # while its own expression is evaluated
        value = self._found(self._variables[name])
        tree = self._variables[name].get("compute_tree")
        if value is None and tree is not None:
            value = compile_tree(tree)(self.get)
        if value is not None and not is_unknown(value):
            self._known[name] = value
        return self._known.pop(name) if is_unknown(self._known[name]) else self._known[name]

    def known(self) -> dict[str, int]:
        """Every size that is known and not negative, in the order of the file."""
        values = {name: self.get(name) for name, row in self._variables.items() if row["type"] == "bytes"}
        return {name: round(value) for name, value in values.items() if not is_unknown(value) and value >= 0}

    def _found(self, row: Mapping[str, Any]) -> int | str | None:
        match = re.search(row["find"], self._text) if "find" in row else None
        written = next((group for group in match.groups() if group), None) if match else None
        if written is None or row["type"] == "text":
            return written
        try:
            return parse_bytes(re.sub(r"\bbytes?\b", "B", written))
        except ValueError:
            return None
