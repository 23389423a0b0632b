"""Markdown and HTML pieces that the guide's pages are put together from. Every value of the rules is escaped here."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name

from kb.core.record import NamedTuple
from kb.guide.library import Library, say
from kb.report.lessons import Cell
from kb.report.rules.entry import figure as figure_text
from kb.report.terminal import Style

PLAIN = Style(width=10_000)
_MARKUP = re.compile(r"[\\`*_{}\[\]<>|#$]")
_EMPHASIS = re.compile(r"[*\\$`|]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word is none; | ends a cell
_ENTITIES = {"<": "&lt;", ">": "&gt;"}  # which Markdown does not take a backslash before


def _plain(value: str) -> str:
    return _MARKUP.sub(lambda mark: _ENTITIES.get(mark[0], f"\\{mark[0]}"), value)


def text(value: object) -> str:
    """A value as Markdown text: nothing in it is markup."""
    return _plain(" ".join(str(value).split()))


def prose(value: str) -> str:
    """A sentence of the rules as Markdown: what stands between backticks is code, and nothing else is markup."""
    parts = " ".join(value.split()).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other half
        return text(value)
    return "".join(code(part) if number % 2 else _plain(part) for number, part in enumerate(parts))


def code(value: object) -> str:
    """A value as inline code: nothing in it is markup, for Markdown reads on inside of HTML."""
    return f"<code>{_EMPHASIS.sub(lambda mark: f'&#{ord(mark[0])};', escape(str(value)))}</code>"


def fenced(value: str, language: str = "yaml") -> str:
    """A block of code whose text cannot end it."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", value)), default=0))
    return f"{ticks}{language}\n{value.rstrip()}\n{ticks}"


TAB = ' tabindex="0"'
WIDE = 44  # characters of a line that a narrow window cannot show
_CODE_BLOCK = re.compile(r"(?<=<pre><span></span><code)(?=>(?P<code>.*?)</code></pre>)", re.DOTALL)
_TAG = re.compile(r"<[^>]*>|&\w+;")


def coloured(source: str, language: str) -> str:
    """``source`` with a span for each token, as ``pymdownx.highlight`` makes it."""
    parts: list[str] = []
    _formatter().format(_lexer(language).get_tokens(source), _Parts(parts))
    code_tag = f"<code{TAB if is_wide(source) else ''}>"
    return f'<div class="language-{language} highlight"><pre><span></span>{code_tag}{"".join(parts)}</code></pre></div>'


def reachable(html: str) -> str:
    """The page with its wide blocks of code open to the keyboard, since they scroll."""
    return _CODE_BLOCK.sub(lambda block: TAB if is_wide(_TAG.sub("", block["code"])) else "", html)


def is_wide(source: str) -> bool:
    """Whether a narrow window cannot show a line of it."""
    return any(len(line) > WIDE for line in source.split("\n"))


class _Parts:
    """What a formatter writes to."""

    def __init__(self, parts: list[str]) -> None:
        self.write = parts.append


@lru_cache(maxsize=1)
def _formatter() -> "HtmlFormatter[str]":
    return HtmlFormatter(nowrap=True)


@lru_cache(maxsize=8)
def _lexer(language: str) -> Lexer:
    return get_lexer_by_name(language)


def folded(title: str, body: str, kind: str = "note") -> str:
    """A block that opens on click, and works without a script; in a title stands no straight quotation mark."""
    inner = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
    return f'??? {kind} "{title.replace(chr(34), chr(39))}"\n\n{inner}'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A Markdown table; ``numbers`` are the columns set to the right. Cells are Markdown already."""
    rule = ["--:" if column in numbers else "---" for column in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(cell or ' ' for cell in line)} |" for line in lines)


class Told(NamedTuple):
    """Where a table's numbers come from: a line above them, and what each shows under the pointer."""

    caption: str
    hover: str


def held(body: str, kind: str = "", label: str = "") -> str:
    """HTML as a block that Markdown passes by (``hooks.py``); one with a label scrolls by itself, and by keyboard."""
    scrolls = f' tabindex="0" role="region" aria-label="{escape(label, quote=True)}"' if label else ""
    return f'<div class="kb-held{f" {kind}" if kind else ""}"{scrolls}>{" ".join(body.split(chr(10)))}</div>'


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """A drawing of this many pixels, with a title for who cannot see it."""
    head = f'<svg class="kb-drawing" role="img" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
    return f"{head}<title>{escape(title)}</title>{''.join(parts)}</svg>"


def svg_text(x: float, y: float, words: str, anchor: str, kind: str = "kb-label") -> str:
    """Words in a drawing; ``anchor`` is ``start``, ``middle`` or ``end``."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def attribute(data: object) -> str:
    """Data as the value of an attribute in HTML, which the page's script reads."""
    return escape(json.dumps(data, ensure_ascii=False), quote=True)


def scripted(place: str, needs: str) -> str:
    """The place of what a script brings to life; without one it says what it needs."""
    return f'{place}\n<noscript><p class="kb-notice">{escape(needs)}</p></noscript>'


def filter_box(
    library: Library, *, sections: str = "", columns: Mapping[str, str] | None = None, alone: bool = False
) -> str:
    """The place of a filter over the tables that follow it; without a script nothing is there and all rows show.

    Args:
        sections: what the headings between the tables are, where one of them can be chosen.
        columns: parts of a row (as selectors) of which one value can be chosen, by their names; a part may hold several
            values, by comma.
        alone: the filter is of the next table, rather than of all to the end of the page.
    """
    words = {name: say(library.language, f"filter.{name}") for name in ("all", "any", "count", "none", "text")}
    given = {"words": words, "sections": sections, "columns": columns or {}, "alone": alone}
    return f'<div class="kb-filter" data-given="{attribute(given)}"></div>'


def wide_table(
    label: str, head: Sequence[str], groups: Iterable[tuple[str, Iterable[Sequence[str]]]], told: Told | None = None
) -> str:
    """A table of full height with a fixed first column, whose width scrolls where it must; rows by group.

    Args:
        groups: each group's heading, empty for none, and its rows. All cells are HTML already.
        told: where its numbers come from, where its cells do not say so themselves.
    """
    caption = f"<caption>{told.caption}</caption>" if told and told.caption else ""
    parts = [caption, "<thead><tr>", *(f'<th scope="col">{cell}</th>' for cell in head), "</tr></thead>"]
    for title, rows in groups:
        parts.append("<tbody>")
        if title:
            span = f'<th scope="rowgroup" colspan="{len(head)}"><span>{title}</span></th>'
            parts.append(f'<tr class="kb-group">{span}</tr>')
        for first, *rest in rows:
            parts.append(f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>')
        parts.append("</tbody>")
    about = f' title="{escape(told.hover, quote=True)}"' if told else ""
    return held(f'<table class="kb-table"{about}>{"".join(parts)}</table>', "kb-wide", label)


def cells(row: Iterable[Cell]) -> list[str]:
    """Cells of a chapter's table as HTML."""
    return ["".join(_part(text_, mark) for text_, mark in cell) for cell in row]


def _part(said: str, mark: str) -> str:
    if mark == "br":
        return "<br>"
    if mark in ("b", "small"):
        return f"<{mark}>{escape(said)}</{mark}>"
    kind = f'<span class="kb-verdict kb-verdict--{escape(mark)}">' if mark else ""
    return f"{kind}{escape(said)}</span>" if mark else escape(said)


def own_table(library: Library, key: str, values: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """The caption of the table below it, which ``kb-own.mjs`` computes again for what the reader chose.

    Args:
        key: the text of the caption; ``values`` are those of the page's example.
        asked: what :func:`kb.integrations.own_tables.own_table` is asked for.
    """
    language = library.language
    given = attribute({**asked, "title": say(language, key)})
    title = f"<span>{escape(say(language, key, **values))}</span>"
    return held(f'<p class="kb-caption kb-own" data-given="{given}">{title} {badge(library, "computed")}</p>')


SOURCES = "sources:"  # begins a link to the sources page from any page; hooks.py makes it whole


def badge(library: Library, status: str, row: Mapping[str, Any] | None = None) -> str:
    """Whether a number is claimed, computed or measured, as a small mark that leads to where it comes from.

    Args:
        row: the datum, with its ``source`` and ``lines``; without one the mark leads to what its word means.
    """
    title, place = origin(library, status, row)
    shown = f'class="kb-badge kb-badge--{escape(status)}" href="{SOURCES}{place}" title="{escape(title, quote=True)}"'
    return f"<a {shown}>{escape(library.words.named('status', status))}</a>"


def origin(library: Library, status: str, row: Mapping[str, Any] | None) -> tuple[str, str]:
    """What a badge says under the pointer, and its place on the sources page."""
    source = str((row or {}).get("source") or "")
    if not source:
        return say(library.language, f"source.status.{status}"), status
    about = library.catalog.sources.get(source) or {}
    lines = f", {say(library.language, 'source.lines', lines=row['lines'])}" if row and row.get("lines") else ""
    title = f"{library.words.named('status', status)}: {about.get('title', source)}{lines}"
    return title, source_anchor(source)


def told(library: Library, status: str, row: Mapping[str, Any] | None = None, *, alone: bool = True) -> Told:
    """Of a table whose numbers all come from one place: what its caption and its cells say.

    Args:
        row: the datum with its source, as for :func:`badge`.
        alone: without, a line above the table has the badge already.
    """
    caption = f"{say(library.language, 'source.of_table')} {badge(library, status, row)}" if alone else ""
    return Told(caption, origin(library, status, row)[0])


def sourced(library: Library, number: str, status: str, row: Mapping[str, Any] | None = None) -> str:
    """A number that leads to where it comes from: where a mark beside each would hide the numbers."""
    title, place = origin(library, status, row)
    return f'<a class="kb-number" href="{SOURCES}{place}" title="{escape(title, quote=True)}">{number}</a>'


def computed(library: Library, number: str) -> str:
    """A number that kb computed."""
    return sourced(library, number, "computed")


def source_anchor(source: str) -> str:
    """The place of a source on the sources page."""
    return f"s-{source}"


def cited(library: Library, row: Mapping[str, Any]) -> str:
    """Where a sentence comes from, by the source's id, which leads to the sources page; a note's with its lines."""
    source = row.get("source")
    if not source:
        return ""
    about = library.catalog.sources.get(source) or {}
    lines = f":{row['lines']}" if row.get("lines") else ""
    title = escape(str(about.get("title", source)), quote=True)
    return f'<a class="kb-source" href="{SOURCES}{source_anchor(source)}" title="{title}">{escape(source)}{lines}</a>'


def cited_source(library: Library, name: str) -> str:
    """A source by its title, linked where it has an address; a document of the original guide says that it is one."""
    about = library.catalog.sources.get(name) or {}
    title = text(about.get("title", name))
    if about.get("url"):
        return f"[{title}](<{about['url']}>)"
    note = f" ({say(library.language, 'source.note')})" if about.get("kind") == "field note" else ""
    return f"{title}{note}"


def quantity(library: Library, row: Mapping[str, Any]) -> str:
    """A number of the rules with its unit, its status and its source."""
    shown = figure_text(row["value"], row.get("unit"), library.words, PLAIN)
    if isinstance(row["value"], bool):
        shown = say(library.language, f"lesson.{'yes' if row['value'] else 'no'}")
    return f'<span class="kb-value">{escape(shown)}</span> {badge(library, row["status"], row)}'
