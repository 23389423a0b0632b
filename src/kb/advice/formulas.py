"""Formulas of the rules worked out with numbers, and the ramp of batches."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from kb.core.expression import Unknown, compile_tree
from kb.core.record import NamedTuple

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


class Rung(NamedTuple):
    """One batch of the ramp: what is run, and the unrounded value that the next one grows from."""

    batch: int
    exact: float


def ramp(formula: Mapping[str, Any], most: int) -> Iterator[Rung]:
    """Batches to try one after another while there is room: the file's start, then a quarter more each time.

    Args:
        formula: ``load_guide()["formulas"]["batch-ramp"]``.
        most: where to stop; a larger batch is not run.
    """
    exact = float(formula["variables"]["batch"]["value"])
    batch = int(exact)
    while batch <= most:
        yield Rung(batch, exact)
        found = work_out(formula, {"batch": exact})
        exact, batch = found["next"], found["run"]
