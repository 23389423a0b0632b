"""The entries whose pages the tests' site has: eight hundred pages in each language are of five kinds alone.

With ``--exhaustive`` it has all of them, which are then read as files.
"""

import re
from collections.abc import Iterator
from functools import cache

from effort import EXHAUSTIVE
from kb.guide.library import load_library
from kb.guide.rule_page import rules_that_open
from site_needs import ROOT
from yaml_file import read_yaml

EVERY = 30
_KINDS = {"rules": "rules", "gpus": "hardware", "models": "models", "trouble": "remedies", "errata": "errata"}
_NAMED = re.compile(rf"\b(?:{'|'.join(_KINDS)})/[\w.-]+")


def entry_pages() -> list[str]:
    """The address of each entry's page, without its last slash."""
    library = load_library("ko")
    return [f"{folder}/{name}" for folder, kind in _KINDS.items() for name in library.rows(kind)]


@cache
def left_out() -> frozenset[str]:
    """Those that are not built: of each kind some are, and all that a test names or the Korean search is to find."""
    if EXHAUSTIVE:
        return frozenset()
    return frozenset(entry_pages()) - {*entry_pages()[::EVERY], *_named()}


def _named() -> Iterator[str]:
    for path in (ROOT / "tests" / "guide" / "site").glob("*.py"):
        yield from _NAMED.findall(path.read_text("utf-8"))
    for query in read_yaml(ROOT / "tests" / "data" / "site_queries.yaml")["ko"]:
        yield query["pages"][0].strip("/")
    # one that opens in the playground: test_a_rules_page_opens_its_example_there
    opening = rules_that_open(str(ROOT / "build"), load_library("ko").catalog, preview=True)
    yield f"rules/{min(opening)}"
