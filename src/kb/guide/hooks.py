"""What is added to a plain MkDocs build: pages from the rules, search in both languages, a content policy.

A heat map or a table of all models is a hundred times the text around it; neither Markdown nor the search index gains
from reading it, so that large blocks that are HTML already, and code, stand aside while Markdown is turned into pages.
Read by MkDocs from a path (``hooks:`` in mkdocs.yml).
"""

import base64
import hashlib
import json
import logging
import os
import re
from collections.abc import MutableMapping
from html import escape, unescape
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import CombinedEvent, event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from kb.guide.export import write_llms
from kb.guide.library import say
from kb.guide.markup import SOURCES, coloured, reachable
from kb.guide.pages import write_pages
from kb.guide.search_words import FIELDS, empty_words, importance, phrases, programs, separator, synonyms
from kb.knowledge import load_catalog

_INLINE = re.compile(r"<script(?![^>]*\bsrc=)(?P<about>[^>]*)>(?P<body>.*?)</script>", re.DOTALL)
_DATA = re.compile(r"""type=["']?application/(?:json|ld\+json)""")
# Material sets colours by style attributes; Pyodide is WebAssembly
_REST = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-src 'none'"
)


# The inline scripts of Material 9.8.1, each once: where it is in the site's tree, the palette, the open tab. A fixed
# list: a script that came into a page with somebody's text would have a hash as well.
_SCOPE = re.compile(r'(?<=^__md_scope=new URL\(")[./\w-]*(?=",location\))')
_OF_THE_THEME = frozenset(
    f"'sha256-{digest}'"
    for digest in (
        "frNoT9rNKIH2e5QomDJzop2HdNi8gmIq+bZajsEDKpA=",
        "DrEMJJ29sL7vIloQzly+VUGMxKcBTMII+OfW7Y8AkG4=",
        "/8wPdzX9q0NNJXyA5lzsLojXFpkeaXVxhbfkUOQaWy8=",
    )
)


def with_policy(html: str) -> str:
    """The page with a policy at the head of its ``<head>``; inline scripts that are not data go by their hash.

    Raises:
        PluginError: one of them is none of the theme's.
    """
    bodies = [match["body"] for match in _INLINE.finditer(html) if not _DATA.search(match["about"])]
    for body in bodies:
        known = _hash(_SCOPE.sub("", body))  # one of them says how deep the page lies
        if known not in _OF_THE_THEME:
            said = "kb.guide.hooks: an inline script is none of the theme's; put it into a file, or, where the theme is"
            raise PluginError(f"{said} a newer one, look at it and add {known}: {' '.join(body.split())[:120]}")
    hashes = dict.fromkeys(_hash(body) for body in bodies)
    scripts = " ".join(["script-src 'self' 'wasm-unsafe-eval'", *hashes])
    meta = f'<meta http-equiv="Content-Security-Policy" content="{scripts}; {_REST}">'
    return re.sub(r"(<head[^>]*>)", lambda head: head[1] + meta, html, count=1)


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


log = logging.getLogger("mkdocs.kb")
SOURCE = "ko"
_SHOWN: list[tuple[str, str, str]] = []  # address, title and Markdown of each page of this build
_NAMES: dict[str, list[str]] = {}  # by a page's path, what it is also found by
_SEARCH = 'data-md-component="search" role="dialog"'
_BLOCKS = re.compile(
    r"(<pre\b.*?</pre>|<svg\b.*?</svg>|<textarea\b.*?</textarea>|<script\b.*?</script>|<head\b.*?</head>)", re.DOTALL
)
_CELL = re.compile(r"(?<=>)[^<>]*_[^<>]*(?=</t[dh]>|<br|<small|<span)")
_UNDER = re.compile(r"(?<=\w)_(?=\w)")
_CODE = re.compile(r"(?<=<code>)[^<]*_[^<]*(?=</code>)")
_SHORTEST, _LONGEST = 30, 155  # characters of a description
SHARED = ("assets/vendor/", "assets/playground/")  # served once, from the Korean root


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Links of the language switch and the words that templates say, from where the site is published."""
    language = config.extra["lang"]
    root = urlsplit(config.site_url or "/").path.rstrip("/").removesuffix("/en") + "/"
    address = urlsplit(config.site_url or "")
    config.extra["origin"] = f"{address.scheme}://{address.netloc}" if address.netloc else ""
    config.extra["alternate"] = True  # Material shows the switch, and does not write links of its own
    config.extra["languages"] = [
        {"name": "한국어", "link": root, "lang": "ko"},
        {"name": "English", "link": f"{root}en/", "lang": "en"},
    ]
    config.extra["say"] = lambda key, **values: say(language, key, **values)
    config.extra["rules_version"] = load_catalog().version
    return config


def on_pre_build(config: MkDocsConfig) -> None:
    _SHOWN.clear()
    _NAMES.clear()
    if not config.extra["written"]:
        docs, preview = os.path.dirname(config.docs_dir), bool(config.extra["preview"])
        write_pages(docs, config.extra["lang"], log.info, preview=preview)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """A page without a translation is shown in Korean, and said so."""
    if config.extra["lang"] == SOURCE:
        return files
    for file in [file for file in files if file.src_uri.startswith(SHARED)]:
        files.remove(file)
    for uri in untranslated(os.path.dirname(config.docs_dir)):
        file = File(uri, source_folder(config), config.site_dir, config.use_directory_urls)
        files.append(file)
        log.info("%s has no translation", uri)
    return files


def source_folder(config: MkDocsConfig) -> str:
    return os.path.join(os.path.dirname(config.docs_dir), SOURCE)


def untranslated(docs: str, language: str = "en") -> list[str]:
    """Pages of the source language that the other lacks, relative, with ``/``."""
    return sorted(_pages(os.path.join(docs, SOURCE)) - _pages(os.path.join(docs, language)))


def _pages(folder: str) -> set[str]:
    found = set()
    for top, _, names in os.walk(folder):
        relative = os.path.relpath(top, folder).replace(os.sep, "/")
        found |= {name if relative == "." else f"{relative}/{name}" for name in names if name.endswith(".md")}
    return found


def source_sha(path: str) -> str:
    """The mark of a source page's text that its translation carries in ``source_sha``."""
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()[:12]


_HTML = re.compile(r'^<div class="kb-held.*</div>$', re.MULTILINE)  # as markup.held writes it
_FENCED = re.compile(
    r"^(?P<fence>`{3,})(?P<language>bash|python|text|yaml)\n(?P<code>.*?)\n(?P=fence)$", re.MULTILINE | re.DOTALL
)
_PLACE = re.compile(r'<div data-held="(\d+)"></div>')
# what a block brings to life, by its script; a template does not see what is held
_SCRIPTS = {"kb-own": 'kb-own" data-given=', "kb-timeline": '<figure class="kb-timeline"'}
_HELD: dict[str, list[str]] = {}  # by the page's file


def _hold(page: Page, block: str) -> str:
    """Put a block of HTML aside; what stands in its place."""
    held = _HELD[page.file.src_uri]
    held.append(block)
    return f'<div data-held="{len(held) - 1}"></div>'


@event_priority(-40)  # when the macros are shown, and before anything else reads the page
def _hold_html(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    held = _HELD[page.file.src_uri] = []
    placed = _HTML.sub(lambda block: _hold(page, block.group()), markdown)
    page.meta["scripts"] = [name for name, sign in _SCRIPTS.items() if any(sign in block for block in held)]
    return placed


@event_priority(-50)
def _with_meta(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Banners above a page that is not translated, or whose source has changed since it was."""
    _SHOWN.append((page.canonical_url or page.url, str(page.title), _to_sources(markdown, config.site_url or "")))
    meta: MutableMapping[str, Any] = page.meta
    _NAMES[page.url] = [*map(str, meta.get("also", ()))]
    meta.setdefault("search", {"boost": importance(page.url)})
    meta.setdefault("description", _description(markdown))
    page.edit_url = _edit_url(page, config)
    source = os.path.join(source_folder(config), page.file.src_uri)
    if config.extra["lang"] == SOURCE:
        return markdown
    if page.file.src_dir == source_folder(config):
        meta["banner"], meta["content_lang"] = "untranslated", SOURCE
        meta["search"] = {"boost": 0.5}
    elif "source_sha" in meta and str(meta["source_sha"]) != source_sha(source):
        meta["banner"] = "stale"
        log.info("en/%s is older than its source; source_sha is now %s", page.file.src_uri, source_sha(source))
    return markdown


@event_priority(-60)  # when the text for language models is taken, which has the code
def _hold_code(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The code of a generated page too, coloured at once rather than token by token through Markdown and search.

    So is that of a page with ``hold_code`` in its head, where macros make most of the code.
    """
    if not ("generated" in page.meta or page.meta.get("hold_code")):
        return markdown
    return _FENCED.sub(lambda block: _hold(page, coloured(block["code"], block["language"])), markdown)


on_page_markdown = CombinedEvent(_hold_html, _with_meta, _hold_code)


def _description(markdown: str) -> str | None:
    """The first paragraph in plain words, for search engines and previews; None where a page has none."""
    for paragraph in markdown.split("\n\n"):
        plain = re.sub(r"<[^>]+>|[*`]|\[(?=[^\]]*\]\()|\]\([^)]*\)|\{[^}]*\}", "", paragraph).strip()
        if len(plain) >= _SHORTEST and plain[0] not in "#|-!?":
            words = unescape(" ".join(plain.split()))
            return words if len(words) <= _LONGEST else words[:_LONGEST].rsplit(" ", 1)[0] + " …"
    return None


def _edit_url(page: Page, config: MkDocsConfig) -> str | None:
    """A generated page is edited where it is made from, one without a translation in Korean."""
    template = config.edit_uri_template or ""
    language = SOURCE if page.file.src_dir == source_folder(config) else config.extra["lang"]
    place = str(page.meta.get("generated") or f"docs/{language}/{page.file.src_uri}")
    return f"{template.rpartition('docs/')[0]}{place}" if template else None


@event_priority(90)
def _put_back(output: str, page: Page, config: MkDocsConfig) -> str:
    held = _HELD.pop(page.file.src_uri, [])
    return _PLACE.sub(lambda place: held[int(place.group(1))], output) if held else output


@event_priority(-100)
def _finish(output: str, page: Page, config: MkDocsConfig) -> str:
    output = _with_breaks(_named_search(output, config.extra["lang"]))
    output = _to_sources(output, "../" * page.url.strip("/").count("/") + ("../" if page.url.strip("./") else ""))
    return with_policy(output if "generated" in page.meta else reachable(output))


on_post_page = CombinedEvent(_put_back, _finish)


@event_priority(-100)
def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    if not template_name.endswith(".html"):
        return output_content
    return with_policy(_named_search(output_content, config.extra["lang"]))


def _to_sources(html: str, up: str) -> str:
    """Badges say which source they lead to, wherever they stand; here that becomes a link from the page they are on."""
    return html.replace(f'href="{SOURCES}', f'href="{up}sources/#')


def _with_breaks(html: str) -> str:
    """Names of settings in a line of text may part behind their underscores; blocks of code stay as they are."""
    parts = _BLOCKS.split(html)
    for place in (_CODE, _CELL):
        parts[::2] = [place.sub(lambda found: _UNDER.sub("_<wbr>", found[0]), part) for part in parts[::2]]
    return "".join(parts)


def _named_search(html: str, language: str) -> str:
    """Material's search dialog has no name for a screen reader."""
    name = escape(say(language, "search.name"), quote=True)
    return html.replace(_SEARCH, f'{_SEARCH} aria-label="{name}"', 1)


@event_priority(-100)
def on_post_build(config: MkDocsConfig) -> None:
    """Pages for language models; and what the search index does not take from pages."""
    language = config.extra["lang"]
    write_llms(config.site_dir, language, _SHOWN)
    path = os.path.join(config.site_dir, "search", "search_index.json")
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as stream:
        index = json.load(stream)
    index["config"] |= {"separator": separator(language), "fields": FIELDS}
    index["config"] |= {"synonyms": synonyms(language), "empty": empty_words(language), "programs": programs()}
    index["config"]["names"] = phrases(chain.from_iterable(_NAMES.values()))
    for entry in index["docs"]:
        if names := _NAMES.get(entry["location"]):
            entry["also"] = " ".join(dict.fromkeys(" ".join(names).split()))  # each word counts once
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(index, stream, ensure_ascii=False, separators=(",", ":"))
