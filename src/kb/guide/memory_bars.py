"""A prediction as bars by phase, with a table of the same terms for who cannot see them."""

from kb.core.memory_report import MemoryReport
from kb.guide.drawings import Bar, Segment, bars_svg
from kb.guide.library import Library
from kb.guide.markup import table, text
from kb.guide.site_words import say

COLOURS = 8
GIB = 2**30


def memory_bars(library: Library, report: MemoryReport, limit_bytes: int | None, title: str) -> str:
    """The drawing, then its figures folded away."""
    words, language = library.words, library.language
    phases = [phase for phase in report.phases if phase.name != "load"]
    colours: dict[str, int] = {}
    bars = []
    for phase in phases:
        terms = sorted(phase.terms, key=lambda term: -term.bytes)
        rest = phase.process_used_bytes - sum(term.bytes for term in terms)
        segments = [
            Segment(words.named("term", term.name), term.bytes, colours.setdefault(term.name, len(colours)) % COLOURS)
            for term in terms
        ]
        segments.append(Segment(say(language, "memory.unused"), max(rest, 0), COLOURS))
        bars.append(Bar(words.named("phase", phase.name), segments, phase.high_bytes))
    limit = f"{limit_bytes / GIB:.1f} GiB" if limit_bytes else ""
    drawing = bars_svg(title, bars, limit_bytes, limit)
    head = [say(language, "memory.phase"), say(language, "memory.term"), "GiB"]
    rows = [
        (text(bar.label), text(segment.label), f"{segment.size_bytes / GIB:.2f}")
        for bar in bars
        for segment in bar.segments
        if segment.size_bytes >= GIB // 200
    ]
    figures = table(head, rows, numbers=(2,))
    return f'<figure class="kb-figure" markdown="span">{drawing}</figure>\n\n' + folded(
        say(language, "memory.figures"), figures
    )


def folded(title: str, body: str) -> str:
    """A block that opens on click, and works without a script."""
    inner = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
    return f'??? note "{title}"\n\n{inner}'
