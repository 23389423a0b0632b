"""Where no GPU is named or found: on which known GPUs a config fits, by memory."""

from collections.abc import Sequence

from kb.core.hardware import Gpu
from kb.core.result import GpuFit
from kb.core.units import GIB
from kb.report.style import Style
from kb.report.width import columns, pad, wrap
from kb.report.words import Words

_VENDOR_WORDS = ("NVIDIA", "GeForce", "Tesla", "Quadro")


def short_name(gpu: Gpu) -> str:
    """The name people say: ``RTX 4090``, ``V100 16GB``; the vendor's words and the form factor are left out."""
    return " ".join(word for word in gpu.name.split() if word not in _VENDOR_WORDS)


def gpu_table(fits: Sequence[GpuFit], words: Words, style: Style) -> list[str]:
    """A line for each size of memory and verdict, smallest first, with the GPUs of it."""
    grouped: dict[tuple[int, str], list[GpuFit]] = {}
    for fit in sorted(fits, key=lambda fit: (fit.gpu.memory_total, short_name(fit.gpu))):
        key = round(fit.gpu.memory_total / GIB), fit.verdict.status
        grouped.setdefault(key, []).append(fit)
    if not grouped:
        return []
    verdicts = {status: words.named("verdict", status) for _, status in grouped}
    wide = max(columns(word) for word in verdicts.values())
    lines = [f"    {words('report.known_gpus')}"]
    for (gib, status), members in grouped.items():
        names = ", ".join(short_name(fit.gpu) for fit in members)
        verdict = style.paint(verdicts[status], status) + " " * (wide - columns(verdicts[status]))
        lead = f"    {pad(f'{gib:>4} GiB', 9)} "
        hanging = " " * (columns(lead) + wide + 2)
        first, *others = wrap(names, style.width, hanging)
        lines += [f"{lead}{verdict}  {first[len(hanging) :]}", *others]
    return lines
