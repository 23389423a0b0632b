"""Both languages of the site, in one call: assets, what fits where, then two strict MkDocs builds side by side."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

from kb.core.text import LANGUAGES, UserError
from kb.guide.assets import fetch_assets, write_playground
from kb.guide.choices import choices
from kb.guide.export import atom_feed, tables, write_data
from kb.guide.fits import all_fits
from kb.guide.pages import write_pages
from kb.guide.rule_page import rules_that_open
from kb.knowledge import load_catalog, load_guide
from kb.knowledge.locations import cache_folder
from kb.memory.answers import keep_in
from kb.session.cache import Predictions

# Material prints a notice about its successor at each build; it is known, and says nothing of this site
_LEVEL = re.compile(r"^(?P<level>[A-Z]+) +-  ", re.MULTILINE)
_MACRO = re.compile(r"_File_: `(?P<page>[^`]*)`\s+_\w+_: (?P<said>[^\n]*)")
# hundreds of pages' trees come and go: looking for garbage cycles as often as by default takes a twentieth of a build
_MKDOCS = "import gc; gc.set_threshold(100_000, 50, 1000); from mkdocs.__main__ import cli; cli(prog_name='mkdocs')"
QUIET = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}


def build_site(root: str, say: Callable[[str], None], target: str | None = None, *, preview: bool = False) -> str:
    """Build the site of the checkout ``root``; what a former build left is replaced once both languages are done.

    Args:
        target: the site's folder; ``site/`` of the checkout where it is not given.
        preview: every page, but what fits for few models, what is recommended for one GPU, and few examples that open
            in the playground: all that takes minutes to compute where rules or engine have changed.

    Returns:
        The site's folder.

    Raises:
        UserError: an asset cannot be fetched, or a page is wrong (the builder's own message says where).
        KnowledgeError: the rules have faults; nothing is fetched or built then.
    """
    catalog = load_catalog(whole=True)
    load_guide()
    keep_in(Predictions(cache_folder()))  # what one table asks for, others do too
    if fetch_assets(root, say):
        say("assets fetched")
    write_playground(root)
    kept = os.path.join(root, "build")
    all_fits(kept, preview)  # before both languages ask for it
    choices(kept, preview)
    rules_that_open(kept, catalog, preview)
    for language in LANGUAGES:  # one after the other: the second asks the memory engine what the first has asked
        write_pages(os.path.join(root, "docs"), language, preview=preview)
    site, made = (target, f"{target}.made") if target else _places(root)
    shutil.rmtree(made, ignore_errors=True)
    _build_languages(root, made, say, preview)
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(os.path.join(made, "ko"), site)
    shutil.move(os.path.join(made, "en"), os.path.join(site, "en"))
    os.rmdir(made)
    _write_shared(root, site, preview)
    return site


def _places(root: str) -> tuple[str, str]:
    """Where a checkout's site stands, and where it is made."""
    return os.path.join(root, "site"), os.path.join(root, "build", "site")


def _build_languages(root: str, made: str, say: Callable[[str], None], preview: bool) -> None:
    builds = [
        (name, _start(root, config, os.path.join(made, name), preview))
        for name, config in (("ko", "mkdocs.yml"), ("en", "mkdocs.en.yml"))
    ]
    failed = [(name, output) for name, output, code in ((n, *_end(p)) for n, p in builds) if code]
    if failed:
        for name, output in failed:
            for fault in _faults(output):
                say(f"docs/{name}: {fault}")
        raise UserError("site.failed", languages=", ".join(name for name, _ in failed))


def _write_shared(root: str, site: str, preview: bool) -> None:
    """What both languages share: tables as data, the feed of the changelog."""
    fits = all_fits(os.path.join(root, "build"), preview)
    write_data(site, tables(fits), load_catalog().version)
    with open(os.path.join(root, "CHANGELOG.md"), encoding="utf-8") as stream:
        feed = atom_feed(stream.read(), os.environ.get("KB_SITE_URL", "http://127.0.0.1:8000/"))
    with open(os.path.join(site, "feed.xml"), "w", encoding="utf-8") as stream:
        stream.write(feed)


def _start(root: str, config: str, target: str, preview: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _MKDOCS, "build", "--strict", "-f", config, "-d", target]
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # this kb, installed or not
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **QUIET, "PYTHONPATH": path, "KB_SITE_WRITTEN": "true"}
    environment["KB_SITE_PREVIEW"] = str(preview).lower()
    return subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _end(process: subprocess.Popen[str]) -> tuple[str, int]:
    output, _ = process.communicate()
    return output, process.returncode


def _faults(output: str) -> list[str]:
    """What a builder complained of, without its account of what went well; of a macro's fault no traceback."""
    found = []
    parts = _LEVEL.split(output)
    for level, fault in zip(parts[1::2], parts[2::2], strict=True):
        if level in ("WARNING", "ERROR", "CRITICAL"):
            macro = _MACRO.search(fault)
            found.append(f"{macro['page']}: {macro['said']}" if macro else fault.partition("\nAborted with")[0].strip())
    return found or [output.strip()[-2000:]]
