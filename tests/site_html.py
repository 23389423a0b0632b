"""A built page as a test sees it: its links, what it loads, its anchors, headings and language."""

import re
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

# where the tests publish the site: below a path of another host, as on GitHub Pages
ADDRESS = "https://kb.example/guide/"
EDITED = "https://code.example/kb/edit/main/"

_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "audio": "src", "video": "src"}
_LOADING_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "manifest"}


class Page(NamedTuple):
    """Links are as written. ``loads`` is what a browser fetches with the page."""

    path: str
    language: str
    title: str
    anchors: frozenset[str]
    links: tuple[str, ...]
    loads: tuple[str, ...]
    alternates: tuple[tuple[str, str], ...]  # hreflang, address
    headings: tuple[int, ...]
    policy: str
    switch: tuple[tuple[str, str], ...]  # the language switch: hreflang, address

    @property
    def address(self) -> str:
        return urljoin(ADDRESS, self.path.removesuffix("index.html"))


# A tag of a built page: text has no bare <, and > stands in quotes where an attribute holds it. html.parser, which
# reads what no builder writes too, takes ten times as long for a thousand pages.
_TAG = re.compile(r"<([a-zA-Z][\w-]*)((?:[^>\"']|\"[^\"]*\"|'[^']*')*)>")
_ATTRIBUTE = re.compile(r"""\s([^\s=/>"']+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")
_NOT_TAGS = re.compile(r"(<(script|style)\b[^>]*>).*?(?=</\2>)|<!--.*?-->", re.DOTALL)
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_HEADING = re.compile(r"h\d")


def _attributes(written: str) -> dict[str, str]:
    found = (match.groups(default="") for match in _ATTRIBUTE.finditer(written))
    return {name: unescape(double or single or bare) for name, double, single, bare in found}


def read_page(site: Path, path: Path) -> Page:
    text = _NOT_TAGS.sub(r"\1", path.read_text("utf-8"))
    anchors, links, loads, alternates, switch, headings = set(), [], [], [], [], []
    language = policy = ""
    for tag, written in _TAG.findall(text):
        if " id=" in written:
            anchors.add(_attributes(written)["id"])
        if tag == "a":
            given = _attributes(written)
            if "href" in given:
                links.append(given["href"])
                if "hreflang" in given:
                    switch.append((given["hreflang"], given["href"]))
        elif tag in _LOADING:
            given = _attributes(written)
            if _LOADING[tag] in given:
                loads.append(given[_LOADING[tag]])
        elif tag == "link":
            given = _attributes(written)
            relations = set(given.get("rel", "").split())
            if relations & _LOADING_RELATIONS:
                loads.append(given.get("href", ""))
            elif "alternate" in relations and "hreflang" in given:
                alternates.append((given["hreflang"], given["href"]))
        elif tag == "html":
            language = _attributes(written).get("lang", "")
        elif tag == "meta" and "Content-Security-Policy" in written:
            policy = _attributes(written)["content"]
        elif _HEADING.fullmatch(tag):
            headings.append(int(tag[1]))
    title = _TITLE.search(text)
    return Page(
        path=path.relative_to(site).as_posix(),
        language=language,
        title=unescape(title[1]).strip() if title else "",
        anchors=frozenset(anchors),
        links=tuple(links),
        loads=tuple(loads),
        alternates=tuple(alternates),
        headings=tuple(headings),
        policy=policy,
        switch=tuple(switch),
    )


def read_pages(site: Path) -> dict[str, Page]:
    """Every page by its path below the site, ``en/rules/x/index.html``."""
    found = (read_page(site, path) for path in sorted(site.rglob("*.html")))
    return {page.path: page for page in found}


def target_of(page: Page, link: str) -> tuple[str, str] | None:
    """The file of the site that a link leads to, and its anchor; None where it leads elsewhere."""
    whole = urljoin(page.address, link)
    if urlsplit(whole).scheme not in ("http", "https") or not whole.startswith(ADDRESS):
        return None
    parts = urlsplit(whole)
    path = unquote(parts.path).removeprefix(urlsplit(ADDRESS).path)
    return (f"{path}index.html" if path == "" or path.endswith("/") else path), unquote(parts.fragment)
