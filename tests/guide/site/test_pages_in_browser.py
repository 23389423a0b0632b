"""Every kind of page in Chromium, in both languages, light and dark, wide and narrow."""

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from effort import few
from kb.core.text import LANGUAGES
from site_browser import DESKTOP, PHONE, Browser
from site_needs import AXE

NAVIGATION = (
    "", "gpus/", "models/", "memory/", "learn/effective-batch/", "learn/beams/", "learn/workers/", "learn/lora/",
    "learn/precision/", "learn/checkpointing/",
    "learn/post-training/", "learn/many-gpus/", "contribute/", "noted/", "inference/", "serving/",
    "trouble/", "trouble/questions/", "trouble/memory-grows/",
    "expressions/", "trouble/checklists/", "case/",
    "rules/", "errata/", "accuracy/", "sources/", "systems/", "playground/", "data/",
    "measure/", "integrations/", "overlays/", "commands/", "api/", "check/",
)  # fmt: skip
GENERATED = (
    "gpus/rtx-3090/", "models/kobart/", "rules/t5-fp16-overflow/", "errata/adamw-state-factor/", "trouble/gpu-oom/",
)  # fmt: skip
KINDS = [f"{prefix}{path}" for path in (*NAVIGATION, *GENERATED) for prefix in ("", "en/")]
# What axe finds is in the templates, which both languages share: each page is asked in one, every second in English.
# Of rows made by one template it is asked about the first two of each kind, by the classes and elements inside, since
# stripes alternate. The dark scheme is other colours for the same classes: the first page and every second show them.
READ_OUT = [KINDS[at + (at // 2) % 2] for at in range(0, len(KINDS), 2)]
DARKENED = [path for at, path in enumerate(READ_OUT) if not at or at // 2 % 2]
ALIKE = 2
# Both languages are built, strictly, and read as files. Seen here are one page of each kind (the first, a table with
# filters, prose with its own numbers, forms, the playground, a page made of an entry), with --exhaustive all in both.
SEEN = {"", "learn/workers/", "contribute/", "trouble/", "rules/", "playground/", "models/kobart/"}


def of_pages(paths: list[str]) -> pytest.MarkDecorator:
    kept = [path in READ_OUT and path.removeprefix("en/") in SEEN for path in paths]
    cases = [
        pytest.param(path, marks=[] if seen else pytest.mark.exhaustive) for path, seen in zip(paths, kept, strict=True)
    ]
    return pytest.mark.parametrize("path", cases, ids=lambda path: path or "ko")


every_page = of_pages(KINDS)

# what stands beyond the right edge, and is not inside something that scrolls by itself
_BEYOND = """
const wide = arguments[0] + 1, found = [];  // a phone's innerWidth grows with what stands beyond
if (document.documentElement.scrollWidth <= wide) return found;
for (const element of document.querySelectorAll("body *")) {
  if (element.getBoundingClientRect().right <= wide) continue;
  let scrolls = false;
  for (let up = element.parentElement; up; up = up.parentElement)
    if (up !== document.body && getComputedStyle(up).overflowX !== "visible") scrolls = true;
  if (!scrolls) found.push(`${element.tagName.toLowerCase()}.${element.className}`);
}
return found.slice(0, 5).concat(`scrolls to ${document.documentElement.scrollWidth}`);
"""
# rows, items and drawn marks that have the same elements, classes and styles inside are one kind
_THIN = """
const said = (one) => [one.localName, one.role, ...["class", "style", "fill"].map((name) => one.getAttribute(name))];
const kind = (node) => [node, ...node.querySelectorAll("*")].map(said).join();
for (const parent of document.querySelectorAll("article :is(tbody, ul, ol, dl, svg, svg g)")) {
  const seen = new Map();
  for (const child of [...parent.children]) {
    const count = (seen.get(kind(child)) ?? 0) + 1;
    seen.set(kind(child), count);
    if (count > given[0]) child.remove();
  }
}
"""
# what fades in would be read halfway
_STILL = """
const still = document.createElement("style");
still.textContent = "*, *::before, *::after { transition: none !important }";
document.head.append(still);
"""
_DARKEN = """
[...document.querySelectorAll("form[data-md-component=palette] label")].find((label) => !label.hidden).click();
"""
_AXE = """
const found = await axe.run(document, { resultTypes: ["violations"], ...given[0] });
const told = (node) => `${node.target.join(" ")}: ${node.failureSummary.split("\\n")[1]}`;
return found.violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.slice(0, 4).map(told) }));
"""


# figures with a unit, and numbers that are a table's cell, beside which nothing says where they come from;
# a condition is none
_BARE = r"""
const units = "(?:[GMKT]i?B\\b|bytes?\\b|바이트|%|TFLOPS|ms\\b|분(?!의)|시간|hours?\\b|minutes?\\b)";
const unit = new RegExp(`(?<![\\w.#/])[~≈−+-]?\\d[\\d,.]*\\s?${units}`);
const around = ["li, p, td, th, dd, figcaption, caption, summary", "tr", "figure"];
const mark = "a.kb-badge, a.kb-number, a.kb-source, a[href*='errata/']";
const says = (element) => element && (element.matches(mark) || element.querySelector(mark));
const walker = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
const found = [];
for (let node; (node = walker.nextNode());) {
  const at = node.parentElement, text = node.nodeValue;
  if (at.closest("pre, code, script, noscript, option, .kb-checked, .kb-when, a[href*='gpus/'], title")) continue;
  if (!unit.test(text) && !(at.closest("td") && /^\s*[\d.,–-]*\d[\d.,–-]*\s*$/.test(text))) continue;
  if (around.some((name) => says(at.closest(name)))) continue;
  const table = at.closest("table");
  if (table && (says(table.tHead) || says(table.caption))) continue;
  let whole = table;
  while (whole && !whole.parentElement.matches("article, details, section")) whole = whole.parentElement;
  if (whole && (says(whole.previousElementSibling) || says(whole.nextElementSibling))) continue;
  found.push(text.trim().slice(0, 80));
}
return found;
"""
# figures and tables of which a part lies beyond the edge
_HIDDEN = """
const frames = [...document.querySelectorAll(".kb-figure, .md-typeset__scrollwrap")];
return frames.filter((one) => one.scrollWidth > one.clientWidth + 1).length;
"""
# what a source says of itself; the sizes of units; titles of rules, whose pages cite; exit codes of kb
UNCITED = ("sources/", "expressions/", "rules/", "integrations/")


class Seen(NamedTuple):
    complaints: list[str]
    strangers: list[str]
    missing: list[str]
    beyond: list[str]
    bare: list[str]
    light: list[str]
    dark: list[str]


def violations(browser: Browser, rules: dict[str, Any]) -> list[str]:
    """What axe, which is loaded, finds serious or critical."""
    found = browser.await_answer(_AXE, rules)
    return [
        f"{row['id']} ({row['impact']}): {row['nodes']}" for row in found if row["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="session")
def seen(browser: Browser) -> Any:
    """A page looked at once: the tests below each ask for one side of it."""

    @cache
    def look(path: str) -> Seen:
        browser.visit(path)
        settle(browser)
        browser.ask(_STILL)
        bare = browser.ask(_BARE)
        browser.resize(PHONE)
        beyond = browser.ask(_BEYOND, PHONE[0])
        light, dark = [], []
        if path in READ_OUT:
            browser.resize(PHONE if READ_OUT.index(path) % 2 else DESKTOP)
            browser.await_answer(_THIN, ALIKE)
            browser.ask(AXE.read_text("utf-8"))
            light = violations(browser, {})
        if path in DARKENED:
            browser.ask(_DARKEN)
            browser.wait("document.body.dataset.mdColorScheme === 'slate'")
            dark = violations(browser, {"runOnly": ["color-contrast"]})  # nothing but colours differs
        return Seen(browser.complaints(), browser.strangers(), list(browser.server.missing), beyond, bare, light, dark)

    return look


def settle(browser: Browser) -> None:
    """Wait until the filters and the playground stand."""
    browser.wait("document.readyState === 'complete'")
    browser.wait("[...document.querySelectorAll('.kb-filter')].every((place) => place.childElementCount)")
    browser.wait("!document.getElementById('kb-playground') || document.querySelector('.kb-buttons button')")


@every_page
def test_page_asks_no_other_host_and_misses_no_file(seen: Any, path: str) -> None:
    assert seen(path).strangers == []
    assert seen(path).missing == []


@every_page
def test_page_has_no_error_in_the_console(seen: Any, path: str) -> None:
    assert seen(path).complaints == []


@every_page
def test_page_fits_a_phone(seen: Any, path: str) -> None:
    assert seen(path).beyond == []


@every_page
def test_every_figure_of_a_page_says_where_it_comes_from(seen: Any, path: str) -> None:
    if path.removeprefix("en/") not in UNCITED:
        assert seen(path).bare == []


def test_what_is_wider_than_a_phone_says_so_and_nothing_else_does(browser: Browser) -> None:
    browser.visit("models/kobart/", size=PHONE)
    frame = browser.wait("document.querySelector('.kb-wide[data-kb-more]')")  # a row for each GPU
    said = browser.ask("return getComputedStyle(arguments[0], '::before').content", frame)
    assert re.search(r"열 [1-9]개가 더", said)
    browser.visit("", size=PHONE)
    browser.wait("!document.querySelector('[data-kb-more]')")


@pytest.mark.parametrize("path", few(["serving/", "en/case/"]))
def test_on_a_phone_a_table_that_does_not_fit_is_shown_row_by_row(browser: Browser, path: str) -> None:
    browser.visit(path, size=PHONE)
    cells = browser.wait("document.querySelector('.kb-stack tbody tr')?.cells")
    heads = browser.ask(
        "return [...document.querySelector('.kb-stack thead tr').cells].map((cell) => cell.textContent.trim())"
    )
    assert browser.ask("return [...arguments[0]].map((cell) => cell.dataset.kbLabel)", cells) == heads
    assert browser.ask(_HIDDEN) == 0
    browser.resize(DESKTOP)
    browser.wait("!document.querySelector('.kb-stack')")


@of_pages(READ_OUT)
def test_page_can_be_read_by_everyone_in_light(seen: Any, path: str) -> None:
    assert seen(path).light == [], "\n".join(seen(path).light)


@of_pages(DARKENED)
def test_page_can_be_read_by_everyone_in_dark(seen: Any, path: str) -> None:
    assert seen(path).dark == [], "\n".join(seen(path).dark)


@pytest.mark.parametrize("path", few(["", "en/playground/"]))
def test_a_reader_whose_system_is_dark_gets_the_dark_scheme(browser: Browser, path: str) -> None:
    browser.visit(path, dark=True)
    browser.wait("document.body.dataset.mdColorScheme === 'slate'")
    assert browser.complaints() == []


def test_navigation_is_what_is_looked_at(site: Path) -> None:
    """A page added to the navigation must be added here."""
    written = {path.parent.relative_to(site) for path in [*site.glob("index.html"), *site.glob("*/index.html")]}
    written -= {Path("en")}
    assert {"" if path == Path() else f"{path.as_posix()}/" for path in written} <= set(NAVIGATION)


@pytest.mark.parametrize("language", few(LANGUAGES))
def test_missing_page_is_said_in_the_site(browser: Browser, language: str) -> None:
    below = "" if language == "ko" else "en/"
    browser.visit(f"{below}no/such/page/")
    assert "404" in browser.ask("return document.querySelector('h1').innerText")
    assert browser.strangers() == []
    # the page itself is missing, and nothing that it loads is
    assert [path for path in browser.server.missing if not path.endswith("/no/such/page/")] == []


@pytest.mark.parametrize("path", few(["memory/", "rules/t5-fp16-overflow/"]))
def test_language_switch_keeps_the_page(browser: Browser, path: str) -> None:
    from selenium.webdriver import ActionChains

    for start, language, end in ((path, "en", f"en/{path}"), (f"en/{path}", "ko", path)):
        browser.visit(start)
        below_address = browser.server.address
        button = browser.driver.find_element("css selector", ".md-header .md-select button")
        ActionChains(browser.driver).move_to_element(button).perform()
        link = f".md-select__link[hreflang={language}]"
        browser.wait(f"getComputedStyle(document.querySelector('{link}')).visibility === 'visible'")
        browser.driver.find_element("css selector", link).click()
        # links hold the address where the site is published; the host differs here, the path does not
        browser.wait(f"location.pathname.endsWith('/guide/{end}') && document.documentElement.lang === '{language}'")
        assert browser.driver.current_url.startswith(below_address)


def test_first_stop_of_the_keyboard_leads_past_the_head(browser: Browser) -> None:
    from selenium.webdriver import Keys

    browser.visit("memory/")
    browser.press(Keys.TAB)
    assert browser.ask("return document.activeElement.matches('.md-skip')")
    browser.press(Keys.ENTER)
    browser.wait("location.hash")
    target = "document.getElementById(decodeURIComponent(location.hash.slice(1)))"
    assert browser.ask(f"return document.querySelector('main').contains({target})")


def test_palette_and_search_are_reached_by_keyboard(browser: Browser) -> None:
    from selenium.webdriver import Keys

    browser.visit("memory/")
    reached = []
    for _ in range(12):
        browser.press(Keys.TAB)
        reached.append(browser.ask("return document.activeElement.outerHTML.slice(0, 200)"))
        if "search" in reached[-1]:
            break
    else:
        raise AssertionError(reached)
    browser.press("bf16")
    browser.wait("document.querySelector('.md-search-result__item a')")
    browser.press(Keys.ARROW_DOWN, Keys.ENTER)
    browser.wait("!location.pathname.endsWith('/memory/')")


@pytest.mark.parametrize("path", few(["playground/", "en/playground/", "gpus/", "en/rules/"], 2))
def test_without_scripts_the_tables_stand_and_the_playground_says_what_it_needs(browser: Browser, path: str) -> None:
    browser.without_scripts(True)
    try:
        browser.visit(path)
        body = browser.driver.find_element("css selector", "article").text
        if "playground" in path:
            assert "WebAssembly" in body and "kb check config.yaml" in body
        else:
            rows = browser.driver.find_elements("css selector", "article table tbody tr")
            assert len(rows) > 20 and all(row.text for row in rows[:20])
    finally:
        browser.without_scripts(False)
