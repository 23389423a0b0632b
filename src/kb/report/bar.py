"""A ledger as one line of cells: the largest terms, the rest, the error band, and where the limit lies."""

from collections.abc import Sequence
from typing import NamedTuple

from kb.report.style import Style

NAMED_SEGMENTS = 3  # more shades than these and one for the rest cannot be told apart


class Glyphs(NamedTuple):
    segments: str  # one for each named segment, then the rest
    band: str
    limit: str


BLOCKS = Glyphs("█▓▒░", "╌", "│")
ASCII = Glyphs("#=+.", "~", "|")
_ROLES = ("blue", "magenta", "cyan", "dim")


class Bar(NamedTuple):
    """Sizes in bytes. ``segments`` add up to the expected use; ``limit`` is None where nothing limits."""

    segments: Sequence[int]
    high: int
    limit: int | None
    scale: int  # what the full width stands for


def glyphs(style: Style) -> Glyphs:
    return BLOCKS if style.unicode else ASCII


def swatch(index: int, style: Style) -> str:
    """The mark of a segment, for a legend."""
    return style.paint(glyphs(style).segments[index], _ROLES[index])


def draw(bar: Bar, width: int, style: Style) -> str:
    """``width`` cells and, among them, the limit's mark (so one column more, limit or not)."""
    marks = glyphs(style)
    scale = max(bar.scale, 1)
    cells: list[tuple[str, str]] = []
    total = 0
    for index, part in enumerate(bar.segments):
        total += part
        fill = min(round(total / scale * width), width) - len(cells)
        cells += [(marks.segments[index], _ROLES[index])] * max(fill, 0)
    cells += [(marks.band, "dim")] * (min(round(bar.high / scale * width), width) - len(cells))
    cells += [(" ", "")] * (width - len(cells))
    if bar.limit is None:
        cells.append((" ", ""))
    else:
        cells.insert(min(round(bar.limit / scale * width), width), (marks.limit, "heading"))
    return _paint_runs(cells, style)


def _paint_runs(cells: list[tuple[str, str]], style: Style) -> str:
    if not style.color:
        return "".join(character for character, _ in cells)
    parts: list[str] = []
    run, role = "", ""
    for character, its_role in [*cells, ("", "end")]:
        if its_role != role:
            parts.append(style.paint(run, role))
            run, role = "", its_role
        run += character
    return "".join(parts)
