"""A prediction as bars by phase with a legend, and a table of the same terms for who cannot see them."""

from collections.abc import Sequence

from kb.core.memory_report import MemoryReport, Phase
from kb.core.units import GIB
from kb.guide.library import Library
from kb.guide.markup import badge, held, table, text
from kb.guide.site_words import say
from kb.report.bars import Bar, term_figure


def memory_bars(library: Library, report: MemoryReport, limit_bytes: int | None, title: str) -> str:
    """The drawing of each phase with its legend, then its figures folded away."""
    phases = [(library.words.phase(phase), phase) for phase in report.phases if phase.name != "load"]
    drawing, bars = term_bars(library, phases, limit_bytes, title)
    return f"{drawing}\n\n{folded(say(library.language, 'memory.figures'), _figures(library, bars))}"


def term_bars(
    library: Library, phases: Sequence[tuple[str, Phase]], limit_bytes: int | None, title: str
) -> tuple[str, list[Bar]]:
    """A bar for each phase beside its label, with the legend and where its numbers come from; and the bars."""
    drawing, bars = term_figure(library.words, phases, limit_bytes, title)
    return held(marked(library, drawing)), bars


def marked(library: Library, figure: str) -> str:
    """A figure with the mark of what kb computed, after its title."""
    return figure.replace("</figcaption>", f" {badge(library, 'computed')}</figcaption>", 1)


def _figures(library: Library, bars: Sequence[Bar]) -> str:
    head = [say(library.language, "memory.phase"), say(library.language, "memory.term")]
    head.append(f"GiB {badge(library, 'computed')}")
    rows = [
        (text(bar.label), text(segment.label), f"{segment.size_bytes / GIB:.2f}")
        for bar in bars
        for segment in sorted(bar.segments, key=lambda segment: -segment.size_bytes)
        if segment.size_bytes >= GIB // 200
    ]
    return table(head, rows, numbers=(2,))


def folded(title: str, body: str) -> str:
    """A block that opens on click, and works without a script."""
    inner = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
    return f'??? note "{title}"\n\n{inner}'
