"""One erratum in full: what the note claims and where, what comes out when it is computed again, what to use."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.recompute import Basis, RecipeError, Recomputed, recompute
from kb.report.entries.provenance import INDENT, blocks_text, figure, heading, place, section, source_lines
from kb.report.style import Style
from kb.report.width import wrap
from kb.report.words import Words


def erratum_text(
    entry: Mapping[str, Any], basis: Basis, words: Words, style: Style, *, sources: Mapping[str, Any]
) -> str:
    """The erratum, with its values computed now.

    Args:
        entry: of ``load_guide()["errata"]["errata"]``.
        basis: models, GPUs and constants that its recipes draw on.
        sources: the catalogue's sources, by id.
    """
    about = [words.named("entry_kind", "errata"), words.named("erratum_verdict", entry["verdict"])]
    blocks = [
        heading(entry["id"], about, words, style, None),
        _claim(entry["claim"], words, style),
        _finding(entry, basis, words, style),
        section(words("explain.use"), wrap(entry["use"][words.language], style.width, INDENT), style),
        source_lines(_sources(entry), sources, words, style),
    ]
    return blocks_text(blocks)


def _claim(claim: Mapping[str, Any], words: Words, style: Style) -> list[str]:
    lines = wrap(claim["text"][words.language], style.width, INDENT)
    value = claim.get("value", claim.get("values"))
    if value is not None:
        lines.append(INDENT * 2 + figure(value, claim["unit"], words, style))
    if claim.get("also"):
        also = words("explain.also", places=[place(row) for row in claim["also"]])
        lines += wrap(also, style.width, INDENT, INDENT * 2)
    return section(words("explain.claim", place=place(claim)), lines, style)


def _finding(entry: Mapping[str, Any], basis: Basis, words: Words, style: Style) -> list[str]:
    finding, claim = entry["finding"], entry["claim"]
    lines = wrap(finding["text"][words.language], style.width, INDENT) if "text" in finding else []
    lines += _inputs(finding.get("inputs", {}), claim["source"], words, style)
    try:
        lines += _values(finding, recompute(finding, basis), words, style)
    except RecipeError as error:
        lines += wrap(words("explain.no_recompute", reason=str(error)), style.width, INDENT * 2)
    if "mechanism" in finding:
        lines += wrap(words("explain.inferred"), style.width, INDENT)
    status = words.named("status", finding["status"])
    return section(words("explain.finding", status=status), lines, style)


def _inputs(inputs: Mapping[str, Any], source: str, words: Words, style: Style) -> list[str]:
    lines: list[str] = []
    for name, row in inputs.items():
        if "value" not in row:
            continue  # it comes from another recipe, which the values show
        shown = f"{name} = {figure(row['value'], row['unit'], words, style)} ({place(row, source)})"
        lines += wrap(shown, style.width, INDENT * 2, INDENT * 3)
    return lines


def _values(finding: Mapping[str, Any], found: Sequence[Recomputed], words: Words, style: Style) -> list[str]:
    rows = finding.get("values") or [finding]
    lines: list[str] = []
    for row, value in zip(rows, found, strict=False):
        now = figure(_rounded(value), value.unit, words, style)
        key = "explain.recomputed" if value.agrees else "explain.recomputed_differs"
        said = words(key, now=now, stored=figure(value.stored, value.unit, words, style))
        label = f"{row['label'][words.language]}: " if "label" in row else ""
        formula = f" = {row['expression']}" if "expression" in row else ""
        lines += wrap(label + said + formula, style.width, INDENT * 2, INDENT * 3)
    return lines


def _rounded(value: Recomputed) -> float:
    """As many digits as the stored value has, where it agrees: more of them would only look exact."""
    stored = f"{value.stored:g}" if abs(value.stored) < 1e6 else str(value.stored)
    decimals = len(stored.partition(".")[2])
    return round(value.computed, decimals) if value.agrees else float(f"{value.computed:.6g}")


def _sources(entry: Mapping[str, Any]) -> list[str]:
    finding = entry["finding"]
    names = [entry["claim"]["source"], *(row["source"] for row in entry["claim"].get("also", ()))]
    names += [row["source"] for row in finding.get("inputs", {}).values() if "source" in row]
    return [*names, *([finding["source"]] if "source" in finding else []), *finding.get("sources", ())]
