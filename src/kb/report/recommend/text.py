"""``kb.recommend`` in words: YAML to paste, the memory it takes, why, the notes' rows, the other ways; and as JSON.

JSON is schema 1, which ``rules/schema/output/recommend.json`` says in full.
"""

from collections.abc import Mapping

from kb.advice.fit.decision import Leaf, Walk
from kb.advice.fit.recommend import ENVIRONMENT, Inference, Training, peaks
from kb.advice.fit.recommend_answer import ACCUMULATION, EVALUATE, INFERENCE, TRAIN, WORKERS, Answer, NotesRow
from kb.advice.run.row_lengths import reads_target
from kb.core.document import Unit
from kb.core.finding import Span
from kb.core.memory_report import MemoryReport, Phase, phase_status
from kb.core.result import UnitResult
from kb.core.setup import TrainingSetup
from kb.report.check.panel import fit_panel
from kb.report.json_parts import Object, fields, head, machine_object, plain, prediction_object, to_json
from kb.report.recommend.formats import READ_BY_TRAINER, RENAMED, config_as, settings_of_answer, to_yaml
from kb.report.recommend.reasons import Own, notes_lines, reasons, walk_lines, why_lines
from kb.report.terminal import Style, in_blocks, section, table, wrap
from kb.report.values import gpu_name, short_name, size
from kb.report.words import Words

_NOWHERE = Span(1, 1, 1, 1)


def recommend_text(answer: Answer, words: Words, style: Style) -> str:
    """The whole report, with a line break at its end."""
    sections = [_title(answer, words, style)]
    yaml = config_yaml(answer, words)
    sections.append(yaml.splitlines() if yaml else nothing_fits(answer, words, style))
    if yaml and answer.training is not None and answer.question.trainer is None:
        sections.append(style.lines(words("recommend.forms"), "dim", "  "))
    if answer.training is not None and answer.training.report is not None:
        sections.append(_panel(answer, answer.training.setup, answer.training.report, words, style))
    if answer.inference is not None and answer.inference.report is not None:
        report, together = answer.inference.report, answer.inference.generate  # of all folds
        assert together is not None
        phases = tuple(together if phase.name == "generate" else phase for phase in report.phases)
        sections.append(_panel(answer, answer.inference.setup, report._replace(phases=phases), words, style))
    if answer.setup is not None:
        sections.append(section(words("recommend.why"), style.listed(reasons(answer, words)), style))
    if answer.walk is not None and answer.decision is not None:
        title = answer.decision["title"][words.language]
        lines = walk_lines(answer.walk, answer.decision, answer.given or {}, words, style)
        sections.append([style.paint(words("recommend.decision", title=title), "heading"), *lines])
    if answer.question.trainer is None and (answer.notes.own or answer.notes.others or answer.notes.gpus):
        own = own_row(answer)
        notes = notes_lines(own, answer.notes, answer.task, words, style)
        notes += why_lines(own, answer.notes, answer.task, words, style)
        sections.append([style.paint(words("recommend.notes"), "heading"), *notes])
    if answer.training is not None:
        heading = style.paint(words("recommend.ways"), "heading")
        ways, note = _ways(answer.training, words, style), wrap(words("recommend.ways_note"), style.width, "  ")
        sections.append([heading, *ways, *note])
    return in_blocks(sections)


def _title(answer: Answer, words: Words, style: Style) -> list[str]:
    estimator = answer.estimator
    found = estimator.gpu
    assert found is not None  # without a GPU there is nothing to recommend for
    gpus = f"{answer.world} × {gpu_name(found)}" if answer.world > 1 else gpu_name(found)
    trainer = answer.question.trainer
    by_trl = trainer and words("recommend.by_trl", task=trainer.upper())
    task = by_trl or words(f"recommend.task.{answer.task}")
    parts = (estimator.model.name, f"{gpus} {size(found.memory_total)}", task)
    return [style.paint(style.dot.join(parts), "heading")]


def config_yaml(answer: Answer, words: Words) -> str | None:
    """The config to paste; None where nothing fits."""
    setup, settings = answer.setup, settings_of_answer(answer)
    if setup is None or settings is None:
        return None
    if answer.question.trainer is not None:
        return config_file(answer, "trl", words)
    head = " ".join(f"export {name}={value}" for name, value in ENVIRONMENT.items())
    one_sequence = not reads_target(answer.estimator.model.architecture)
    return to_yaml(settings, _comments(answer, setup, words), head, one_sequence=one_sequence)


def config_file(
    answer: Answer, form: str, words: Words, *, asked_length: int | None = None, renamed: bool = False
) -> str | None:
    """The recommended training run as a file of a format; None where nothing fits.

    Args:
        form: one of :data:`kb.report.recommend.formats.FORMATS`.
        asked_length: input length that did not fit, where the run takes a shorter one.
        renamed: the Trainer's ``gradient_checkpointing`` has its newer name in the release that reads the file.

    Raises:
        UserError: the format's program does not train such a model.
    """
    setup, training, settings = answer.setup, answer.training, settings_of_answer(answer, form)
    if setup is None or settings is None or training is None or training.report is None:
        return None
    model, found = answer.estimator.model, answer.estimator.gpu
    assert found is not None  # without a GPU there is nothing to recommend for
    phase = max(peaks(training.report), key=lambda one: one.high_bytes)
    head = [
        words("recommend.file_head", model=model.name, gpu=gpu_name(found), limit=size(found.memory_total)),
        words(
            "recommend.file_need",
            need=size(phase.process_used_bytes),
            low=size(phase.low_bytes),
            high=size(phase.high_bytes),
        ),
        " ".join(f"export {key}={value}" for key, value in ENVIRONMENT.items()),
    ]
    trainer = answer.question.trainer
    if trainer is not None:
        head.append(words("recommend.file_run", trainer=trainer))
    if asked_length is not None:
        head.insert(2, words("recommend.file_shorter", length=setup.max_source_length, asked=asked_length))
    if not setup.do_eval and trainer is None:
        head.insert(2, words("recommend.file_no_evaluation"))
    if renamed and form in READ_BY_TRAINER:
        settings = {RENAMED.get(name, name): value for name, value in settings.items()}
    comments = {} if form == "command" else _comments(answer, setup, words)
    return config_as(form, settings, setup, model.architecture, comments=comments, head="\n".join(head))


def _comments(answer: Answer, setup: TrainingSetup, words: Words) -> dict[str, str]:
    """What stands beside the settings."""
    if answer.inference is not None:
        return {INFERENCE: _most(setup.inference_batch_size, answer.inference.largest, words)}
    training = answer.training
    assert training is not None and training.largest is not None and training.chosen is not None
    ceiling = training.chosen.ceiling
    accumulates = setup.gradient_accumulation_steps > 1
    most = ceiling.accumulated if accumulates else ceiling.single
    comments = {
        TRAIN: _most(setup.per_device_train_batch_size, most, words),
        EVALUATE: _most(setup.per_device_eval_batch_size, training.largest.evaluation, words),
        ACCUMULATION: words("recommend.comment.effective", n=setup.effective_batch_size),
        INFERENCE: _most(setup.inference_batch_size, training.largest.inference, words),
    }
    if setup.post is not None:  # only parts of the effective batch were tried
        comments[TRAIN] = words("recommend.comment.largest_part") if accumulates else ""
    if setup.post is not None and setup.post.completion:
        prompt = setup.max_source_length - setup.post.completion
        comments["trl.max_completion_length"] = words("recommend.comment.prompts", n=prompt)
    if training.workers_reason == "unknown":
        comments["training"] = words("recommend.comment.workers_unknown")
    return comments


def _most(value: int | None, largest: int, words: Words) -> str:
    if value == largest:
        return words("recommend.comment.is_largest")
    return words(
        "recommend.comment.largest" if value is not None and value < largest else "recommend.comment.over", n=largest
    )


def own_row(answer: Answer) -> Own | None:
    """kb's row for the notes' table."""
    estimator, setup = answer.estimator, answer.setup
    if setup is None:
        return None
    if answer.inference is not None:
        phase = answer.inference.generate
        assert phase is not None  # there is a setup, so it fits
        return Own({INFERENCE: setup.inference_batch_size}, phase, _status(phase, answer), estimator.limit_bytes, None)
    training = answer.training
    assert training is not None and training.report is not None and training.chosen is not None
    phase = max(peaks(training.report), key=lambda one: one.high_bytes)
    values = {
        TRAIN: setup.per_device_train_batch_size,
        EVALUATE: setup.per_device_eval_batch_size,
        ACCUMULATION: setup.gradient_accumulation_steps,
        "effective": setup.effective_batch_size,
        INFERENCE: setup.inference_batch_size,
        WORKERS: setup.dataloader_num_workers if training.workers_reason != "unknown" else None,
    }
    return Own(values, phase, _status(phase, answer), estimator.limit_bytes, training.chosen.ceiling.single)


def _status(phase: Phase, answer: Answer) -> str:
    estimator = answer.estimator
    if estimator.limit_bytes is None or estimator.usable_bytes is None:
        return "tight"
    return phase_status(phase, estimator.limit_bytes, estimator.usable_bytes)


def _panel(answer: Answer, setup: TrainingSetup | None, report: MemoryReport, words: Words, style: Style) -> list[str]:
    unit = UnitResult(
        unit=Unit(path="", section=None, dialect="team", settings={}, span=_NOWHERE),
        setup=setup,
        model=answer.estimator.model,
        prediction=report,
        gpu_limit_bytes=answer.estimator.limit_bytes,
    )
    return fit_panel(unit, answer.estimator.machine, words, style)


def _ways(training: Training, words: Words, style: Style) -> list[str]:
    """What each way needs and allows; a rough answer is marked so."""
    rows = [["", *(words(f"recommend.way_column.{name}") for name in ("train", "batch", "evaluation"))]]
    for attempt in training.attempts:
        chosen, about = "*" if attempt is training.chosen else " ", "~" if attempt.rough else ""
        single, accumulated = attempt.ceiling
        rows.append(
            [
                f"{chosen} {words.named('attempt', attempt.name)}",
                f"{about}{size(attempt.train.process_used_bytes)} ({size(attempt.train.high_bytes)})",
                f"{about}{single} ({accumulated})" if single else style.dash,
                f"~{attempt.evaluation}" if attempt.evaluation else style.dash,
            ]
        )
    return table(rows)


def nothing_fits(answer: Answer, words: Words, style: Style) -> list[str]:
    """Why there is no setting, and what would make one: a larger GPU, a shorter input."""
    chosen: Training | Inference | None = answer.training or answer.inference
    assert chosen is not None
    values: Mapping[str, object] = {"limit": size(answer.estimator.limit_bytes or 0)}
    key = "recommend.nothing_fits" if answer.training is not None else "recommend.no_batch_fits"
    lines = wrap(words(key, **values), style.width)
    larger = chosen.larger_gpu
    if larger is not None:
        lines += wrap(words("recommend.larger_gpu", gpu=short_name(larger), id=larger.id), style.width)
    training = answer.training
    if training is not None and training.larger_gpu_last_way is not None:
        gpu = training.larger_gpu_last_way
        lines += wrap(words("recommend.larger_gpu_last", gpu=short_name(gpu), id=gpu.id), style.width)
    if training is not None and training.shorter_source:
        lines += wrap(words("recommend.shorter", length=training.shorter_source), style.width)
    if training is not None and answer.world > 1:
        lines += wrap(words("recommend.not_sharded", n=answer.world), style.width)
    return lines


def recommend_json(answer: Answer, words: Words, version: str, rules_version: str) -> str:
    estimator = answer.estimator
    training, inference = answer.training, answer.inference
    chosen: Training | Inference | None = training or inference
    assert chosen is not None
    made: Object = {
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
        "notes": {
            **{kind: [_row(row) for row in getattr(answer.notes, kind)] for kind in ("own", "others", "conflicts")},
            "gpus": list(answer.notes.gpus),
        },
        "decision": _walk(answer.walk, words) if answer.walk else None,
    }
    return to_json(made)


def _training(training: Training) -> Object:
    splits, largest = training.splits, training.largest
    return {
        "effective_batch": {
            "wanted": splits.wanted,
            "source": training.effective_source,
            "held": bool(splits.exact),
            "exact": [fields(split, *_SPLIT) for split in splits.exact],
            "below": fields(splits.below, *_SPLIT) if splits.below else None,
            "above": fields(splits.above, *_SPLIT) if splits.above else None,
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
        "ways": [
            {
                "name": attempt.name,
                "method": attempt.method,
                "chosen": attempt is training.chosen,
                "train": fields(attempt.train, *_PHASE),
                "largest_batch": attempt.ceiling.single,
                "largest_batch_accumulated": attempt.ceiling.accumulated,
                "largest_eval_batch": attempt.evaluation,
                "rough": attempt.rough,
            }
            for attempt in training.attempts
        ],
        "larger_gpu_last_way": training.larger_gpu_last_way.id if training.larger_gpu_last_way else None,
        "shorter_source": training.shorter_source,
    }


_SPLIT = ("batch", "accumulation", "effective")
_PHASE = ("name", "peak_allocated_bytes", "process_used_bytes", "low_bytes", "high_bytes")


def _inference(inference: Inference) -> Object:
    return {
        "folds": inference.folds,
        "processes": inference.processes,
        "largest_batch": inference.largest,
        "largest_batch_in_turn": inference.in_turn,
        "generate": fields(inference.generate, *_PHASE) if inference.generate else None,
        "weights": [
            {"type": way.weights, "largest_batch": way.largest_batch, "generate": fields(way.generate, *_PHASE)}
            for way in inference.ways
        ],
    }


def _row(row: NotesRow) -> Object:
    return {
        **fields(row, "preset", "source", "lines", "gpu_said", "model_said"),
        "model": row.model.id,
        **fields(row, "method", "copies"),
        "settings": plain(row.values),
        "effective_batch": row.effective,
        "memory": plain({name: row.memory[name] for name in ("value", "unit") if name in row.memory})
        if row.memory
        else None,
        "status": row.status,
        "predicted": fields(row.phase, *_PHASE) if row.phase else None,
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
    about = fields(leaf, "id", "value", "use", "caution")
    return {**about, "flags": [flag.id for flag in leaf.flags], "needs": list(leaf.needs)}
