"""A prediction as bars by phase with a legend, and a table of the same terms for who cannot see them."""

from collections.abc import Mapping, Sequence
from html import escape

from kb.core.memory_report import MemoryReport, Phase
from kb.guide.drawings import Bar, Segment, bars_svg
from kb.guide.library import Library
from kb.guide.markup import badge, held, table, text
from kb.guide.site_words import say
from kb.report.svg import HUES, SMALL, UNUSED

MOST_NAMED = 9
GIB = 2**30


def memory_bars(library: Library, report: MemoryReport, limit_bytes: int | None, title: str) -> str:
    """The drawing of each phase with its legend, then its figures folded away."""
    phases = [(library.words.phase(phase), phase) for phase in report.phases if phase.name != "load"]
    drawing, bars = term_bars(library, phases, limit_bytes, title)
    return f"{drawing}\n\n{folded(say(library.language, 'memory.figures'), _figures(library, bars))}"


def term_bars(
    library: Library, phases: Sequence[tuple[str, Phase]], limit_bytes: int | None, title: str
) -> tuple[str, list[Bar]]:
    """A bar for each phase beside its label, one colour for each term, with the legend; and the bars."""
    words, language = library.words, library.language
    colours = term_colours([phase for _, phase in phases])
    bars = []
    for label, phase in phases:
        terms = sorted(phase.terms, key=lambda term: (colours[term.name], -term.bytes))
        rest = phase.process_used_bytes - sum(term.bytes for term in terms)
        segments = [Segment(words.named("term", term.name), term.bytes, colours[term.name]) for term in terms]
        segments.append(Segment(say(language, "memory.unused"), max(rest, 0), UNUSED))
        bars.append(Bar(label, segments, phase.low_bytes, phase.high_bytes))
    limit = f"{limit_bytes / GIB:.1f} GiB" if limit_bytes else ""
    named = [(words.named("term", name), colour) for name, colour in colours.items() if colour != SMALL]
    drawing = bars_svg(title, bars, limit_bytes, limit) + _legend(library, named, SMALL in colours.values())
    caption = f"<figcaption><b>{escape(title)}</b> {badge(library, 'computed')}</figcaption>"
    return held(f'<figure class="kb-figure" tabindex="0">{caption}{drawing}</figure>'), bars


def term_colours(phases: Sequence[Phase]) -> Mapping[str, int]:
    """A colour for each term: its own for the largest of any phase, one for all others.

    Where two of one colour meet, the smaller is among the others.
    """
    most: dict[str, int] = {}
    for phase in phases:
        for term in phase.terms:
            most[term.name] = max(most.get(term.name, 0), term.bytes)
    found: dict[str, int] = {}
    for name in sorted(most, key=lambda name: -most[name]):
        hue = HUES.get(name, SMALL)
        free = hue not in found.values() and len(found) < MOST_NAMED
        found[name] = hue if free else SMALL
    return found


def _legend(library: Library, named: Sequence[tuple[str, int]], small: bool) -> str:
    """What each colour stands for, the largest term first."""
    language = library.language
    rest = [(say(language, "memory.small"), SMALL)] if small else []
    rows = [*named, *rest, (say(language, "memory.unused"), UNUSED)]
    items = [f'<li><span class="kb-swatch kb-term--{colour}"></span>{escape(label)}</li>' for label, colour in rows]
    items.append(f'<li><span class="kb-swatch kb-swatch--band"></span>{escape(say(language, "memory.band"))}</li>')
    items.append(f'<li><span class="kb-swatch kb-swatch--limit"></span>{escape(say(language, "memory.limit"))}</li>')
    return f'<ul class="kb-legend" aria-hidden="true">{"".join(items)}</ul>'


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
