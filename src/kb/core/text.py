"""A sentence in both languages, with placeholders that a plain lookup fills (never ``str.format`` on objects)."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

LANGUAGES = ("ko", "en")
PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_.]*)(?::([A-Za-z0-9.,%]+))?\}")


class Text(NamedTuple):
    """The same sentence in Korean and English. Placeholders are fact names: ``{memory.train.peak:GiB}``."""

    ko: str
    en: str

    def in_language(self, language: str) -> str:
        return self.ko if language == "ko" else self.en

    def placeholders(self) -> frozenset[str]:
        """Names of the facts that either language mentions."""
        return frozenset(m[1] for part in (self.ko, self.en) for m in PLACEHOLDER.finditer(part))


def fill(template: str, lookup: Callable[[str, str], str]) -> str:
    """``template`` with each ``{name:format}`` replaced by ``lookup(name, format)``; the format may be empty."""
    return PLACEHOLDER.sub(lambda m: lookup(m[1], m[2] or ""), template)


def text_of(data: Mapping[str, str]) -> Text:
    """A :class:`Text` from the ``{ko: …, en: …}`` of a rule file."""
    return Text(data["ko"], data["en"])
