"""The fit panel: each phase's ledger against the GPU's memory, the host's against its limit, and what is not known."""

from collections.abc import Sequence

from kb.core.hardware import DetectedGpu, Machine
from kb.core.memory_report import HostLedger, MemoryReport, Phase, Term
from kb.core.result import UnitResult
from kb.core.units import format_bytes
from kb.report.check.rows import Row, draw_rows, layout_of
from kb.report.check.undecided import assumed_lines, not_evaluated_line, not_evaluated_lines
from kb.report.gpu_names import short_name
from kb.report.style import Style
from kb.report.values import size
from kb.report.width import joined, unbroken, wrap
from kb.report.words import Words

SHOWN_PHASES = ("train", "evaluate", "generate")
INDENT = "  "


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
    phases = [_phase_row(phase, report, limit, words) for phase in _shown_phases(report)]
    on_host = _host_row(report.host, words)
    layout = layout_of([*phases, on_host], words, style)
    lines = _gpu_heading(unit, report, machine, limit, words, style) + _machine_notes(machine, words, style)
    lines += draw_rows(phases, layout, words, style, legends=None if limit else 1)
    if unit.gpu_fits:
        from kb.report.check.rows import gpu_table

        lines += gpu_table(unit.gpu_fits, words, style)
    if not host:
        return lines
    lines += _heading(words("report.host"), _host_limit(report.host, words), style)
    return lines + draw_rows([on_host], layout, words, style) + _host_claims(report.host, words, style)


def _shown_phases(report: MemoryReport) -> list[Phase]:
    return [phase for phase in report.phases if phase.name in SHOWN_PHASES or phase.name == report.verdict.phase]


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
    """Where the two ends come from, and the field notes' rule of thumb beside them."""
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
    lines = _heading("GPU", joined((_gpu_names(machine.gpus, limit, words), said), style.dot), style, painted)
    if unit.if_so:
        lines += wrap(f"({words.if_so(unit.if_so)})", style.width, INDENT * 3)
    return lines


def _machine_notes(machine: Machine, words: Words, style: Style) -> list[str]:
    """What detection has to say beside its answer; of why there is no GPU the heading speaks."""
    notes = [note for note in machine.notes if machine.gpus or note != machine.gpu_note]
    return [
        style.paint(line, "dim")
        for note in notes
        for line in wrap(words("monitor.note", note=words(f"machine.{note}")), style.width, INDENT * 2, INDENT * 3)
    ]


def _gpu_names(gpus: Sequence[DetectedGpu], limit: int, words: Words) -> str:
    if not gpus:
        return size(limit)
    first = min(gpus, key=lambda gpu: gpu.memory_total)  # every rank needs the same, so the smallest decides
    name = short_name(first.gpu) if first.gpu else first.name
    name = f"{len(gpus)} × {name}" if len(gpus) > 1 else name
    total = f"{name} {size(first.memory_total)}"
    return total if limit >= first.memory_total else words("report.of_which_free", total=total, free=size(limit))


def _host_limit(host: HostLedger, words: Words) -> str:
    if host.limit_bytes is None:
        return words("report.host_limit_unknown")
    return words("report.host_limit", limit=format_bytes(host.limit_bytes, "GB"), binary=format_bytes(host.limit_bytes))
