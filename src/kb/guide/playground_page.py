"""The element that the playground grows in, with its words: the script holds none of its own."""

import json
from html import escape

from kb.core.memory_report import STATUSES
from kb.guide.library import Library
from kb.guide.site_words import say

WORDS = (
    "chart", "check", "copied", "copy_by_hand", "cpus", "done", "editor", "example", "examples", "failed", "fix",
    "fix_all", "fix_unsafe", "gpu", "gpus", "host", "loading", "no_gpu", "no_wasm", "nothing", "share", "small",
    "stuck", "too_long", "unused", "versions",
)  # fmt: skip


def playground(library: Library) -> str:
    """The playground's place on the page; without a script it says what it needs."""
    language, words = library.language, library.words
    texts: dict[str, object] = {name: say(language, f"playground.{name}") for name in WORDS}
    texts["severity"] = {name: words.named("severity", name) for name in ("error", "warning", "info")}
    texts["verdict"] = {name: words.named("verdict", name) for name in (*STATUSES, "unknown")}
    held = escape(json.dumps(texts, ensure_ascii=False), quote=True)
    needs = escape(say(language, "playground.no_script"))
    return f'<div id="kb-playground" data-words="{held}"></div>\n<noscript><p class="kb-notice">{needs}</p></noscript>'
