"""The lists that lead to the generated pages: models, remedies by resource, errata by verdict."""

from html import escape

from kb.guide.fits_table import by_family, kind_of
from kb.guide.library import Library
from kb.guide.markup import code, prose, table, text
from kb.guide.site_words import say

# the commonest first; a new one without a place here fails the build for want of a text
RESOURCES = ("gpu", "host", "shm", "driver", "config", "numerics", "threads", "filesystem", "network", "none")


def model_table(library: Library) -> str:
    """A row for each model, below its family's heading, by size."""
    language = library.language
    head = [say(language, key) for key in ("fits.model", "model.parameters", "list.aliases")]
    parts = []
    for family, models in by_family(list(library.catalog.models.values())):
        rows = [
            (
                f"[{text(model.name)}]({model.id}.md)",
                f"{model.parameters / 1e6:,.0f}M",
                ", ".join(code(name) for name in model.aliases[:3]),
            )
            for model in models
        ]
        kind = say(language, f"kind.{kind_of(models[0])}")
        parts.append(f"## {family} · {kind} {{ #{family} }}\n\n{table(head, rows, numbers=(1,))}")
    return "\n\n".join(parts)


def remedy_table(library: Library) -> str:
    """For each resource what running short of it means, then symptom → what happened, each linked to its steps."""
    language, words = library.language, library.words
    head = [say(language, key) for key in ("list.symptom", "list.means")]
    entries = sorted(library.rows("remedies").values(), key=lambda entry: str(entry["id"]))
    parts = []
    for resource in RESOURCES:
        rows = [
            (f"[{text(entry['title'][language])}]({entry['id']}.md)", prose(entry["means"][language]))
            for entry in entries
            if entry["resource"] == resource
        ]
        if rows:
            title = text(
                words.named("resource", resource) if resource != "none" else say(language, "trouble.none_title")
            )
            parts += [f"### {title} {{ #{resource} }}", prose(say(language, f"trouble.{resource}")), table(head, rows)]
    return "\n\n".join(parts)


def errata_table(library: Library) -> str:
    """What the field notes say that is not so, and what to use."""
    language, words = library.language, library.words
    head = [say(language, key) for key in ("erratum.claim", "list.verdict", "erratum.use")]
    rows = [
        (
            f"[{prose(entry['claim']['text'][language])}]({entry['id']}.md)",
            escape(words.named("erratum_verdict", entry["verdict"])),
            prose(entry["use"][language]),
        )
        for entry in library.rows("errata").values()
    ]
    return table(head, rows)


def dialect_table(library: Library) -> str:
    """The config formats that are read, the marks that most tell each, and how many of its keys have a meaning."""
    head = [say(library.language, key) for key in ("dialect.format", "dialect.name", "dialect.marks", "dialect.keys")]
    rows = []
    for name, entry in library.rows("dialects").items():
        marks = entry.get("recognise", {}).get("marks", {})
        telling = sorted(marks, key=lambda mark: -marks[mark])[:4]
        shown = ", ".join(code(mark) for mark in telling)
        rows.append((text(entry["title"][library.language]), code(name), shown, str(len(entry.get("keys", {})))))
    return table(head, rows, numbers=(3,))
