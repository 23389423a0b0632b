"""Markdown that text from a config cannot break out of: tables, fences, escaped words."""

import re
from collections.abc import Sequence

# What begins markup, a link, a mention or a cell on GitHub and GitLab.
_MARKUP = re.compile(r"([\\`*_\[\]<>|~])")


def escaped(text: str) -> str:
    """``text`` as it stands, on one line; a name behind ``@`` pings nobody."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split())).replace("@", "&#64;")


def code(text: str) -> str:
    """``text`` as code, in a table too, whatever backticks it holds."""
    line = " ".join(text.split()).replace("|", "\\|")
    ticks = "`" * (_longest(line) + 1)
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; cells are Markdown already."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def fenced(lines: Sequence[str]) -> list[str]:
    """``lines`` as they are, behind a fence longer than any run of backticks in them."""
    fence = "`" * max(3, _longest("\n".join(lines)) + 1)
    return [f"{fence}text", *lines, fence]


def _longest(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
