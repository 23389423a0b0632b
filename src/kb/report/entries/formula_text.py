"""One formula of the guide in full: its variables, the notes' terms, the ones to use instead, worked examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.formulas import work_out
from kb.report.entries.entry import (
    INDENT,
    blocks_text,
    errata_lines,
    figure,
    heading,
    place,
    section,
    source_lines,
)
from kb.report.terminal import Style, wrap
from kb.report.words import Words


def formula_text(
    formula: Mapping[str, Any],
    words: Words,
    style: Style,
    *,
    errata: Sequence[Mapping[str, Any]],
    sources: Mapping[str, Any],
) -> str:
    """The formula, or the thresholds that stand in its file.

    Args:
        formula: of ``load_guide()["formulas"]``.
        errata: every entry of the errata; the one that the file names is shown.
        sources: the catalogue's sources, by id.
    """
    named = {formula.get("erratum"), *(example.get("erratum") for example in formula.get("examples", ()))}
    blocks = [
        heading(formula["id"], [words.named("entry_kind", "formulas")], words, style, formula["title"]),
        wrap(formula["text"][words.language], style.width, INDENT) if "text" in formula else [],
        _variables(formula, words, style),
        _terms(formula.get("claimed", ()), "explain.claimed_terms", words, style),
        _terms(formula.get("corrected", ()), "explain.corrected_terms", words, style),
        _thresholds(formula.get("thresholds", ()), words, style),
        _examples(formula, words, style),
        errata_lines([entry for entry in errata if entry["id"] in named], words, style),
        source_lines(formula["sources"], sources, words, style),
    ]
    return blocks_text(blocks)


def _variables(formula: Mapping[str, Any], words: Words, style: Style) -> list[str]:
    """What has to be known; the names of the terms are explained beside the terms."""
    terms = {term["name"] for use in ("claimed", "corrected") for term in formula.get(use, ())}
    lines: list[str] = []
    for name, row in formula.get("variables", {}).items():
        if name in terms:
            continue
        unit = row.get("unit")
        known = f" = {figure(row['value'], unit, words, style)}" if row.get("value") is not None else ""
        unit_alone = f" [{words.named('unit', unit)}]" if unit and unit != "ratio" and not known else ""
        said = f"{name}{known}{unit_alone}: {row[words.language]}{_cited(row)}"
        lines += wrap(said, style.width, INDENT, INDENT * 2)
    return section(words("explain.variables"), lines, style)


def _terms(terms: Sequence[Mapping[str, Any]], key: str, words: Words, style: Style) -> list[str]:
    lines: list[str] = []
    for term in terms:
        unit = f" [{words.named('unit', term['unit'])}]" if term.get("unit") not in (None, "ratio") else ""
        text = f" {term['text'][words.language]}" if "text" in term else ""
        expression = " ".join(term["expression"].split())
        lines += wrap(f"{term['name']} = {expression}{unit}{_cited(term)}{text}", style.width, INDENT, INDENT * 2)
    return section(words(key), lines, style)


def _thresholds(rows: Sequence[Mapping[str, Any]], words: Words, style: Style) -> list[str]:
    lines: list[str] = []
    for row in rows:
        low, high = row.get("low"), row.get("high")
        if low is not None and high is not None:
            bound = figure([low, high], row["unit"], words, style)
        elif low is not None or high is not None:
            sign = ">=" if high is None else "<="
            bound = f"{sign} {figure(high if low is None else low, row['unit'], words, style)}"
        else:
            bound = style.dash
        about = [words.named("threshold_state", row["state"])]
        about += [words.named("threshold_scope", row["scope"])] if "scope" in row else []
        said = f"{row['id']}: {bound} ({', '.join(about)}){_cited(row)} {row['text'][words.language]}"
        lines += wrap(said, style.width, INDENT, INDENT * 2)
    return section(words("explain.thresholds"), lines, style)


def _examples(formula: Mapping[str, Any], words: Words, style: Style) -> list[str]:
    """What each example comes to now; where the note gives another figure, that one too."""
    lines: list[str] = []
    for example in formula.get("examples", ()):
        found = work_out(formula, example["given"], use=example["use"])
        units = {term["name"]: term.get("unit") for term in formula[example["use"]]}
        given = ", ".join(f"{name} = {words.value(value)}" for name, value in example["given"].items())
        gives = ", ".join(f"{name} = {figure(found[name], units.get(name), words, style)}" for name in example["gives"])
        if "erratum" in example:
            said = [figure(value, units.get(name), words, style) for name, value in example["gives"].items()]
            gives += f" ({words('explain.said', place=place(example), values=said)})"
        title = f"{example['title'][words.language]}: " if "title" in example else ""
        use = words.named("term_use", example["use"])
        lines += wrap(f"{title}({use}) {given} {style.arrow} {gives}", style.width, INDENT, INDENT * 2)
    return section(words("explain.examples"), lines, style)


def _cited(row: Mapping[str, Any]) -> str:
    return f" ({place(row)})" if place(row) else ""
