"""The whole answer of ``kb.recommend``: the recommendation, the notes' rows beside it, the decision tree. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from kb.advice.decision import Walk, nominal_gb, walk
from kb.advice.estimator import Estimator
from kb.advice.inference import Inference, recommend_inference
from kb.advice.notes import Notes, notes_for
from kb.advice.recommend import Asked, Training, base_setup, recommend_training
from kb.advice.usual import precision_for
from kb.core.catalog import Catalog
from kb.core.setup import TrainingSetup

Task = Literal["train", "inference"]
DECISION = "inference-batch"


class Answer(NamedTuple):
    """One of ``training`` and ``inference`` is there, by the task.

    ``decision`` is the tree's data, ``walk`` the path through it and ``given`` the answers it was given; all None where
    the task is training, or the knowledge has no such tree.
    """

    task: Task
    asked: Asked
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
    asked: Asked,
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
        UnsupportedArchitectureError: no closed form for the model's family.
    """
    precision = precision_for(estimator.gpu, estimator.model.architecture)
    notes = notes_for(guide, catalog, estimator, precision.of(base_setup(asked, estimator)))
    if task == "train":
        default = catalog.facts["training.per_device_train_batch_size"].default
        wanted = asked._replace(noted_effective_batch=notes.effective, default_effective_batch=default)
        training = recommend_training(wanted, estimator, catalog.gpus, world)
        return Answer(task, wanted, estimator, world, training, None, notes)
    inference = recommend_inference(asked, estimator, catalog.gpus, folds, processes)
    decision = guide.get("decisions", {}).get(DECISION)
    if decision is None:
        return Answer(task, asked, estimator, world, None, inference, notes)
    known = answers_known(asked, estimator) | ({"concurrent": True} if processes > 1 else {}) | dict(given or {})
    path = walk(decision, known)
    return Answer(
        task, asked, estimator, world, None, _shared(inference, path, known, estimator), notes, decision, path, known
    )


def answer_easier(asked: Asked, first: Answer, ask: Callable[[Asked], Answer]) -> Answer:
    """The answer to what is asked, or where nothing fits, to what is easier: shorter inputs if no length is asked for,
    training without evaluation beside it, or both.

    Args:
        first: the answer to ``asked``.
        ask: answers another question.
    """
    if first.setup is not None or first.training is None:
        return first
    shorter = first.training.shorter_source
    if asked.source_length is None and shorter is not None:
        return ask(asked._replace(source_length=shorter))
    found = ask(asked._replace(evaluate=False))
    shorter = found.training.shorter_source if found.training is not None else None
    if found.setup is None and asked.source_length is None and shorter is not None:
        return ask(asked._replace(evaluate=False, source_length=shorter))
    return found


def answers_known(asked: Asked, estimator: Estimator) -> dict[str, Any]:
    """The tree's variables that the machine and the options answer."""
    known: dict[str, Any] = {}
    if estimator.gpu is not None:
        known["gpu_memory_gb"] = nominal_gb(estimator.gpu.memory_total)
    if asked.generation_length or asked.target_length:
        known["max_new_tokens"] = asked.generation_length or asked.target_length
    if asked.beams:
        known["num_beams"] = asked.beams
    return known


def _shared(inference: Inference, path: Walk, known: Mapping[str, Any], estimator: Estimator) -> Inference:
    """Where other processes use the GPU too, no more than the tree allows: a prediction counts the whole GPU."""
    use = path.leaf.use if path.leaf else None
    shared = known.get("concurrent") and inference.processes == 1
    if not shared or use is None or inference.setup is None or inference.largest <= use:
        return inference
    return inference.at(max(int(use), 1), estimator)
