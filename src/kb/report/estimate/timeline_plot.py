"""A run's GPU memory over time as an SVG: allocated by role, and reserved, with what is alive at each phase's peak."""

from collections.abc import Iterator

from kb.advice.estimate import Estimated
from kb.core.record import NamedTuple
from kb.core.units import GIB, MIB
from kb.memory.timeline import ROLES, Timeline
from kb.report.bars import FAINT, INK, area, diamond, document, group, line, path, rect, text
from kb.report.terminal import columns
from kb.report.words import Words

# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = dict(zip(ROLES, ("#0072b2", "#009e73", "#f0e442", "#56b4e9", "#e69f00", "#bbbbbb"), strict=True))
RESERVED, LIMIT, BAND = INK, "#d55e00", "#f4f4f4"
MOST_TOPS = 10
LEFT, RIGHT, TOP, WIDTH, HEIGHT, BELOW = 64, 88, 106, 960, 320, 56  # pixels
NARROWEST_LABEL = 7.0  # pixels of a column of text
STEPS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # GiB between two lines of the grid


class Stay(NamedTuple):
    """Events ``start`` to ``end`` of one phase of the report."""

    phase: str
    start: int
    end: int


class Scale(NamedTuple):
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
    highest = max((point.reserved_bytes for point in timeline.points), default=0) or GIB
    limit = limit_bytes if limit_bytes is not None and limit_bytes < 3 * highest else None
    scale = Scale(timeline.events, 1.12 * max(highest, limit or 0))
    title = words("timeline.title_simulated" if one.simulated else "timeline.title")
    parts = [text(LEFT, 28, title, size=16, bold=True), *_legend(words, with_limit=limit is not None)]
    parts += _bands(timeline, scale, words)
    parts += _grid(scale)
    parts += _lines(timeline, scale)
    if limit is not None:
        y = scale.y(limit)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, LIMIT, dashed=True, thick=2))
        parts.append(text(WIDTH - RIGHT + 6, y + 4, f"{limit / GIB:.1f} GiB", size=11))
    parts += _peaks(one, scale, words)
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, TOP + HEIGHT + 44, words("timeline.axis"), size=11, anchor="middle"))
    return document(WIDTH, TOP + HEIGHT + BELOW, title, _described(one, words), parts)


def _stays(timeline: Timeline) -> Iterator[Stay]:
    """The spans of one phase of the report that follow each other, as one."""
    stay: Stay | None = None
    for part, start, end in timeline.spans:
        phase = part.partition(":")[0]
        if stay is not None and stay.phase == phase:
            stay = stay._replace(end=end)
            continue
        if stay is not None:
            yield stay
        stay = Stay(phase, start, end)
    if stay is not None:
        yield stay


def _bands(timeline: Timeline, scale: Scale, words: Words) -> list[str]:
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


def _grid(scale: Scale) -> list[str]:
    parts = []
    top = scale.top_bytes / GIB
    step = next((step for step in STEPS if top / step <= 7), STEPS[-1])
    for number in range(int(top / step) + 1):
        y = scale.y(number * step * GIB)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, FAINT))
        parts.append(text(LEFT - 8, y + 4, f"{number * step:g} GiB", size=11, anchor="end"))
    return parts


def _lines(timeline: Timeline, scale: Scale) -> list[str]:
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


def _peaks(one: Estimated, scale: Scale, words: Words) -> list[str]:
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


def _legend(words: Words, *, with_limit: bool) -> list[str]:
    marks = [(rect(0, 0, 14, 12, colour), words(f"timeline.{role}")) for role, colour in COLOURS.items()]
    marks += [
        (line(0, 6, 14, 6, RESERVED, thick=2), words("timeline.reserved")),
        (diamond(7, 6), words("timeline.peak")),
    ]
    if with_limit:
        marks.append((line(0, 6, 14, 6, LIMIT, dashed=True, thick=2), words("timeline.limit")))
    parts, x, y = [], float(LEFT), 44.0
    for mark, label in marks:
        width = 36 + NARROWEST_LABEL * columns(label)
        if x + width > WIDTH:
            x, y = float(LEFT), y + 22
        parts.append(group(x, y, [mark, text(20, 10, label, size=11)]))
        x += width
    return parts


def _tops(one: Estimated, phase: str, words: Words) -> str:
    """The largest tensors alive at a phase's peak, one a line."""
    lines = [words("estimate.tops", phase=words.named("phase", phase))]
    for top in one.drawn.tops.get(phase, ())[:MOST_TOPS]:
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
