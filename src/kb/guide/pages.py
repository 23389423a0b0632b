"""The generated pages: written into docs/ before the build, only where they changed, and never committed."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial

from kb.core.catalog import Rule
from kb.core.record import NamedTuple
from kb.guide.all_fits import Fits, all_fits
from kb.guide.entry_pages import erratum_page, erratum_title, gpu_page, model_page
from kb.guide.library import Library, load_library
from kb.guide.remedy_page import remedy_page
from kb.guide.rule_page import rule_page, rules_that_open
from kb.guide.search_words import importance, other_names

FRONT = (
    "---\ntitle: {title}\ngenerated: {made_from}\nrender_macros: false\nhide: [navigation]\n"
    "search: {{boost: {boost}}}\nalso: {also}\n---\n\n"
)


class Page(NamedTuple):
    """``also`` are other names by which the search finds it; ``area`` is that of a rule; ``markdown`` makes it."""

    title: str
    made_from: str
    markdown: Callable[[], str]
    also: list[str]
    area: str | None = None


def generated_pages(library: Library, fits: Fits, opening: Set[str]) -> Iterator[tuple[str, Page]]:
    """Each generated page with its path below docs/<language>/."""
    language, catalog = library.language, library.catalog

    def names(kind: str, name: str, folder: str) -> list[str]:
        return other_names(folder, library.entry(kind, name), language)

    for gpu in catalog.gpus.values():
        made_from, also = f"rules/hardware/{gpu.id}.yaml", names("hardware", gpu.id, "gpus")
        yield f"gpus/{gpu.id}.md", Page(gpu.name, made_from, partial(gpu_page, library, gpu, fits), also)
    for model in catalog.models.values():
        made_from, also = f"rules/models/{model.id}.yaml", names("models", model.id, "models")
        yield f"models/{model.id}.md", Page(model.name, made_from, partial(model_page, library, model, fits), also)
    for name, entry in library.rows("remedies").items():
        made_from, title = f"rules/remedies/{name}.yaml", entry["title"][language]
        also = other_names("trouble", entry, language)
        yield f"trouble/{name}.md", Page(title, made_from, partial(remedy_page, library, entry), also)
    for name, entry in library.rows("errata").items():
        title = erratum_title(entry, language).replace("`", "")
        yield f"errata/{name}.md", Page(title, "rules/errata.yaml", partial(erratum_page, library, entry), [name])
    for rule in library.catalog.rules.values():
        made_from, title = f"rules/checks/{rule.area}/{rule.id}.yaml", library.words.described(rule.title)
        also = other_names("rules", {"id": rule.id, "title": rule.title, "aliases": _settings(rule)}, language)
        yield f"rules/{rule.id}.md", Page(title, made_from, partial(rule_page, library, rule, opening), also, rule.area)


def _settings(rule: Rule) -> list[str]:
    """The settings at which a rule's findings stand, as configs write them."""
    return [place.rpartition(".")[2] for place in rule.at]


def write_pages(
    docs: str, language: str, say: Callable[[str], None] = lambda line: None, *, preview: bool = False
) -> int:
    """Write every generated page of a language below ``docs``/``language``; pages of entries that are gone are removed.
    One that the build leaves out (``KB_SITE_LEFT_OUT``) stays as it is; where there is none, the head alone is written:
    links may lead to it.

    Returns:
        How many files changed.
    """
    folder, library = os.path.join(os.path.dirname(docs), "build"), load_library(language)
    opening = rules_that_open(folder, library.catalog, preview)
    pages = dict(generated_pages(library, all_fits(folder, preview), opening))
    left_out = frozenset(os.environ.get("KB_SITE_LEFT_OUT", "").splitlines())
    changed = 0
    for path, page in pages.items():
        file, leaves_out = os.path.join(docs, language, path), f"/{path}" in left_out
        if leaves_out and os.path.exists(file):
            continue
        front = FRONT.format(
            title=_quoted(page.title),
            made_from=page.made_from,
            boost=importance(path.removesuffix(".md"), page.area),
            also=json.dumps(page.also, ensure_ascii=False),
        )
        changed += write_if_changed(file, front if leaves_out else front + page.markdown())
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
