"""What the site's search reads beside a page's text: where Korean words part, other words, what comes first."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

import yaml

from kb.knowledge.locations import shipped

_PARTICLES = """
    으로부터 에서부터 에서는 에서도 으로는 으로도 이라면 이라는 이라고 에게서 까지 부터 에서 으로 에게 처럼 보다 마다
    라면 이면 하고 라는 라고 이나 이며 에는 에도 만큼 밖에 은 는 이 가 을 를 에 의 와 과 도 로 만 나 며
"""
PARTICLES = tuple(_PARTICLES.split())
_HANGUL = "가-힣"
_WORD = f"[{_HANGUL}A-Za-z0-9]"
_BETWEEN = r"[\s\-_,:;!?=\[\](){}\"'`/·<>|]+|\.(?!\d)|&[lg]t;"

# A page's title weighs a thousand times its text in Material's index; its other names weigh a little less than that.
FIELDS = {"title": {"boost": 1000.0}, "also": {"boost": 300.0}, "text": {"boost": 1.0}, "tags": {"boost": 1e6}}
# Who searches wants what to do before what is checked: trouble, chapters, GPUs and models, then rules, then errata.
# A folder's first page lists the others and comes before them.
_FIRST = {"trouble": 1.6, "rules": 0.5, "errata": 0.15}
_CHAPTERS = frozenset({"learn", "memory", "inference", "serving", "case", "accuracy", "contribute"})
_CHAPTER = 2.0
_NARROW = (
    0.5  # what few look for: values refused at a start, old names, servers, many GPUs; who has the error pastes it
)
_NARROW_AREAS = frozenset({"startup", "renames", "serving", "distributed"})
_NARROW_CAUSES = re.compile(r"trouble/(?:serving|llama|ray|jax|tensorflow|rocm|mps)-|trouble/.*shards")


def importance(path: str, area: str | None = None) -> float:
    """How much a page counts in a search, by its path below the site; ``area`` is that of a rule."""
    folder, _, name = path.strip("/").partition("/")
    if folder in _CHAPTERS:
        return _CHAPTER
    if name in ("", "index"):
        return 1.0
    narrow = area in _NARROW_AREAS or _NARROW_CAUSES.match(path)
    weight = float(_said(path).get("weight", 1.0))
    return _FIRST.get(folder, 1.0) * weight * (_NARROW if narrow else 1.0)


def _said(path: str) -> Mapping[str, Any]:
    """What ``docs/search.yaml`` says of a page."""
    found: Mapping[str, Any] = _by_page().get(path.strip("/"), {})
    return found


@lru_cache(maxsize=1)
def _by_page() -> Mapping[str, Mapping[str, Any]]:
    with open(os.path.join(os.path.dirname(shipped().i18n), "docs", "search.yaml"), encoding="utf-8") as stream:
        pages: Mapping[str, Mapping[str, Any]] = yaml.safe_load(stream)
    return pages


@lru_cache(maxsize=1)
def _terms() -> Mapping[str, Mapping[str, Any]]:
    with open(os.path.join(shipped().i18n, "glossary.yaml"), encoding="utf-8") as stream:
        terms: Mapping[str, Mapping[str, Any]] = yaml.safe_load(stream)["terms"]
    return terms


@lru_cache(maxsize=1)
def stems() -> tuple[str, ...]:
    """Korean words of the glossary, each part of a compound by itself, the longest first."""
    names = [name for term in _terms().values() for name in (term["ko"], *term.get("also_ko", ()))]
    found = {part for name in names for part in name.split() if re.fullmatch(f"[{_HANGUL}]{{2,}}", part)}
    return tuple(sorted(found, key=lambda stem: (-len(stem), stem)))


@lru_cache(maxsize=2)
def separator(language: str) -> str:
    """Where text and queries part into words, as a regular expression of JavaScript.

    Korean words run together: ``배치크기를`` parts behind the glossary's words and before a particle, which is no word.
    """
    if language != "ko":
        return _BETWEEN
    particle = rf"(?<={_WORD}{{2}})(?:{'|'.join(PARTICLES)})(?!{_WORD})"
    behind = "|".join(f"(?<={stem}){_not_longer(stem)}" for stem in stems())
    return f"{_BETWEEN}|{particle}|(?=[{_HANGUL}])(?:{behind})"


def _not_longer(stem: str) -> str:
    """No part of a longer word: 작업자 is not 작업 and 자."""
    rest = [longer.removeprefix(stem) for longer in stems() if longer != stem and longer.startswith(stem)]
    return f"(?!{'|'.join(rest)})" if rest else ""


def synonyms(language: str) -> dict[str, str]:
    """The pages' own words for what a reader may type: words that the glossary avoids, and the other language's."""
    other = "en" if language == "ko" else "ko"
    found: dict[str, str] = {}
    for term in _terms().values():
        theirs = chain.from_iterable(term.get(f"{kind}_{other}", ()) for kind in ("also", "not"))
        for name in chain(term.get(f"not_{language}", ()), [term[other]], theirs):
            if name.lower() != term[language].lower():
                found.setdefault(name.lower(), term[language])
    return {**found, **_said("words").get(language, {})}


def empty_words(language: str) -> list[str]:
    """Words around what a reader looks for, which tell no page from another."""
    return [str(word) for word in _said("empty").get(language, ())]


def programs() -> list[str]:
    """Programs that have pages of their own, by a word of their names."""
    return [str(name) for name in _by_page().get("programs", ())]


_PHRASE = range(2, 6)  # words; one alone says too little, and more are the words of a log


def phrases(names: Iterable[str]) -> list[str]:
    """Names of several words, each once: a query that holds one is about the pages that are called so."""
    found = (" ".join(name.lower().split()) for name in names)
    return sorted({name for name in found if len(name.split()) in _PHRASE})


def pages_names(path: str, language: str) -> list[str]:
    """Words for a page that ``docs/search.yaml`` gives it."""
    return [str(name) for name in _said(path).get(language, ())]


def other_names(folder: str, entry: Mapping[str, Any], language: str) -> list[str]:
    """What a generated page is also found by: its id, its name in the other language, aliases, what a log says."""
    other = "en" if language == "ko" else "ko"
    own = pages_names(f"{folder}/{entry['id']}", language)
    names = [str(entry["id"]), *map(str, entry.get("aliases", ())), *own]
    title = entry.get("title")
    if isinstance(title, Mapping) and other in title:
        names.append(str(title[other]))
    if folder == "trouble":
        names += [_plain(log) for log in _logs(entry)]
        names += [sign for pattern in entry.get("patterns", ()) for sign in map(_plain, pattern.get("holds", ()))]
    if _NARROW_CAUSES.match(f"{folder}/{entry['id']}"):  # whose programs a reader names beside the error
        whole = str(entry).lower()
        names += [name for name in programs() if re.search(rf"\b{name}\b", whole)]
    return names


LONGEST = 400  # characters of a log's end that count: what it says before is told by many logs


def _logs(entry: Mapping[str, Any]) -> Iterator[str]:
    for example in entry.get("examples", ()):
        if example["expect"] == "found":
            yield str(example["log"])


def _plain(log: str) -> str:
    """The words of a log; addresses, numbers and paths tell nothing."""
    return " ".join(re.findall(r"[A-Za-z가-힣][\w.]*\w", log[-LONGEST:]))
