"""i18n/glossary.yaml: the pairs are whole and unique, and no text of the project uses a word that it rules out."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What a text quotes, in quotes or as code, is someone else's word.
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|‘[^’]*’|“[^”]*”")


def read(path: Path) -> Any:
    return yaml.load(path.read_text("utf-8"), LOADER)


CODE = re.compile(r"^(```|~~~).*?^\1|\{\{.*?\}\}|\]\([^)]*\)", re.DOTALL | re.MULTILINE)  # and macros, addresses


TERMS: dict[str, dict[str, Any]] = read(ROOT / "i18n" / "glossary.yaml")["terms"]


def texts() -> Iterator[tuple[str, str, str]]:
    """(place, language, text) of every sentence of i18n/ and of rules/, and of every line of the pages' prose."""
    for language in ("ko", "en"):
        for key, text in read(ROOT / "i18n" / f"{language}.yaml").items():
            yield f"i18n/{language}.yaml {key}", language, str(text)
    for language in ("ko", "en"):
        for path in sorted((ROOT / "docs" / language).rglob("*.md")):
            text = path.read_text("utf-8")
            if "\ngenerated: " in text[:2000]:
                continue  # made from the rules, which are read themselves
            prose = CODE.sub("", text)
            for number, line in enumerate(prose.splitlines(), 1):
                if line.startswith("also: "):
                    continue  # what readers may type, whatever kb calls it
                yield f"{path.relative_to(ROOT)}:{number}", language, line
    for path in sorted((ROOT / "rules").rglob("*.yaml")):
        yield from texts_of(read(path), str(path.relative_to(ROOT)))


def texts_of(data: Any, place: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(data, dict):
        if isinstance(data.get("ko"), str) and isinstance(data.get("en"), str):
            yield place, "ko", data["ko"]
            yield place, "en", data["en"]
        for value in data.values():
            yield from texts_of(value, place)
    elif isinstance(data, list):
        for value in data:
            yield from texts_of(value, place)


@pytest.fixture(scope="module")
def sentences() -> list[tuple[str, str, str]]:
    return [(place, language, QUOTED.sub("", text).casefold()) for place, language, text in texts()]


def test_it_has_at_least_eighty_pairs() -> None:
    assert len(TERMS) >= 80


def test_both_sides_of_every_pair_say_something() -> None:
    for name, term in TERMS.items():
        assert term.keys() <= {"ko", "en", "also_ko", "not_ko", "not_en"}, name
        assert term["ko"].strip() == term["ko"] != "" and re.search("[가-힣]", term["ko"]), name
        assert term["en"].strip() == term["en"] != "" and not re.search("[가-힣]", term["en"]), name


@pytest.mark.parametrize("language", ["ko", "en"])
def test_no_word_stands_for_two_things(language: str) -> None:
    seen = Counter(term[language].casefold() for term in TERMS.values())
    assert [word for word, times in seen.items() if times > 1] == []


def test_no_term_uses_what_another_rules_out() -> None:
    for name, term in TERMS.items():
        for other in TERMS.values():
            words = [term["ko"], *term.get("also_ko", [])]
            assert not any(word in text for word in other.get("not_ko", []) for text in words), name
            assert not any(word in term["en"] for word in other.get("not_en", [])), name


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, term in TERMS.items() if "not_ko" in term or "not_en" in term])
def test_no_text_uses_a_word_that_the_glossary_rules_out(name: str, sentences: list[tuple[str, str, str]]) -> None:
    found = [
        f"{place}: {word!r} in {text[:100]!r}; write {TERMS[name][language]!r}"
        for language in ("ko", "en")
        for word in TERMS[name].get(f"not_{language}", [])
        for place, written, text in sentences
        if written == language and word.casefold() in text
    ]
    assert found == [], "\n".join(found)
