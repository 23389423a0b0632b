"""Every fact of the original guide stands somewhere under rules/, as a datum that cites its lines.

``tests/data/inventory.json`` lists the notes' facts: source, lines, kind. A datum is any mapping that has a ``source``
and ``lines``. Lines that a rule of ``checks/`` merely names under ``sources`` do not count.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

RULES = Path(__file__).parents[2] / "rules"
INVENTORY = Path(__file__).parents[1] / "data" / "inventory.json"

# A datum that cites a whole section does not thereby hold every fact of it.
LINES_OF_CONTEXT = 3


class Fact(NamedTuple):
    source: str
    first: int
    last: int
    kind: str

    def __str__(self) -> str:
        lines = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.source} {lines} ({self.kind})"


def facts() -> list[Fact]:
    return [Fact(source, *ends(lines), kind) for source, lines, kind in json.loads(INVENTORY.read_text("utf-8"))]


def ends(lines: str) -> tuple[int, int]:
    first, _, last = lines.partition("-")
    return int(first), int(last or first)


def citations(data: Any) -> Iterator[tuple[str, int, int]]:
    if isinstance(data, dict):
        if isinstance(data.get("source"), str) and "lines" in data:
            yield (data["source"], *ends(str(data["lines"])))
        for value in data.values():
            yield from citations(value)
    elif isinstance(data, list):
        for value in data:
            yield from citations(value)


def named_errata(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "erratum" and isinstance(value, str):
                yield value
            else:
                yield from named_errata(value)
    elif isinstance(data, list):
        for value in data:
            yield from named_errata(value)


def rules_files() -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {
        str(path.relative_to(RULES)): yaml.load(path.read_text("utf-8"), loader)
        for path in sorted(RULES.rglob("*.yaml"))
    }


@pytest.fixture(scope="module")
def rules() -> dict[str, Any]:
    return rules_files()


@pytest.fixture(scope="module")
def cited(rules: dict[str, Any]) -> set[tuple[str, int, int]]:
    return set(citations(list(rules.values())))


def holds(datum: tuple[str, int, int], fact: Fact) -> bool:
    source, first, last = datum
    wider = (last - first) - (fact.last - fact.first)
    return source == fact.source and first <= fact.first and fact.last <= last and wider <= LINES_OF_CONTEXT


def test_the_inventory_is_whole() -> None:
    assert len(facts()) == 360
    assert {fact.source for fact in facts()} == {
        "guide-batch-by-gpu",
        "guide-batch-by-gpu-damaged",
        "guide-memory",
        "guide-batch-inference",
        "history-mt5-qlora",
    }


@pytest.mark.long
def test_every_fact_of_the_field_notes_is_cited_by_a_datum(cited: set[tuple[str, int, int]]) -> None:
    missing = [str(fact) for fact in facts() if not any(holds(datum, fact) for datum in cited)]
    assert not missing, f"{len(missing)} facts that nothing under rules/ cites:\n" + "\n".join(missing)


@pytest.mark.long
def test_every_citation_lies_within_its_note(cited: set[tuple[str, int, int]]) -> None:
    last: dict[str, int] = {}
    for fact in facts():
        last[fact.source] = max(last.get(fact.source, 0), fact.last)
    beyond = [datum for datum in cited if datum[0] in last and not 1 <= datum[1] <= datum[2] <= last[datum[0]]]
    assert not beyond


def test_every_erratum_that_a_datum_names_exists(rules: dict[str, Any]) -> None:
    known = {entry["id"] for entry in rules.get("errata.yaml", {}).get("errata", [])}
    unknown = {f"{name}: {erratum}" for name, data in rules.items() for erratum in named_errata(data)}
    unknown = {entry for entry in unknown if entry.rpartition(": ")[2] not in known}
    assert not unknown, "\n".join(sorted(unknown))


def test_a_wide_citation_does_not_hold_every_fact_inside_it() -> None:
    fact = Fact("guide-memory", 14, 14, "formula")
    assert holds(("guide-memory", 14, 14), fact)
    assert holds(("guide-memory", 13, 16), fact)
    assert not holds(("guide-memory", 11, 16), fact)
    assert not holds(("guide-batch-by-gpu", 14, 14), fact)
