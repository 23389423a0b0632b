"""The wordings of ``rules/remedies``, made ready to be looked for: a cheap word first, then the expression. Pure."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

Place = Literal["message", "start", "anywhere"]


class Wording:
    """One expression to look for: evidence for a remedy, or a context that tells what evidence near it means.

    ``holds``: words of which a matching line has one. The expression is compiled when a line first has one of them: a
    log has few of all the wordings known, and compiling takes longer than reading most logs.
    """

    __slots__ = ("__dict__", "holds", "name", "row")

    def __init__(self, name: str, row: Mapping[str, Any]) -> None:
        self.name = name  # the remedy's id, or the context's name
        self.row = row
        self.holds: tuple[str, ...] = tuple(row["holds"])

    @property
    def at(self) -> Place:
        place: Place = self.row.get("at", "message")
        return place

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile(self.row["match"])

    @cached_property
    def exception(self) -> re.Pattern[str] | None:
        return re.compile(self.row["unless"]) if "unless" in self.row else None

    def may_be_in(self, text: str) -> bool:
        return any(word in text for word in self.holds)

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """The match in a line whose own text begins at ``start``."""
        if self.at == "start":
            return self.expression.match(text, start)
        return self.expression.search(text, start if self.at == "message" else 0)


def contexts_of(remedies: Mapping[str, Mapping[str, Any]]) -> list[Wording]:
    """Every context, of whichever file."""
    return [Wording(name, row) for data in remedies.values() for name, row in data.get("contexts", {}).items()]


def evidence_of(remedies: Mapping[str, Mapping[str, Any]]) -> list[Wording]:
    """Every wording that is evidence, in the order of the files."""
    return [
        Wording(name, row)
        for name, data in sorted(remedies.items())
        if "deprecated" not in data
        for row in data.get("patterns", ())
    ]
