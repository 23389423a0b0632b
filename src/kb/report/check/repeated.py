"""A finding that stands in many files alike is told once, with its places behind; the others point back to it.

Files are worded apart, some of them by other processes or in an earlier run: each wording marks its findings, and what
is written out one behind the other is unmarked as it comes.
"""

import re
from collections.abc import Sequence

from kb.core.finding import Finding
from kb.report.terminal import Style, unbroken, wrap
from kb.report.words import Words

GAP = "\n\n"  # between the blocks of a report
_MARK, _PART = "\x1d", "\x1f"  # no output has them: what comes from outside is printable
_MARKED = rf"{GAP}{_MARK}([^{_MARK}]*){_MARK}"
_RUN = rf"(?:{_MARKED})+"
MOST_PLACES = 3


def marked(finding: Finding, path: str, words: Words, lines: Sequence[str]) -> list[str]:
    """The lines of a finding, as one text that says which it is and where it stands."""
    told = " ".join((finding.severity, finding.rule, words.message(finding)))
    parts = (told, finding.rule, f"{path}:{finding.span.line}", "\n".join(lines))
    return [_MARK + _PART.join(parts) + _MARK]


class Repeated:
    """Unmarks the texts of one report, in their order. ``places``: by the finding, its rule and where it stands too."""

    def __init__(self, words: Words, style: Style) -> None:
        self._words, self._style = words, style
        self._places: dict[str, tuple[str, list[str]]] = {}

    def unmarked(self, text: str) -> str:
        """The text with each finding that was not told yet, and a line of those that were."""
        return re.sub(_RUN, self._of_unit, text) if _MARK in text else text

    def _of_unit(self, found: re.Match[str]) -> str:
        kept, again = [], []
        for parts in re.findall(_MARKED, found[0]):
            told, rule, place, block = parts.split(_PART)
            if told in self._places:
                self._places[told][1].append(place)
                again.append(unbroken(f"{rule}:{place.rpartition(':')[2]}"))
            else:
                self._places[told] = (rule, [])
                kept.append(block)
        if again:
            said = self._words("report.told_above", findings=", ".join(again))
            lines = wrap(said, self._style.width, "  ", "    ")
            kept.append("\n".join(self._style.paint(line, "dim") for line in lines))
        return "".join(GAP + each for each in kept)

    def lines(self) -> list[str]:
        """Where else each finding stands, most often first."""
        made = []
        for rule, places in sorted(self._places.values(), key=lambda each: -len(each[1])):
            if not places:
                continue
            shown = [unbroken(place) for place in places[:MOST_PLACES]]
            if len(places) > MOST_PLACES:
                shown.append(self._words("report.and_more", n=len(places) - MOST_PLACES))
            said = self._words.count("report.repeated", len(places))
            made += wrap(f"{rule}: {said} {', '.join(shown)}", self._style.width, "", "  ")
        return made
