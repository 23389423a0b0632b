"""The generated pages: written into docs/ before the build, only where they changed, and never committed."""

import os
from collections.abc import Callable, Iterator, Mapping

from kb.guide.all_fits import Fits, all_fits
from kb.guide.entry_pages import erratum_page, erratum_title, gpu_page, model_page, remedy_page
from kb.guide.library import Library, load_library
from kb.guide.rule_page import rule_page

FRONT = "---\ntitle: {title}\ngenerated: {made_from}\nrender_macros: false\nhide: [navigation]\n{search}---\n\n"
# who searches for what ran short wants the steps before the rules that mention it
SEARCH = {"trouble": "search: {boost: 2}\n"}

Page = tuple[str, str, str]  # title, file it is made from, Markdown


def generated_pages(library: Library, fits: Fits) -> Iterator[tuple[str, Page]]:
    """Each generated page with its path below docs/<language>/."""
    language, catalog = library.language, library.catalog
    for gpu in catalog.gpus.values():
        yield f"gpus/{gpu.id}.md", (gpu.name, f"rules/hardware/{gpu.id}.yaml", gpu_page(library, gpu, fits))
    for model in catalog.models.values():
        yield f"models/{model.id}.md", (model.name, f"rules/models/{model.id}.yaml", model_page(library, model, fits))
    for name, entry in library.rows("remedies").items():
        made_from = f"rules/remedies/{name}.yaml"
        yield f"trouble/{name}.md", (entry["title"][language], made_from, remedy_page(library, entry))
    for name, entry in library.rows("errata").items():
        title = erratum_title(entry, language).replace("`", "")
        yield f"errata/{name}.md", (title, "rules/errata.yaml", erratum_page(library, entry))
    for rule in library.catalog.rules.values():
        made_from = f"rules/checks/{rule.area}/{rule.id}.yaml"
        yield f"rules/{rule.id}.md", (library.words.described(rule.title), made_from, rule_page(library, rule))


def write_pages(docs: str, language: str, say: Callable[[str], None] = lambda line: None) -> int:
    """Write every generated page of a language below ``docs``/``language``; pages of entries that are gone are removed.

    Returns:
        How many files changed.
    """
    fits = all_fits(os.path.join(os.path.dirname(docs), "build"))
    pages = dict(generated_pages(load_library(language), fits))
    changed = 0
    for path, (title, made_from, body) in pages.items():
        search = SEARCH.get(path.partition("/")[0], "")
        front = FRONT.format(title=_quoted(title), made_from=made_from, search=search)
        changed += write_if_changed(os.path.join(docs, language, path), front + body)
    changed += _remove_stale(os.path.join(docs, language), pages)
    say(f"{language}: {changed} generated pages changed")
    return changed


def _quoted(title: str) -> str:
    return "'" + title.replace("'", "''") + "'"


def write_if_changed(path: str, content: str) -> bool:
    """An unchanged page keeps its time, so that a served site does not rebuild for nothing."""
    try:
        with open(path, encoding="utf-8") as stream:
            if stream.read() == content:
                return False
    except OSError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(content)
    return True


def _remove_stale(folder: str, pages: Mapping[str, Page]) -> int:
    removed = 0
    for kind in sorted({path.split("/")[0] for path in pages}):
        for name in os.listdir(os.path.join(folder, kind)):
            path = os.path.join(folder, kind, name)
            if f"{kind}/{name}" not in pages and name.endswith(".md") and _is_generated(path):
                os.remove(path)
                removed += 1
    return removed


def _is_generated(path: str) -> bool:
    with open(path, encoding="utf-8") as stream:
        return "\ngenerated: " in stream.read(400)
