"""``kb rules show`` and ``kb rules explain``: any id under rules/, as it is written and as it reads."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from kb.advice.formulas import Basis
from kb.core.catalog import Catalog
from kb.core.text import UserError, nearest
from kb.knowledge import load_table_rows
from kb.knowledge.entries import ERRATA, Entry
from kb.knowledge.locations import Location, opened
from kb.knowledge.source import read_source
from kb.report.rules.entry import entry_text, erratum_text, formula_text
from kb.report.rules.explain import explain
from kb.report.terminal import Style
from kb.report.words import Words


def find_entry(name: str, found: dict[str, Entry]) -> Entry:
    """The entry of an id, or of ``kind/id``.

    Raises:
        UserError: there is none; it names the nearest that there is.
    """
    if name in found:
        return found[name]
    meant = nearest(name, [other for other in found if ("/" in other) == ("/" in name)])
    key = "rules.no_entry_meant" if meant else "rules.no_entry"
    raise UserError(key, name=name, meant=meant[0] if meant else "")


def kinds_of(found: dict[str, Entry]) -> Collection[str]:
    """The kinds that have entries, in order."""
    return sorted({entry.kind for entry in found.values()})


def explain_entry(
    entry: Entry, location: Location, catalog: Catalog, guide: Mapping[str, Any], words: Words, style: Style
) -> str:
    """The entry in the reader's language, each figure with its source; an erratum's computed again.

    Args:
        catalog: the whole one, with sources.
        guide: the bundle's part of that name.
    """
    if entry.kind == "checks":
        rule = catalog.rules[entry.id]
        rows = load_table_rows(rule.id, location) if rule.on == rule.id else ()
        return explain(rule, words, style, sources=catalog.sources, rows=rows)
    errata = guide.get(ERRATA, {}).get(ERRATA, [])
    if entry.kind == ERRATA:
        row = next(row for row in errata if row["id"] == entry.id)
        basis = Basis(models=catalog.models, gpus=catalog.gpus, constants=catalog.constants)
        return erratum_text(row, basis, words, style, sources=catalog.sources)
    if entry.kind == "formulas":
        return formula_text(guide["formulas"][entry.id], words, style, errata=errata, sources=catalog.sources)

    data = guide.get(entry.kind, {}).get(entry.id) if os.path.isabs(entry.path) else None  # an overlay's, filled in
    if data is None:
        with open(os.path.join(opened(location).rules, entry.path), encoding="utf-8") as stream:
            data = read_source(entry.path, stream.read()).data
    return entry_text(entry.kind, data, words, style, errata=errata, sources=catalog.sources)
