"""A run's GPU memory over time: allocated by role, and reserved, with what is alive at a phase's peak.

As a page shows it, it is HTML that needs no script: the largest tensors are those at the peak. ``kb-timeline.mjs`` of
the guide shows those of other moments under a pointer or a slider. Lengths are shares of the drawing's, so that it is
as wide as its place. As a file it is an SVG, in pixels.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from kb.advice.estimate import Estimated
from kb.core.record import NamedTuple
from kb.core.units import GIB, MIB
from kb.memory.timeline import ROLES, Moment, Point, Span, Timeline, TopTensor, role_of, thinned
from kb.report.bars import FAINT, HUES, INK, area, diamond, document, group, line, marks_in_rows, path, rect, text
from kb.report.terminal import columns
from kb.report.values import printable
from kb.report.words import Words

SIZE = 1000  # of the drawing, both ways: it is stretched to its place
MOST_POINTS, MOST_ROWS = 420, 10
MOMENTS = 72  # of a run, at which a page can say what is alive
STEPS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # GiB between two lines of the grid
NARROW, WIDE = 8, 16  # percent: below, a phase's name has no room, and none on a phone
# the term whose colour stands for a role; activations are those of the larger stack
ROLE_TERMS = dict(
    zip(ROLES, ("parameters", "optimizer", "gradients", "activations_decoder", "logits", "temporaries"), strict=True)
)


class Scale(NamedTuple):
    """From events and bytes to shares of the drawing, in its own units."""

    events: int
    top_bytes: float

    def x(self, event: float) -> int:
        return round(SIZE * event / max(self.events, 1))

    def y(self, size: float) -> int:
        return round(SIZE * (1 - size / self.top_bytes))


def _shown(points: Sequence[Point], limit_bytes: int | None) -> tuple[int, int | None]:
    """The most that is reserved, and the GPU's memory where the run comes near."""
    highest = max((point.reserved_bytes for point in points), default=0) or GIB
    return highest, limit_bytes if limit_bytes is not None and limit_bytes < 3 * highest else None


def _grid(top_bytes: float, most: int) -> list[float]:
    """Sizes at which a line is drawn, in GiB; ``most``: about how many."""
    top = top_bytes / GIB
    step = next((step for step in STEPS if top / step <= most), STEPS[-1])
    return [number * step for number in range(int(top / step) + 1)]


def timeline_html(found: Any, words: Words, title: str, limit_bytes: int | None) -> str:
    """The figure of a followed run, with its words in the reader's language.

    Args:
        found: the run over time with its moments (``Traced``).
        limit_bytes: the GPU's memory; in the drawing where the run comes near.
    """
    timeline: Timeline = found.timeline
    points = thinned(timeline.points, timeline.events, MOST_POINTS)
    highest, limit = _shown(points, limit_bytes)
    scale = Scale(timeline.events, 1.15 * max(highest, limit or 0))
    colours = _colours(found.moments)
    moments, rows = _told(found.moments, timeline, words, colours)
    peak = max(range(len(found.moments)), key=lambda number: found.moments[number].allocated_bytes)
    given = {"moments": [[scale.x(one.event) / 10, *told] for one, told in zip(found.moments, moments, strict=True)]}
    data = escape(json.dumps({**given, "rows": rows}, ensure_ascii=False, separators=(",", ":")), quote=True)
    plot = [_drawing(points, scale, colours, title, limit), *_axis(scale), *_limit(scale, limit)]
    plot.append(_peak(found.moments[peak], scale))
    caption, shown = moments[peak]
    slider = f'<input type="range" min="0" max="{len(moments) - 1}" value="{peak}" hidden '
    slider += f'aria-label="{escape(words("timeline.moment"), quote=True)}">'
    body = "".join(_row(rows[number]) for number in shown)
    return (
        f'<figure class="kb-timeline" data-given="{data}"><figcaption><b>{escape(printable(title))}</b></figcaption>'
        f'<div class="kb-timeline-plot">{"".join(plot)}<div class="kb-timeline-mark" hidden></div></div>'
        f'<div class="kb-timeline-phases">{"".join(_phases(timeline, words))}</div>{slider}'
        f"{_legend(words, colours, with_limit=limit is not None)}"
        f'<table class="kb-timeline-alive"><caption>{escape(caption)}</caption><tbody>{body}</tbody></table></figure>'
    )


def _colours(moments: Sequence[Moment]) -> Mapping[str, int]:
    """The colour of each role."""
    sizes: dict[str, int] = {}
    for moment in moments:
        for top in moment.alive:
            if top.term.startswith("activations_"):
                sizes[top.term] = max(sizes.get(top.term, 0), top.number * top.size_bytes)
    stacks = [term for term in sizes if ROLES[role_of(term)] == "activations"]
    own = {"activations": max(stacks, key=lambda term: sizes[term])} if stacks else {}
    return {role: HUES[own.get(role, term)] for role, term in ROLE_TERMS.items()}


def _drawing(points: Sequence[Point], scale: Scale, colours: Mapping[str, int], title: str, limit: int | None) -> str:
    """The areas, the lowest role at the bottom, and what the allocator holds as a line."""
    xs = [scale.x(point.event) for point in points]
    grid = "".join(f"M0 {scale.y(size * GIB)}H{SIZE}" for size in _grid(scale.top_bytes, 6))
    parts = [f'<path class="kb-grid" d="{grid}"/>']
    for number in reversed(range(len(ROLES))):  # the whole stack first; what lies lower is drawn over it
        tops = _line(zip(xs, (scale.y(sum(point.roles[: number + 1])) for point in points), strict=True))
        parts.append(f'<path class="kb-area kb-term--{colours[ROLES[number]]}" d="M{xs[0]} {SIZE}L{tops}V{SIZE}Z"/>')
    held = _line(zip(xs, (scale.y(point.reserved_bytes) for point in points), strict=True))
    parts.append(f'<path class="kb-reserved" d="M{held}"/>')
    if limit is not None:
        parts.append(f'<path class="kb-limit" d="M0 {scale.y(limit)}H{SIZE}"/>')
    head = f'<svg role="img" viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none">'
    return f"{head}<title>{escape(printable(title))}</title>{''.join(parts)}</svg>"


def _line(pairs: Iterator[tuple[int, int]]) -> str:
    """Points as a path's; those where nothing moves are left out."""
    kept: list[tuple[int, int]] = []
    for x, y in pairs:
        if len(kept) > 1 and kept[-1][1] == kept[-2][1] == y:
            kept[-1] = (x, y)
        elif not kept or kept[-1] != (x, y):
            kept.append((x, y))
    return " ".join(f"{x} {y}" for x, y in kept)


def _axis(scale: Scale) -> Iterator[str]:
    for size in _grid(scale.top_bytes, 6):
        yield f'<span class="kb-timeline-y" style="top:{scale.y(size * GIB) / 10}%">{size:g} GiB</span>'


def _limit(scale: Scale, limit: int | None) -> Iterator[str]:
    if limit is not None:
        yield f'<span class="kb-timeline-limit" style="top:{scale.y(limit) / 10}%">{limit / GIB:.1f} GiB</span>'


def _peak(moment: Moment, scale: Scale) -> str:
    """The highest moment's mark with its size; beside it where there is no room above it."""
    x = scale.x(moment.event) / 10
    side = " kb-timeline-peak--end" if x > 75 else " kb-timeline-peak--start" if x < 25 else ""
    place = f'style="left:{x}%;top:{scale.y(moment.allocated_bytes) / 10}%"'
    return f'<span class="kb-timeline-peak{side}" {place}>◆ {moment.allocated_bytes / GIB:.2f} GiB</span>'


def _phases(timeline: Timeline, words: Words) -> Iterator[str]:
    """The name of each phase under its stretch of the run, where there is room."""
    for span in timeline.spans:
        left, width = (100 * share / timeline.events for share in (span.start, span.end - span.start))
        if width >= NARROW:
            kind = ' class="kb-narrow"' if width < WIDE else ""
            name = escape(_phase(span.phase, words))
            yield f'<span{kind} style="left:{left:.1f}%;width:{width:.1f}%">{name}</span>'


def _phase(name: str, words: Words) -> str:
    """``train:backward`` as backward pass."""
    phase, _, part = name.partition(":")
    return words(f"timeline.part.{part}") if part else words.named("phase", phase)


def _told(
    moments: Sequence[Moment], timeline: Timeline, words: Words, colours: Mapping[str, int]
) -> tuple[list[tuple[str, list[int]]], list[list[Any]]]:
    """For each moment its caption and the numbers of its rows; and every row once."""
    rows: dict[tuple[Any, ...], int] = {}
    told = []
    for moment in moments:
        phase = next((span.phase for span in timeline.spans if span.start <= moment.event < span.end), "")
        size = f"{moment.allocated_bytes / GIB:.2f}"
        caption = words("timeline.alive", phase=_phase(phase, words), allocated=size)
        shown = [_cells(top, words, colours) for top in moment.alive[:MOST_ROWS]]
        told.append((caption, [rows.setdefault(cells, len(rows)) for cells in shown]))
    return told, [list(cells) for cells in rows]


def _cells(top: TopTensor, words: Words, colours: Mapping[str, int]) -> tuple[Any, ...]:
    """Colour, size, what it is, where it is."""
    each = f"{top.size_bytes / MIB:,.0f}"
    size = f"{top.number * top.size_bytes / MIB:,.0f} MiB" + (f" = {top.number} × {each}" if top.number > 1 else "")
    where = " · ".join(printable(part) for part in (top.module, top.op) if part)
    return colours[ROLES[role_of(top.term)]], size, words.named("term", top.term), where


def _row(cells: Sequence[Any]) -> str:
    colour, size, term, where = cells
    named = f'<span class="kb-swatch kb-term--{colour}"></span>{escape(term)}'
    parted = escape(where).replace(".", ".<wbr>")  # a module's path is no word
    return f"<tr><td>{escape(size)}</td><td>{named}<br><code>{parted}</code></td></tr>"


def _legend(words: Words, colours: Mapping[str, int], *, with_limit: bool) -> str:
    marks = [(f"kb-term--{colour}", words(f"timeline.{role}")) for role, colour in colours.items()]
    marks.append(("kb-swatch--band", words("timeline.reserved")))
    marks += [("kb-swatch--limit", words("timeline.limit"))] if with_limit else []
    items = (f'<li><span class="kb-swatch {kind}"></span>{escape(name)}</li>' for kind, name in marks)
    return f'<ul class="kb-legend">{"".join(items)}</ul>'


# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = dict(zip(ROLES, ("#0072b2", "#009e73", "#f0e442", "#56b4e9", "#e69f00", "#bbbbbb"), strict=True))
RESERVED, LIMIT, BAND = INK, "#d55e00", "#f4f4f4"
LEFT, RIGHT, TOP, WIDTH, HEIGHT, BELOW = 64, 88, 106, 960, 320, 56  # pixels
NARROWEST_LABEL = 7.0  # pixels of a column of text


class Pixels(NamedTuple):
    """From events and bytes to pixels."""

    events: int
    top_bytes: float

    def x(self, event: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * event / max(self.events, 1)

    def y(self, size: float) -> float:
        return TOP + HEIGHT * (1 - size / self.top_bytes)


def timeline_svg(one: Estimated, words: Words) -> str:
    """The drawing of a run whose timeline is known; the GPU's memory is in it where the run comes near."""
    timeline, limit_bytes = one.drawn.timeline, one.machine.gpu_limit_bytes
    highest, limit = _shown(timeline.points, limit_bytes)
    scale = Pixels(timeline.events, 1.12 * max(highest, limit or 0))
    title = words("timeline.title_simulated" if one.simulated else "timeline.title")
    parts = [text(LEFT, 28, title, size=16, bold=True), *_legend_svg(words, with_limit=limit is not None)]
    parts += _bands(timeline, scale, words)
    parts += _grid_svg(scale)
    parts += _lines(timeline, scale)
    if limit is not None:
        y = scale.y(limit)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, LIMIT, dashed=True, thick=2))
        parts.append(text(WIDTH - RIGHT + 6, y + 4, f"{limit / GIB:.1f} GiB", size=11))
    parts += _peaks(one, scale, words)
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, TOP + HEIGHT + 44, words("timeline.axis"), size=11, anchor="middle"))
    return document(WIDTH, TOP + HEIGHT + BELOW, title, _described(one, words), parts)


def _stays(timeline: Timeline) -> Iterator[Span]:
    """The spans of one phase of the report that follow each other, as one."""
    for phase, following in groupby(timeline.spans, lambda span: span.phase.partition(":")[0]):
        spans = list(following)
        yield Span(phase, spans[0].start, spans[-1].end)


def _bands(timeline: Timeline, scale: Pixels, words: Words) -> list[str]:
    """Every second phase on grey, each with its name underneath where there is room for it."""
    parts, grey = [], False
    for stay in _stays(timeline):
        left, width = scale.x(stay.start), scale.x(stay.end) - scale.x(stay.start)
        if width < 2:
            continue
        if grey:
            parts.append(rect(left, TOP, width, HEIGHT, BAND))
        grey = not grey
        name = words.named("phase", stay.phase)
        if NARROWEST_LABEL * columns(name) <= width:
            parts.append(text(left + width / 2, TOP + HEIGHT + 20, name, size=11, anchor="middle"))
    return parts


def _grid_svg(scale: Pixels) -> list[str]:
    parts = []
    for size in _grid(scale.top_bytes, 7):
        y = scale.y(size * GIB)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, FAINT))
        parts.append(text(LEFT - 8, y + 4, f"{size:g} GiB", size=11, anchor="end"))
    return parts


def _lines(timeline: Timeline, scale: Pixels) -> list[str]:
    if not timeline.points:
        return []
    xs = [scale.x(point.event) for point in timeline.points]
    base = [(xs[-1], scale.y(0)), (xs[0], scale.y(0))]
    parts = []
    for number in reversed(range(len(ROLES))):  # the whole stack first; what lies lower is drawn over it
        tops = [scale.y(sum(point.roles[: number + 1])) for point in timeline.points]
        parts.append(area([*zip(xs, tops, strict=True), *base], COLOURS[ROLES[number]]))
    reserved = [scale.y(point.reserved_bytes) for point in timeline.points]
    return [*parts, path(list(zip(xs, reserved, strict=True)), RESERVED)]


def _peaks(one: Estimated, scale: Pixels, words: Words) -> list[str]:
    """A mark at the highest point of every stay; what is alive at its phase's peak is shown to a pointer over it."""
    parts, timeline = [], one.drawn.timeline
    for stay in _stays(timeline):
        points = [point for point in timeline.points if stay.start <= point.event < stay.end]
        if points:
            peak = max(points, key=lambda point: point.allocated_bytes)
            x, y = scale.x(peak.event), scale.y(peak.allocated_bytes)
            if scale.x(stay.end) - scale.x(stay.start) >= 40:
                label = f"{peak.allocated_bytes / GIB:.2f}"
                shown = [diamond(x, y), text(x, y - 9, label, size=11, anchor="middle")]
                parts.append(group(0, 0, shown, hover=_tops(one, stay.phase, words)))
    return parts


def _legend_svg(words: Words, *, with_limit: bool) -> list[str]:
    marks = [(rect(0, 0, 14, 12, colour), words(f"timeline.{role}")) for role, colour in COLOURS.items()]
    marks += [
        (line(0, 6, 14, 6, RESERVED, thick=2), words("timeline.reserved")),
        (diamond(7, 6), words("timeline.peak")),
    ]
    if with_limit:
        marks.append((line(0, 6, 14, 6, LIMIT, dashed=True, thick=2), words("timeline.limit")))
    return marks_in_rows(marks, (LEFT, WIDTH), 44.0, step=22, column=NARROWEST_LABEL)


def _tops(one: Estimated, phase: str, words: Words) -> str:
    """The largest tensors alive at a phase's peak, one a line."""
    lines = [words("estimate.tops", phase=words.named("phase", phase))]
    for top in one.drawn.tops.get(phase, ())[:MOST_ROWS]:
        size = f"{top.number * top.size_bytes / MIB:,.0f} = {top.number} × {top.size_bytes / MIB:,.0f}"
        lines.append("  ".join(part for part in (size, words.named("term", top.term), top.module, top.op) if part))
    return "\n".join(lines)


def _described(one: Estimated, words: Words) -> str:
    """The peaks, in a sentence for each phase."""
    return " ".join(
        words(
            "timeline.described",
            phase=words.named("phase", phase.name),
            allocated=f"{phase.peak_allocated_bytes / GIB:.2f}",
            reserved=f"{phase.peak_reserved_bytes / GIB:.2f}",
        )
        for phase in (one.report.phases if one.report else ())
    )
