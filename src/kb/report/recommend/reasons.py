"""Why a recommended config is as it is: effective batch, method, precision, workers, largest batches."""

from kb.advice.answer import Answer
from kb.advice.attempts import Attempt
from kb.advice.inference import Inference
from kb.advice.recommend import Training
from kb.report.values import host_limit, size
from kb.report.words import Words


def reasons(answer: Answer, words: Words) -> list[str]:
    """A sentence for each decision."""
    if answer.inference is not None:
        return _inference_reasons(answer.inference, words)
    training = answer.training
    assert training is not None and training.chosen is not None
    return [
        *_effective_reasons(training, answer.world, words),
        _way_reason(answer, training.chosen, words),
        words(f"recommend.precision.{training.precision.reason}"),
        _workers_reason(training, answer, words),
        _largest_reason(training, answer, words),
    ]


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
    if chosen.name == "full":
        return words("recommend.way_full")
    return words("recommend.way_needed" if answer.asked.method == "auto" else "recommend.way_asked", way=way)


def _workers_reason(training: Training, answer: Answer, words: Words) -> str:
    machine, constants = answer.room.machine, answer.room.constants
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
    encoder = answer.room.model.architecture.family == "encoder"
    return words("recommend.largest_encoder" if encoder else "recommend.largest", **values)


def _inference_reasons(inference: Inference, words: Words) -> list[str]:
    setup = inference.setup
    assert setup is not None
    sentences = [words("recommend.inference_largest", n=inference.largest)]
    if inference.processes > 1 and inference.generate is not None:
        each = inference.generate.high_bytes
        together = size(inference.processes * each)
        sentences.append(words("recommend.processes", n=inference.processes, each=size(each), together=together))
    if inference.folds > 1:
        sentences.append(words("recommend.folds_together", n=inference.folds, alone=inference.in_turn))
    others = (way for way in inference.ways if way.weights != setup.weights)
    return sentences + [words("recommend.other_weights", weights=way.weights, n=way.largest_batch) for way in others]
