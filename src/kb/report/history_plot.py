"""A config's history as an SVG: GPU memory by phase and host memory, version by version, against their limits."""

from collections.abc import Sequence

from kb.advice.history import Entry, History
from kb.core.memory_report import WORKING
from kb.core.record import NamedTuple
from kb.core.units import GIB
from kb.report.bars import FAINT, diamond, document, line, marks_in_rows, rect, text
from kb.report.history_report import GB, gpu_verdict, host_verdict
from kb.report.terminal import columns, cut
from kb.report.values import printable
from kb.report.words import Words

# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = {"train": "#0072b2", "evaluate": "#e69f00", "generate": "#009e73", "host": "#56b4e9"}
LIMIT = "#d55e00"
BELOW, PANEL = 76, 190  # pixels: under a panel, its height
LABEL = 16  # columns of a version's name
BOLD = 7.2  # pixels of a column of a panel's title
STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000)


class Frame(NamedTuple):
    """Pixels: margins, the top of the first panel, the first line of the legend, a version's room, the least width."""

    left: int
    right: int
    first: int
    legend: int
    slot: int
    narrowest: int


WIDE, PHONE = Frame(64, 72, 112, 44, 112, 600), Frame(28, 36, 128, 6, 92, 340)


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


def history_svg(history: History, words: Words, *, narrow: bool = False) -> str:
    """The drawing of two panels; ``narrow`` for a phone, where few versions have room beside each other."""
    frame = PHONE if narrow else WIDE
    width = max(frame.left + frame.right + frame.slot * len(history.entries), frame.narrowest)
    gpu, host = _gpu_panel(history, words), _host_panel(history, words)
    shown = {bar.role for column in gpu.columns for bar in column.bars}
    title = words("history.plot_title")
    parts = [
        *([] if narrow else [text(frame.left, 28, title, size=16, bold=True)]),
        *_legend([role for role in WORKING if role in shown], words, frame, width),
        *_panel(gpu, frame.first, frame, width, words),
        *_panel(host, frame.first + PANEL + BELOW + 24, frame, width, words),
    ]
    return document(width, frame.first + 2 * (PANEL + BELOW) + 24, title, _described(history, words), parts)


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


def _legend(phases: Sequence[str], words: Words, frame: Frame, width: int) -> list[str]:
    """What each mark means, over as many lines as it takes."""
    marks = [(rect(0, 0, 14, 12, COLOURS[role]), words.named("phase", role)) for role in phases]
    marks.append((rect(0, 0, 14, 12, COLOURS["host"]), words("history.plot_low")))
    marks.append((rect(0, 0, 14, 12, COLOURS["host"], pale=True), words("history.plot_high")))
    marks.append((line(0, 6, 14, 6, LIMIT, dashed=True, thick=2), words("history.plot_limit")))
    marks.append((diamond(7, 6), words("history.plot_measured")))
    return marks_in_rows(marks, (frame.left, width - frame.right), frame.legend, step=18, column=6.6)


def _panel(panel: Panel, top: float, frame: Frame, width: int, words: Words) -> list[str]:
    """Axis, bars, limit and names; ``top`` is the y of the highest value."""
    left, right = frame.left, width - frame.right
    scale = PANEL / panel.top
    base = top + PANEL
    limit = words("history.plot_limit_at", limit=f"{panel.limit:.1f}") if panel.limit is not None else ""
    narrow = frame.right < WIDE.right  # no room beside the line's end: the title says it
    titles = [f"{panel.title} · {limit}" if narrow and limit else panel.title]
    if BOLD * columns(titles[0]) > width - left:
        titles = [panel.title, limit]
    parts = [text(left, top + 6 - 16 * (len(titles) - at), said, bold=True) for at, said in enumerate(titles)]
    step = next((step for step in STEPS if panel.top / step <= 6), STEPS[-1])
    for tick in range(0, int(panel.top) + 1, step):
        y = base - tick * scale
        parts += [line(left, y, right, y, FAINT), text(left - 8, y + 4, str(tick), size=11, anchor="end")]
    slot = (right - left) / len(panel.columns)
    for at, column in enumerate(panel.columns):
        parts += _column(column, left + slot * (at + 0.5), slot, base, scale)
    if panel.limit is not None:
        y = base - panel.limit * scale
        parts.append(line(left, y, right, y, LIMIT, dashed=True, thick=2))
        if not narrow:
            parts.append(text(right + 6, y + 4, limit, size=11))
    return sorted(parts, key=lambda part: part.startswith("<text"))  # words over lines


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
    label = _below(column.label, middle, base + 18, slot, 12)
    verdict = _below(column.verdict, middle, base + 20 + 14 * len(label), slot, 11) if column.verdict else []
    return [*parts, *label, *verdict]


def _below(said: str, middle: float, y: float, slot: float, size: int) -> list[str]:
    """A version's name, or a verdict under it, over two lines where one has no room."""
    parts, lines = said.split(" "), [said]
    if 0.57 * size * columns(said) > slot and len(parts) > 1:
        half = min(range(1, len(parts)), key=lambda at: abs(len(" ".join(parts[:at])) - len(" ".join(parts[at:]))))
        lines = [" ".join(parts[:half]), " ".join(parts[half:])]
    return [text(middle, y + 14 * number, line_, size=size, anchor="middle") for number, line_ in enumerate(lines)]
