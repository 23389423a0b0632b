"""What is wrong in rules, pages or translations stops the build, or is shown on the page, in words that say where."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkout_kept import KEPT
from site_needs import ROOT, require_builder
from site_sample import entry_pages

SECONDS = 300
PAGES = ("index.md", "case.md", "systems.md", "sources.md")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Path:
    """A checkout to spoil, whose site is of few pages. It is copied after the site was built: what fits is there."""
    require_builder()
    folder = tmp_path_factory.mktemp("checkout")
    left_out = shutil.ignore_patterns("vendor", "node_modules", "__pycache__", "site")
    for name in ("src", "rules", "i18n", "docs", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copyfile(ROOT / name, folder / name)
    for name in ("mkdocs.yml", "mkdocs.en.yml"):
        (folder / name).write_text(of_few_pages((ROOT / name).read_text("utf-8")), "utf-8")
    (folder / "build").mkdir()
    for cached in (ROOT / "build").glob("*.json"):
        shutil.copyfile(cached, folder / "build" / cached.name)
    if (ROOT / "bench" / "results").is_dir():
        shutil.copytree(ROOT / "bench" / "results", folder / "bench" / "results")
    vendor = folder / "docs" / "theme" / "assets" / "vendor"
    vendor.symlink_to(ROOT / "docs" / "theme" / "assets" / "vendor")
    return folder


def of_few_pages(config: str) -> str:
    """A builder's config for :data:`PAGES` alone, whose links may lead to pages that are not built."""
    listed = "".join(f"  - {page}\n" for page in PAGES)
    config, count = re.subn(r"^nav:\n(?: .*\n)+", f"nav:\n{listed}", config, flags=re.MULTILINE)
    assert count == 1
    config = re.sub(r"^(validation|not_in_nav|exclude_docs):.*\n(?: .*\n)*", "", config, flags=re.MULTILINE)
    kept = "".join(f"  !/{name}\n" for name in (*PAGES, "assets/**"))
    return f"{config}exclude_docs: |\n  /**\n{kept}validation: {{links: {{not_found: ignore, anchors: ignore}}}}\n"


Spoil = Callable[[str, str, str], None]


@pytest.fixture
def spoil(copy: Path) -> Iterator[Spoil]:
    """Replace a pattern in a file of the copy; the file is as it was afterwards."""
    before: dict[Path, bytes] = {}

    def replace(name: str, pattern: str, new: str) -> None:
        path = copy / name
        before.setdefault(path, path.read_bytes())
        text, count = re.subn(pattern, new, path.read_text("utf-8"), count=1, flags=re.MULTILINE)
        assert count, f"{name} has no {pattern}"
        path.write_text(text, "utf-8")

    yield replace
    for path, content in before.items():
        path.write_bytes(content)


def run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
    # the entries' pages, which none of PAGES shows, stay as they were copied
    entries = "".join(f"/{page}.md\n" for page in entry_pages())
    environment |= {"KB_SITE_PREVIEW": "true", "XDG_CACHE_HOME": str(KEPT), "KB_SITE_LEFT_OUT": entries}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=copy, env=environment, capture_output=True, encoding="utf-8", timeout=SECONDS, check=False,
    )  # fmt: skip


def refused(copy: Path) -> str:
    """What ``kb site build`` says when it gives up as it should."""
    built = run(copy, "kb", "site", "build", "--preview", "--lang", "en")
    assert built.returncode == 2, built.stderr
    assert "Traceback" not in built.stderr, built.stderr
    return built.stderr


def test_wrong_type_in_a_rule_stops_the_build_with_its_place(copy: Path, spoil: Spoil) -> None:
    rule = "rules/checks/precision/t5-fp16-overflow.yaml"
    spoil(rule, r"^severity: error", "severity: 7")
    line = (copy / rule).read_text("utf-8").splitlines().index("severity: 7") + 1
    assert f"{rule}:{line}:11: severity: 7 is not one of error, warning, info" in refused(copy)


def test_missing_translation_in_a_rule_stops_the_build_with_its_place(copy: Path, spoil: Spoil) -> None:
    rule = "rules/remedies/gpu-oom.yaml"
    spoil(rule, r"^title: .*$", "title: {ko: GPU 메모리 부족}")
    line = next(n for n, text in enumerate((copy / rule).read_text("utf-8").splitlines(), 1) if "title:" in text)
    said = refused(copy)
    assert re.search(rf"{re.escape(rule)}:{line}:\d+: title: .*\ben\b", said), said


@pytest.mark.exhaustive
def test_unknown_id_in_a_macro_stops_the_build_with_what_was_meant(copy: Path, spoil: Spoil) -> None:
    for language in ("ko", "en"):
        spoil(f"docs/{language}/index.md", r'recommended\("mt5-base"', 'recommended("mt5-bace"')  # the first page
    said = refused(copy)
    assert "docs/ko: index.md: no models entry 'mt5-bace'; did you mean 'mt5-base'?" in said


def test_missing_and_stale_translations_are_shown_with_a_banner(copy: Path, spoil: Spoil) -> None:
    english = copy / "docs" / "en" / "case.md"
    kept = english.read_bytes()
    english.unlink()
    spoil("docs/ko/systems.md", r"\Z", "\n덧붙인 말입니다.\n")
    try:
        target = copy / "english"
        built = run(copy, "mkdocs", "build", "--strict", "-q", "-f", "mkdocs.en.yml", "-d", str(target))
        assert built.returncode == 0, built.stdout + built.stderr
    finally:
        english.write_bytes(kept)
    missing = (target / "case" / "index.html").read_text("utf-8")
    assert "Not translated yet" in missing and 'lang="ko"' in missing and "사례" in missing
    stale = (target / "systems" / "index.html").read_text("utf-8")
    assert "The Korean page has changed since this translation" in stale
    assert "kb-banner" not in (target / "sources" / "index.html").read_text("utf-8")
