"""Code as HTML in the form that Material's style sheet and copy button know."""

import re
from functools import lru_cache

from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name

WIDE = 44  # characters of a line that a narrow window cannot show
_BLOCK = re.compile(r"(?<=<pre><span></span><code)(?=>(?P<code>.*?)</code></pre>)", re.DOTALL)
_TAG = re.compile(r"<[^>]*>|&\w+;")


def coloured(code: str, language: str) -> str:
    """``code`` with a span for each token, as ``pymdownx.highlight`` makes it."""
    parts: list[str] = []
    _formatter().format(_lexer(language).get_tokens(code), _Parts(parts))
    return f'<div class="language-{language} highlight"><pre><span></span><code>{"".join(parts)}</code></pre></div>'


def reachable(html: str) -> str:
    """The page with its wide blocks of code open to the keyboard, since they scroll."""
    return _BLOCK.sub(lambda block: ' tabindex="0"' if _is_wide(block["code"]) else "", html)


def _is_wide(code: str) -> bool:
    return any(len(_TAG.sub("", line)) > WIDE for line in code.split("\n"))


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
