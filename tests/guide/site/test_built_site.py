"""The built site, read as files: links, languages, generated pages, data, feed, sitemap, policy."""

import csv
import json
import re
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import jsonschema
import pytest

from effort import EXHAUSTIVE
from kb.core.text import LANGUAGES
from kb.guide.library import load_library
from site_html import ADDRESS, EDITED, Page, target_of
from site_needs import ROOT
from site_sample import entry_pages, left_out

ATOM = "{http://www.w3.org/2005/Atom}"
SITEMAP = "{http://www.sitemaps.org/schemas/sitemap/0.9}"
XHTML = "{http://www.w3.org/1999/xhtml}"
Pages = dict[str, Page]


def below(language: str) -> str:
    return "" if language == "ko" else "en/"


def language_of(path: str) -> str:
    return "en" if path.startswith("en/") else "ko"


def test_both_languages_are_built(pages: Pages) -> None:
    korean = {path for path in pages if language_of(path) == "ko"}
    english = {path.removeprefix("en/") for path in pages if language_of(path) == "en"}
    assert "index.html" in korean
    assert korean == english
    assert {page.language for path, page in pages.items() if language_of(path) == "ko"} == {"ko"}
    assert {page.language for path, page in pages.items() if language_of(path) == "en"} == {"en"}


def test_every_internal_link_and_anchor_leads_somewhere(pages: Pages, site: Path) -> None:
    broken, not_built = set(), {f"{below(language)}{page}/index.html" for page in left_out() for language in LANGUAGES}
    for page in pages.values():
        if page.path.endswith("404.html"):
            continue  # served at any address: its links are whole
        for link in page.links:
            target = target_of(page, link)
            if target is None:
                continue
            file, anchor = target
            if file in pages:
                # what follows # on the playground is its state
                stateful = file.endswith("playground/index.html") and "=" in anchor
                if anchor and not stateful and anchor not in pages[file].anchors:
                    broken.add(f"{page.path}: no anchor {link}")
            elif file not in not_built and not (site / file).is_file():
                broken.add(f"{page.path}: nothing at {link}")
    assert sorted(broken) == []


def test_whatever_a_page_loads_is_its_own_and_there(pages: Pages, site: Path) -> None:
    wrong = set()
    for page in pages.values():
        for link in page.loads:
            if link.startswith("data:"):
                continue
            target = target_of(page, link)
            if target is None or not (site / target[0]).is_file():
                wrong.add(link)
    assert sorted(wrong) == []


def test_every_badge_leads_to_the_sources_page(site: Path, pages: Pages) -> None:
    """That the places are there is looked at with all other links."""
    badge = re.compile(
        r'<(\w+) class="?kb-(?:badge|number|source)\b[^>]*?href="?([^" >]*)|<(\w+) class="kb-(?:badge|source)\b'
    )
    wrong, found = set(), 0
    for page in pages.values():
        for match in badge.finditer((site / page.path).read_text("utf-8").partition("<main")[2]):
            found += 1
            target = target_of(page, match[2] or "")
            if match[1] != "a" or target is None or target[0].removeprefix("en/") != "sources/index.html":
                wrong.add(f"{page.path}: {match[0]}")
    assert sorted(wrong)[:9] == []
    assert found > (3000 if EXHAUSTIVE else 1000)


CHAPTERS = (
    "memory", "learn/effective-batch", "learn/beams", "learn/workers", "learn/lora", "learn/checkpointing",
    "learn/precision", "learn/post-training", "learn/many-gpus", "inference", "serving", "case",
)  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_chapter_has_a_figure_that_says_where_its_numbers_come_from(site: Path, language: str) -> None:
    for chapter in CHAPTERS:
        page = (site / below(language) / chapter / "index.html").read_text("utf-8")
        captions = re.findall(r"<figure\b.*?<figcaption>(.*?)</figcaption>", page, re.DOTALL)
        assert captions and all("kb-badge--computed" in caption for caption in captions), chapter


def test_no_page_loads_a_megabyte(pages: Pages, site: Path) -> None:
    """What is drawn is drawn in the build; the engine's megabytes come once a reader asks for an answer."""
    heavy = {}
    for page in pages.values():
        files = {target[0] for link in page.loads if (target := target_of(page, link)) is not None}
        if (size := sum((site / file).stat().st_size for file in files)) > 600_000:
            heavy[page.path] = size
    assert heavy == {}


def test_every_page_says_which_scripts_may_run(pages: Pages) -> None:
    for page in pages.values():
        rules = dict(part.strip().partition(" ")[::2] for part in page.policy.split(";"))
        scripts = rules["script-src"].split()
        assert "'self'" in scripts and "'unsafe-inline'" not in scripts and "'unsafe-eval'" not in scripts, page.path
        assert rules["default-src"] == "'self'" and rules["connect-src"] == "'self'", page.path
        assert not re.search(r"https?:|\*", page.policy), page.path


def test_no_page_has_handlers_in_its_markup(site: Path) -> None:
    """The policy would refuse them, and the page would quietly do less."""
    handler = re.compile(r"<[a-z][^<>]*\son(?:click|load|error|change|input|submit|key\w+|mouse\w+)=", re.IGNORECASE)
    found = {p.relative_to(site).as_posix() for p in site.rglob("*.html") if handler.search(p.read_text("utf-8"))}
    assert found == set()


def test_every_page_names_its_twin(pages: Pages) -> None:
    path = urlsplit(ADDRESS).path
    for page in pages.values():
        if page.path.endswith("404.html"):
            continue
        rest = page.path.removeprefix("en/").removesuffix("index.html")
        wanted = {"ko": f"{path}{rest}", "en": f"{path}en/{rest}"}
        assert {language: urlsplit(link).path for language, link in page.alternates} == wanted, page.path
        assert len(page.alternates) == 2 and all(link.startswith(ADDRESS) for _, link in page.alternates), page.path
        assert {language: urlsplit(link).path for language, link in page.switch} == wanted, page.path


def test_every_page_describes_itself(pages: Pages, site: Path) -> None:
    found: Counter[str] = Counter()
    for page in pages.values():
        said = re.search(r'<meta name="description" content="([^"]*)"', (site / page.path).read_text("utf-8"))
        assert said and len(said[1]) >= 20, page.path
        found[said[1]] += 1
    del found[max(found, key=lambda text: found[text])]  # pages that are tables alone have the site's own
    assert [text for text, count in found.items() if count > 3] == []


def test_a_page_has_one_first_heading_and_skips_no_level(pages: Pages) -> None:
    wrong = [page.path for page in pages.values() if page.headings.count(1) != 1]
    assert wrong == []
    jumps = [
        (page.path, page.headings)
        for page in pages.values()
        if any(after - before > 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    ]
    assert jumps == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_entry_has_its_page(pages: Pages, language: str) -> None:
    built = {path.removesuffix("/index.html") for path in pages}
    wanted = {*entry_pages()} - left_out()
    assert sorted(name for name in wanted if below(language) + name not in built) == []
    assert len(wanted) > 100


def test_every_page_leads_to_the_file_it_is_made_from(pages: Pages) -> None:
    for page in pages.values():
        if "404" in page.path:
            continue
        edited = [link.removeprefix(EDITED) for link in page.links if link.startswith(EDITED)]
        assert len(edited) == 1, page.path
        assert (ROOT / edited[0]).is_file(), (page.path, edited)


def test_no_template_is_left_unfilled(site: Path) -> None:
    left = re.compile(r"\{\{|\{%|Macro (?:Rendering|Syntax) Error|>None<")
    found = {}
    for path in site.rglob("*.html"):
        body = path.read_text("utf-8").partition("<main")[2]
        body = re.sub(r"<(pre|code|script)\b.*?</\1>|data-words=\"[^\"]*\"", "", body, flags=re.DOTALL)
        if match := left.search(body):
            found[path.relative_to(site).as_posix()] = body[max(0, match.start() - 60) : match.end() + 60]
    assert found == {}


def data_tables(site: Path) -> list[str]:
    return [row["name"] for row in json.loads((site / "data" / "index.json").read_text("utf-8"))["tables"]]


def test_every_table_is_there_in_both_formats_and_keeps_its_schema(site: Path) -> None:
    assert len(data_tables(site)) >= 7
    for name in data_tables(site):
        schema = json.loads((site / "data" / f"{name}.schema.json").read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        table = json.loads((site / "data" / f"{name}.json").read_text("utf-8"))
        jsonschema.validate(table, schema, cls=jsonschema.Draft202012Validator)
        with open(site / "data" / f"{name}.csv", encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == len(table["rows"]) > 0, name
        first = table["rows"][0]
        assert all(rows[0][column] == ("" if value is None else str(value)) for column, value in first.items()), name


def test_every_entry_is_in_the_data(site: Path) -> None:
    library = load_library("ko")

    def ids(table: str) -> set[str]:
        return {row["id"] for row in json.loads((site / "data" / f"{table}.json").read_text("utf-8"))["rows"]}

    assert ids("gpus") == library.catalog.gpus.keys()
    assert ids("models") == library.catalog.models.keys()
    assert ids("rules") == library.catalog.rules.keys()
    assert ids("errata") == library.rows("errata").keys()


def test_feed_has_an_entry_a_release(site: Path) -> None:
    feed = ElementTree.parse(site / "feed.xml").getroot()
    assert feed.tag == f"{ATOM}feed"
    assert all(feed.find(f"{ATOM}{name}") is not None for name in ("id", "title", "updated"))
    releases = re.findall(
        r"^## \[?[^\]\s]+\]? [-–] \d{4}-\d{2}-\d{2}", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M
    )
    assert len(feed.findall(f"{ATOM}entry")) == len(releases)


@pytest.mark.parametrize("language", LANGUAGES)
def test_sitemap_names_every_page_in_both_languages(site: Path, pages: Pages, language: str) -> None:
    root = ElementTree.parse(site / below(language) / "sitemap.xml").getroot()
    named = {}
    for row in root.findall(f"{SITEMAP}url"):
        pair = {link.get("hreflang"): link.get("href") for link in row.findall(f"{XHTML}link")}
        named[row.findtext(f"{SITEMAP}loc")] = pair
    mine = {path: page for path, page in pages.items() if language_of(path) == language and "404" not in path}
    assert set(named) == {page.address for page in mine.values()}
    for address, pair in named.items():
        rest = address.removeprefix(ADDRESS).removeprefix("en/")
        assert pair == {"ko": f"{ADDRESS}{rest}", "en": f"{ADDRESS}en/{rest}"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_language_models_get_every_page_as_text(site: Path, pages: Pages, language: str) -> None:
    listed = (site / below(language) / "llms.txt").read_text("utf-8")
    assert listed.startswith("# ") and "\n> " in listed
    addresses = set(re.findall(r"\]\((\S+?)\)$", listed, re.MULTILINE))
    mine = {page.address for path, page in pages.items() if language_of(path) == language and "404" not in path}
    assert addresses == mine
    whole = (site / below(language) / "llms-full.txt").read_text("utf-8")
    assert "t5-fp16-overflow" in whole and not re.search(r"\{\{ *\w+\(", whole)


def test_both_languages_share_what_is_heavy(site: Path) -> None:
    assert (site / "assets" / "vendor" / "pyodide" / "pyodide.asm.wasm").is_file()
    assert not (site / "en" / "assets" / "vendor").exists()
    assert not (site / "en" / "assets" / "playground").exists()
