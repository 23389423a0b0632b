"""The memory panel of a report: each phase as a bar with its terms, the verdict on known GPUs, what is assumed and what
could not be decided.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from kb.core.finding import NotEvaluated
from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.memory_report import WORKING, HostLedger, MemoryReport, Phase, Term
from kb.core.record import NamedTuple
from kb.core.result import GpuFit, UnitResult
from kb.core.setup import Assumption
from kb.core.units import BYTES_PER_UNIT, GIB, format_bytes, rounded_down, rounded_up
from kb.report.check.changes import as_written
from kb.report.terminal import INDENT, Style, columns, cut, joined, pad, unbroken, wrap
from kb.report.values import gpu_name, short_name, size
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


# What a missing fact stands for, by the first prefix that matches; each is a key of i18n under `need.`.
_NEEDS = (
    ("versions.transformers", "transformers"),
    ("versions.", "versions"),
    ("model.checkpoint_dtype", "facts"),
    ("training.deepspeed", "file"),
    ("deepspeed.config_file", "file"),
    ("training.fsdp_config", "file"),
    ("training.accelerator_config", "file"),
    ("launch.num_processes", "facts"),
    ("launch.config_file", "facts"),
    ("launch.launcher", "facts"),
    ("gpu.memory_free", "gpu_now"),
    ("gpu.other_processes", "gpu_now"),
    ("gpu.", "gpu"),
    ("host.shm", "shm"),
    ("host.cpus", "cpus"),
    ("host.", "host_memory"),
    ("model.", "model"),
    ("lora.unmatched", "model"),
    ("lora.matched", "model"),
    ("lora.known", "model"),
    ("memory.", "prediction"),
    ("fit.", "prediction"),
    ("saving.", "prediction"),
    ("data.max_", "settings"),
    ("data.", "facts"),
    ("tokenizer.length", "facts"),
    ("tokenizer.padding_side", "facts"),
    ("script.", "facts"),
    ("checkpoint.", "facts"),
    ("installed.", "facts"),
)
_ORDER = (
    "transformers",
    "versions",
    "gpu",
    "gpu_now",
    "host_memory",
    "cpus",
    "shm",
    "model",
    "prediction",
    "file",
    "facts",
    "settings",
)
MAX_ASSUMED_LINES = 2
_IN_WORDS = ("data.image_max_pixels",)  # no setting of every library, and a number that is hard to read
# Reasons that need no name and value beside them.
_SAYS_ALL = ("delta_kernels", "full_length", "longest_row", "one_image", "pairs_of_texts")


def need_of(fact: str) -> str:
    """What must be known for ``fact`` to be: ``gpu``, ``model``, …; ``settings`` is what the config does not say."""
    return next((need for prefix, need in _NEEDS if fact.startswith(prefix)), "settings")


def not_evaluated_line(count: int, words: Words, style: Style) -> list[str]:
    """How many rules wait for something, on one line."""
    return style.lines(words.count("report.undecided", count), "dim", "  ", "    ") if count else []


def not_evaluated_lines(undecided: Sequence[NotEvaluated], words: Words, style: Style) -> list[str]:
    """How many rules wait, and for what; a rule that needs two things counts for both."""
    if not undecided:
        return []
    waiting = Counter(need for rule in undecided for need in {need_of(fact) for fact in rule.needs})
    parts = [
        words("report.need_count", need=words(f"need.{need}"), n=waiting[need]) for need in _ORDER if waiting[need]
    ]
    text = f"{words.count('report.not_evaluated', len(undecided))} {joined(parts, style.dot)}"
    if waiting.total() > len(undecided):
        text += f" {unbroken(words('report.several_needs'))}"
    return style.lines(text, "dim", "  ", "    ")


STOPS = "no_default_targets"  # said first: as it is written the run ends at its start


def assumed_lines(
    assumed: Sequence[Assumption], words: Words, style: Style, most: int = MAX_ASSUMED_LINES
) -> list[str]:
    """The values taken for what the config does not say, by whose default they are; at most so many lines."""
    by_reason: dict[str, list[str]] = {}
    for assumption in assumed:
        name, text = assumption.name.rpartition(".")[2], as_written(assumption.value)
        value = name + ("" if text[:1] in "<>" else "=") + text  # of releases the sign is there: trl>=0.19
        if assumption.name in _IN_WORDS:
            value = words(f"certainty.clause.{assumption.name}", value=assumption.value)
        by_reason.setdefault(assumption.reason, []).append(unbroken(value))
    total = len(assumed)
    by_reason = dict(sorted(by_reason.items(), key=lambda each: each[0] != STOPS))
    for kept in range(total, 0, -1):
        lines = wrap(_assumed_text(by_reason, kept, total, words, style), style.width, "  ", "    ")
        if len(lines) <= most:
            return [style.paint(line, "dim") for line in lines]
    return []


def _assumed_text(by_reason: Mapping[str, list[str]], kept: int, total: int, words: Words, style: Style) -> str:
    """The first ``kept`` values, grouped: ``optim=adamw_torch (library default)``; then how many are left out."""
    groups, left = [], kept
    for reason, values in by_reason.items():
        if shown := values[:left]:
            why = unbroken(words.named("assumption", reason))
            groups.append(why if reason in _SAYS_ALL else f"{', '.join(shown)} ({why})")
        left -= len(shown)
    if kept < total:
        groups.append(words("report.and_more", n=total - kept))
    return f"{words('report.assumed')} {style.dot.join(groups)}"


def fit_panel(unit: UnitResult, machine: Machine, words: Words, style: Style, *, verbose: bool = False) -> list[str]:
    """The panel's lines; where there is no prediction, why not.

    Args:
        verbose: say what each rule that could not be decided needs, and draw the host's memory without a limit too.
    """
    lines: list[str] = []
    if unit.prediction is None:
        if unit.note:
            lines += wrap(words(f"note.{unit.note}", **unit.note_values), style.width, INDENT)
    else:
        host = verbose or unit.prediction.host.limit_bytes is not None
        lines += prediction_lines(unit, unit.prediction, machine, words, style, host=host)
        lines += assumed_lines(unit.prediction.assumed, words, style)
    if verbose:
        return lines + not_evaluated_lines(unit.not_evaluated, words, style)
    return lines + not_evaluated_line(len(unit.not_evaluated), words, style)


def prediction_lines(
    unit: UnitResult, report: MemoryReport, machine: Machine, words: Words, style: Style, *, host: bool = True
) -> list[str]:
    """The GPU's verdict and a bar for each phase, then the host's, where that is wanted."""
    limit = _gpu_limit(unit, machine)
    shown = [phase for phase in report.phases if phase.name in WORKING or phase.name == report.verdict.phase]
    phases = [_phase_row(phase, report, limit, words) for phase in shown]
    on_host = _host_row(report.host, words)
    layout = layout_of([*phases, on_host], words, style)
    lines = _gpu_heading(unit, report, machine, limit, words, style) + _machine_notes(machine, words, style)
    lines += draw_rows(phases, layout, words, style, legends=None if limit else 1)
    lines += _lengths_lines(report, words, style)
    if unit.gpu_fits:
        lines += gpu_table(unit.gpu_fits, words, style)
    if not host:
        return lines
    lines += _heading(words("report.host"), _host_limit(report.host, words), style)
    return lines + draw_rows([on_host], layout, words, style) + _host_claims(report.host, words, style)


def _lengths_lines(report: MemoryReport, words: Words, style: Style) -> list[str]:
    """What training needs with the data's own lengths, and what it will take beyond that."""
    if report.lengths is None:
        return []
    return wrap(words("report.lengths", **report.lengths._asdict()), style.width, INDENT * 2)


def _gpu_limit(unit: UnitResult, machine: Machine) -> int | None:
    if unit.gpu_limit_bytes is not None:
        return unit.gpu_limit_bytes
    return min((gpu.memory_total for gpu in machine.gpus), default=None)


def _phase_row(phase: Phase, report: MemoryReport, limit: int | None, words: Words) -> Row:
    beside = (
        Term("reserved_unused", max(phase.peak_reserved_bytes - phase.peak_allocated_bytes, 0)),
        Term("cuda_context", max(phase.process_used_bytes - phase.peak_reserved_bytes, 0)),
    )
    decides = report.verdict.phase == phase.name
    return Row(
        label=words.phase(phase),
        terms=(*phase.terms, *beside),
        used=phase.process_used_bytes,
        low=phase.low_bytes,
        high=phase.high_bytes,
        limit=limit,
        deciding=report.verdict.term if decides else None,
        said=phase.status,
    )


def _host_row(host: HostLedger, words: Words) -> Row:
    """In GB, as people name a container's limit and as the rules' messages say it."""
    return Row(
        label=words("report.host_peak"),
        terms=host.measured,
        used=host.low_bytes,
        low=host.low_bytes,
        high=host.peak_bytes,
        limit=host.limit_bytes,
        said=host.status,
        unit="GB",
    )


def _host_claims(host: HostLedger, words: Words, style: Style) -> list[str]:
    """Where the two ends come from, and the original guide's rule of thumb beside them."""
    low, high = (unbroken(format_bytes(each, "GB")) for each in (host.claimed_low_bytes, host.claimed_high_bytes))
    return wrap(words("report.host_ends", low=low, high=high), style.width, INDENT * 2)


def _heading(name: str, rest: str, style: Style, painted: tuple[str, str] = ("", "")) -> list[str]:
    """``name`` and ``rest``, wrapped; of ``painted``, the text gets the role's colour."""
    lines = wrap(f"{unbroken(name + INDENT)}{rest}", style.width, INDENT, INDENT * 3)
    lines[0] = lines[0].replace(name, style.paint(name, "heading"), 1)
    text, role = painted
    return [line.replace(text, style.paint(text, role), 1) if text else line for line in lines]


def _gpu_heading(
    unit: UnitResult, report: MemoryReport, machine: Machine, limit: int | None, words: Words, style: Style
) -> list[str]:
    if limit is None:
        if machine.gpu_note:
            return _heading("GPU", words("report.no_gpu_because", reason=words(f"machine.{machine.gpu_note}")), style)
        return _heading("GPU", words("report.no_gpu"), style)
    verdict = report.verdict
    said = unbroken(words.named("verdict", verdict.status))
    decided = []
    if verdict.phase:
        phase = report.phase(verdict.phase)
        decided.append(words.phase(phase) if phase else words.named("phase", verdict.phase))
        decided += [words.named("term", verdict.term)] if verdict.term else []
        decided += [words.named("moment", phase.moment)] if phase and phase.moment else []
        said += f" ({joined(decided, style.dot)})"
    painted = words.named("verdict", verdict.status), verdict.status
    each = (words("report.each_of", n=unit.setup.world_size),) if unit.setup and unit.setup.world_size > 1 else ()
    lines = _heading("GPU", joined((_gpu_names(machine.gpus, limit, words), *each, said), style.dot), style, painted)
    if unit.if_so:
        lines += wrap(f"({words.if_so(unit.if_so)})", style.width, INDENT * 3)
    return lines


def _machine_notes(machine: Machine, words: Words, style: Style) -> list[str]:
    """What detection has to say beside its answer; of why there is no GPU the heading speaks."""
    notes = [note for note in machine.notes if machine.gpus or note != machine.gpu_note]
    said = (words("monitor.note", note=words(f"machine.{note}")) for note in notes)
    return [line for text in said for line in style.lines(text, "dim", INDENT * 2, INDENT * 3)]


def _gpu_names(gpus: Sequence[DetectedGpu], limit: int, words: Words) -> str:
    if not gpus:
        return size(limit)
    first = min(gpus, key=lambda gpu: gpu.memory_total)  # every rank needs the same, so the smallest decides
    name = f"{len(gpus)} × {gpu_name(first)}" if len(gpus) > 1 else gpu_name(first)
    total = f"{name} {size(first.memory_total)}"
    return total if limit >= first.memory_total else words("report.of_which_free", total=total, free=size(limit))


def _host_limit(host: HostLedger, words: Words) -> str:
    if host.limit_bytes is None:
        return words("report.host_limit_unknown")
    return words("report.host_limit", limit=format_bytes(host.limit_bytes, "GB"), binary=format_bytes(host.limit_bytes))
