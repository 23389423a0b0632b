"""An erratum's page: what a field note says, what is found, and what to use."""

from collections.abc import Mapping
from typing import Any

from kb.guide.library import Library
from kb.guide.markup import PLAIN, badge, cited, code, prose, table, text
from kb.guide.site_words import say
from kb.report.entries.provenance import figure


def erratum_page(library: Library, entry: Mapping[str, Any]) -> str:
    """The page as Markdown, its heading first."""
    language, words = library.language, library.words
    claim, finding = entry["claim"], entry["finding"]
    parts = [
        f"# {prose(erratum_title(entry, language))}",
        f"**{text(words.named('erratum_verdict', entry['verdict']))}** · {code(entry['id'])}",
        f"## {say(language, 'erratum.claim')} {{ #claim }}",
        f"{prose(claim['text'][language])} {cited(library, claim)}",
        f"## {say(language, 'erratum.finding')} {{ #finding }}",
        f"{prose(finding['text'][language]) if 'text' in finding else ''} {badge(library, finding['status'])}",
    ]
    rows = [
        (text(value["label"][language]), figure(value["value"], value.get("unit"), words, PLAIN), _how(value))
        for value in finding.get("values", [])
    ]
    if rows:
        head = [say(language, key) for key in ("erratum.quantity", "gpu.value", "erratum.how")]
        parts.append(table(head, rows, numbers=(1,)))
    parts += [f"## {say(language, 'erratum.use')} {{ #use }}", prose(entry["use"][language])]
    return "\n\n".join(parts) + "\n"


def erratum_title(entry: Mapping[str, Any], language: str) -> str:
    """The claim itself, without its full stop."""
    return str(entry["claim"]["text"][language]).rstrip(".")


def _how(value: Mapping[str, Any]) -> str:
    """The recipe by which a test computes the value again."""
    if "expression" in value:
        return f"`{value['expression']}`"
    for kind in ("memory", "formula", "host", "generation"):
        if isinstance(value.get(kind), Mapping):
            shown = ", ".join(f"{name} {part}" for name, part in value[kind].items() if not isinstance(part, Mapping))
            return text(f"{kind}: {shown}")
    return ""
