"""A formula of the notes beside the one to use, typeset, with its variables and a worked example."""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from kb.core.expression import Tree
from kb.guide.library import Library, say
from kb.guide.markup import PLAIN, badge, prose, table, text
from kb.report.rules.entry import figure

_SIGNS = {"*": " × ", "+": " + ", "-": " − ", "//": " div ", "%": " mod "}
_COMPARES = {"<=": " ≤ ", ">=": " ≥ ", "==": " = ", "!=": " ≠ ", "<": " < ", ">": " > "}
_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 3, "//": 2, "%": 2, "neg": 2, "**": 4}


def formula(library: Library, name: str) -> str:
    """What ``rules/formulas/<name>.yaml`` says: as claimed, as corrected, and with numbers."""
    language = library.language
    entry = library.entry("formulas", name)
    parts = [f"{prose(entry['text'][language])}{_of_text(library, entry)}"] if "text" in entry else []
    for kind in ("claimed", "corrected", "steps"):
        rows = entry.get(kind)
        if isinstance(rows, list) and rows and "expression_tree" in rows[0]:
            lines = "".join(_line(library, entry, row) for row in rows)
            parts.append(f'**{say(language, f"formula.{kind}")}**\n\n<ul class="kb-formulas">{lines}</ul>')
    if variables := _variables(library, entry):
        parts.append(variables)
    if entry.get("erratum"):
        link = f"[{entry['erratum']}](errata/{entry['erratum']}.md)"
        parts.append(say(language, "formula.erratum", erratum=link))
    if example := _example(library, entry):
        parts.append(example)
    return "\n\n".join(parts)


def _of_text(library: Library, entry: Mapping[str, Any]) -> str:
    """The badge of numbers that the words above a formula repeat from the note."""
    claimed = [row for row in entry.get("claimed", ()) if row.get("source")]
    return f" {badge(library, 'claimed', claimed[0])}" if claimed and re.search(r"\d", entry["text"]["en"]) else ""


def _line(library: Library, entry: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    names = {name: about[library.language] for name, about in entry.get("variables", {}).items()}
    left = _name(names.get(row["name"]) or _unnamed(library, row["name"]))
    said = f' <span class="kb-said">{escape(row["text"][library.language])}</span>' if "text" in row else ""
    source = badge(library, row["status"], row)
    shown = f"{left} = {typeset(row['expression_tree'], names)}"
    return f'<li><span class="kb-formula">{shown}</span> {source}{said}</li>'


def _unnamed(library: Library, name: str) -> str:
    """What a formula gives and lists no variable for."""
    return say(library.language, "formula.total") if name == "total" else name


def typeset(tree: Tree, names: Mapping[str, str]) -> str:
    """An expression's tree as HTML, which breaks between its terms as text does; variables are the reader's words."""
    kind = tree[0]
    if kind == "fact":
        return _name(names.get(tree[1], tree[1].rpartition(".")[2]))
    if kind == "lit":
        return _number(tree[1])
    if kind == "call":
        return f"{escape(tree[1])}({', '.join(typeset(part, names) for part in tree[2:])})"
    if kind == "/":
        over, under = (typeset(part, names) for part in tree[1:])
        return f'<span class="kb-over"><span>{over}</span><span class="kb-slash"> / </span><span>{under}</span></span>'
    if kind == "**":
        return f"{_part(tree[1], 5, names)}<sup>{typeset(tree[2], names)}</sup>"
    if kind == "neg":
        return f"−{_part(tree[1], 2, names)}"
    if kind == "if":
        test, body, other = (typeset(part, names) for part in tree[1:])
        return f'<span class="kb-cases"><span>{body} ({test})</span><span>{other}</span></span>'
    if kind == "compare":
        parts = [typeset(part, names) for part in tree[2:]]
        return parts[0] + "".join(escape(_COMPARES[sign]) + part for sign, part in zip(tree[1], parts[1:], strict=True))
    strength = _STRENGTH[kind]
    return _part(tree[1], strength, names) + _SIGNS[kind] + _part(tree[2], strength + (kind == "-"), names)


def _part(tree: Tree, at_least: int, names: Mapping[str, str]) -> str:
    inner = typeset(tree, names)
    return inner if _STRENGTH.get(tree[0], 9) >= at_least else f"({inner})"


def _name(words: str) -> str:
    return f"<span>{escape(words.replace('_', ' '))}</span>"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    if value and abs(value) >= 1e6:
        power = len(str(int(abs(value)))) - 1
        mantissa = value / 10**power
        ten = f"10<sup>{power}</sup>"
        return ten if mantissa == 1 else f"{mantissa:g} × {ten}"
    return f"{value:g}"


def _variables(library: Library, entry: Mapping[str, Any]) -> str:
    """What each variable is, and the value that the rules hold for it."""
    rows = []
    for about in entry.get("variables", {}).values():
        if "value" not in about:
            continue
        shown = figure(about["value"], about.get("unit"), library.words, PLAIN)
        choices = ", ".join(f"{name} {value}" for name, value in about.get("choices", {}).items())
        source = badge(library, about["status"], about) if "status" in about else ""
        rows.append((text(about[library.language]), f"{text(shown)} {source}", text(choices)))
    if not rows:
        return ""
    head = [say(library.language, key) for key in ("formula.variable", "gpu.value", "formula.choices")]
    if not any(choices for *_, choices in rows):
        return table(head[:2], [row[:2] for row in rows])
    return table(head, [(*row[:2], row[2] or "–") for row in rows])


def _example(library: Library, entry: Mapping[str, Any]) -> str:
    """The first worked example as a table: what is given, what comes out."""
    examples = entry.get("examples")
    if not examples:
        return ""
    example, variables = examples[0], entry.get("variables", {})
    units = {row["name"]: row.get("unit") for row in entry.get(example["use"], ())}
    rows = []
    for kind in ("given", "gives"):
        for name, value in example.get(kind, {}).items():
            if kind == "given" and value == 0:  # left out of the example
                continue
            about = variables.get(name, {})
            label = about.get(library.language) or _unnamed(library, name)
            shown = figure(value, units.get(name) or about.get("unit"), library.words, PLAIN)
            rows.append((say(library.language, f"formula.{kind}"), text(label), shown))
    title = example["title"][library.language] if "title" in example else ""
    # what a claimed formula gives is the note's own sum; the others are computed again by a test
    mark = badge(library, "claimed" if example["use"] == "claimed" else "computed", example)
    head = [say(library.language, "formula.example"), text(title), f"{say(library.language, 'gpu.value')} {mark}"]
    return table(head, rows, numbers=(2,))
