"""The site: built once for all of these tests and all of pytest's workers, served below a path on this machine."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkout_kept import KEPT
from effort import EXHAUSTIVE
from kb.core.text import LANGUAGES
from packages import made_once
from site_browser import Browser, start_browser
from site_html import ADDRESS, EDITED, Page, read_pages
from site_needs import ROOT, require_browser, require_builder
from site_sample import left_out
from site_server import Server, serve


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both languages, strict, in a temporary folder: every page; where not everything is looked at, with what fits for
    a few models (``--preview``) and some entries' pages. ``KB_TEST_SITE`` names one that was built before instead."""
    if built := os.environ.get("KB_TEST_SITE"):
        return Path(built)
    require_builder()
    from kb.guide import build

    start = build._start

    def start_and_end(*asked: Any) -> SimpleNamespace:
        process = start(*asked)
        output, _ = process.communicate()
        return SimpleNamespace(communicate=lambda: (output, None), returncode=process.returncode)

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            # One language after the other: side by side, both ask the memory engine what neither has been told yet.
            patch.setattr(build, "_start", start_and_end)
            patch.setenv("XDG_CACHE_HOME", str(KEPT))
            patch.setenv("KB_SITE_LEFT_OUT", "".join(f"/{page}.md\n" for page in sorted(left_out())))
            patch.setenv("KB_SITE_URL", ADDRESS)
            patch.setenv("KB_SITE_URL_EN", f"{ADDRESS}en/")
            for language in LANGUAGES:
                patch.setenv(f"KB_EDIT_URL_{language.upper()}", f"{EDITED}docs/{language}/{{path}}")
            build.build_site(str(ROOT), print, str(folder / "site"), preview=not EXHAUSTIVE)

    return made_once(tmp_path_factory, "site", make) / "site"


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, Page]:
    return read_pages(site)


@pytest.fixture(scope="session")
def server(site: Path) -> Iterator[Server]:
    with serve(site) as server:
        yield server


@pytest.fixture(scope="session")
def browser(server: Server) -> Iterator[Browser]:
    require_browser()
    with start_browser(server) as browser:
        yield browser
