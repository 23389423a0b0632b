"""What a Korean types into the search box, and the page that must be among the first five."""

from typing import NamedTuple

import pytest

from site_browser import Browser
from site_html import Page
from site_needs import ROOT
from yaml_file import read_yaml

FIRST = 5


class Query(NamedTuple):
    text: str
    pages: list[str]


def queries() -> list[Query]:
    rows = read_yaml(ROOT / "tests" / "data" / "site_queries.yaml")
    return [Query(row["query"], row["pages"]) for row in rows]


_ASK = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('keyup'))"
_SHOWN = """((meta, links) => /\\d/.test(meta) ? links.length && { links } : /없|No match/.test(meta) && { links })(
  document.querySelector(".md-search-result__meta").innerText,
  [...document.querySelectorAll(".md-search-result__item > a")].map((a) => a.href))"""


def results(browser: Browser, text: str) -> list[str]:
    """The pages that the search box shows for a text, best first, below the site's address."""
    box = browser.driver.find_element("css selector", "[data-md-component=search-query]")
    browser.ask(_ASK, box, "")
    browser.wait("!document.querySelector('.md-search-result__item')")
    browser.ask(_ASK, box, text)
    links = browser.wait(_SHOWN)["links"]
    return [link.partition("?")[0].partition("#")[0].removeprefix(browser.server.address) for link in links]


@pytest.fixture(scope="module")
def searching(browser: Browser) -> Browser:
    browser.visit("data/")
    browser.ask("document.querySelector('[data-md-component=search-query]').focus()")
    browser.wait("document.querySelector('#__search').checked")
    results(browser, "메모리")  # the index is there then
    return browser


def test_there_are_thirty_queries_and_their_pages_exist(pages: dict[str, Page]) -> None:
    assert len({query.text for query in queries()}) >= 30
    assert [page for query in queries() for page in query.pages if f"{page}index.html" not in pages] == []


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.text)
def test_korean_finds_the_page(searching: Browser, query: Query) -> None:
    found = results(searching, query.text)[:FIRST]
    assert set(found) & set(query.pages), f"{query.text}: {found}"
