"""Rows of the memory panel: each phase as a bar with its terms, and the verdict on known GPUs."""

from collections.abc import Sequence

from kb.core.hardware import Gpu
from kb.core.memory_report import Term
from kb.core.record import NamedTuple
from kb.core.result import GpuFit
from kb.core.units import BYTES_PER_UNIT, GIB, format_bytes, rounded_down, rounded_up
from kb.report.terminal import INDENT, Style, columns, cut, pad, unbroken, wrap
from kb.report.values import short_name
from kb.report.words import Words

NAMED_SEGMENTS = 3  # more shades than these and one for the rest cannot be told apart
WIDEST_BAR, NARROWEST_BAR = 36, 8
BAR_INDENT = INDENT * 2
SHOWN_BYTES = 0.05 * GIB  # less is 0.0 GiB


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


class Row(NamedTuple):
    """One bar: a phase, or the host. Sizes in bytes."""

    label: str
    terms: tuple[Term, ...]  # what the process holds beside the ledger's terms included
    used: int
    low: int
    high: int
    limit: int | None
    deciding: str | None = None  # the term that decides
    said: str = "unknown"  # the ledger's own verdict
    unit: str = "GiB"

    @property
    def status(self) -> str:
        """The verdict on this row alone."""
        return "unknown" if self.limit is None else self.said


class Layout(NamedTuple):
    """Columns of the labels, of the bars and of the numbers, the same for every row of a panel."""

    label: int
    bar: int
    number: int


def layout_of(rows: Sequence[Row], words: Words, style: Style) -> Layout:
    label = max(columns(row.label) for row in rows)
    number = max(columns(_number(row, style)) for row in rows)
    verdict = max(columns(_verdict(row, words)) for row in rows)
    # a blank after the label, the limit's mark, a blank, a blank before the verdict
    room = style.width - len(BAR_INDENT) - label - 1 - 1 - 1 - number - 1 - verdict
    return Layout(label, max(min(room, WIDEST_BAR), NARROWEST_BAR), number)


def draw_rows(rows: Sequence[Row], layout: Layout, words: Words, style: Style, legends: int | None = None) -> list[str]:
    """Bars on one scale, each with its legend; ``legends`` bounds how many of those, largest use first."""
    scale = max((max(row.high, row.used, row.limit or 0) for row in rows), default=0)
    explained = sorted(rows, key=lambda row: row.used, reverse=True)[:legends]
    lines: list[str] = []
    for row in rows:
        named, rest = _segments(row)
        bar = Bar(segments=[*(term.bytes for term in named), rest], high=row.high, limit=row.limit, scale=scale)
        drawn = draw(bar, layout.bar, style)
        number = f"{_number(row, style):<{layout.number}}"
        verdict = style.paint(_verdict(row, words), row.status)
        lines.append(f"{BAR_INDENT}{pad(row.label, layout.label)} {drawn} {number} {verdict}".rstrip())
        if row in explained:
            lines += _legend(row, named, rest, words, style)
    return lines


def _number(row: Row, style: Style) -> str:
    low, high = rounded_down(row.low, row.unit), rounded_up(row.high, row.unit)  # outward: the range stays true
    band = f"{_bare(low, row)}{style.dash}{_bare(high, row)}"
    used = format_bytes(row.used, row.unit) + " " * (len("GiB") - len(row.unit))
    return f"{used:>9} ({band})"


def _bare(count: int, row: Row) -> str:
    """A size in the row's unit, without the unit."""
    return f"{count / BYTES_PER_UNIT[row.unit.upper()]:,.1f}"


def _verdict(row: Row, words: Words) -> str:
    return "" if row.limit is None else words.named("verdict", row.status)


def _segments(row: Row) -> tuple[list[Term], int]:
    """The terms to name, largest first (the deciding one always among them), and the bytes of all the rest."""
    named = sorted(row.terms, key=lambda term: (term.name != row.deciding, -term.bytes))[:NAMED_SEGMENTS]
    named = sorted((term for term in named if term.bytes > 0), key=lambda term: -term.bytes)
    return named, row.used - sum(term.bytes for term in named)


def _legend(row: Row, named: Sequence[Term], rest: int, words: Words, style: Style) -> list[str]:
    """``█ optimizer states 4.3  ▓ parameters 2.2  ░ 4 others 1.0``, in the row's unit; as many lines as it takes."""
    parts = [
        (swatch(index, style), f"{words.named('term', term.name)} {_bare(term.bytes, row)}")
        for index, term in enumerate(named)
    ]
    others = sum(term.bytes > 0 for term in row.terms) - len(named)
    if rest >= SHOWN_BYTES and others > 0:
        text = f"{words.count('report.other_terms', others)} {_bare(rest, row)}"
        parts.append((swatch(NAMED_SEGMENTS, style), text))
    indent = BAR_INDENT + "  "
    lines: list[str] = []
    line, used = "", 0
    for mark, text in parts:
        text = cut(text, style.width - len(indent) - 2, style.ellipsis)
        if used and len(indent) + used + 2 + 2 + columns(text) > style.width:
            lines.append(indent + line)
            line, used = "", 0
        gap = "  " if used else ""
        line += f"{gap}{mark} {text}"
        used += len(gap) + 2 + columns(text)
    return [*lines, indent + line] if line else lines


def gpu_table(fits: Sequence[GpuFit], words: Words, style: Style) -> list[str]:
    """By memory, smallest first: a row for each run of GPUs with the same verdict."""
    rows: list[tuple[str, list[GpuFit]]] = []
    for fit in sorted(fits, key=lambda fit: (fit.gpu.memory_total, short_name(fit.gpu))):
        if not rows or rows[-1][0] != fit.verdict.status:
            rows.append((fit.verdict.status, []))
        rows[-1][1].append(fit)
    sizes = [_sizes([fit.gpu for fit in members], style) for _, members in rows]
    wide_size = max((columns(text) for text in sizes), default=0)
    wide = max((columns(words.named("verdict", status)) for status, _ in rows), default=0)
    lines = [f"    {words('report.known_gpus')}"] if rows else []
    for text, (status, members) in zip(sizes, rows, strict=True):
        verdict = words.named("verdict", status)
        lead = f"      {' ' * (wide_size - columns(text))}{text}  "
        hanging = " " * (columns(lead) + wide + 2)
        names = ", ".join(unbroken(short_name(fit.gpu)) for fit in members)
        first, *others = wrap(names, style.width, hanging)
        lines += [f"{lead}{style.paint(verdict, status)}{' ' * (wide + 2 - columns(verdict))}{first.strip()}", *others]
    return lines


def _sizes(gpus: Sequence[Gpu], style: Style) -> str:
    """``24 GiB``, or ``32–179 GiB`` of several; GPUs are in the order of their memory."""
    low, high = (round(gpu.memory_total / GIB) for gpu in (gpus[0], gpus[-1]))
    return f"{low} GiB" if low == high else f"{low}{style.dash}{high} GiB"
