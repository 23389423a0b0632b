"""Which errata are about a row of the original guide. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple


class Erratum(NamedTuple):
    """One entry of ``rules/errata.yaml`` as far as a row needs it. ``use`` is in both languages.

    ``places`` are (source, lines): where the claim stands first, then where else the entry looks.
    """

    id: str
    verdict: str
    use: Mapping[str, str]
    places: tuple[tuple[str, str], ...]


def erratum_of(entry: Mapping[str, Any]) -> Erratum:
    """An entry of the errata file."""
    claim = entry["claim"]
    places = tuple((place["source"], place["lines"]) for place in (claim, *claim.get("also", ())))
    return Erratum(entry["id"], entry["verdict"], entry["use"], places)


def errata_of_row(row: Mapping[str, Any], errata: Sequence[Erratum]) -> tuple[Erratum, ...]:
    """What is known to be wrong with the row: the erratum it names first, then those whose claim stands in it."""
    places = [(row["source"], row["lines"])]
    places += [(quantity["source"], quantity["lines"]) for quantity in row["settings"].values() if "lines" in quantity]
    named = [one for one in errata if one.id == row.get("erratum")]
    standing = [one for one in errata if any(overlap(one.places[0], place) for place in places)]
    return (*named, *(one for one in standing if one not in named))


def overlap(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two places (source, lines) have a line in common."""
    (first, last), (begin, end) = _lines(one[1]), _lines(other[1])
    return one[0] == other[0] and first <= end and begin <= last


def _lines(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
