"""Stacked bars of memory with their legend, as a figure of a page: of the guide's own, and of what its reader chose.

Lengths are shares of the width, so that a drawing is as wide as its place and its letters stay as large.
The shapes of other drawings stand below, as SVG text: coordinates in pixels, y downwards.
"""

import html
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from kb.core.memory_report import Phase
from kb.core.record import NamedTuple
from kb.core.units import GIB
from kb.report.terminal import columns
from kb.report.words import Words

MOST_NAMED = 9
BAR_HEIGHT, BAR_LABEL, BAR_GAP = 22, 18, 6  # of a bar, of the words above it, below it
WHOLE = 99.4  # percent of the width that the largest takes: a line at its end is seen whole


class Segment(NamedTuple):
    """One term of a bar: its label, its size in bytes, and the number of its colour (0 to 9)."""

    label: str
    size_bytes: int
    colour: int


class Bar(NamedTuple):
    """A stacked bar with its label; ``low_bytes`` and ``high_bytes`` are the ends of its error band."""

    label: str
    segments: Sequence[Segment]
    low_bytes: int
    high_bytes: int


def figure_html(title: str, drawing: str) -> str:
    """A figure under its title."""
    return (
        f'<figure class="kb-figure" tabindex="0"><figcaption><b>{html.escape(title)}</b></figcaption>{drawing}</figure>'
    )


def term_figure(
    words: Words, phases: Sequence[tuple[str, Phase]], limit_bytes: int | None, title: str
) -> tuple[str, list[Bar]]:
    """A bar for each phase beside its label, one colour for each term, with the legend; and the bars."""
    colours = term_colours([phase for _, phase in phases])
    bars = []
    for label, phase in phases:
        terms = sorted(phase.terms, key=lambda term: (colours[term.name], -term.bytes))
        rest = phase.process_used_bytes - sum(term.bytes for term in terms)
        segments = [Segment(words.named("term", term.name), term.bytes, colours[term.name]) for term in terms]
        segments.append(Segment(words("bars.unused"), max(rest, 0), UNUSED))
        bars.append(Bar(label, segments, phase.low_bytes, phase.high_bytes))
    limit = f"{limit_bytes / GIB:.1f} GiB" if limit_bytes else ""
    named = [(words.named("term", name), colour) for name, colour in colours.items() if colour != SMALL]
    rest_of = [(words("bars.small"), SMALL)] if SMALL in colours.values() else []
    marks = [(f"kb-term--{colour}", label) for label, colour in (*named, *rest_of, (words("bars.unused"), UNUSED))]
    marks += [("kb-swatch--band", words("bars.band")), ("kb-swatch--limit", words("bars.limit"))]
    return figure_html(title, bars_svg(title, bars, limit_bytes, limit) + legend(marks)), bars


def legend(marks: Sequence[tuple[str, str]]) -> str:
    """What each mark stands for: pairs of its class and its name."""
    items = "".join(f'<li><span class="kb-swatch {kind}"></span>{html.escape(name)}</li>' for kind, name in marks)
    return f'<ul class="kb-legend" aria-hidden="true">{items}</ul>'


def term_colours(phases: Sequence[Phase]) -> Mapping[str, int]:
    """A colour for each term: its own for the largest of any phase, one for all others.

    Where two of one colour meet, the smaller is among the others.
    """
    most: dict[str, int] = {}
    for phase in phases:
        for term in phase.terms:
            most[term.name] = max(most.get(term.name, 0), term.bytes)
    found: dict[str, int] = {}
    for name in sorted(most, key=lambda name: -most[name]):
        hue = HUES.get(name, SMALL)
        free = hue not in found.values() and len(found) < MOST_NAMED
        found[name] = hue if free else SMALL
    return found


def bars_svg(
    title: str,
    bars: Sequence[Bar],
    limit_bytes: int | None,
    limit_label: str,
    unit: float = 2**30,
    unit_name: str = "GiB",
) -> str:
    """Stacked bars on one scale, with the card's limit as a line and the error band as a whisker."""
    largest = max([bar.high_bytes for bar in bars] + ([limit_bytes] if limit_bytes else []))
    row = BAR_LABEL + BAR_HEIGHT + BAR_GAP
    parts = []

    def share(size: float) -> str:
        return f"{WHOLE * size / largest:.2f}%"

    for number, bar in enumerate(bars):
        top, left = row * number + BAR_LABEL, 0
        total = sum(segment.size_bytes for segment in bar.segments)
        parts.append(_label("0", top - 5, f"{bar.label} · {total / unit:.1f} {unit_name}", "start"))
        for segment in bar.segments:
            said = html.escape(f"{bar.label} · {segment.label}: {segment.size_bytes / unit:.2f} {unit_name}")
            parts.append(
                f'<g><title>{said}</title><rect class="kb-term kb-term--{segment.colour}" x="{share(left)}" y="{top}" '
                f'width="{share(segment.size_bytes)}" height="{BAR_HEIGHT}"/></g>'
            )
            left += segment.size_bytes
        parts += _whisker(share(bar.low_bytes), share(bar.high_bytes), top + BAR_HEIGHT // 2)
    if limit_bytes:
        at = share(limit_bytes)
        side = "end" if limit_bytes > largest / 2 else "start"
        parts.append(_label(at, row * len(bars) + 14, limit_label, side))
        parts += [  # over the bars, and not through the words above them
            f'<line class="kb-limit" x1="{at}" x2="{at}" y1="{top - 2}" y2="{top + BAR_HEIGHT + 2}"/>'
            for top in range(BAR_LABEL, row * len(bars), row)
        ]
    height = row * len(bars) + (20 if limit_bytes else 0)
    head = f'<svg class="kb-drawing kb-bars" role="img" width="100%" height="{height}">'
    return f"{head}<title>{html.escape(title)}</title>{''.join(parts)}</svg>"


def _whisker(low: str, high: str, middle: int) -> list[str]:
    lines = [(low, high, middle, middle), (low, low, middle - 5, middle + 5), (high, high, middle - 5, middle + 5)]
    return [f'<line class="kb-band" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>' for x1, x2, y1, y2 in lines]


def _label(x: str, y: int, words: str, anchor: str) -> str:
    return f'<text class="kb-label" x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(words)}</text>'


FONT = "system-ui, 'Noto Sans KR', 'Apple SD Gothic Neo', 'Malgun Gothic', sans-serif"
INK, FAINT = "#1a1a1a", "#d0d0d0"
PALE = 0.35
# A term has one colour in every drawing, the playground's too (kb-dom.mjs); those of one colour hardly meet in one run.
HUES = {
    "parameters": 0,
    "optimizer": 1,
    "gradients": 2,
    "gradients_held": 2,
    "activations_decoder": 3,
    "activations_encoder": 4,
    "reference_model": 4,
    "logits": 5,
    "loss": 6,
    "vllm": 6,
    "buckets": 6,
    "activations_head": 7,
    "adapters": 7,
    "vllm_weights": 7,
    "kv_cache_self": 10,
    "gathered": 10,
    "autocast_copies": 10,
    "gathered_parameters": 10,
    "kv_cache_cross": 11,
    "temporaries": 11,
    "quantization": 11,
}
SMALL, UNUSED = 8, 9  # colours of all other terms, and of what no term holds


def document(width: float, height: float, title: str, described: str, parts: list[str]) -> str:
    """A whole drawing on white, with a title and a description for who cannot see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-labelledby="title desc" font-family="{escape(FONT)}" font-size="12">'
    )
    named = [f'<title id="title">{escape(title)}</title>', f'<desc id="desc">{escape(described)}</desc>']
    return "\n".join([head, *named, rect(0, 0, width, height, "#ffffff"), *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", bold: bool = False) -> str:
    """Words whose base line is at ``y``; ``anchor`` is ``start``, ``middle`` or ``end``."""
    weight = ' font-weight="600"' if bold else ""
    placed = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{INK}"{weight}'
    return f"<text {placed}>{escape(words)}</text>"


def rect(x: float, y: float, width: float, height: float, colour: str, *, pale: bool = False) -> str:
    opacity = f' fill-opacity="{PALE}"' if pale else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"{opacity}/>'


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str = INK, *, dashed: bool = False, thick: float = 1
) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{thick:g}"{dashes}/>'


def diamond(x: float, y: float) -> str:
    """A mark whose middle is at the point."""
    return f'<path d="M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z" fill="#000000" stroke="#ffffff"/>'


def group(x: float, y: float, parts: list[str], *, hover: str = "") -> str:
    """Parts moved by ``x`` and ``y``; ``hover`` is shown to a pointer over them."""
    title = f"<title>{escape(hover)}</title>" if hover else ""
    return f'<g transform="translate({x:.1f} {y:.1f})">{title}{"".join(parts)}</g>'


def marks_in_rows(
    marks: Sequence[tuple[str, str]], ends: tuple[float, float], y: float, *, step: float, column: float
) -> list[str]:
    """A drawing's legend: marks with their labels between two ends, in rows ``step`` apart; ``column``: pixels of one
    column of text."""
    left, right = map(float, ends)
    parts, x = [], left
    for mark, label in marks:
        width = 36 + column * columns(label)
        if x + width > right and x > left:
            x, y = left, y + step
        parts.append(group(x, y, [mark, text(20, 10, label, size=11)]))
        x += width
    return parts


def path(points: list[tuple[float, float]], colour: str) -> str:
    """A line through points."""
    return f'<path d="{_through(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def area(points: list[tuple[float, float]], colour: str) -> str:
    """What points enclose."""
    return f'<path d="{_through(points)}Z" fill="{colour}"/>'


def _through(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
