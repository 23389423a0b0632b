"""i18n/site.yaml: the guide's own words, in both languages, no more and no fewer than are asked for."""

import re
from functools import cache
from pathlib import Path

from catalog_sample import load_catalog
from kb.guide.library import site_texts
from kb.knowledge import load_words
from site_needs import ROOT

PLACEHOLDER = re.compile(r"\{(\w+)[^}]*\}")
# a key as the code, the templates and the scripts name it, whole or up to the part that is put in
_WHOLE = re.compile(r"""["']([a-z_]+(?:\.[a-z_-]+)+)["']""")
_BUILT = re.compile(r"""["']([a-z_]+(?:\.[a-z_]+)*)\.(?:\{|["'] ?~)""")
_PART = re.compile(r"""["'](\w+)["']""")


@cache
def source() -> str:
    """All that can ask for a text."""
    files = [*Path(ROOT, "src", "kb", "guide").glob("*.py"), *Path(ROOT, "docs", "theme").rglob("*.html")]
    return "\n".join(path.read_text("utf-8") for path in sorted(files))


def groups() -> set[str]:
    return {key.split(".")[0] for key in site_texts()}


def test_every_text_asked_for_exists() -> None:
    asked = {key for key in _WHOLE.findall(source()) if key.split(".")[0] in groups()}
    asked = {key for key in asked if not key.endswith((".md", ".html", ".json", ".xml", ".txt", ".yaml", ".py"))}
    # kb's own words lie in ko.yaml and en.yaml
    own = load_words("en")
    assert sorted(key for key in asked if key not in site_texts() and key not in own) == []


def test_no_text_is_left_that_nothing_asks_for() -> None:
    whole, parts, built = set(_WHOLE.findall(source())), set(_PART.findall(source())), set(_BUILT.findall(source()))
    built |= set(re.findall(r'f"([a-z_]+)\.\{', source()))
    unused = []
    for key in site_texts():
        group, _, name = key.rpartition(".")
        # put together from a group and what the rules say, or from a group and a name of a list
        begun = any(key.startswith(f"{start}.") for start in built)
        listed = name in parts and (group in parts or not group)
        if key not in whole and not begun and not listed:
            unused.append(key)
    assert unused == []


def areas() -> set[str]:
    return {rule.area for rule in load_catalog().rules.values()}


def test_every_area_of_the_rules_has_a_name() -> None:
    assert {f"area.{area}" for area in areas()} == {key for key in site_texts() if key.startswith("area.")}


def test_both_languages_have_the_same_placeholders() -> None:
    def named(text: str) -> set[str]:
        return set(PLACEHOLDER.findall(text))

    different = [key for key, text in site_texts().items() if named(text.ko) != named(text.en)]
    assert different == []


def test_no_korean_particle_depends_on_a_placeholder() -> None:
    particles = "은|는|이|가|을|를|과|와|으로|로"
    strays = [key for key, text in site_texts().items() if re.search(rf"\}}(?:{particles})(?![가-힣])", text.ko)]
    assert strays == []


def test_korean_is_korean_and_english_is_not() -> None:
    hangul = re.compile("[가-힣]")
    assert [key for key, text in site_texts().items() if hangul.search(text.en)] == []
