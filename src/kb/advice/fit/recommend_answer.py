"""The whole answer of ``kb.recommend``: the recommendation, the decision tree, and what the original guide recommends
for the GPU, row by row, with what the memory model says of each row and the errata about it. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from kb.advice.fit.decision import Walk, nominal_gb, walk
from kb.advice.fit.estimator import Estimator, precision_for, precision_taken
from kb.advice.fit.recommend import (
    Inference,
    Training,
    base_setup,
    generates_in_evaluation,
    recommend_inference,
    recommend_training,
    together,
)
from kb.advice.question import Question, RunSettings
from kb.advice.run.row_lengths import reads_target
from kb.advice.run.setup import setup_of
from kb.core.catalog import Catalog
from kb.core.document import Setting, Unit
from kb.core.finding import Span
from kb.core.memory_report import STATUSES, Phase, Status, phase_status
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.setup import TrainingSetup
from kb.core.text import UserError
from kb.memory import UnsupportedArchitectureError


class Erratum(NamedTuple):
    """One entry of ``rules/errata.yaml`` as far as a row needs it. ``use`` is in both languages.

    ``places`` are (source, lines): where the claim stands first, then where else the entry looks.
    """

    id: str
    verdict: str
    use: Mapping[str, str]
    places: tuple[tuple[str, str], ...]


def erratum_of(entry: Mapping[str, Any]) -> Erratum:
    """An entry of the errata file."""
    claim = entry["claim"]
    places = tuple((place["source"], place["lines"]) for place in (claim, *claim.get("also", ())))
    return Erratum(entry["id"], entry["verdict"], entry["use"], places)


def errata_of_row(row: Mapping[str, Any], errata: Sequence[Erratum]) -> tuple[Erratum, ...]:
    """What is known to be wrong with the row: the erratum it names first, then those whose claim stands in it."""
    places = [(row["source"], row["lines"])]
    places += [(quantity["source"], quantity["lines"]) for quantity in row["settings"].values() if "lines" in quantity]
    named = [one for one in errata if one.id == row.get("erratum")]
    standing = [one for one in errata if any(overlap(one.places[0], place) for place in places)]
    return (*named, *(one for one in standing if one not in named))


def overlap(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two places (source, lines) have a line in common."""
    (first, last), (begin, end) = _lines(one[1]), _lines(other[1])
    return one[0] == other[0] and first <= end and begin <= last


def _lines(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


TRAIN, EVALUATE = "training.per_device_train_batch_size", "training.per_device_eval_batch_size"
ACCUMULATION, INFERENCE, WORKERS = (
    "training.gradient_accumulation_steps",
    "inference.batch_size",
    "training.dataloader_num_workers",
)
_NOWHERE = Span(1, 1, 1, 1)


class NotesRow(NamedTuple):
    """One row of ``rules/presets``: the note's numbers, by setting; a range as (low, high).

    ``memory`` is the note's own figure as written (value, unit, bound). ``phase`` is the one that needs most by
    prediction, at the asked lengths and in the recommended precision; None where none can be made.
    """

    preset: str
    source: str
    lines: str
    gpu_said: str
    model_said: str
    model: Model
    method: str
    copies: int
    values: Mapping[str, Any]
    effective: int | None
    memory: Mapping[str, Any] | None
    errata: tuple[Erratum, ...]
    phase: Phase | None
    status: Status

    @property
    def train_batch(self) -> Any:
        return self.values.get(TRAIN)


class Notes(NamedTuple):
    """``own``: rows for this model and GPU. ``others``: rows for other models of its kind on it. ``gpus``: where else
    the notes have this model. ``conflicts``: of ``others`` those of another note that cannot be right together with
    ``own``; ``conflict_errata``: what settles that.
    """

    own: tuple[NotesRow, ...]
    others: tuple[NotesRow, ...]
    gpus: tuple[str, ...]
    conflicts: tuple[NotesRow, ...]
    conflict_errata: tuple[Erratum, ...] = ()

    @property
    def effective(self) -> int | None:
        """The effective batch that a row for this model and GPU works out."""
        return next((row.effective for row in self.own if row.effective), None)


NO_NOTES = Notes((), (), (), ())


def notes_for(guide: Mapping[str, Any], catalog: Catalog, estimator: Estimator, base: TrainingSetup) -> Notes:
    """The rows for the GPU of the estimator.

    Args:
        guide: ``presets`` and ``errata`` as the knowledge has them.
        base: full training at the asked lengths and beams, in the recommended precision.
    """
    gpu = estimator.gpu.gpu if estimator.gpu else None
    errata = [erratum_of(entry) for entry in guide.get("errata", {}).get("errata", ())]
    own: list[NotesRow] = []
    others: list[NotesRow] = []
    elsewhere: set[str] = set()
    for preset in guide.get("presets", {}).values():
        model = catalog.models.get(preset["model"])
        if model is None or preset.get("deprecated"):
            continue
        if gpu is None or gpu.id not in preset["gpus"]:
            elsewhere.update(preset["gpus"] if model.id == estimator.model.id else ())
            continue
        if reads_target(model.architecture) != reads_target(estimator.model.architecture):
            continue  # figures of models of another kind tell nothing of this one
        rows = (_row(preset, row, model, catalog, estimator, base, errata) for row in preset["rows"])
        (own if model.id == estimator.model.id else others).extend(rows)
    conflicts = tuple(conflicting(own, others))
    about = tuple(one for one in errata if _about(one, own) and _about(one, conflicts))
    return Notes(tuple(own), tuple(others), tuple(sorted(elsewhere)), conflicts, about)


def conflicting(own: Sequence[NotesRow], others: Iterable[NotesRow]) -> Iterable[NotesRow]:
    """Rows of another note that need more memory by prediction, and still have the larger training batch: on one card
    both cannot be as large as it takes.
    """
    for row in others:
        for mine in own:
            if (
                row.source != mine.source
                and mine.phase
                and row.phase
                and _largest(row.train_batch) > _largest(mine.train_batch) > 0
                and row.phase.process_used_bytes > mine.phase.process_used_bytes
            ):
                yield row
                break


def _largest(value: Any) -> float:
    """The number, or the upper end of a range; 0 where there is none."""
    if isinstance(value, list | tuple):
        return float(max(value))
    return value if isinstance(value, int | float) else 0


def _row(
    preset: Mapping[str, Any],
    row: Mapping[str, Any],
    model: Model,
    catalog: Catalog,
    estimator: Estimator,
    base: TrainingSetup,
    errata: Sequence[Erratum],
) -> NotesRow:
    values = {name: quantity["value"] for name, quantity in row["settings"].items()}
    method = row["method"]["value"] if "method" in row else "full"
    copies = row["copies"]["value"] if "copies" in row else 1
    phase, status = _predicted(row, values, method, copies, model, catalog, estimator, base)
    return NotesRow(
        preset=preset["id"],
        source=row["source"],
        lines=row["lines"],
        gpu_said=str(row["gpu_said"]["value"]),
        model_said=str(row["model_said"]["value"]),
        model=model,
        method=method,
        copies=copies,
        values=values,
        effective=row["effective_batch"]["value"] if "effective_batch" in row else None,
        memory=row.get("memory"),
        errata=errata_of_row(row, errata),
        phase=phase,
        status=status,
    )


def _predicted(
    row: Mapping[str, Any],
    values: Mapping[str, Any],
    method: str,
    copies: int,
    model: Model,
    catalog: Catalog,
    estimator: Estimator,
    base: TrainingSetup,
) -> tuple[Phase | None, Status]:
    """The phase of most memory, and whether the card holds it. Of a row that trains, only training and evaluation."""
    assumed = {name: quantity["value"] for name, quantity in row.get("assumes", {}).items()}
    # of the notes' own models, and beside the answer: a rough one is at once
    there = Estimator(model, estimator.machine, estimator.constants, rough=True)
    setup = _setup(model, {**assumed, **values}, method, catalog, there, base)
    setup = setup._replace(do_predict=setup.do_predict and not setup.do_train)
    try:
        report = there.predict(setup)
    except UnsupportedArchitectureError:
        return None, "unknown"
    phases = [
        together(phase, copies, estimator.constants) if phase.name == "generate" else phase for phase in report.phases
    ]
    phase = max(phases, key=lambda phase: phase.high_bytes)
    limit, usable = there.limit_bytes, there.usable_bytes
    if limit is None or usable is None:
        return phase, "unknown"
    return phase, max((phase_status(each, limit, usable) for each in phases), key=STATUSES.index)


def _setup(
    model: Model, values: Mapping[str, Any], method: str, catalog: Catalog, estimator: Estimator, base: TrainingSetup
) -> TrainingSetup:
    """The row as a run: its own settings, and for the rest the asked lengths and the recommended precision."""
    autocast = precision_for(estimator.gpu, model.architecture).autocast
    said: dict[str, Any] = {
        "model.name": model.name,
        "data.max_source_length": base.max_source_length,
        "data.max_target_length": base.max_target_length,
        "training.generation_max_length": base.generation_max_length,
        "training.generation_num_beams": base.generation_num_beams,
        "inference.max_length": base.inference_max_length,
        "inference.num_beams": base.inference_num_beams,
    }
    if TRAIN in values:
        said |= {
            "training.bf16": autocast == "bf16",
            "training.fp16": autocast == "fp16",
            "training.eval_strategy": "epoch",
            "training.predict_with_generate": generates_in_evaluation(model.architecture),
        }
    else:
        said = {name: value for name, value in said.items() if not name.startswith("training.")}
    if method != "full":
        said |= {"lora.enabled": True, "quantization.load_in_4bit": method == "qlora"}
    said |= {name: _largest(value) if isinstance(value, list | tuple) else value for name, value in values.items()}
    settings = {name: Setting(value, _NOWHERE, _NOWHERE, ()) for name, value in said.items()}
    unit = Unit(path="", section=None, dialect="team", settings=settings, span=_NOWHERE)
    return setup_of(
        unit,
        model,
        facts=catalog.facts,
        constants=estimator.constants,
        gpu_count=base.world_size,
        versions=lambda *_: None,
    )


def _about(erratum: Erratum, rows: Sequence[NotesRow]) -> bool:
    return any(overlap(place, (row.source, row.lines)) for place in erratum.places for row in rows)


Task = Literal["train", "inference"]
DECISION = "inference-batch"
# transformers: the Trainer leaves it to the model (rule `seq2seq-grad-accumulation-inflates-loss`).
LOSS_UNDIVIDED_SINCE = (5,)


class Answer(NamedTuple):
    """One of ``training`` and ``inference`` is there, by the task.

    ``decision`` is the tree's data, ``walk`` the path through it and ``given`` the answers it was given; all None where
    the task is training, or the knowledge has no such tree.
    """

    task: Task
    question: Question
    estimator: Estimator
    world: int
    training: Training | None
    inference: Inference | None
    notes: Notes
    decision: Mapping[str, Any] | None = None
    walk: Walk | None = None
    given: Mapping[str, Any] | None = None

    @property
    def setup(self) -> TrainingSetup | None:
        """The recommended run; None where nothing fits."""
        chosen = self.training or self.inference
        return chosen.setup if chosen else None


def answer(
    task: Task,
    question: Question,
    estimator: Estimator,
    catalog: Catalog,
    guide: Mapping[str, Any],
    *,
    world: int = 1,
    folds: int = 1,
    processes: int = 1,
    given: Mapping[str, Any] | None = None,
    all_ways: bool = True,
) -> Answer:
    """Everything that ``kb.recommend`` says.

    Args:
        guide: presets, errata and decisions as the knowledge has them.
        world: GPUs like the smallest of the machine, one process of the run on each.
        folds: models generating together.
        processes: runs like this one that share the GPU.
        given: answers for the decision tree, by variable.
        all_ways: as of :func:`recommend_training`.

    Raises:
        UserError: an effective batch of fewer samples than there are GPUs, or a model whose checkpoint is packed.
        UnsupportedArchitectureError: the model's family is not known.
    """
    if estimator.model.packed is not None:
        raise UserError("recommend.packed", model=estimator.model.name, packing=estimator.model.packed)
    precision = precision_taken(question.run.precision, estimator.gpu, estimator.model.architecture)
    notes = NO_NOTES  # they know no trainer of TRL
    if question.trainer is None:
        notes = notes_for(guide, catalog, estimator, precision.of(base_setup(question.run, estimator)))
    if task == "train":
        default = catalog.facts["training.per_device_train_batch_size"].default
        training = recommend_training(
            question,
            estimator,
            catalog.gpus,
            world,
            noted=notes.effective,
            usual=default,
            accumulates=question.trainer is not None
            or _accumulates(question, estimator.model.architecture.model_type, catalog),
            all_ways=all_ways,
        )
        return Answer(task, question, estimator, world, training, None, notes)
    inference = recommend_inference(question.run, estimator, catalog.gpus, folds, processes)
    decision = guide.get("decisions", {}).get(DECISION)
    if decision is None:
        return Answer(task, question, estimator, world, None, inference, notes)
    known = answers_known(question.run, estimator) | ({"concurrent": True} if processes > 1 else {}) | dict(given or {})
    path = walk(decision, known)
    return Answer(
        task, question, estimator, world, None, _shared(inference, path, known, estimator), notes, decision, path, known
    )


def _accumulates(question: Question, model_type: str, catalog: Catalog) -> bool:
    """Whether the loss is divided over accumulation steps; under a release that is not known, as under the newest."""
    undivided = catalog.facts["model.loss_ignores_num_items"].model_types or ()
    said = question.versions.get("transformers")
    release = parse_version(said) if said else None
    return model_type not in undivided or (release is not None and release < LOSS_UNDIVIDED_SINCE)


def answer_easier(question: Question, first: Answer, ask: Callable[[Question], Answer]) -> Answer:
    """The answer to what is asked, or where nothing fits, to what is easier: shorter inputs if no length is asked for,
    training without evaluation beside it, or both.

    Args:
        first: the answer to ``question``.
        ask: answers another question.
    """
    if first.setup is not None or first.training is None:
        return first

    def at_length(length: int) -> Question:
        return question._replace(run=question.run._replace(source_length=length))

    shorter = first.training.shorter_source
    if question.run.source_length is None and shorter is not None:
        return ask(at_length(shorter))
    found = ask(question._replace(evaluate=False))
    shorter = found.training.shorter_source if found.training is not None else None
    if found.setup is None and question.run.source_length is None and shorter is not None:
        return ask(at_length(shorter)._replace(evaluate=False))
    return found


def answers_known(run: RunSettings, estimator: Estimator) -> dict[str, Any]:
    """The tree's variables that the machine and the options answer."""
    known: dict[str, Any] = {}
    if estimator.gpu is not None:
        known["gpu_memory_gb"] = nominal_gb(estimator.gpu.memory_total)
    if run.generation_length or run.target_length:
        known["max_new_tokens"] = run.generation_length or run.target_length
    if run.beams:
        known["num_beams"] = run.beams
    return known


def _shared(inference: Inference, path: Walk, known: Mapping[str, Any], estimator: Estimator) -> Inference:
    """Where other processes use the GPU too, no more than the tree allows: a prediction counts the whole GPU."""
    use = path.leaf.use if path.leaf else None
    shared = known.get("concurrent") and inference.processes == 1
    if not shared or use is None or inference.setup is None or inference.largest <= use:
        return inference
    return inference.at(max(int(use), 1), estimator)
