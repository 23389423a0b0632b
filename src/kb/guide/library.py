"""What the guide is made from, in one language: rules, guide data and words, and the site's own words
(``i18n/site.yaml``), which a check has no need of. Unknown ids and keys are said with the nearest.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.text import Text, fill, nearest, text_of
from kb.knowledge import load_catalog, load_guide, load_words
from kb.knowledge.bundle import load_part
from kb.knowledge.compile import OF_EVERY_FORMAT
from kb.knowledge.locations import shipped
from kb.report.words import Words


class UnknownIdError(ValueError):
    """A page names something that the rules do not have."""


class Library(NamedTuple):
    """``guide`` holds every kind but the rules as plain data by kind and id: all that the files say."""

    language: str
    catalog: Catalog
    guide: Mapping[str, Any]
    words: Words

    def say(self, text: Text | Mapping[str, str]) -> str:
        """A two-language text in this language."""
        return text.in_language(self.language) if isinstance(text, Text) else text[self.language]

    def entry(self, kind: str, name: str) -> Any:
        """One entry by kind (``rules``, ``hardware``, ``models``, ``presets``, …) and id, as the file has it.

        Raises:
            UnknownIdError: there is no such kind or id; the message names the nearest.
        """
        rows = self.rows(kind)
        if name not in rows:
            raise UnknownIdError(f"no {kind} entry {name!r}{_meant(name, rows)}")
        return rows[name]

    def rows(self, kind: str) -> Mapping[str, Any]:
        """All entries of a kind, by id."""
        errata = {entry["id"]: entry for entry in self.guide["errata"]["errata"]}
        kinds = {"rules": self.catalog.rules, **self.guide, "errata": errata}
        if kind not in kinds:
            raise UnknownIdError(f"no kind {kind!r}{_meant(kind, kinds)}")
        found: Mapping[str, Any] = kinds[kind]
        return found


def _meant(name: str, known: Mapping[str, Any]) -> str:
    close = nearest(name, known)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(sorted(known)[:12])}"


@lru_cache(maxsize=2)
def load_library(language: str) -> Library:
    """The guide's material in ``ko`` or ``en``.

    Raises:
        KnowledgeError: the rules or texts cannot be read; it names file, line and column.
    """
    catalog = load_catalog(whole=True)
    hot = load_part(shipped(), "hot")
    shared = {name: dict(zip(OF_EVERY_FORMAT, row, strict=True)) for name, row in hot["dialects"].items()}
    dialects = {name: {**row, **hot["formats"][name], **hot["names"][name]} for name, row in shared.items()}
    guide = {**load_guide(), "dialects": dialects}
    return Library(language, catalog, guide, Words(language, load_words(language), catalog.facts))


class UnknownTextError(ValueError):
    """A page asks for words that ``i18n/site.yaml`` does not have."""


@lru_cache(maxsize=1)
def site_texts() -> Mapping[str, Text]:
    """All texts by key."""
    with open(os.path.join(shipped().i18n, "site.yaml"), encoding="utf-8") as stream:
        data = yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {key: text_of(row) for key, row in data["texts"].items()}


def say(language: str, key: str, /, **values: object) -> str:
    """The text of ``key``, its placeholders filled with ``values``.

    Raises:
        UnknownTextError: there is no such key; the message names the nearest.
    """
    texts = site_texts()
    if key not in texts:
        close = nearest(key, texts)
        raise UnknownTextError(f"i18n/site.yaml has no {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    return fill(texts[key].in_language(language), lambda name, _: str(values.get(name, f"{{{name}}}")))
