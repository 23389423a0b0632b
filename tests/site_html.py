"""A built page as a test sees it: its links, what it loads, its anchors, headings and language."""

from html.parser import HTMLParser
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


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.language = self.title = self.policy = ""
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.alternates: list[tuple[str, str]] = []
        self.switch: list[tuple[str, str]] = []
        self.headings: list[int] = []
        self.inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "html":
            self.language = given.get("lang", "")
        elif tag == "title":
            self.inside = tag
        elif tag == "a" and "href" in given:
            (self.switch.append((given["hreflang"], given["href"])) if "hreflang" in given else None)
            self.links.append(given["href"])
        elif tag in _LOADING and _LOADING[tag] in given:
            self.loads.append(given[_LOADING[tag]])
        elif tag == "link":
            self._link(given)
        elif tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        elif len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))

    def _link(self, given: dict[str, str]) -> None:
        relations = set(given.get("rel", "").split())
        if relations & _LOADING_RELATIONS:
            self.loads.append(given.get("href", ""))
        elif "alternate" in relations and "hreflang" in given:
            self.alternates.append((given["hreflang"], given["href"]))

    def handle_data(self, data: str) -> None:
        if self.inside == "title":
            self.title += data

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = None


def read_page(site: Path, path: Path) -> Page:
    reader = _Reader()
    reader.feed(path.read_text("utf-8"))
    return Page(
        path=path.relative_to(site).as_posix(),
        language=reader.language,
        title=reader.title.strip(),
        anchors=frozenset(reader.anchors),
        links=tuple(reader.links),
        loads=tuple(reader.loads),
        alternates=tuple(reader.alternates),
        headings=tuple(reader.headings),
        policy=reader.policy,
        switch=tuple(reader.switch),
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
