"""Korean words split for search: the index's search engine knows no Korean, so 크기 would not find 배치크기를.

The index and the query are split alike: here, and in ``assets/js/search.js``, which reads the same two lists from the
page. Stems come from ``i18n/glossary.yaml``; particles are a closed list of the language.
"""

import os
import re
from collections.abc import Sequence
from functools import lru_cache

import yaml

from kb.knowledge.locations import shipped

BREAK = "\u200b"  # invisible, and a separator of the index (mkdocs.yml)
_PARTICLES = """
    으로부터 에서부터 에서는 에서도 으로는 으로도 이라면 이라는 이라고 에게서 까지 부터 에서 으로 에게 처럼 보다 마다
    라면 이면 하고 라는 라고 이나 이며 에는 에도 만큼 밖에 은 는 이 가 을 를 에 의 와 과 도 로 만 나 며
"""
PARTICLES = tuple(_PARTICLES.split())
_HANGUL = "가-힣"


@lru_cache(maxsize=1)
def stems() -> tuple[str, ...]:
    """Korean words of the glossary, each part of a compound by itself, the longest first."""
    with open(os.path.join(shipped().i18n, "glossary.yaml"), encoding="utf-8") as stream:
        terms = yaml.safe_load(stream)["terms"]
    names = [name for term in terms.values() for name in (term["ko"], *term.get("also_ko", ()))]
    found = {part for name in names for part in name.split() if re.fullmatch(f"[{_HANGUL}]{{2,}}", part)}
    return tuple(sorted(found, key=lambda stem: (-len(stem), stem)))


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    # the longest stem counts: 작업자 at a word's end is not 작업 and 자
    inside = re.compile(f"({'|'.join(stems())})(?P<more>(?=[{_HANGUL}]))?")
    return inside, re.compile(rf"([{_HANGUL}A-Za-z0-9]{{2,}}?)({'|'.join(PARTICLES)})(?![{_HANGUL}A-Za-z0-9])")


def split_words(text: str) -> str:
    """``배치크기를`` as ``배치​크기​를`` with invisible breaks, so that each part is a word of the index."""
    inside, particle = _patterns()
    parted = particle.sub(rf"\1{BREAK}\2", text)
    return inside.sub(lambda found: found[1] + BREAK if found["more"] is not None else found[1], parted)


def script_lists() -> dict[str, Sequence[str]]:
    """What the page's script needs to split a query in the same way."""
    return {"stems": stems(), "particles": PARTICLES}
