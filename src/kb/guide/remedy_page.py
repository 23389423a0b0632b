"""A remedy's page: what the symptom means, the words in a log that tell it, and the steps, best first."""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.guide.library import Library
from kb.guide.markup import cited_source, code, prose, text
from kb.guide.site_words import say


def remedy_page(library: Library, entry: Mapping[str, Any]) -> str:
    """The page as Markdown, its heading first."""
    language, words = library.language, library.words
    seen = dict.fromkeys(line for pattern in entry.get("patterns", ()) for line in pattern.get("holds", ()))
    parts = [
        f"# {text(entry['title'][language])}",
        f"{say(language, 'remedy.resource')}: **{text(words.named('resource', entry['resource']))}** · `{entry['id']}`",
        prose(entry["means"][language]),
    ]
    if seen:
        parts += [
            f"## {say(language, 'remedy.signs')} {{ #signs }}",
            "\n".join(f"- {code(sign)}" for sign in seen),
            say(language, "remedy.diagnose", command=code("kb diagnose train.log --config train.yaml")),
        ]
    parts += [f"## {say(language, 'remedy.steps')} {{ #steps }}", "\n".join(_steps(library, entry["steps"]))]
    sources = list(dict.fromkeys(_sources(entry)))
    if sources:
        parts += [
            f"## {say(language, 'rule.sources')} {{ #sources }}",
            "\n".join(f"- {cited_source(library, name)}" for name in sources),
        ]
    return "\n\n".join(parts) + "\n"


def _steps(library: Library, steps: list[Mapping[str, Any]]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        when = f"<br>{say(library.language, 'remedy.when', condition=code(step['when']))}" if "when" in step else ""
        changes = ", ".join(code(_change(name, value)) for name, value in step.get("set", {}).items())
        yield f"{number}. {prose(step['text'][library.language])}{f'<br>{changes}' if changes else ''}{when}"


def _change(name: str, value: Any) -> str:
    shown = value["compute"] if isinstance(value, Mapping) else str(value).lower() if isinstance(value, bool) else value
    return f"{name.rpartition('.')[2]}: {shown}"


def _sources(data: Any) -> Iterator[str]:
    """Every source named anywhere in the entry."""
    if isinstance(data, Mapping):
        if isinstance(data.get("source"), str):
            yield data["source"]
        for name in data.get("sources", ()):
            if isinstance(name, str):
                yield name
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from _sources(item)
