"""A walk through a decision tree in words: the path taken, the answer, what speaks against it, what is still open."""

from collections.abc import Mapping
from typing import Any

from kb.advice.decision import Leaf, Walk
from kb.core.text import fill
from kb.report.style import Style
from kb.report.width import wrap
from kb.report.words import Words


def walk_lines(
    walk: Walk, decision: Mapping[str, Any], given: Mapping[str, Any], words: Words, style: Style
) -> list[str]:
    """The lines under a heading of the decision's title."""

    def value(name: str, form: str) -> str:
        quantity = decision.get("measured_on", {}).get(name)
        if quantity is not None:
            unit = words.named("unit", quantity.get("unit", ""))
            return words("report.measured", value=words.value(quantity["value"]), unit=unit)
        default = decision["variables"].get(name, {}).get("default")
        return words.value(given.get(name, default), form)

    lines: list[str] = []
    for step in walk.path:
        question, answer = step.question.in_language(words.language), step.answer.in_language(words.language)
        lines += wrap(f"{question} {style.arrow} {answer}", style.width, "  ", "    ")
    if walk.needs:
        lines += wrap(words("recommend.decision_needs", names=", ".join(walk.needs)), style.width, "  ", "    ")
    leaf = walk.leaf or walk.fallback
    if leaf is None:
        return lines
    key = "decision_leaf" if walk.leaf else "decision_fallback"
    lines += wrap(words(f"recommend.{key}", **_leaf_values(leaf, words)), style.width, "  ", "    ")
    for flag in leaf.flags:
        text = fill(flag.text.in_language(words.language), value)
        use = words("recommend.decision_flag_use", use=flag.use) if flag.use is not None else ""
        lines += wrap(f"{text} {use}".strip(), style.width, "  ! ", "    ")
    if leaf.needs:
        lines += wrap(words("recommend.decision_open", names=", ".join(leaf.needs)), style.width, "  ", "    ")
    return lines


def _leaf_values(leaf: Leaf, words: Words) -> dict[str, Any]:
    use = leaf.use if leaf.use is not None else leaf.value
    return {
        "batch": use,
        "title": leaf.title.in_language(words.language),
        "why": leaf.why.in_language(words.language),
    }
