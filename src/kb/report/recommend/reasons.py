"""Why `kb recommend` chose what it chose: each limit in its words, and the way through a decision tree."""

from collections.abc import Mapping
from typing import Any

from kb.advice.answer import Answer
from kb.advice.attempts import Attempt
from kb.advice.batches import Capped
from kb.advice.decision import Leaf, Walk
from kb.advice.recommend import Inference, Training
from kb.core.setup import PAIRED
from kb.core.text import fill
from kb.report.terminal import Style, wrap
from kb.report.values import host_limit, size
from kb.report.words import Words


def reasons(answer: Answer, words: Words) -> list[str]:
    """A sentence for each decision."""
    if answer.inference is not None:
        return _inference_reasons(answer.inference, answer, words)
    training = answer.training
    assert training is not None and training.chosen is not None
    return [
        *_effective_reasons(training, answer.world, words),
        _way_reason(answer, training.chosen, words),
        words(f"recommend.precision.{training.precision.reason}"),
        _workers_reason(training, answer, words),
        _largest_reason(training, answer, words),
        *_trainer_reasons(training, words),
        *_capped(
            "evaluation", training.evaluation if training.setup and training.setup.do_eval else None, answer, words
        ),
        *_capped("inference", training.inference, answer, words),
    ]


def _trainer_reasons(training: Training, words: Words) -> list[str]:
    """What one of TRL's trainers holds beside the policy."""
    post = training.setup.post if training.setup is not None else None
    if post is None or post.kind == "sft":
        return []
    said = [words(f"recommend.reference.{post.reference}")]
    if post.kind in PAIRED:
        said.append(words("recommend.pairs"))
    if post.generated_rows:
        said.append(words("recommend.generated", rows=post.generated_rows, tokens=post.completion))
    return said


def _capped(use: str, found: Capped | None, answer: Answer, words: Words) -> list[str]:
    """Why not the largest batch that fits."""
    if found is None or found.reason not in ("busy", "share"):
        return []
    share = answer.estimator.constants["generation_safe_share"]
    return [words(f"recommend.capped.{use}.{found.reason}", n=found.batch, rows=found.rows, share=share)]


def _effective_reasons(training: Training, world: int, words: Words) -> list[str]:
    split, splits = training.split, training.splits
    assert split is not None and splits is not None
    product = f"{split.batch} × {split.accumulation}" + (f" × {world} GPU" if world > 1 else "")
    said = words(f"recommend.effective.{training.effective_source}", wanted=splits.wanted)
    if splits.exact:
        sentences = [f"{said} {words('recommend.held', product=product, effective=split.effective)}"]
    else:
        sentences = [f"{said} {words('recommend.not_reached', wanted=splits.wanted, gpus=world)}"]
    for near in (splits.below, splits.above):
        if near is None or (splits.exact and 1.5 * near.accumulation > split.accumulation):
            continue  # not worth leaving the exact one for
        change = near.effective / splits.wanted - 1
        values = {"batch": near.batch, "accumulation": near.accumulation, "effective": near.effective}
        key = "recommend.nearest_fewer" if splits.exact else "recommend.nearest"
        sentences.append(words(key, **values, change=f"{change:+.1%}", steps=split.accumulation))
    return sentences


def _way_reason(answer: Answer, chosen: Attempt, words: Words) -> str:
    way = words.named("attempt", chosen.name)
    assert answer.training is not None and answer.training.splits is not None  # a way was chosen
    if chosen.name == "full":
        return words("recommend.way_full")
    plain = next(one for one in answer.training.attempts if one.method == chosen.method)  # its first way
    if plain.ceiling.accumulated and (plain.evaluation or not plain.setup.do_eval) and plain is not chosen:
        steps = plain.steps(answer.training.splits.wanted, answer.world)
        return words("recommend.way_fewer", way=way, alone=plain.ceiling.accumulated, steps=steps)
    return words(
        "recommend.way_needed" if answer.question.run.method in (None, "auto") else "recommend.way_asked", way=way
    )


def _workers_reason(training: Training, answer: Answer, words: Words) -> str:
    machine, constants = answer.estimator.machine, answer.estimator.constants
    setup = training.setup
    assert setup is not None
    limit = machine.host_memory_bytes
    return words(
        f"recommend.workers.{training.workers_reason}",
        n=setup.dataloader_num_workers,
        cpus=machine.cpus,
        share=constants["host_target_share"],
        limit=host_limit(limit) if limit else None,
        high=constants["worker_observed_bytes"],
    )


def _largest_reason(training: Training, answer: Answer, words: Words) -> str:
    largest, chosen = training.largest, training.chosen
    assert largest is not None and chosen is not None
    values = {
        "train": chosen.ceiling.single,
        "accumulated": chosen.ceiling.accumulated,
        "evaluation": largest.evaluation,
        "inference": largest.inference,
    }
    encoder = answer.estimator.model.architecture.family == "encoder"
    if answer.question.trainer is not None:
        return words("recommend.largest_of_trainer", **values)
    return words("recommend.largest_encoder" if encoder else "recommend.largest", **values)


def _inference_reasons(inference: Inference, answer: Answer, words: Words) -> list[str]:
    setup = inference.setup
    assert setup is not None
    sentences = [words("recommend.inference_largest", n=inference.largest)]
    if inference.capped is not None and setup.inference_batch_size == inference.capped.batch:
        sentences += _capped("inference", inference.capped, answer, words)
    if inference.processes > 1 and inference.generate is not None:
        each = inference.generate.high_bytes
        together = size(inference.processes * each)
        sentences.append(words("recommend.processes", n=inference.processes, each=size(each), together=together))
    if inference.folds > 1:
        sentences.append(words("recommend.folds_together", n=inference.folds, alone=inference.in_turn))
    others = (way for way in inference.ways if way.weights != setup.weights)
    return sentences + [words("recommend.other_weights", weights=way.weights, n=way.largest_batch) for way in others]


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
