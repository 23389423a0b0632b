"""An entry of the knowledge as text, an erratum among them: what it says, with its figures and sources.

Of a formula also its variables, the notes' terms, the ones to use instead, and worked examples.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kb.advice.fit.recommend_answer import erratum_of, overlap
from kb.advice.formulas import Basis, RecipeError, Recomputed, recompute, work_out
from kb.core.record import NamedTuple
from kb.core.text import fill
from kb.report.terminal import INDENT, Style, in_blocks, joined, section, wrap
from kb.report.words import Words

_TEXTS = ("title", "text", "label", "question", "purpose", "comment", "does", "answer")
_CODE = ("command", "instead")
_BESIDE = ("cites", "figures")  # shown with the datum that they belong to


class Datum(NamedTuple):
    """One mapping with a source, and the way to it through the file: keys, and the ids of list items."""

    path: tuple[str, ...]
    row: Mapping[str, Any]


def entry_text(
    kind: str,
    data: Mapping[str, Any],
    words: Words,
    style: Style,
    *,
    errata: Sequence[Mapping[str, Any]],
    sources: Mapping[str, Any],
) -> str:
    """The entry's text and its data.

    Args:
        kind: the folder of rules/ that it stands in.
        data: the file's.
        errata: every entry of the errata; those that the file names, or whose claim stands in it, are shown.
        sources: the catalogue's sources, by id.
    """
    title = data.get("title") or {language: data.get("name", data["id"]) for language in ("ko", "en")}
    about = next((data[key] for key in ("about", "text", "means") if key in data), None)
    rows = list(_data(data, ()))
    lines = [line for datum in rows for line in _line(datum, words, style)]
    blocks = [
        heading(data["id"], [words.named("entry_kind", kind)], words, style, title),
        wrap(about[words.language], style.width, INDENT) if about else [],
        section(words("explain.data"), lines, style),
        errata_lines(_standing(data, rows, errata), words, style),
        source_lines((*data.get("sources", ()), *(d.row["source"] for d in rows)), sources, words, style),
    ]
    return in_blocks(blocks)


def _data(data: Any, path: tuple[str, ...]) -> Iterator[Datum]:
    if isinstance(data, list):
        for number, item in enumerate(data, 1):
            name = item.get("id", item.get("name", item.get("of", number))) if isinstance(item, dict) else number
            yield from _data(item, (*path, str(name)))
    elif isinstance(data, dict):
        datum = bool(path) and isinstance(data.get("source"), str)
        if datum:
            yield Datum(path, data)
        for key, value in data.items():
            if not (datum and key in _BESIDE):
                yield from _data(value, (*path, key))


def _line(datum: Datum, words: Words, style: Style) -> list[str]:
    row = datum.row
    value = _value(row)
    shown = "" if value is None else f" = {figure(value, row.get('unit'), words, style)}"
    about = [words.named("status", row["status"])] if "status" in row else []
    about += [place(one) for one in (row, *row.get("cites", ()))]
    texts = {key: part for key, part in row.items() if isinstance(part, dict) and part.keys() == {"ko", "en"}}
    first = next((key for key in _TEXTS if key in texts), "")
    said = f"{'.'.join(datum.path)}{shown} ({', '.join(about)})"
    if first:
        said += f" {_filled(texts.pop(first), row, words, style)}"
    lines = wrap(said, style.width, INDENT, INDENT * 2)
    for key, text in texts.items():
        lines += wrap(f"{key}: {_filled(text, row, words, style)}", style.width, INDENT * 2, INDENT * 3)
    for key in _CODE:
        if isinstance(row.get(key), str):
            lines += [f"{INDENT * 2}{key}:", *(f"{INDENT * 3}{line}" for line in row[key].splitlines())]
    return lines


def _value(row: Mapping[str, Any]) -> Any:
    """The datum's value, or its range; of a question to the reader what is taken where there is no answer."""
    value = row.get("value", row.get("default"))
    if value is None and "low" in row and "high" in row:
        value = [row["low"], row["high"]]
    return None if isinstance(value, dict) else value


def _filled(text: Mapping[str, str], row: Mapping[str, Any], words: Words, style: Style) -> str:
    """The text with the figures that stand beside it; what only a run can say, by its name."""
    figures = row.get("figures", {})

    def shown(name: str, _: str) -> str:
        one = figures.get(name)
        return figure(_value(one), one.get("unit"), words, style) if one else f"‹{name}›"

    return fill(text[words.language], shown)


def _standing(
    data: Mapping[str, Any], rows: Sequence[Datum], errata: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The errata that the file names, then those whose claim stands in lines that it cites."""
    named = set(_named(data))
    places = [(datum.row["source"], str(datum.row["lines"])) for datum in rows if "lines" in datum.row]
    first = [entry for entry in errata if entry["id"] in named]
    rest = [entry for entry in errata if any(overlap(erratum_of(entry).places[0], one) for one in places)]
    return first + [entry for entry in rest if entry not in first]


def _named(data: Any) -> Iterator[str]:
    if isinstance(data, list):
        for item in data:
            yield from _named(item)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key == "erratum" and isinstance(value, str):
                yield value
            else:
                yield from _named(value)


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
    return in_blocks(blocks)


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


def heading(name: str, about: Sequence[str], words: Words, style: Style, title: Mapping[str, str] | None) -> list[str]:
    """The id with what it is; its title below."""
    lines = [style.dot.join([style.paint(name, "heading"), *about])]
    return lines + (wrap(title[words.language], style.width) if title else [])


def place(row: Mapping[str, Any], source: str | None = None) -> str:
    """``guide-memory:129``: where a datum comes from; an input without a source has the claim's."""
    name = row.get("source", source)
    return f"{name}:{row['lines']}" if name and "lines" in row else name or ""


# Korean words that count stand at the number, 16개; what is counted stands apart: 2 워커.
COUNTERS = ("개", "장", "회", "초", "분", "시간", "층", "행", "줄")


def figure(value: Any, unit: str | None, words: Words, style: Style) -> str:
    """A value, or the ends of a range, with the unit in the language: ``80 samples``, ``80개``, ``10–15 GB``."""
    if isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
        rising = list(value) == sorted(value)
        between = f" {style.arrow} " if not rising else style.dash if len(value) == 2 else ", "
        shown = between.join(words.value(item) for item in value)
    else:
        shown = words.value(value)
    if unit in (None, "ratio"):
        return shown
    if unit == "B" and isinstance(value, int | float) and value >= 10**6:
        scale, name = (10**9, "GB") if value >= 10**9 else (10**6, "MB")  # powers of ten, as the notes write them
        return f"{value / scale:.4g} {name}"
    if unit == "%":
        return f"{shown}%"
    name = words.named("unit", unit or "")
    return f"{shown}{'' if name.partition('/')[0] in COUNTERS else ' '}{name}"


def errata_lines(errata: Iterable[Mapping[str, Any]], words: Words, style: Style) -> list[str]:
    """Each erratum with its verdict and what to use instead."""
    lines: list[str] = []
    for entry in errata:
        said = f"{entry['id']} ({words.named('erratum.verdict', entry['verdict'])}): {entry['use'][words.language]}"
        lines += wrap(said, style.width, INDENT, INDENT * 2)
    return section(words("explain.errata"), lines, style)


def source_lines(names: Iterable[str], sources: Mapping[str, Any], words: Words, style: Style) -> list[str]:
    """Each source once: its id, title and address."""
    lines: list[str] = []
    for name in dict.fromkeys(names):
        source = sources.get(name) or {}
        parts = (name, *(str(source[part]) for part in ("title", "url") if source.get(part)))
        lines += wrap(f"- {joined(parts, style.dot)}", style.width, INDENT, INDENT * 2)
    return section(words("explain.sources"), lines, style)


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
    return in_blocks(blocks)


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
