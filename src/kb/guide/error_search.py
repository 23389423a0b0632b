"""The box of the Fix page for an error line or a log, with the causes that words may mean before the engine answers."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from kb.guide.library import Library
from kb.guide.search_words import pages_names
from kb.guide.site_words import say

WORDS = (
    "answered", "config", "config_about", "cpus", "evidence", "failed", "find", "gpu", "host", "likely", "loading",
    "log", "log_hint", "more", "no_gpu", "no_wasm", "nothing", "nothing_near", "page", "steps", "stuck", "values",
)  # fmt: skip


def error_search(library: Library) -> str:
    """The box's place on the page; without a script it says what to run instead.

    Each cause comes with the words by which a line is recognised, so that likely ones are named at once, and where no
    WebAssembly is: the engine's answer is the exact one.
    """
    language = library.language
    gpus = sorted(library.catalog.gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.name))
    given = {
        "words": {name: say(language, f"pasted.{name}") for name in WORDS},
        "causes": [_cause(entry, language) for entry in library.rows("remedies").values() if "deprecated" not in entry],
        "gpus": [[gpu.id, gpu.name.removeprefix("NVIDIA ")] for gpu in gpus],
    }
    held = escape(json.dumps(given, ensure_ascii=False), quote=True)
    needs = escape(say(language, "pasted.no_script"))
    box = f'<div id="kb-fix" class="kb-fix-box" data-given="{held}"></div>'
    return f'{box}\n<noscript><p class="kb-notice">{needs}</p></noscript>'


def _cause(entry: Mapping[str, Any], language: str) -> list[Any]:
    """Id, title, signs of a log, and other words for it."""
    signs = dict.fromkeys(sign.lower() for row in entry.get("patterns", ()) for sign in row["holds"])
    other = "en" if language == "ko" else "ko"
    words = [entry["title"][other], entry["id"].replace("-", " "), *pages_names(f"trouble/{entry['id']}", language)]
    return [entry["id"], entry["title"][language], list(signs), " ".join(words).lower()]
