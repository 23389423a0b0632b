"""A choice and what each option costs, side by side."""

from kb.guide.library import Library
from kb.guide.markup import badge, cited, prose, table, text
from kb.guide.runbooks import shown_quantity
from kb.guide.site_words import say


def tradeoff(library: Library, name: str) -> str:
    """The options of ``rules/tradeoffs/<name>.yaml`` with what they are compared by and their remarks."""
    language = library.language
    entry = library.entry("tradeoffs", name)
    aspects = entry.get("aspects", {})
    head = [say(language, "tradeoff.option"), *(text(about[language]) for about in aspects.values())]
    rows = []
    for option in entry["options"]:
        title = f"**{text(option['title'][language])}** {badge(library, option['status'])} {cited(library, option)}"
        compared = option.get("aspects", {})
        cells = [prose(compared[key][language]) if key in compared else "–" for key in aspects]
        rows.append((title, *cells))
    parts = [prose(entry["text"][language])] if "text" in entry else []
    parts.append(table(head, rows))
    for option in entry["options"]:
        remarks = option.get("remarks", ())
        if not remarks:
            continue
        lines = []
        for remark in remarks:
            value = f" **{shown_quantity(library, remark)}**" if "value" in remark else ""
            erratum = f" ([{remark['erratum']}](errata/{remark['erratum']}.md))" if "erratum" in remark else ""
            mark = say(language, f"remark.{remark['kind']}")
            lines.append(f"    - {mark}: {prose(remark['text'][language])}{value}{erratum}")
        title = option["title"][language].replace('"', "'")
        parts.append(f'??? note "{title}"\n\n' + "\n".join(lines))
    return "\n\n".join(parts)
