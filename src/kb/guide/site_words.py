"""The guide's own words (``i18n/site.yaml``), which a check has no need of."""

import os
from collections.abc import Mapping
from functools import lru_cache

import yaml

from kb.core.text import Text, fill, nearest, text_of
from kb.knowledge.locations import shipped


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
