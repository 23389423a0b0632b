"""Code as HTML in the form that Material's style sheet and copy button know."""

import re
from functools import lru_cache

from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name

TAB = ' tabindex="0"'
WIDE = 44  # characters of a line that a narrow window cannot show
_BLOCK = re.compile(r"(?<=<pre><span></span><code)(?=>(?P<code>.*?)</code></pre>)", re.DOTALL)
_TAG = re.compile(r"<[^>]*>|&\w+;")


def coloured(code: str, language: str) -> str:
    """``code`` with a span for each token, as ``pymdownx.highlight`` makes it."""
    parts: list[str] = []
    _formatter().format(_lexer(language).get_tokens(code), _Parts(parts))
    code_tag = f"<code{TAB if is_wide(code) else ''}>"
    return f'<div class="language-{language} highlight"><pre><span></span>{code_tag}{"".join(parts)}</code></pre></div>'


def reachable(html: str) -> str:
    """The page with its wide blocks of code open to the keyboard, since they scroll."""
    return _BLOCK.sub(lambda block: TAB if is_wide(_TAG.sub("", block["code"])) else "", html)


def is_wide(code: str) -> bool:
    """Whether a narrow window cannot show a line of it."""
    return any(len(line) > WIDE for line in code.split("\n"))


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
