"""An erratum's finding, computed again: by an expression over named inputs, by parameter counts, by the memory model.

A recipe is plain data from ``rules/errata.yaml``; its schema says what each field means. What the errata print is
compared with what comes out here, so that no figure of theirs is only typed in.
"""

from collections.abc import Mapping
from typing import Any

from kb.core.expression import Unknown, compile_tree
from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.units import BYTES_PER_UNIT
from kb.memory import parameter_count, predict

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
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in recipe["setup"].items()
    }
    unknown = fields.keys() - set(TrainingSetup._fields)
    if unknown:
        raise RecipeError(f"no field of a setup is called {', '.join(sorted(unknown))}")
    setup = TrainingSetup(**fields)
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
