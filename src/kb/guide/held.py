"""MkDocs hook: large blocks that are HTML already stand aside while Markdown is turned into pages.

A heat map or a table of all models is a hundred times the text around it; neither Markdown nor the search index gains
from reading it. Read by MkDocs from a path (``hooks:`` in mkdocs.yml). A held block is one line, see ``markup.held``.
"""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import CombinedEvent, event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from kb.guide.coloured import coloured

_BLOCK = re.compile(r'^<div class="kb-held.*</div>$', re.MULTILINE)
_CODE = re.compile(
    r"^(?P<fence>`{3,})(?P<language>bash|python|text|yaml)\n(?P<code>.*?)\n(?P=fence)$", re.MULTILINE | re.DOTALL
)
_PLACE = re.compile(r'<div data-held="(\d+)"></div>')
# what a block brings to life, by its script; a template does not see what is held
_SCRIPTS = {"kb-own": 'kb-own" data-given=', "kb-timeline": '<figure class="kb-timeline"'}
_HELD: dict[str, list[str]] = {}  # by the page's file


@event_priority(-40)  # when the macros are shown, and before anything else reads the page
def _hold_html(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    held = _HELD[page.file.src_uri] = []

    def place(block: re.Match[str]) -> str:
        held.append(block.group())
        return f'<div data-held="{len(held) - 1}"></div>'

    placed = _BLOCK.sub(place, markdown)
    page.meta["scripts"] = [name for name, sign in _SCRIPTS.items() if any(sign in block for block in held)]
    return placed


@event_priority(-60)  # when the text for language models is taken, which has the code
def _hold_code(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The code of a generated page too, coloured at once rather than token by token through Markdown and search.

    So is that of a page with ``hold_code`` in its head, where macros make most of the code.
    """
    if not ("generated" in page.meta or page.meta.get("hold_code")):
        return markdown
    held = _HELD[page.file.src_uri]

    def place(block: re.Match[str]) -> str:
        held.append(coloured(block["code"], block["language"]))
        return f'<div data-held="{len(held) - 1}"></div>'

    return _CODE.sub(place, markdown)


on_page_markdown = CombinedEvent(_hold_html, _hold_code)


@event_priority(90)
def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    held = _HELD.pop(page.file.src_uri, [])
    return _PLACE.sub(lambda place: held[int(place.group(1))], output) if held else output
