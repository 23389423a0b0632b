"""Why `kb recommend` chose what it chose: each limit in its words, the way through a decision tree, and the original
guide's rows beside kb's own, with what is to be said of each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.batches import Capped
from kb.advice.fit.attempts import Attempt
from kb.advice.fit.decision import Leaf, Walk
from kb.advice.fit.recommend import Inference, Training
from kb.advice.fit.recommend_answer import ACCUMULATION, EVALUATE, INFERENCE, TRAIN, WORKERS, Answer, Notes, NotesRow
from kb.core.memory_report import Phase
from kb.core.record import NamedTuple
from kb.core.setup import PAIRED
from kb.core.text import fill
from kb.report.terminal import Style, table, wrap
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


COLUMNS = (TRAIN, EVALUATE, ACCUMULATION, "effective", INFERENCE, WORKERS)

_BOUNDS = {"about": "~", "over": "> ", "at-least": ">= ", "at-most": "<= "}


class Own(NamedTuple):
    """kb's own row: values by setting (and ``effective``), and the phase that needs most."""

    values: Mapping[str, Any]
    phase: Phase
    status: str
    limit_bytes: int | None
    largest_train: int | None


def shown_rows(notes: Notes, task: str) -> list[NotesRow]:
    """This model's rows and those that conflict with them; other models' where this one has none. Of the task only."""
    wanted = TRAIN if task == "train" else INFERENCE
    own = [row for row in notes.own if wanted in row.values]
    rest = notes.conflicts if own else notes.others
    return own + [row for row in rest if wanted in row.values]


def notes_lines(own: Own | None, notes: Notes, task: str, words: Words, style: Style) -> list[str]:
    """The table, what its marks stand for, and why the rows differ."""
    rows = shown_rows(notes, task)
    if not rows:
        lines = wrap(words("recommend.no_notes"), style.width, "  ")
        if notes.gpus:
            lines += wrap(words("recommend.notes_elsewhere", gpus=", ".join(notes.gpus)), style.width, "  ")
        return lines
    columns = [name for name in COLUMNS if own is None or name in own.values or any(name in row.values for row in rows)]
    head = ["", *(words.named("recommend.column", name.rpartition(".")[2]) for name in columns)]
    cells = [[*head, words("recommend.column.predicted"), ""]]
    if own is not None:
        cells.append(
            ["kb", *(_cell(own.values.get(name), style) for name in columns), *_need(own.phase, own.status, words)]
        )
    for number, row in enumerate(rows, 1):
        values = {**row.values, "effective": row.effective}
        shown = (_cell(values.get(name), style) for name in columns)
        cells.append([f"[{number}]", *shown, *_need(row.phase, row.status, words)])
    last = len(head) + 1
    lines = table(cells, left=(0, last))
    for number, row in enumerate(rows, 1):
        lines += wrap(_source(number, row, words, style), style.width, "  ", "      ")
    return lines


def why_lines(own: Own | None, notes: Notes, task: str, words: Words, style: Style) -> list[str]:
    """Why the notes' rows are not the recommendation: by prediction, by one another, by what is known to be wrong."""
    rows = shown_rows(notes, task)
    numbers = {id(row): number for number, row in enumerate(rows, 1)}
    lines: list[str] = []
    for row in rows:
        if row in notes.own:
            lines += _bullet(_verdict(row, numbers[id(row)], own, words), style)
    against = [row for row in notes.conflicts if id(row) in numbers]
    if against:
        mine = next(row for row in rows if row in notes.own)
        these = " ".join(f"[{numbers[id(row)]}]" for row in against)
        key = "recommend.conflict_none_fits" if all(row.status == "oom" for row in against) else "recommend.conflict"
        lines += _bullet(words(key, these=these, mine=f"[{numbers[id(mine)]}]"), style)
        if own is not None and own.largest_train:
            lines += _bullet(words("recommend.conflict_use", batch=own.largest_train), style)
    seen: set[str] = set()
    shown = [
        (f"[{numbers[id(row)]}]", one) for row in rows for one in (row.errata if row in notes.own else row.errata[:1])
    ]
    for mark, erratum in [("", one) for one in notes.conflict_errata if against] + shown:
        if erratum.id not in seen:
            seen.add(erratum.id)
            text = words("recommend.erratum", mark=mark, id=erratum.id, use=str(erratum.use[words.language]))
            lines += _bullet(text.strip(), style)
    return lines


def _verdict(row: NotesRow, number: int, own: Own | None, words: Words) -> str:
    mark, phase = f"[{number}]", row.phase
    limit = own.limit_bytes if own else None
    if phase is None or limit is None or row.status == "unknown":
        return words("recommend.row_unknown", mark=mark)
    values = {"mark": mark, "low": size(phase.low_bytes), "high": size(phase.high_bytes), "limit": size(limit)}
    if row.status != "fits":
        return words(f"recommend.row_{row.status}", need=size(phase.process_used_bytes), **values)
    mine = own.values if own else {}
    same = any(name in row.values and mine.get(name) == row.values[name] for name in (TRAIN, INFERENCE))
    key = "row_same" if same else "row_fits"
    return words(f"recommend.{key}", need=size(phase.process_used_bytes), **values)


def _bullet(text: str, style: Style) -> list[str]:
    return wrap(text, style.width, "  - ", "    ")


def _cell(value: Any, style: Style) -> str:
    if value is None:
        return style.dash
    if isinstance(value, list | tuple):
        return style.dash.join(str(part) for part in value)
    return str(value)


def _need(phase: Phase | None, status: str, words: Words) -> Sequence[str]:
    return (size(phase.process_used_bytes) if phase else "?", words.named("verdict", status))


def _source(number: int, row: NotesRow, words: Words, style: Style) -> str:
    said = [words("recommend.note_source", source=row.source, lines=row.lines, model=row.model_said, gpu=row.gpu_said)]
    if row.method != "full":
        said.append(words.named("method", row.method))
    if row.copies > 1:
        said.append(words("recommend.copies", n=row.copies))
    if row.memory:
        value = row.memory["value"]
        figure = style.dash.join(map(str, value)) if isinstance(value, list) else str(value)
        bound = _BOUNDS.get(row.memory.get("bound", ""), "")
        said.append(words("recommend.note_memory", value=bound + figure, unit=row.memory.get("unit", "")))
    return f"[{number}] {style.dot.join(said)}"
