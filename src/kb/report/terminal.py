"""Text on a terminal: width, lines broken to fit, aligned columns, colour."""

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from kb.core.record import NamedTuple
from kb.core.typed import Any

INDENT = "  "  # of what stands under a heading
TAB = 4
_JOINER, _EMOJI_STYLE, _FIRST_SKIN_TONE = "\u200d", "\ufe0f", "\U0001f3fb"
_BLANKS = {ord("\t"): " ", ord("\n"): " "}
_NO_BREAK = "\u00a0"
_UNITS = (" %", *(f" {size}{binary}B" for size in "KMGT" for binary in ("", "i")))


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
        if width == 2 and previous == 2 and _FIRST_SKIN_TONE <= character <= "\U0001f3ff":
            width = 0
        yield character, width
        previous = width or previous


@cache
def _width(character: str) -> int:
    """Of a character that follows none: the drawn characters of a report are few, and come again and again."""
    if character < "\u0300":
        return 1 if character.isprintable() or character == "\xa0" else 0
    if "\u1160" <= character <= "\u11ff" or unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def columns(text: str) -> int:
    """How many terminal columns ``text`` takes. It holds no tabs."""
    if text.isascii():
        return len(text)
    if max(text) < _FIRST_SKIN_TONE and _JOINER not in text and _EMOJI_STYLE not in text:
        return sum(map(_width, text))  # no character changes what another takes
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

    A word longer than a line (a path, a long Korean compound) is split where the line ends; what is :func:`unbroken`,
    at its own spaces. A number stays with its ``%`` or ``GiB``.
    """
    hanging = indent if hanging is None else hanging
    lines: list[str] = []
    line, used = indent, columns(indent)
    empty = True
    text = _with_units_held(text.translate(_BLANKS))
    held = filter(None, text.split(" "))  # not at the no-break space, as a bare split would
    room = width - columns(hanging)
    for word in (word for whole in held for word in ([whole] if columns(whole) <= room else whole.split(_NO_BREAK))):
        if not empty and used + 1 + columns(word) > width:
            lines.append(line)
            line, used, empty = hanging, columns(hanging), True
        while used + columns(word) > width and empty and columns(word) > room > 2:
            head = cut(word, width - used, "")
            lines.append(line + head)
            line, used, word = hanging, columns(hanging), word[len(head) :]
        line += word if empty else f" {word}"
        used += columns(word) + (not empty)
        empty = False
    lines += [line] if not empty or not lines else []
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _with_units_held(text: str) -> str:
    """``text`` with a space that no line ends at before each ``%`` or ``GiB`` behind a digit."""
    for unit in _UNITS:
        if unit in text:
            before, *others = text.split(unit)
            for other in others:
                held = before[-1:].isdecimal() and not (other[:1].isalnum() or other[:1] == "_")
                before += (_NO_BREAK + unit[1:] if held else unit) + other
            text = before
    return text


def unbroken(text: str) -> str:
    """``text`` as :func:`wrap` will not split it, unless it is longer than a line."""
    return text.replace(" ", _NO_BREAK)


def joined(parts: Iterable[str], separator: str) -> str:
    """``parts`` with a separator that :func:`wrap` keeps on the line before it; no part is split."""
    return (_NO_BREAK + separator.lstrip()).join(unbroken(part) for part in parts)


GAP = "  "


def in_blocks(blocks: Iterable[Sequence[str]]) -> str:
    """A report of blocks of lines: an empty line between two of them, and a line break at its end."""
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


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


NARROWEST, PIPE_COLUMNS, WIDEST = 60, 80, 100

_COLOURS = {
    "error": "1;31",
    "warning": "1;33",
    "info": "1;36",
    "fits": "32",
    "tight": "33",
    "likely_oom": "31",
    "oom": "31",
    "unknown": "2",
    "heading": "1",
    "dim": "2",
    "fix": "32",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "yellow": "33",
}


class Style(NamedTuple):
    """``width`` in columns. Without ``unicode`` bars, arrows and rules are drawn in ASCII."""

    width: int = PIPE_COLUMNS
    color: bool = False
    unicode: bool = True

    def paint(self, text: str, role: str) -> str:
        """``text`` in the colour of a severity, a verdict or another role; unchanged without colour."""
        code = _COLOURS.get(role)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and text else text

    def lines(self, text: str, role: str, indent: str = "", hanging: str | None = None) -> list[str]:
        """``text`` wrapped to the width as :func:`wrap` does, each line in the colour of a role."""
        return [self.paint(line, role) for line in wrap(text, self.width, indent, hanging)]

    def listed(self, sentences: Iterable[str]) -> list[str]:
        """Each sentence behind a dash."""
        return [line for sentence in sentences for line in wrap(sentence, self.width, "  - ", "    ")]

    @property
    def arrow(self) -> str:
        return "→" if self.unicode else "->"

    @property
    def dot(self) -> str:
        return " · " if self.unicode else ", "

    @property
    def ellipsis(self) -> str:
        return "…" if self.unicode else "..."

    @property
    def dash(self) -> str:
        return "–" if self.unicode else "-"

    @property
    def rule(self) -> str:
        return "─" if self.unicode else "-"


def section(title: str, lines: Sequence[str], style: Style) -> list[str]:
    """The lines below their title; nothing where there are none."""
    return [style.paint(title, "heading"), *lines] if lines else []


def choose_style(stream: Any, color: str = "auto", environ: Mapping[str, str] | None = None) -> Style:
    """The style for a text stream.

    Args:
        stream: where the report goes; its ``isatty`` and ``encoding`` decide.
        color: ``always``, ``never`` or ``auto``: on a terminal, unless ``NO_COLOR`` is set or ``TERM`` is ``dumb``.
        environ: the environment; the process's own by default.
    """
    environ = os.environ if environ is None else environ
    terminal = _is_terminal(stream)
    quiet = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
    width = PIPE_COLUMNS
    if terminal:
        width = min(max(_terminal_columns(stream, environ), NARROWEST), WIDEST)
    return Style(
        width=width,
        color=color == "always" or (color == "auto" and terminal and not quiet),
        unicode=_holds_blocks(getattr(stream, "encoding", None)),
    )


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # a closed or foreign stream
        return False


def _terminal_columns(stream: Any, environ: Mapping[str, str]) -> int:
    said = environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PIPE_COLUMNS
    except (OSError, ValueError, AttributeError):
        return PIPE_COLUMNS


def _holds_blocks(encoding: str | None) -> bool:
    try:
        "█▓▒░─→·…–".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
