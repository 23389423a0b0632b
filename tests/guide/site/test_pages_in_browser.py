"""Every kind of page in Chromium, in both languages, light and dark, wide and narrow."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kb.core.text import LANGUAGES
from site_browser import DESKTOP, PHONE, Browser
from site_needs import AXE

NAVIGATION = (
    "", "gpus/", "models/", "memory/", "learn/effective-batch/", "learn/beams/", "learn/workers/", "learn/lora/",
    "learn/precision/", "learn/checkpointing/",
    "learn/post-training/", "learn/many-gpus/", "contribute/", "noted/", "inference/", "serving/",
    "trouble/", "trouble/questions/",
    "expressions/", "trouble/checklists/", "case/",
    "rules/", "errata/", "accuracy/", "sources/", "systems/", "playground/", "data/",
    "measure/", "integrations/", "overlays/", "commands/", "api/", "check/",
)  # fmt: skip
GENERATED = (
    "gpus/rtx-3090/", "models/mt5-base/", "rules/t5-fp16-overflow/", "errata/adamw-state-factor/", "trouble/gpu-oom/",
)  # fmt: skip
KINDS = [f"{prefix}{path}" for path in (*NAVIGATION, *GENERATED) for prefix in ("", "en/")]
# What axe finds is in the templates, which both languages share: each page is asked in one, every second in English.
# Of rows made by one template it is asked about the first few of each kind, by the classes and elements inside.
READ_OUT = [KINDS[at + (at // 2) % 2] for at in range(0, len(KINDS), 2)]
ALIKE = 4
every_page = pytest.mark.parametrize("path", KINDS, ids=lambda path: path or "ko")

# what stands beyond the right edge, and is not inside something that scrolls by itself
_BEYOND = """
const wide = innerWidth + 1, found = [];
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


class Seen(NamedTuple):
    complaints: list[str]
    strangers: list[str]
    missing: list[str]
    beyond: list[str]
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
        browser.resize(PHONE)
        beyond = browser.ask(_BEYOND)
        light, dark = [], []
        if path in READ_OUT:
            browser.resize(DESKTOP)
            browser.await_answer(_THIN, ALIKE)
            browser.ask(AXE.read_text("utf-8"))
            light = violations(browser, {})
            browser.ask(_DARKEN)
            browser.wait("document.body.dataset.mdColorScheme === 'slate'")
            dark = violations(browser, {"runOnly": ["color-contrast"]})  # nothing but colours differs
        return Seen(browser.complaints(), browser.strangers(), list(browser.server.missing), beyond, light, dark)

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


@pytest.mark.parametrize("path", READ_OUT, ids=lambda path: path or "ko")
def test_page_can_be_read_by_everyone_in_light(seen: Any, path: str) -> None:
    assert seen(path).light == [], "\n".join(seen(path).light)


@pytest.mark.parametrize("path", READ_OUT, ids=lambda path: path or "ko")
def test_page_can_be_read_by_everyone_in_dark(seen: Any, path: str) -> None:
    assert seen(path).dark == [], "\n".join(seen(path).dark)


@pytest.mark.parametrize("path", ["", "en/playground/"])
def test_a_reader_whose_system_is_dark_gets_the_dark_scheme(browser: Browser, path: str) -> None:
    browser.visit(path, dark=True)
    browser.wait("document.body.dataset.mdColorScheme === 'slate'")
    assert browser.complaints() == []


def test_navigation_is_what_is_looked_at(site: Path) -> None:
    """A page added to the navigation must be added here."""
    written = {path.parent.relative_to(site) for path in [*site.glob("index.html"), *site.glob("*/index.html")]}
    written -= {Path("en")}
    assert {"" if path == Path() else f"{path.as_posix()}/" for path in written} <= set(NAVIGATION)


@pytest.mark.parametrize("language", LANGUAGES)
def test_missing_page_is_said_in_the_site(browser: Browser, language: str) -> None:
    below = "" if language == "ko" else "en/"
    browser.visit(f"{below}no/such/page/")
    assert "404" in browser.ask("return document.querySelector('h1').innerText")
    assert browser.strangers() == []
    # the page itself is missing, and nothing that it loads is
    assert [path for path in browser.server.missing if not path.endswith("/no/such/page/")] == []


@pytest.mark.parametrize("path", ["rules/t5-fp16-overflow/", "memory/"])
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


@pytest.mark.parametrize("path", ["playground/", "en/playground/", "gpus/", "en/rules/"])
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
