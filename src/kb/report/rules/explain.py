"""One rule in full, offline: what it says, when it fires, why, how to mend it; with the reader's own numbers in it;
and why a condition came out as it did.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kb.core.catalog import Computed, Rule, RuleFix
from kb.core.expression import Tree, compile_tree, fact_names, is_unknown
from kb.report.check.changes import as_written
from kb.report.check.panel import need_of
from kb.report.condition import fact_order, sentence, unparse
from kb.report.terminal import INDENT, Style, columns, in_blocks, joined, pad, section, unbroken, wrap
from kb.report.words import Words

Lookup = Callable[[str], Any]


def explain(
    rule: Rule,
    words: Words,
    style: Style,
    *,
    sources: Mapping[str, Any],
    lookup: Lookup | None = None,
    where: str | None = None,
    rows: Sequence[Sequence[str]] = (),
) -> str:
    """The rule's explanation, with a line break at its end.

    Args:
        rule: from the whole catalogue (with whys and examples).
        sources: the catalogue's sources, by id.
        lookup: a unit's facts (``Facts.get``); without it the formula is shown with names alone.
        where: the unit that ``lookup`` speaks of, for the heading: ``config.yaml [t5]``.
        rows: of a rule whose data is a table: library, id, condition and the library's words of each row.
    """
    blocks = [
        _title(rule, words, style),
        wrap(_message(rule, words, lookup), style.width, INDENT),
        _condition(rule, words, style, lookup, where),
        section(words("explain.why"), wrap(words.text(rule.why, _values(rule, lookup)), style.width, INDENT), style),
        _fixes(rule, words, style, lookup),
        _example(rule, "fires", "explain.bad", words, style),
        _example(rule, "silent", "explain.good", words, style),
        _rows(rows, words, style),
        _sources(rule, sources, words, style),
    ]
    return in_blocks(blocks)


def _rows(rows: Sequence[Sequence[str]], words: Words, style: Style) -> list[str]:
    """What each row of the rule's tables is about, in the words of a config's own keys."""
    if not rows:
        return []
    lines: list[str] = []
    for library, _, condition, said in rows:
        shown = condition.replace("written.", "").replace("key.", "")
        lines += wrap(f"{library}: {shown}{f' → {said}' if said else ''}", style.width, INDENT, INDENT * 2)
    return [style.paint(words("explain.rows", number=len(rows)), "heading"), *lines]


def _title(rule: Rule, words: Words, style: Style) -> list[str]:
    about = [
        style.paint(words.named("severity", rule.severity), rule.severity),
        words("explain.confidence", confidence=words.named("confidence", rule.confidence)),
        words("explain.since", version=rule.since),
    ]
    lines = [f"{style.paint(rule.id, 'heading')}{style.dot}{style.dot.join(about)}", words.described(rule.title)]
    if rule.deprecated is not None:
        lines.append(words("explain.deprecated", reason=rule.deprecated, rule=rule.replaced_by or "-"))
    return lines


def _values(rule: Rule, lookup: Lookup | None) -> dict[str, Any]:
    names = rule.message.placeholders() | rule.why.placeholders()
    return {name: lookup(name) for name in names} if lookup and rule.when is not None else {}


def _message(rule: Rule, words: Words, lookup: Lookup | None) -> str:
    """With numbers where every one is known, so that it never says half of itself."""
    values = _values(rule, lookup)
    if values and not any(is_unknown(value) for value in values.values()):
        return words.text(rule.message, values)
    return words.described(rule.message)


def _condition(rule: Rule, words: Words, style: Style, lookup: Lookup | None, where: str | None) -> list[str]:
    if rule.when is None:
        event = words("explain.on", event=words.described(rule.heard))
        return section(words("explain.when"), wrap(event, style.width, INDENT), style)
    source = rule.source or unparse(rule.when)
    lines = wrap(" ".join(source.split()), style.width, INDENT, INDENT * 2)
    if lookup is not None:
        lines += _verdict(rule.when, words, style, lookup, where)
    lines += fact_table(fact_order(rule.when), words, style, lookup)
    return section(words("explain.when"), lines, style)


def _verdict(when: Tree, words: Words, style: Style, lookup: Lookup, where: str | None) -> list[str]:
    """The formula with the values in it, and what it comes to."""
    lines = wrap(f"= {unparse(when, lambda name: shown_fact(name, words, lookup))}", style.width, INDENT, INDENT * 2)
    value = compile_tree(when)(lookup)
    place = where or words("explain.here")
    if is_unknown(value):
        needs = _needs(value.needs, words)
        lines += wrap(f"= ?: {words('explain.undecided', where=place, needs=needs)}", style.width, INDENT, INDENT * 2)
    else:
        key = "explain.fires" if value else "explain.silent"
        lines += wrap(f"= {as_written(bool(value))}: {words(key, where=place)}", style.width, INDENT, INDENT * 2)
    return lines


def _needs(names: Iterable[str], words: Words) -> list[str]:
    """What is missing; of a fact that no config and no project says, that kb has to work it out."""
    needs = set()
    for name in names:
        need, fact = need_of(name), words.facts.get(name)
        if need == "settings" and fact is not None and not fact.setting and not fact.given:
            needs.add(words("need.worked_out", fact=name))
        else:
            needs.add(words(f"need.{need}"))
    return sorted(needs)


def shown_fact(name: str, words: Words, lookup: Lookup) -> str:
    """A fact's value as an expression would write it."""
    value = lookup(name)
    fact = words.facts.get(name)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list) and not (fact and fact.type == "version"):
        return f"[{', '.join(str(item) for item in value)}]"
    return words.fact(name, value)


def fact_table(names: Sequence[str], words: Words, style: Style, lookup: Lookup | None) -> list[str]:
    """A line for each fact: name, value (where there is a ``lookup``), meaning."""
    shown = [name for name in names if not name.startswith("written.")]
    if not shown:
        return []
    wide = max(len(name) for name in shown)
    values = {name: words.measured(name, _known(lookup(name))) if lookup else "" for name in shown}
    wide_value = min(max(columns(value) for value in values.values()), 24)
    lines: list[str] = []
    for name in shown:
        value = f"  {pad(values[name], wide_value)}" if lookup else ""
        lead = f"{INDENT * 2}{name:<{wide}}{value} "
        lines += style.lines(f"{unbroken(lead)} {words.meaning(name)}", "dim", "", " " * (wide + 6))
    return lines


def _known(value: Any) -> Any:
    return None if is_unknown(value) else value


def _fixes(rule: Rule, words: Words, style: Style, lookup: Lookup | None) -> list[str]:
    lines: list[str] = []
    for number, fix in enumerate(rule.fixes, 1):
        values = {name: lookup(name) for name in fix.title.placeholders()} if lookup else {}
        title = words.text(fix.title, values) if values else words.described(fix.title)
        changes = ", ".join(unbroken(change) for change in changes_of(fix, words, style.arrow, lookup))
        text = f"{number}. ({words.named('safety', fix.safety)}) {title}" + (f" {changes}" if changes else "")
        lines += wrap(text, style.width, INDENT, INDENT * 2 + " ")
        if fix.when is not None:
            lines += wrap(words("explain.fix_when", condition=sentence(fix.when, words)), style.width, INDENT * 2 + " ")
    return section(words("explain.fix"), lines, style)


def changes_of(fix: RuleFix, words: Words, arrow: str = "→", lookup: Lookup | None = None) -> list[str]:
    """What a fix changes, each as a reader writes it; with ``lookup`` what a formula comes to, too."""
    changes = []
    for name, value in fix.set.items():
        key = name.rpartition(".")[2]
        if isinstance(value, Computed):
            made = compile_tree(value.tree)(lookup) if lookup else None
            formula = unparse(value.tree)
            known = made is not None and not is_unknown(made)
            changes.append(f"{key}: {formula} = {words.value(made)}" if known else f"{key}: {formula}")
        else:
            changes.append(f"{key}: {as_written(value)}")
    changes += [words("report.remove_key", key=name.rpartition(".")[2]) for name in fix.remove]
    changes += [f"{name.rpartition('.')[2]} {arrow} {new}" for name, new in fix.rename.items()]
    return changes


MACHINE = ("gpu", "gpus", "host_memory", "cpus")  # what an example may say of its machine


def place_of(example: Mapping[str, Any]) -> str:
    """The machine and the releases of an example: ``gpu: t4, peft 0.12``."""
    said = [f"{name}: {as_written(example[name])}" for name in MACHINE if name in example]
    return ", ".join([*said, *(f"{library} {version}" for library, version in example.get("versions", {}).items())])


def _example(rule: Rule, expect: str, key: str, words: Words, style: Style) -> list[str]:
    """The first example of a kind, as it is written; the fixed text where a silent one is not given."""
    example = next((one for one in rule.examples if one.get("expect") == expect), None)
    if example is None or not isinstance(example.get("config"), str):
        return []
    lines = [f"{INDENT}| {line}".rstrip() for line in example["config"].rstrip("\n").split("\n")]
    place = place_of(example)
    return [style.paint(words(key) + (f" ({place})" if place else ""), "heading"), *lines]


def _sources(rule: Rule, sources: Mapping[str, Any], words: Words, style: Style) -> list[str]:
    lines: list[str] = []
    for name in rule.sources:
        source = sources.get(name) or {}
        text = joined((str(source[part]) for part in ("title", "url") if source.get(part)), style.dot) or name
        lines += wrap(f"- {text}", style.width, INDENT, INDENT * 2)
    return section(words("explain.sources"), lines, style)


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
        needs = _needs(value.needs, words)
        said += f": {words('trial.needs', needs=needs)}" if needs else f": {value.reason}"
    lead = unbroken(f"{INDENT * (depth + 2)}{_truth(value, words)} ")
    return wrap(f"{lead} {said}", style.width, "", INDENT * (depth + 4))


def _truth(value: object, words: Words) -> str:
    return words(f"trial.{'unknown' if is_unknown(value) else 'true' if value else 'false'}")
