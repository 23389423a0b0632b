"""Why a condition came out as it did: each of its parts with its truth, then the values of its facts."""

from collections.abc import Iterator

from kb.core.expression import Tree, compile_tree, fact_names, is_unknown
from kb.report.check.panel import need_of
from kb.report.formula import fact_order, unparse
from kb.report.rules.explain import INDENT, Lookup, fact_table, shown_fact
from kb.report.terminal import Style, unbroken, wrap
from kb.report.words import Words


def trial_lines(tree: Tree, lookup: Lookup, words: Words, style: Style) -> list[str]:
    """The whole condition's truth, each part on a line of its own, and a table of the facts."""
    value = compile_tree(tree)(lookup)
    lines = [f"{INDENT}{words('trial.whole', truth=_truth(value, words))}"]
    for depth, part in _parts(tree, 0):
        lines += _part(part, depth, lookup, words, style)
    return [*lines, *fact_table(fact_order(tree), words, style, lookup)]


def _parts(tree: Tree, depth: int) -> Iterator[tuple[int, Tree]]:
    """What ``and``, ``or`` and ``not`` join; one that stands inside another follows it, a step further in."""
    for part in tree[1:] if tree[0] in ("and", "or") else [tree]:
        yield depth, part
        if part[0] in ("and", "or"):
            yield from _parts(part, depth + 1)
        elif part[0] == "not" and part[1][0] in ("and", "or"):
            yield from _parts(part[1], depth + 1)


def _part(part: Tree, depth: int, lookup: Lookup, words: Words, style: Style) -> list[str]:
    value = compile_tree(part)(lookup)
    said = unparse(part)
    if part[0] not in ("fact", "and", "or") and fact_names(part):
        said += f" ({unparse(part, lambda name: shown_fact(name, words, lookup))})"
    if is_unknown(value):
        needs = sorted({words(f"need.{need_of(name)}") for name in value.needs})
        said += f": {words('trial.needs', needs=needs)}" if needs else f": {value.reason}"
    lead = unbroken(f"{INDENT * (depth + 2)}{_truth(value, words)} ")
    return wrap(f"{lead} {said}", style.width, "", INDENT * (depth + 4))


def _truth(value: object, words: Words) -> str:
    return words(f"trial.{'unknown' if is_unknown(value) else 'true' if value else 'false'}")
