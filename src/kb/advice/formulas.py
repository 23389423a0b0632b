"""Formulas of the rules worked out with numbers; the ramp of batches; and findings of errata, computed again.

A recipe is plain data from ``rules/errata.yaml``: an expression over named inputs, a count of parameters, a question to
the memory model; its schema says what each field means. What the errata print is compared with what comes out here, so
that no figure of theirs is only typed in.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from kb.core.expression import Unknown, compile_tree
from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_from
from kb.core.units import BYTES_PER_UNIT
from kb.memory import parameter_count, predict

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


TOLERANCE = 0.005  # relative, where a value names none
# What every fold of an ensemble keeps for itself while the folds generate together.
_HELD_BY_A_FOLD = ("parameters", "encoder_output", "kv_cache_self", "kv_cache_cross", "inputs")
_LIVE_BYTES = 8  # a logit and a log-probability in fp32, from one step to the next


class Basis(NamedTuple):
    """What recipes draw on: the catalog's rows by id."""

    models: Mapping[str, Model]
    gpus: Mapping[str, Gpu]
    constants: Mapping[str, float]


class Recomputed(NamedTuple):
    """One value as the erratum prints it, and as it comes out now. ``tolerance`` is relative."""

    stored: float
    computed: float
    unit: str
    tolerance: float

    @property
    def agrees(self) -> bool:
        return abs(self.computed - self.stored) <= self.tolerance * max(abs(self.stored), abs(self.computed), 1e-12)


class RecipeError(ValueError):
    """A recipe that gives no number: an unknown name, model, GPU or term, or an expression without a value."""


def recompute(finding: Mapping[str, Any], basis: Basis) -> list[Recomputed]:
    """Every value of a finding beside its recomputation; empty where the finding rests on a source alone.

    Raises:
        RecipeError: a recipe gives no number.
    """
    rows = finding.get("values") or ([finding] if "value" in finding else [])
    if not rows:
        return []
    known: dict[str, float] = {}
    for name, row in finding.get("inputs", {}).items():  # in order: a later input may use an earlier one
        known[name] = row["value"] if "value" in row else _value(row, known, basis)
    return [
        Recomputed(
            stored=row["value"],
            computed=_value(row, known, basis),
            unit=row["unit"],
            tolerance=row.get("tolerance", finding.get("tolerance", TOLERANCE)),
        )
        for row in rows
    ]


def _value(row: Mapping[str, Any], known: Mapping[str, float], basis: Basis) -> float:
    if "expression" in row:
        return _evaluate(row["expression_tree"], known, row["expression"])
    if "parameters" in row:
        return parameter_count(_row(basis.models, row["parameters"], "model").architecture)
    if "memory" in row:
        return _memory(row["memory"], basis) / BYTES_PER_UNIT[row["unit"].upper()]
    if "constant" in row:
        return float(_row(basis.constants, row["constant"], "constant")) / BYTES_PER_UNIT[row["unit"].upper()]
    raise RecipeError(f"no recipe among {', '.join(row)}")


def _row(rows: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in rows:
        raise RecipeError(f"no {kind} is called {name!r}")
    return rows[name]


def _evaluate(tree: list[Any], known: Mapping[str, float], source: str) -> float:
    value = compile_tree(tree)(lambda name: known[name] if name in known else Unknown(frozenset((name,))))
    if isinstance(value, Unknown):
        raise RecipeError(f"{source}: no value: {', '.join(sorted(value.needs)) or value.reason}")
    return float(value)


def _memory(recipe: Mapping[str, Any], basis: Basis) -> int:
    """Bytes of one figure of a prediction: of a phase's peak, of some of its terms, or of folds that generate."""
    model = _row(basis.models, recipe["model"], "model")
    gpu = _row(basis.gpus, recipe["gpu"], "GPU") if "gpu" in recipe else None
    unknown = recipe["setup"].keys() - set(TrainingSetup._fields)
    if unknown:
        raise RecipeError(f"no field of a setup is called {', '.join(sorted(unknown))}")
    setup = setup_from(recipe["setup"])
    report = predict(setup, model.architecture, constants=basis.constants, gpu=gpu)
    if "folds" in recipe:
        return _folds(recipe, setup, report, model)
    phase = report.phase(recipe["phase"])
    if phase is None:
        raise RecipeError(f"the setup has no phase {recipe['phase']!r}")
    if "terms" in recipe:
        sizes = {term.name: term.bytes for term in phase.terms}
        return sum(int(_row(sizes, name, "term")) for name in recipe["terms"])
    figures = {
        "allocated": phase.peak_allocated_bytes,
        "reserved": phase.peak_reserved_bytes,
        "used": phase.process_used_bytes,
        "low": phase.low_bytes,
    }
    return figures[recipe.get("figure", "allocated")]


def _folds(recipe: Mapping[str, Any], setup: TrainingSetup, report: MemoryReport, model: Model) -> int:
    """Bytes that several models of one ensemble need to generate: allocated, and the CUDA context with ``used``.

    ``together``: every fold keeps its encoder output, caches and last logits, since their predictions are averaged
    token by token; one of them is at its own peak. Otherwise all weights stay and the folds generate in turn.
    """
    phase = report.phase("generate")
    if phase is None:
        raise RecipeError("folds need a setup that generates")
    terms = {term.name: term.bytes for term in phase.terms}
    kept = terms["parameters"]
    if recipe["together"]:
        rows = (setup.inference_batch_size or setup.per_device_eval_batch_size) * setup.inference_num_beams
        kept = sum(terms[name] for name in _HELD_BY_A_FOLD) + _LIVE_BYTES * rows * model.architecture.vocab_size
    context = phase.process_used_bytes - phase.peak_reserved_bytes if recipe.get("figure") == "used" else 0
    return phase.peak_allocated_bytes + (int(recipe["folds"]) - 1) * kept + context
