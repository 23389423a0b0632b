"""What the explanations of the guide's data share: headings, places in the notes, figures, errata, sources."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kb.report.terminal import Style, joined, wrap
from kb.report.words import Words

INDENT = "  "


def blocks_text(blocks: Iterable[Sequence[str]]) -> str:
    """Blocks of lines with an empty line between them, and a line break at the end."""
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def heading(name: str, about: Sequence[str], words: Words, style: Style, title: Mapping[str, str] | None) -> list[str]:
    """The id with what it is; its title below."""
    lines = [style.dot.join([style.paint(name, "heading"), *about])]
    return lines + (wrap(title[words.language], style.width) if title else [])


def section(title: str, lines: Sequence[str], style: Style) -> list[str]:
    return [style.paint(title, "heading"), *lines] if lines else []


def place(row: Mapping[str, Any], source: str | None = None) -> str:
    """``guide-memory:129``: where a datum comes from; an input without a source has the claim's."""
    name = row.get("source", source)
    return f"{name}:{row['lines']}" if name and "lines" in row else name or ""


def figure(value: Any, unit: str | None, words: Words, style: Style) -> str:
    """A value, or the ends of a range, with the unit in the reader's language: ``80 samples``, ``10–15 GB``."""
    if isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
        rising = list(value) == sorted(value)
        between = f" {style.arrow} " if not rising else style.dash if len(value) == 2 else ", "
        shown = between.join(words.value(item) for item in value)
    else:
        shown = words.value(value)
    if unit in (None, "ratio"):
        return shown
    if unit == "B" and isinstance(value, int | float) and value >= 10**6:
        scale, name = (10**9, "GB") if value >= 10**9 else (10**6, "MB")  # powers of ten, as the notes write them
        return f"{value / scale:.4g} {name}"
    return f"{shown}%" if unit == "%" else f"{shown} {words.named('unit', unit or '')}"


def errata_lines(errata: Iterable[Mapping[str, Any]], words: Words, style: Style) -> list[str]:
    """Each erratum with its verdict and what to use instead."""
    lines: list[str] = []
    for entry in errata:
        said = f"{entry['id']} ({words.named('erratum.verdict', entry['verdict'])}): {entry['use'][words.language]}"
        lines += wrap(said, style.width, INDENT, INDENT * 2)
    return section(words("explain.errata"), lines, style)


def source_lines(names: Iterable[str], sources: Mapping[str, Any], words: Words, style: Style) -> list[str]:
    """Each source once: its id, title and address."""
    lines: list[str] = []
    for name in dict.fromkeys(names):
        source = sources.get(name) or {}
        parts = (name, *(str(source[part]) for part in ("title", "url") if source.get(part)))
        lines += wrap(f"- {joined(parts, style.dot)}", style.width, INDENT, INDENT * 2)
    return section(words("explain.sources"), lines, style)
