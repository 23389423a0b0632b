"""What readers type into the search box of either language, and the page that must be among the first three.

All queries go to the search's own worker in one load of a page, past the script that reads them as a reader means them.
"""

from typing import NamedTuple

import pytest

from kb.core.text import LANGUAGES
from site_browser import Browser
from site_html import Page
from site_needs import ROOT
from site_search import first_pages
from yaml_file import read_yaml

FIRST = 3
RIGHT = 0.95  # of the queries

_FETCHED = "performance.getEntriesByType('resource').some((one) => one.name.endsWith('search_index.json'))"
_ASK = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('keyup'))"


class Query(NamedTuple):
    language: str
    text: str
    pages: list[str]


def queries(language: str) -> list[Query]:
    rows = read_yaml(ROOT / "tests" / "data" / "site_queries.yaml")[language]
    return [Query(language, row["query"], row["pages"]) for row in rows]


def home(language: str) -> str:
    return "" if language == "ko" else "en/"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pages_of_the_queries_exist(pages: dict[str, Page], language: str) -> None:
    assert len({query.text for query in queries(language)}) >= 60
    named = {page for query in queries(language) for page in query.pages}
    assert [page for page in sorted(named) if f"{home(language)}{page}index.html" not in pages] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_right_page_is_among_the_first_three(browser: Browser, language: str) -> None:
    found = first_pages(browser, language, [query.text for query in queries(language)])
    missed = [
        f"{query.text}: {', '.join(shown)}"
        for query, shown in zip(queries(language), found, strict=True)
        if not set(shown) & set(query.pages)
    ]
    assert len(missed) <= (1 - RIGHT) * len(queries(language)), missed


def test_the_index_is_fetched_when_the_box_is_used_and_shows_no_hidden_marks(browser: Browser) -> None:
    browser.visit("data/")
    browser.wait("document.readyState === 'complete'")
    assert not browser.ask(f"return {_FETCHED}")
    box = browser.driver.find_element("css selector", "[data-md-component=search-query]")
    browser.ask("arguments[0].focus()", box)
    browser.wait(_FETCHED)
    browser.ask(_ASK, box, "체크포인팉")  # one syllable is wrong
    shown = browser.wait("[...document.querySelectorAll('.md-search-result__item h1')].map((one) => one.innerText)")
    assert any("체크포인" in title for title in shown)
    assert not any("\u200b" in title for title in shown)
