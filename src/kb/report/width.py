"""How wide text is on a terminal, lines broken to fit, and tables of aligned columns."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

TAB = 4
_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_BLANKS = {ord("\t"): " ", ord("\n"): " "}
_NO_BREAK = "\u00a0"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]i?B)(?!\w))")


def cells(text: str) -> Iterator[tuple[str, int]]:
    """The characters of ``text`` with the columns each takes, as terminals count.

    East Asian Wide and Fullwidth take two; Ambiguous, one. Marks, conjoining vowels and finals of Hangul, skin tones
    and whatever a zero-width joiner glues on take none. U+FE0F widens the character before it to two.
    """
    previous, joined = 0, False
    for character in text:
        if character == _EMOJI_STYLE:
            yield character, 1 if previous == 1 else 0
            previous = 2
            continue
        width = 0 if joined else _width(character)
        joined = character == _JOINER and previous == 2
        if width == 2 and previous == 2 and "\U0001f3fb" <= character <= "\U0001f3ff":
            width = 0
        yield character, width
        previous = width or previous


def _width(character: str) -> int:
    if character < "\u0300":
        return 1 if character.isprintable() or character == "\xa0" else 0
    if "\u1160" <= character <= "\u11ff" or unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def columns(text: str) -> int:
    """How many terminal columns ``text`` takes. It holds no tabs."""
    if text.isascii():
        return len(text)
    return sum(width for _, width in cells(text))


def expand_tabs(text: str) -> str:
    """``text`` with each tab as the spaces to the next multiple of four columns."""
    if "\t" not in text:
        return text
    parts, at = [], 0
    for character, width in cells(text):
        if character == "\t":
            width = TAB - at % TAB
            character = " " * width
        parts.append(character)
        at += width
    return "".join(parts)


def cut(text: str, limit: int, ellipsis: str = "…") -> str:
    """``text``, or as much of its beginning as ``limit`` columns hold, with an ellipsis."""
    if columns(text) <= limit:
        return text
    room, kept = max(limit - columns(ellipsis), 0), []
    for character, width in cells(text):
        room -= width
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + ellipsis


def pad(text: str, width: int) -> str:
    """``text`` filled with spaces on the right to ``width`` columns."""
    return text + " " * (width - columns(text))


def wrap(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Lines of at most ``width`` columns, split at spaces; the first after ``indent``, the others after ``hanging``.

    A word longer than a line (a path, a long Korean compound) is split where the line ends. A number stays with its
    ``%`` or ``GiB``.
    """
    hanging = indent if hanging is None else hanging
    lines: list[str] = []
    line, used = indent, columns(indent)
    empty = True
    text = _BEFORE_UNIT.sub(_NO_BREAK, text.translate(_BLANKS))
    for word in text.split(" "):  # not at the no-break space, as a bare split would
        if not word:
            continue
        if not empty and used + 1 + columns(word) > width:
            lines.append(line)
            line, used, empty = hanging, columns(hanging), True
        while used + columns(word) > width and empty and columns(word) > width - columns(hanging) > 2:
            head = cut(word, width - used, "")
            lines.append(line + head)
            line, used, word = hanging, columns(hanging), word[len(head) :]
        line += word if empty else f" {word}"
        used += columns(word) + (not empty)
        empty = False
    lines += [line] if not empty or not lines else []
    return [line.replace(_NO_BREAK, " ") for line in lines]


def unbroken(text: str) -> str:
    """``text`` as :func:`wrap` will not split it, unless it is longer than a line."""
    return text.replace(" ", _NO_BREAK)


def joined(parts: Iterable[str], separator: str) -> str:
    """``parts`` with a separator that :func:`wrap` keeps on the line before it; no part is split."""
    return (_NO_BREAK + separator.lstrip()).join(unbroken(part) for part in parts)


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
