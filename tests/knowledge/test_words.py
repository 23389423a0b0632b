"""Every sentence that the code asks for exists, and none is left that nothing asks for."""

import re
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.knowledge import load_words
from yaml_file import read_yaml

SOURCE = Path(__file__).parents[2] / "src" / "kb"
GROUPS = ("cli", "config", "machine", "project", "rules", "fix", "watch", "model_config", "report", "explain", "note")
_KEY = re.compile(rf"""["']((?:{"|".join(GROUPS)})\.[a-z0-9_.-]+[a-z0-9])["']""")
# Keys that the code puts together from parts.
_BUILT = re.compile(r"""f["']([a-z_.]+)\.\{|f["']([a-z_]+)\.\{""")


def asked_for() -> set[str]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        found.update(_KEY.findall(path.read_text("utf-8")))
    # these look like keys and are file names, modules or facts
    found -= load_catalog().facts.keys()
    return {key for key in found if not key.endswith((".json", ".yaml", ".toml", ".py"))}


@pytest.mark.parametrize("language", ["ko", "en"])
def test_every_sentence_asked_for_exists(language: str) -> None:
    words = load_words(language)
    groups = {key.rsplit(".", 1)[0] for key in words}
    missing = {key for key in asked_for() if key not in words and f"{key}.one" not in words and key not in groups}
    assert missing == set()


def test_every_sentence_that_a_page_of_the_theme_asks_for_exists() -> None:
    root = SOURCE.parents[1]
    texts = read_yaml(root / "i18n" / "site.yaml")["texts"]
    pages = "\n".join(path.read_text("utf-8") for path in (root / "docs" / "theme").rglob("*.html"))
    asked = set(re.findall(r"say\('([a-z_.]+[a-z_])'", pages))
    assert asked and asked - texts.keys() == set()


def test_no_sentence_is_left_that_nothing_asks_for() -> None:
    text = "\n".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    prefixes = {match[0] or match[1] for match in _BUILT.findall(text)} | set(re.findall(r'named\("([a-z_]+)"', text))
    quoted = {word for _, word in re.findall(r"""(?=(["'])([\w.-]+)\1)""", text)}
    unused = []
    for key in load_words("en"):
        stem = key.removesuffix(".one").removesuffix(".many")
        last = stem.rsplit(".", 1)[-1]
        built = any(stem.startswith(f"{prefix}.") for prefix in prefixes) or last in quoted
        if stem not in quoted and not built:
            unused.append(key)
    assert unused == []


def test_korean_is_korean_and_english_is_not() -> None:
    hangul = re.compile("[가-힣]")
    for key, text in load_words("en").items():
        assert not hangul.search(str(text)), key
    plain = [
        key
        for key, text in load_words("ko").items()
        if not hangul.search(str(text)) and re.search("[a-z]{6,}", str(text))
    ]
    # what is the same in both: names of methods and files, and code
    same = ("method.", "unit.", "model_config.", "report.", "term.", "argparse.", "argparse ", "plan.loop.")
    assert [key for key in plain if not key.startswith(same)] == []
