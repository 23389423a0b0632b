"""Markdown that text from a config cannot break out of: tables, fences, escaped words."""

import re
from collections.abc import Sequence

from kb.report.values import printable

# What begins markup, an entity or a cell, on GitHub and GitLab; at the start of a text a heading, a list or a rule too.
_MARKUP = re.compile(r"([\\`*_\[\]<>|~&^])")
_AT_START = re.compile(r"^(\d*)([-+=#]|(?<=\d)[.)](?=\s|$))")
# A word in which GitHub or GitLab finds a link, a mention, a commit, an emoji or a formula: @name, #1, GH-1, a/b#1 …
_LINK = re.compile(
    r"@|[#!%~&^]\d|\$|://|\bwww\.|\bmailto:|\bgh-\d|:[a-z0-9_+-]+:|\b(?=\d*[a-f])[0-9a-f]{7,40}\b", re.IGNORECASE
)


def escaped(text: str) -> str:
    """``text`` as it stands, on one line: nothing in it is markup, and a word that would become a link or ping someone
    is shown as code, in which nothing does.
    """
    words = [code(word) if _LINK.search(word) else _MARKUP.sub(r"\\\1", word) for word in printable(text).split()]
    return _AT_START.sub(r"\1\\\2", " ".join(words))


def code(text: str) -> str:
    """``text`` as code, in a table too, whatever backticks it holds. Nothing in code becomes a link."""
    line = printable(" ".join(text.split())).replace("|", "\\|")
    ticks = "`" * (_longest(line) + 1)
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; cells are Markdown already."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def fenced(lines: Sequence[str]) -> list[str]:
    """``lines`` as they are, behind a fence longer than any run of backticks in them."""
    fence = "`" * max(3, _longest("\n".join(lines)) + 1)
    return [f"{fence}text", *map(printable, lines), fence]


def _longest(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
