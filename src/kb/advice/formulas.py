"""The guide's formulas (rules/formulas) worked out: the notes' own and the corrected one, term by term."""

from collections.abc import Mapping
from typing import Any, Literal

from kb.core.expression import Unknown, compile_tree

Use = Literal["claimed", "corrected"]
End = Literal["low", "high"]


def work_out(
    formula: Mapping[str, Any], given: Mapping[str, float], *, use: Use = "corrected", end: End = "high"
) -> dict[str, Any]:
    """Every term of a formula in the file's order, each in its own unit; the last one is the answer.

    Args:
        formula: an entry of ``load_guide()["formulas"]``, with its checked trees.
        given: variables by name, in the units the file says. Those left out take the file's value, where it has one.
        use: the notes' terms, or the ones to use instead; where a file has only one kind, that one.
        end: which end of a variable that the file gives as a range.

    Returns:
        Values by term; :class:`Unknown`, naming what is missing, where a variable has no value.

    Raises:
        ValueError: ``given`` names a variable that the formula does not have.
    """
    variables = formula["variables"]
    strangers = sorted(given.keys() - variables.keys())
    if strangers:
        raise ValueError(f"{formula['id']} has no variable {strangers[0]!r}; it has {', '.join(variables)}")
    known: dict[str, Any] = {
        name: _end_of(row["value"], end) for name, row in variables.items() if row.get("value") is not None
    }
    known.update(given)

    def lookup(name: str) -> Any:
        return known.get(name, Unknown(frozenset((name,))))

    found: dict[str, Any] = {}
    for term in formula.get(use) or formula["claimed" if use == "corrected" else "corrected"]:
        found[term["name"]] = known[term["name"]] = compile_tree(term["expression_tree"])(lookup)
    return found


def _end_of(value: Any, end: End) -> Any:
    return value[0 if end == "low" else 1] if isinstance(value, list) else value
