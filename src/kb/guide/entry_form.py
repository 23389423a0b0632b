"""The forms of the Contribute page, which write a GPU's or a model's file and check it as `kb rules validate` does."""

import json
from html import escape

from kb.guide.library import Library
from kb.guide.site_words import say

# each field: what it is called, and the hint below it; an empty hint for none
FIELDS = {
    "hardware": (
        ("name", "entry.name", "entry.name_hint"),
        ("id", "entry.id", "entry.id_hint"),
        ("aliases", "entry.aliases", "entry.aliases_hint"),
        ("reported", "entry.reported", ""),
        ("capability", "entry.capability", "entry.capability_hint"),
        ("sold", "entry.sold", "entry.vendor_hint"),
        ("tensor_flops", "entry.tensor_flops", "entry.vendor_hint"),
        ("memory_bandwidth", "entry.memory_bandwidth", "entry.vendor_hint"),
        ("tdp", "entry.tdp", "entry.vendor_hint"),
    ),
    "models": (
        ("name", "entry.model_name", "entry.model_name_hint"),
        ("id", "entry.id", "entry.id_hint"),
        ("aliases", "entry.aliases", "entry.aliases_hint"),
        ("config", "entry.config", "entry.config_hint"),
    ),
}
WORDS = (
    "check", "copied", "copy", "failed", "loading", "no_wasm", "open", "open_note", "paste", "right", "stuck",
    "unplaced", "wrong",
)  # fmt: skip


def entry_form(library: Library, kind: str) -> str:
    """The place of a form for ``hardware`` or ``models``; without a script nothing is there but the file to copy.

    Raises:
        ValueError: no form is of that kind.
    """
    if kind not in FIELDS:
        raise ValueError(f"no form for {kind!r}; there are: {', '.join(FIELDS)}")
    language = library.language
    fields = [
        {"name": name, "label": say(language, label), "hint": say(language, hint) if hint else ""}
        for name, label, hint in FIELDS[kind]
    ]
    given = {"kind": kind, "fields": fields, "words": {name: say(language, f"entry.{name}") for name in WORDS}}
    held = escape(json.dumps(given, ensure_ascii=False), quote=True)
    return f'<div class="kb-entry" data-given="{held}"></div>'
