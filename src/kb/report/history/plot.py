"""A config's history as an SVG: GPU memory by phase and host memory, version by version, against their limits."""

from collections.abc import Sequence

from kb.advice.history import Entry, History
from kb.core.memory_report import WORKING
from kb.core.record import NamedTuple
from kb.core.units import GIB
from kb.report.history.memory import GB, gpu_verdict, host_verdict
from kb.report.svg import FAINT, diamond, document, group, line, rect, text
from kb.report.terminal import columns, cut
from kb.report.values import printable
from kb.report.words import Words

# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = {"train": "#0072b2", "evaluate": "#e69f00", "generate": "#009e73", "host": "#56b4e9"}
LIMIT = "#d55e00"
LEFT, RIGHT, BELOW, PANEL, FIRST = 64, 72, 76, 190, 112  # pixels: margins, under a panel, its height, the first's top
SLOT, NARROWEST = 112, 600
LABEL = 16  # columns of a version's name
STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000)


class Bar(NamedTuple):
    """One bar, in GiB or, of the host, in GB: solid up to ``solid``, pale up to ``high``."""

    role: str
    solid: float
    high: float


class Column(NamedTuple):
    """What stands over one version's name; ``measured`` as its bars."""

    label: str
    bars: tuple[Bar, ...]
    measured: float | None
    verdict: str


class Panel(NamedTuple):
    title: str
    columns: tuple[Column, ...]
    limit: float | None

    @property
    def top(self) -> float:
        """The largest thing shown, with room for its number."""
        shown = [bar.high for column in self.columns for bar in column.bars]
        shown += [column.measured for column in self.columns if column.measured]
        return max([*shown, self.limit or 0, 1]) * 1.08


def history_svg(history: History, words: Words) -> str:
    """The drawing of two panels."""
    width = max(LEFT + RIGHT + SLOT * len(history.entries), NARROWEST)
    gpu, host = _gpu_panel(history, words), _host_panel(history, words)
    shown = {bar.role for column in gpu.columns for bar in column.bars}
    title = words("history.plot_title")
    parts = [
        text(LEFT, 28, title, size=16, bold=True),
        *_legend([role for role in WORKING if role in shown], words, width),
        *_panel(gpu, FIRST, width, words),
        *_panel(host, FIRST + PANEL + BELOW + 24, width, words),
    ]
    return document(width, FIRST + 2 * (PANEL + BELOW) + 24, title, _described(history, words), parts)


def _gpu_panel(history: History, words: Words) -> Panel:
    columns_ = []
    for entry in history.entries:
        phases = [phase for name in WORKING if entry.report and (phase := entry.report.phase(name))]
        bars = tuple(Bar(phase.name, phase.process_used_bytes / GIB, phase.high_bytes / GIB) for phase in phases)
        measured = entry.version.measured and entry.version.measured.gpu_bytes
        verdict = gpu_verdict(entry, words) if history.gpu_limit_bytes else ""
        columns_.append(Column(_label(entry), bars, measured / GIB if measured else None, verdict))
    limit = history.gpu_limit_bytes
    return Panel(words("history.plot_gpu"), tuple(columns_), limit / GIB if limit else None)


def _host_panel(history: History, words: Words) -> Panel:
    columns_ = []
    for entry in history.entries:
        host = entry.report and entry.report.host
        bars = (Bar("host", host.low_bytes / GB, host.peak_bytes / GB),) if host else ()
        measured = entry.version.measured and entry.version.measured.host_bytes
        verdict = host_verdict(entry, words) if history.host_limit_bytes else ""
        columns_.append(Column(_label(entry), bars, measured / GB if measured else None, verdict))
    limit = history.host_limit_bytes
    return Panel(words("history.plot_host"), tuple(columns_), limit / GB if limit else None)


def _label(entry: Entry) -> str:
    return cut(printable(entry.version.label), LABEL)


def _described(history: History, words: Words) -> str:
    """The figures, in a sentence for each version."""
    parts = []
    for entry in history.entries:
        peak = entry.gpu_peak()
        gpu = f"{peak.process_used_bytes / GIB:.1f}" if peak else "?"
        host = f"{entry.report.host.peak_bytes / GB:.1f}" if entry.report else "?"
        parts.append(words("history.plot_described", version=entry.version.label, gpu=gpu, host=host))
    return " ".join(parts)


def _legend(phases: Sequence[str], words: Words, width: int) -> list[str]:
    """What each mark means, over as many lines as it takes."""
    marks = [(rect(0, 0, 14, 12, COLOURS[role]), words.named("phase", role)) for role in phases]
    marks.append((rect(0, 0, 14, 12, COLOURS["host"]), words("history.plot_low")))
    marks.append((rect(0, 0, 14, 12, COLOURS["host"], pale=True), words("history.plot_high")))
    marks.append((line(0, 6, 14, 6, LIMIT, dashed=True, thick=2), words("history.plot_limit")))
    marks.append((diamond(7, 6), words("history.plot_measured")))
    parts = []
    x, y = float(LEFT), 44.0
    for mark, label in marks:
        wide = 14 + 6 + 6.6 * columns(label) + 16
        if x + wide > width - RIGHT and x > LEFT:
            x, y = float(LEFT), y + 18
        parts.append(group(x, y, [mark, text(20, 10, label, size=11)]))
        x += wide
    return parts


def _panel(panel: Panel, top: float, width: int, words: Words) -> list[str]:
    """Axis, bars, limit and names; ``top`` is the y of the highest value."""
    scale = PANEL / panel.top
    base = top + PANEL
    parts = [text(LEFT, top - 10, panel.title, bold=True)]
    step = next((step for step in STEPS if panel.top / step <= 6), STEPS[-1])
    for tick in range(0, int(panel.top) + 1, step):
        y = base - tick * scale
        parts += [line(LEFT, y, width - RIGHT, y, FAINT), text(LEFT - 8, y + 4, str(tick), size=11, anchor="end")]
    slot = (width - LEFT - RIGHT) / len(panel.columns)
    for at, column in enumerate(panel.columns):
        parts += _column(column, LEFT + slot * (at + 0.5), slot, base, scale)
    if panel.limit is not None:
        y = base - panel.limit * scale
        parts.append(line(LEFT, y, width - RIGHT, y, LIMIT, dashed=True, thick=2))
        parts.append(
            text(width - RIGHT + 6, y + 4, words("history.plot_limit_at", limit=f"{panel.limit:.1f}"), size=11)
        )
    return parts


def _column(column: Column, middle: float, slot: float, base: float, scale: float) -> list[str]:
    bar_width = min(slot * 0.7 / max(len(column.bars), 1), 30.0)
    x = middle - bar_width * len(column.bars) / 2
    parts = []
    for bar in column.bars:
        colour = COLOURS[bar.role]
        parts.append(rect(x + 1, base - bar.high * scale, bar_width - 2, bar.high * scale, colour, pale=True))
        parts.append(rect(x + 1, base - bar.solid * scale, bar_width - 2, bar.solid * scale, colour))
        parts.append(text(x + bar_width / 2, base - bar.high * scale - 3, f"{bar.high:.0f}", size=10, anchor="middle"))
        x += bar_width
    if column.measured is not None:
        y = base - column.measured * scale
        parts += [diamond(x + 8, y), text(x + 16, y + 4, f"{column.measured:.1f}", size=10)]
    parts.append(text(middle, base + 18, column.label, anchor="middle"))
    if column.verdict:
        parts.append(text(middle, base + 34, column.verdict, size=11, anchor="middle"))
    return parts
