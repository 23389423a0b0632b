"""How a report may look on a stream: its width, whether colours and block characters show."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

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
