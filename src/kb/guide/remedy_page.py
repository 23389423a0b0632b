"""A remedy's page: what the symptom means, the words in a log that tell it, and the steps, best first."""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.guide.diagnosed import CONFIG, GPU, diagnosed
from kb.guide.library import Library
from kb.guide.markup import cited_source, code, prose, text
from kb.guide.site_words import say

SHORTEST = 6  # characters of a sign that is shown
LONGEST = 72  # characters of a formula that is shown


def remedy_page(library: Library, entry: Mapping[str, Any]) -> str:
    """The page as Markdown, its heading first."""
    language, words = library.language, library.words
    seen = _signs(entry)
    parts = [
        f"# {text(entry['title'][language])}",
        f"{say(language, 'remedy.resource')}: **{text(words.named('resource', entry['resource']))}** · `{entry['id']}`",
        prose(entry["means"][language]),
    ]
    if seen:
        parts += [
            f"## {say(language, 'remedy.signs')} {{ #signs }}",
            " · ".join(code(sign) for sign in seen),
            say(language, "remedy.diagnose", command=code("kb diagnose train.log --config train.yaml")),
        ]
    parts += [f"## {say(language, 'remedy.steps')} {{ #steps }}", "\n".join(_steps(library, entry["steps"]))]
    if example := diagnosed(library, entry):
        about = say(language, "remedy.example_about", config=code(CONFIG), gpu=GPU)
        parts += [f"## {say(language, 'remedy.example')} {{ #example }}", about, example]
    sources = list(dict.fromkeys(_sources(entry)))
    if sources:
        parts += [
            f"## {say(language, 'rule.sources')} {{ #sources }}",
            "\n".join(f"- {cited_source(library, name)}" for name in sources),
        ]
    return "\n\n".join(parts) + "\n"


def _signs(entry: Mapping[str, Any]) -> list[str]:
    """The words of a log that tell it, each once; pieces that say nothing to a reader are left out."""
    held = [line for pattern in entry.get("patterns", ()) for line in pattern.get("holds", ())]
    seen = {" ".join(line.lower().replace("_", " ").replace("-", " ").split()): line for line in reversed(held)}
    return [line for line in reversed(seen.values()) if len(line) >= SHORTEST]


def _steps(library: Library, steps: list[Mapping[str, Any]]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        said = [prose(step["text"][library.language])]
        changes = ", ".join(code(_change(name, value)) for name, value in step.get("set", {}).items())
        if changes:
            said.append(changes)
        if "run" in step:
            said.append(code(step["run"]))
        if "when" in step:
            condition = say(library.language, "remedy.when", condition=code(step["when"]))
            said.append(f'<span class="kb-when">{condition}</span>')
        yield f"{number}. {'<br>'.join(said)}"


def _change(name: str, value: Any) -> str:
    """A setting and its new value; a long formula says less than the example further down."""
    shown = value["compute"] if isinstance(value, Mapping) else str(value).lower() if isinstance(value, bool) else value
    return f"{name.rpartition('.')[2]}: {shown if len(str(shown)) <= LONGEST else '…'}"


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
