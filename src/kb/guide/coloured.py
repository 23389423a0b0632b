"""Code as HTML in the form that Material's style sheet and copy button know."""

from functools import lru_cache

from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name


def coloured(code: str, language: str) -> str:
    """``code`` with a span for each token, as ``pymdownx.highlight`` makes it."""
    parts: list[str] = []
    _formatter().format(_lexer(language).get_tokens(code), _Parts(parts))
    return f'<div class="language-{language} highlight"><pre><span></span><code>{"".join(parts)}</code></pre></div>'


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
