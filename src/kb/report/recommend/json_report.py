"""``kb.recommend --format json``, schema 1: ``rules/schema/output/recommend.json`` says it in full."""

from typing import Any

from kb.advice.answer import Answer, Notes, NotesRow
from kb.advice.attempts import Attempt
from kb.advice.batches import Split
from kb.advice.decision import Leaf, Walk
from kb.advice.recommend import ENVIRONMENT, Inference, Training, Weights
from kb.core.memory_report import Phase
from kb.report.json_parts import head, machine_object, plain, prediction_object, to_json
from kb.report.recommend.config import settings_of_answer
from kb.report.recommend.text import config_yaml
from kb.report.words import Words

Object = dict[str, Any]


def recommend_json(answer: Answer, words: Words, version: str, rules_version: str) -> str:
    return to_json(recommend_object(answer, words, version, rules_version))


def recommend_object(answer: Answer, words: Words, version: str, rules_version: str) -> Object:
    estimator = answer.estimator
    training, inference = answer.training, answer.inference
    chosen: Training | Inference | None = training or inference
    assert chosen is not None
    return {
        **head(version, rules_version),
        "machine": machine_object(estimator.machine),
        "task": answer.question.trainer or answer.task,
        "model": {"id": estimator.model.id, "name": estimator.model.name, "parameters": estimator.model.parameters},
        "world_size": answer.world,
        "config": settings_of_answer(answer),
        "yaml": config_yaml(answer, words),
        "environment": dict(ENVIRONMENT),
        "prediction": prediction_object(chosen.report) if chosen.report else None,
        "training": _training(training) if training else None,
        "inference": _inference(inference) if inference else None,
        "larger_gpu": chosen.larger_gpu.id if chosen.larger_gpu else None,
        "notes": _notes(answer.notes),
        "decision": _walk(answer.walk, words) if answer.walk else None,
    }


def _training(training: Training) -> Object:
    splits, largest = training.splits, training.largest
    return {
        "effective_batch": {
            "wanted": splits.wanted,
            "source": training.effective_source,
            "held": bool(splits.exact),
            "exact": [_split(split) for split in splits.exact],
            "below": _split(splits.below) if splits.below else None,
            "above": _split(splits.above) if splits.above else None,
        }
        if splits
        else None,
        "largest": {
            "train": largest.train,
            "train_accumulated": training.chosen.ceiling.accumulated if training.chosen else 0,
            "evaluation": largest.evaluation,
            "inference": largest.inference,
        }
        if largest
        else None,
        "precision": {"autocast": training.precision.autocast, "reason": training.precision.reason},
        "workers_reason": training.workers_reason,
        "ways": [_attempt(attempt, attempt is training.chosen) for attempt in training.attempts],
        "larger_gpu_last_way": training.larger_gpu_last_way.id if training.larger_gpu_last_way else None,
        "shorter_source": training.shorter_source,
    }


def _split(split: Split) -> Object:
    return {"batch": split.batch, "accumulation": split.accumulation, "effective": split.effective}


def _attempt(attempt: Attempt, chosen: bool) -> Object:
    return {
        "name": attempt.name,
        "method": attempt.method,
        "chosen": chosen,
        "train": _phase(attempt.train),
        "largest_batch": attempt.ceiling.single,
        "largest_batch_accumulated": attempt.ceiling.accumulated,
        "largest_eval_batch": attempt.evaluation,
        "rough": attempt.rough,
    }


def _phase(phase: Phase) -> Object:
    return {
        "name": phase.name,
        "peak_allocated_bytes": phase.peak_allocated_bytes,
        "process_used_bytes": phase.process_used_bytes,
        "low_bytes": phase.low_bytes,
        "high_bytes": phase.high_bytes,
    }


def _inference(inference: Inference) -> Object:
    return {
        "folds": inference.folds,
        "processes": inference.processes,
        "largest_batch": inference.largest,
        "largest_batch_in_turn": inference.in_turn,
        "generate": _phase(inference.generate) if inference.generate else None,
        "weights": [_weights(way) for way in inference.ways],
    }


def _weights(way: Weights) -> Object:
    return {"type": way.weights, "largest_batch": way.largest_batch, "generate": _phase(way.generate)}


def _notes(notes: Notes) -> Object:
    return {
        "own": [_row(row) for row in notes.own],
        "others": [_row(row) for row in notes.others],
        "conflicts": [_row(row) for row in notes.conflicts],
        "gpus": list(notes.gpus),
    }


def _row(row: NotesRow) -> Object:
    return {
        "preset": row.preset,
        "source": row.source,
        "lines": row.lines,
        "gpu_said": row.gpu_said,
        "model_said": row.model_said,
        "model": row.model.id,
        "method": row.method,
        "copies": row.copies,
        "settings": plain(row.values),
        "effective_batch": row.effective,
        "memory": plain({name: row.memory[name] for name in ("value", "unit") if name in row.memory})
        if row.memory
        else None,
        "status": row.status,
        "predicted": _phase(row.phase) if row.phase else None,
        "errata": [erratum.id for erratum in row.errata],
    }


def _walk(walk: Walk, words: Words) -> Object:
    return {
        "decision": walk.decision,
        "tree": walk.tree,
        "path": [
            {
                "node": step.node,
                "question": step.question.in_language(words.language),
                "answer": step.answer.in_language(words.language),
            }
            for step in walk.path
        ],
        "leaf": _leaf(walk.leaf) if walk.leaf else None,
        "fallback": _leaf(walk.fallback) if walk.fallback else None,
        "needs": list(walk.needs),
    }


def _leaf(leaf: Leaf) -> Object:
    return {
        "id": leaf.id,
        "value": leaf.value,
        "use": leaf.use,
        "caution": leaf.caution,
        "flags": [flag.id for flag in leaf.flags],
        "needs": list(leaf.needs),
    }
