"""Decision trees of ``rules/decisions``: a walk from question to question to a leaf, with what speaks against it. Pure.

A missing answer is not guessed: the walk stops there and names the variables it needs, unless every way on from there
ends in the same leaf.
"""

from collections.abc import Mapping
from typing import Any

from kb.core.expression import Unknown, compile_tree, is_unknown
from kb.core.facts import coerce
from kb.core.record import NamedTuple
from kb.core.text import Text, text_of
from kb.core.units import GIB


class Step(NamedTuple):
    """One question on the path, and the answer that the values gave."""

    node: str
    question: Text
    answer: Text


class Flag(NamedTuple):
    """What speaks against a leaf. ``use`` is the value to take instead; None where the flag only warns.

    ``text`` may name the decision's variables and what its figures were measured on as placeholders.
    """

    id: str
    text: Text
    use: float | None
    status: str
    source: str | None
    lines: str | None


class Leaf(NamedTuple):
    """An answer: ``value`` by the tree; ``use`` is what to take, less than ``value`` where a flag says so.

    ``low`` and ``high`` bound the value where the source gives a range. ``needs`` names variables without which a flag
    (or a computed value) could not be decided.
    """

    id: str
    title: Text
    why: Text
    value: float | None
    use: float | None
    low: float | None
    high: float | None
    caution: bool
    flags: tuple[Flag, ...]
    needs: tuple[str, ...]
    status: str
    source: str | None
    lines: str | None


class Walk(NamedTuple):
    """A walk through one tree. ``leaf`` is None where an answer is missing: ``needs`` names it, and ``fallback`` is
    what the source takes in that case, where it says so.
    """

    decision: str
    tree: str
    path: tuple[Step, ...]
    leaf: Leaf | None
    needs: tuple[str, ...]
    fallback: Leaf | None


class Values:
    """The answers given, by variable, as an expression looks them up: the wrong type or out of bounds is unknown."""

    def __init__(self, decision: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self._variables: Mapping[str, Any] = decision["variables"]
        self._given = given

    def __call__(self, name: str) -> Any:
        row = self._variables.get(name, {})
        value = self._given.get(name)
        if value is None:
            value = row.get("default")
        if value is None or isinstance(value, Unknown):
            return Unknown(frozenset((name,)))
        if not row:
            return value  # a fact of the vocabulary, typed where it came from
        value = coerce(value, row["type"], name)
        if is_unknown(value) or isinstance(value, bool | str):
            return value
        if not row.get("low", value) <= value <= row.get("high", value):
            return Unknown(frozenset((name,)), "out of bounds")
        return value


def nominal_gb(memory_bytes: int) -> int:
    """A GPU's memory as it is sold, in whole GB, from what its driver reports: 24,268 MiB is a 24 GB card.

    The original guide names cards by these figures, and the trees ask for them.
    """
    return round(memory_bytes / GIB)


def walk(decision: Mapping[str, Any], values: Mapping[str, Any], tree: str | None = None) -> Walk:
    """The path through a decision of ``load_guide()["decisions"]`` and the leaf it ends in.

    Args:
        decision: the file's data, with its checked expression trees.
        values: answers by variable; a variable that is absent or None takes its default, or is unknown.
        tree: the id of one of its trees; None is the first, the one to use.
    """
    trees = {row["id"]: row for row in decision["trees"]}
    chosen = trees[tree or next(iter(trees))]
    lookup = Values(decision, values)
    path: list[Step] = []
    place = chosen["start"]
    needs: tuple[str, ...] = ()
    while place not in decision["leaves"]:
        node = chosen["nodes"][place]
        edge, needs = _edge(node, lookup)
        if edge is None:
            ends = _ends(chosen, node, lookup)
            place = ends.pop() if len(ends) == 1 else ""
            break
        path.append(Step(node=place, question=text_of(node["question"]), answer=text_of(edge["answer"])))
        place = edge["to"]
    found = _leaf(decision, place, lookup) if place else None
    unknown = chosen.get("unknown")
    return Walk(
        decision=decision["id"],
        tree=chosen["id"],
        path=tuple(path),
        leaf=found,
        needs=() if found else needs,
        fallback=_leaf(decision, unknown, lookup) if found is None and unknown else None,
    )


def _edge(node: Mapping[str, Any], lookup: Values) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """The edge that is known to be true, or None and the variables that would decide."""
    needs: set[str] = set()
    for edge in node["edges"]:
        answer = compile_tree(edge["when_tree"])(lookup)
        if answer is True:
            return edge, ()
        if isinstance(answer, Unknown):
            needs |= answer.needs
    return None, tuple(sorted(needs))


def _ends(tree: Mapping[str, Any], node: Mapping[str, Any], lookup: Values) -> set[str]:
    """The leaves that the edges not ruled out lead to."""
    ends: set[str] = set()
    for edge in node["edges"]:
        if compile_tree(edge["when_tree"])(lookup) is False:
            continue
        after = tree["nodes"].get(edge["to"])
        ends |= {edge["to"]} if after is None else _ends(tree, after, lookup)
    return ends


def _leaf(decision: Mapping[str, Any], name: str, lookup: Values) -> Leaf:
    row = decision["leaves"][name]
    needs: set[str] = set()
    value = _number(row, "value", lookup, needs)
    flags = []
    for flag in row.get("flags", ()):
        raised = compile_tree(flag["when_tree"])(lookup)
        if isinstance(raised, Unknown):
            needs |= raised.needs
        elif raised:
            flags.append(_flag(flag, lookup, needs))
    uses = [flag.use for flag in flags if flag.use is not None]
    return Leaf(
        id=name,
        title=text_of(row["title"]),
        why=text_of(row["why"]),
        value=value,
        use=min([*uses, value]) if value is not None else None,
        low=row.get("low"),
        high=row.get("high"),
        caution=row.get("caution", False),
        flags=tuple(flags),
        needs=tuple(sorted(needs)),
        status=row["status"],
        source=row.get("source"),
        lines=row.get("lines"),
    )


def _flag(row: Mapping[str, Any], lookup: Values, needs: set[str]) -> Flag:
    return Flag(
        id=row["id"],
        text=text_of(row["text"]),
        use=_number(row, "use", lookup, needs),
        status=row["status"],
        source=row.get("source"),
        lines=row.get("lines"),
    )


def _number(row: Mapping[str, Any], key: str, lookup: Values, needs: set[str]) -> float | None:
    """The figure under ``key``, or what the row's expression gives; None where there is neither, or it is unknown."""
    if key in row or "compute_tree" not in row:
        return row.get(key)
    value = compile_tree(row["compute_tree"])(lookup)
    if isinstance(value, Unknown):
        needs |= value.needs
        return None
    number: float = value
    return number
