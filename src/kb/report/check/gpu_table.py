"""Where no GPU is named or found: on which known GPUs a config fits, by memory."""

from collections.abc import Sequence

from kb.core.hardware import Gpu
from kb.core.result import GpuFit
from kb.core.units import GIB
from kb.report.gpu_names import short_name
from kb.report.style import Style
from kb.report.width import columns, unbroken, wrap
from kb.report.words import Words


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
