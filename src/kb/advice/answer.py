"""The whole answer of ``kb.recommend``: the recommendation, the notes' rows beside it, the decision tree. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from kb.advice.decision import Walk, nominal_gb, walk
from kb.advice.estimator import Estimator
from kb.advice.inference import Inference, recommend_inference
from kb.advice.notes import NO_NOTES, Notes, notes_for
from kb.advice.question import Question, RunSettings
from kb.advice.recommend import Training, base_setup, recommend_training
from kb.advice.usual import precision_taken
from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.setup import TrainingSetup

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
) -> Answer:
    """Everything that ``kb.recommend`` says.

    Args:
        guide: presets, errata and decisions as the knowledge has them.
        world: GPUs like the smallest of the machine, one process of the run on each.
        folds: models generating together.
        processes: runs like this one that share the GPU.
        given: answers for the decision tree, by variable.

    Raises:
        UserError: an effective batch of fewer samples than there are GPUs.
        UnsupportedArchitectureError: the model's family is not known.
    """
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
