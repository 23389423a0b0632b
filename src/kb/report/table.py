"""A plain table for a terminal: columns as wide as their widest cell, the first to the left, the others as asked."""

from collections.abc import Sequence

from kb.report.width import columns, pad

GAP = "  "


def table(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), indent: str = "  ") -> list[str]:
    """Lines of ``rows`` (all of one length), each column aligned.

    Args:
        left: the columns whose text begins at their left edge; those of the others ends at their right.
        indent: what stands before each line.
    """
    if not rows:
        return []
    widths = [max(columns(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        indent + GAP.join(_cell(row[at], width, at in left) for at, width in enumerate(widths)).rstrip() for row in rows
    ]


def _cell(text: str, width: int, left: bool) -> str:
    return pad(text, width) if left else " " * (width - columns(text)) + text
