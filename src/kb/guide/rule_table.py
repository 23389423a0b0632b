"""All lint rules by area, each linked to its page."""

from html import escape

from kb.guide.library import Library
from kb.guide.markup import table, text
from kb.guide.site_words import say


def rule_table(library: Library) -> str:
    """A heading and a table for each area."""
    rules = library.catalog.rules.values()
    parts = [say(library.language, "rule.count", n=len(rules))]
    head = [say(library.language, key) for key in ("rule.title", "rule.what", "rule.severity")]
    for area in sorted({rule.area for rule in rules}):
        rows = [
            (
                f"[{rule.id}]({rule.id}.md)",
                text(library.words.described(rule.title)),
                f'<span class="kb-severity kb-severity--{rule.severity}">'
                f"{escape(library.words.named('severity', rule.severity))}</span>",
            )
            for rule in rules
            if rule.area == area
        ]
        parts.append(f"## {say(library.language, f'area.{area}')} {{ #{area} }}\n\n{table(head, rows)}")
    return "\n\n".join(parts)
