"""What ``kb.probe`` found: the trials as a table, what they show, and the setting to start from as YAML; a matrix of
trials on a cluster; and both as JSON (schema 1: ``rules/schema/output/probe.json`` says it in full).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb.core.memory_report import WORKING
from kb.report.estimate_report import run_parts
from kb.report.json_parts import Object, head, to_json
from kb.report.recommend.formats import settings_of, to_yaml
from kb.report.terminal import INDENT, Style, columns, cut, in_blocks, joined, table, wrap
from kb.report.values import here, host_size, printable, short_name, size
from kb.report.words import Words

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Pair, Probed
    from kb.torch_runs.probe.trial import Cell, Matrix, Outcome, Trial


def probe_object(probed: "Probed", version: str, rules_version: str) -> Object:
    """Everything a probe found; ``measured`` is false of a scripted GPU."""
    sought, card = probed.sought, probed.card
    return {
        **head(version, rules_version),
        "kind": probed.kind,
        "backend": probed.backend,
        "measured": probed.backend != "fake",
        "name": probed.name,
        "command": list(probed.command) or None,
        "gpu": {"name": card.name, "memory_bytes": card.total_bytes, "usable_bytes": card.usable_bytes}
        if card.total_bytes
        else None,
        "host_limit_bytes": probed.host_limit_bytes,
        "notes": list(probed.notes),
        "trials": [trial_object(pair) for pair in probed.pairs],
        "largest": {"batch": sought.largest, "next_one": sought.next_one} if sought else None,
        "recommended": _recommended(probed),
        "auto_find_batch_size": {"batches": list(probed.auto_find), "trials": len(probed.auto_find)}
        if probed.auto_find
        else None,
    }


def trial_object(pair: "Pair") -> Object:
    """One trial, with what was predicted of it and what came of it."""
    trial, outcome = pair
    return {
        "batch": trial.batch if trial.kind != "host" else None,
        "workers": trial.workers,
        "steps": trial.steps,
        "command": list(trial.command) or None,
        "predicted": {phase: dict(sizes) for phase, sizes in trial.predicted.items()},
        "outcome": {
            **outcome._asdict(),
            "phases": {phase: dict(sizes) for phase, sizes in outcome.phases.items()},
            "peak_bytes": outcome.peak_bytes,
        },
    }


def _recommended(probed: "Probed") -> Object | None:
    found = probed.recommended
    if found is None:
        return None
    settings = None
    if probed.setup is not None:
        settings = settings_of(probed.setup, workers_known=False, one_sequence=probed.one_sequence)
    return {
        "batch": found.number if probed.kind != "host" else None,
        "workers": found.number if probed.kind == "host" else None,
        "reason": found.reason,
        "used_bytes": found.used_bytes,
        "share": found.share,
        "tried": found.tried,
        "config": settings,
        "yaml": config_yaml(probed),
    }


MOST_LISTED = 6
FAILED = ("oom", "hang")


def found_lines(probed: "Probed", words: Words, style: Style) -> list[str]:
    """The largest batch and what bounds it; the trials that the Trainer's own search would have needed."""
    sentences = []
    sought = probed.sought
    if sought is not None and sought.largest:
        trials = words.count("probe.trials", len(probed.pairs))
        sentences.append(words("probe.largest", batch=sought.largest, trials=trials))
        sentences.append(words(f"probe.next_one.{sought.next_one}", batch=sought.largest + 1))
    elif sought is not None:
        sentences.append(words("probe.no_batch_ran"))
    if probed.auto_find:
        sentences.append(_auto_find(probed, words, style))
    if probed.kind == "smoke":
        sentences += _smoke(probed, words)
    return [line for sentence in sentences for line in wrap(sentence, style.width)]


def _auto_find(probed: "Probed", words: Words, style: Style) -> str:
    tried = probed.auto_find
    shown = [str(batch) for batch in tried]
    if len(shown) > MOST_LISTED:
        shown = [*shown[: MOST_LISTED - 2], style.ellipsis, shown[-1]]
    key = "probe.auto_find_below" if probed.sought and tried[-1] < probed.sought.largest else "probe.auto_find"
    trials = words.count("probe.trials", len(tried))
    return words(key, start=tried[0], trials=trials, batches=", ".join(shown), last=tried[-1])


def _smoke(probed: "Probed", words: Words) -> list[str]:
    """The peak beside its prediction."""
    trial, outcome = probed.pairs[0]
    if not outcome.fits:
        return [words(f"probe.smoke_failed.{outcome.status if outcome.status in FAILED else 'crash'}")]
    peak = outcome.peak_bytes
    predicted = max((row.get("process_bytes", 0) for row in trial.predicted.values()), default=0)
    if peak and predicted:
        return [
            words("probe.smoke_beside", peak=size(peak), predicted=size(predicted), off=f"{peak / predicted - 1:+.1%}")
        ]
    return [words("probe.smoke_ran", steps=trial.steps)] if not trial.command else [words("probe.smoke_command")]


def recommended_lines(probed: "Probed", words: Words, style: Style) -> list[str]:
    """The setting to start from."""
    found = probed.recommended
    if found is None:
        return []
    low, high = probed.target or (0, 0)
    shown = host_size if probed.kind == "host" else size
    used = shown(found.used_bytes) if found.used_bytes else "?"
    what = ("workers" if probed.kind == "host" else "batch") + ("" if found.used_bytes and found.share else "_alone")
    text = words(f"probe.recommended.{what}", number=found.number, used=used, share=found.share)
    why = words(f"probe.reason.{found.reason}", low=low, high=high)
    how = [] if found.tried else [words("probe.computed_from_trials")]
    lines = style.lines(text, "heading")
    lines += wrap(" ".join([why, *how]), style.width, INDENT)
    yaml = config_yaml(probed)
    return [*lines, "", *yaml.rstrip("\n").split("\n")] if yaml else lines


def config_yaml(probed: "Probed") -> str | None:
    """The recommended run as YAML to paste; of a command or a host probe the one setting alone."""
    found = probed.recommended
    if found is None:
        return None
    if probed.setup is None:
        name = "dataloader_num_workers" if probed.kind == "host" else "per_device_train_batch_size"
        return to_yaml({f"training.{name}": found.number}, {})
    if not (probed.setup.do_train or probed.setup.do_predict):
        return to_yaml({"training.per_device_eval_batch_size": probed.setup.per_device_eval_batch_size}, {})
    settings = settings_of(probed.setup, workers_known=False, one_sequence=probed.one_sequence)
    settings.pop("model.name", None)
    return to_yaml(settings, {}, one_sequence=probed.one_sequence)


LEAST_COLUMNS = 4


def probe_text(probed: "Probed", words: Words, style: Style) -> str:
    """The whole report, with a line break at its end."""
    makers = (_heading, _trials, _failures, found_lines, recommended_lines)
    return in_blocks(make(probed, words, style) for make in makers)


def _heading(probed: "Probed", words: Words, style: Style) -> list[str]:
    card = probed.card
    parts = [printable(probed.name), words(f"probe.kind.{probed.kind.replace('-', '_')}")]
    if probed.backend == "fake":
        parts.append(words("probe.scripted_gpu", memory=size(card.total_bytes or 0)))
    elif card.name is not None:
        parts.append(words("probe.real_gpu", name=card.name, memory=size(card.total_bytes or 0)))
    elif probed.kind != "host":
        parts.append(words("probe.without_gpu"))
    lines = style.lines(joined(parts, style.dot), "heading")
    if probed.setup is not None:
        about = joined(run_parts(probed.setup, words, one_sequence=probed.one_sequence), style.dot)
        lines += style.lines(about, "dim", INDENT)
    for note in probed.notes:
        text = words("monitor.note", note=words(f"machine.{here(note)}"))
        lines += style.lines(text, "dim", INDENT, INDENT * 2)
    if probed.backend == "fake":
        lines += style.lines(words("probe.nothing_measured"), "dim", INDENT)
    return lines


def _trials(probed: "Probed", words: Words, style: Style) -> list[str]:
    """The table, with as many of its last columns as the width has room for."""
    rows = _host_rows(probed, words, style) if probed.kind == "host" else _batch_rows(probed, words, style)
    lines = table(rows, left=(2,))
    while len(rows[0]) > LEAST_COLUMNS and max(map(columns, lines)) > style.width:
        rows = [row[:-1] for row in rows]
        lines = table(rows, left=(2,))
    return [cut(line, style.width, style.ellipsis) for line in lines]


def _batch_rows(probed: "Probed", words: Words, style: Style) -> list[list[str]]:
    """A row a trial; columns of which no trial knows anything are left out."""
    heads = [words(f"probe.column.{name}") for name in ("trial", "batch", "outcome")]
    heads += [words.named("phase", phase) for phase in WORKING]
    heads += [words(f"probe.column.{name}") for name in ("share", "utilisation", "step", "predicted", "host")]
    rows = [
        [
            str(number),
            str(trial.batch),
            ended(outcome, words),
            *(phase_size(outcome, phase) for phase in WORKING),
            _percent(outcome.peak_bytes, probed.card.total_bytes) if outcome.fits else "",
            f"{outcome.utilisation:.0%}" if outcome.utilisation is not None else "",
            words("probe.seconds", seconds=outcome.step_seconds) if outcome.step_seconds else "",
            _gpu_size(max((row.get("process_bytes", 0) for row in trial.predicted.values()), default=0)),
            _host_size(outcome.host.get("peak_pss_bytes") or outcome.host.get("peak_rss_bytes") or 0),
        ]
        for number, (trial, outcome) in enumerate(probed.pairs, 1)
    ]
    return without_empty([heads, *rows], style)


def phase_size(outcome: "Outcome", phase: str) -> str:
    """The process's peak in a phase; empty where nobody measured it."""
    sizes = outcome.phases.get(phase, {})
    return _gpu_size(sizes.get("process_bytes") or sizes.get("reserved_bytes") or 0)


def _host_rows(probed: "Probed", words: Words, style: Style) -> list[list[str]]:
    heads = [words(f"probe.column.{name}") for name in
               ("trial", "workers", "outcome", "rate", "main_pss", "worker_pss", "worker_uss", "total_pss",
                "host_share")]  # fmt: skip
    rows = []
    for number, (trial, outcome) in enumerate(probed.pairs, 1):
        main, worker = outcome.host.get("main", {}), outcome.host.get("worker", {})
        total = outcome.host.get("total_pss_bytes") or outcome.host.get("peak_pss_bytes") or 0
        rate = outcome.samples_per_second
        rows.append(
            [
                str(number),
                str(trial.workers),
                ended(outcome, words),
                f"{rate:,.1f}" if rate is not None else "",
                _host_size(main.get("pss_bytes", 0)),
                _host_size(worker.get("pss_bytes", 0)),
                _host_size(worker.get("uss_bytes", 0)),
                _host_size(total),
                _percent(total, probed.host_limit_bytes),
            ]
        )
    return without_empty([heads, *rows], style)


def without_empty(rows: Sequence[Sequence[str]], style: Style) -> list[list[str]]:
    """Without the columns whose cells are all empty; an empty cell of the others is a dash."""
    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    return [[row[at] or style.dash for at in kept] for row in rows]


def _gpu_size(count: int) -> str:
    return size(count) if count else ""


def _host_size(count: int) -> str:
    return host_size(count) if count else ""


def _percent(part: int | None, whole: int | None) -> str:
    return f"{part / whole:.0%}" if part and whole else ""


def _failures(probed: "Probed", words: Words, style: Style) -> list[str]:
    """What failed trials said, each reason once."""
    told: dict[tuple[str, str], list[int]] = {}
    for number, (_, outcome) in enumerate(probed.pairs, 1):
        reason = "" if outcome.fits else reason_of(outcome, words)
        if reason:
            told.setdefault((reason, outcome.phase or ""), []).append(number)
    lines = []
    for (reason, phase), numbers in told.items():
        key = "probe.said" if phase else "probe.said_nowhere"
        text = words(key, numbers=", ".join(map(str, numbers)), phase=words.named("phase", phase), reason=reason)
        lines += style.lines(text, "dim", INDENT, INDENT * 2)
    return lines


REASON_CHARACTERS = 160
LINES_SHOWN = 15


def progress(one: "tuple[int, Trial, Outcome]", words: Words) -> str:
    """``trial 2: batch 41, out of GPU memory, train, 12.10 s: CUDA out of memory …``; a crash with its last lines."""
    number, trial, outcome = one
    host = trial.kind == "host"
    key = "probe.progress_workers" if host else "probe.progress_batch"
    tried = words(key, number=number, value=trial.workers if host else trial.batch)
    parts = [tried, ended(outcome, words), words("probe.seconds", seconds=outcome.seconds)]
    if not outcome.fits and outcome.phase is not None:
        parts.insert(2, words.named("phase", outcome.phase))
    if outcome.fits and outcome.peak_bytes:
        parts.insert(2, size(outcome.peak_bytes))
    line = ", ".join(parts)
    told = "" if outcome.fits else reason_of(outcome, words)
    line = f"{line}: {told}" if told else line
    if outcome.status != "crash" or not outcome.output:
        return line
    return "\n".join([line, *(f"  | {printable(each)}" for each in outcome.output.splitlines()[-LINES_SHOWN:])])


def ended(outcome: "Outcome", words: Words) -> str:
    """How it ended, and of what."""
    kind = f"{outcome.status}_{outcome.resource}" if outcome.status == "oom" and outcome.resource else outcome.status
    return words(f"probe.status.{kind}")


def reason_of(outcome: "Outcome", words: Words) -> str:
    """Why a trial failed, in its own last words or, where a limit was passed, in ours; empty where nothing says."""
    if outcome.status == "hang":
        return words("probe.over_time", seconds=outcome.reason)
    if outcome.status == "oom" and outcome.resource == "host" and not outcome.reason:
        return words("probe.over_host_limit")
    return printable(outcome.reason or "")[:REASON_CHARACTERS]


COLUMNS = ("gpu", "model", "batch", "outcome", "share", "step", "predicted", "node")
LEFT = ("gpu", "model", "outcome", "node")
SPARE = ("step", "evaluate", "generate", "share")  # what goes first where a terminal is narrow


def matrix_text(matrix: "Matrix", words: Words, style: Style) -> str:
    """The whole report, with a line break at its end."""
    heading = words("probe.matrix", address=matrix.address, number=len(matrix.cells))
    lines = style.lines(heading, "heading")
    if matrix.backend == "fake":
        lines += style.lines(words("probe.nothing_measured"), "dim", INDENT)
    lines += ["", *_matrix_table(matrix, words, style)]
    notes = [note for cell in matrix.cells for note in _notes(cell, words)]
    if notes:
        lines.append("")
        lines += [line for note in dict.fromkeys(notes) for line in wrap(note, style.width, INDENT, INDENT * 2)]
    return "\n".join(lines) + "\n"


def _matrix_table(matrix: "Matrix", words: Words, style: Style) -> list[str]:
    """A row a cell; where the width has no room for all columns, without those that matter least."""
    heads = {name: words(f"probe.column.{name}") for name in COLUMNS}
    heads |= {name: words.named("phase", name) for name in WORKING}
    names, rows = list(COLUMNS), [_row(cell, words) for cell in matrix.cells]
    names[4:4] = WORKING
    known = [name for name in names if any(row[name] for row in rows)]
    while True:
        cells = [[heads[name] for name in known], *([row[name] or style.dash for name in known] for row in rows)]
        lines = table(cells, left=[at for at, name in enumerate(known) if name in LEFT])
        spare = next((name for name in SPARE if name in known), None)
        if spare is None or max(map(columns, lines)) <= style.width:
            return lines
        known.remove(spare)


def _row(cell: "Cell", words: Words) -> dict[str, str]:
    trial, outcome = cell.trial, cell.outcome
    expected = max((sizes.get("process_bytes", 0) for sizes in trial.predicted.values()), default=0)
    share = outcome.peak_bytes / cell.gpu.memory_total if outcome.fits and outcome.peak_bytes else None
    return {
        "gpu": short_name(cell.gpu),
        "model": printable(trial.model or ""),
        "batch": str(trial.batch),
        "outcome": ended(outcome, words),
        **{phase: phase_size(outcome, phase) for phase in WORKING},
        "share": f"{share:.0%}" if share is not None else "",
        "step": words("probe.seconds", seconds=outcome.step_seconds) if outcome.step_seconds else "",
        "predicted": size(expected) if expected else "",
        "node": printable(outcome.node or ""),
    }


def _notes(cell: "Cell", words: Words) -> list[str]:
    """Why a trial failed, which nodes were lost, which other GPU ran it."""
    outcome, named = cell.outcome, {"gpu": short_name(cell.gpu), "model": cell.trial.model, "batch": cell.trial.batch}
    notes = []
    if not outcome.fits and (reason := reason_of(outcome, words)):
        notes.append(words("probe.matrix_failed", reason=reason, **named))
    if lost := outcome.machine.get("lost_nodes"):
        notes.append(words("probe.matrix_lost", nodes=", ".join(lost), times=outcome.machine["losses"], **named))
    if cell.found is not None:
        notes.append(words("probe.matrix_other_gpu", found=cell.found, **named))
    return notes


def matrix_json(matrix: "Matrix", version: str, rules_version: str) -> str:
    """One object: ``cells`` in the order of the axes, each a trial of ``kb.probe --format json`` with its GPU."""
    return to_json(
        {
            **head(version, rules_version),
            "kind": "matrix",
            "backend": matrix.backend,
            "measured": matrix.backend != "fake",
            "address": matrix.address,
            "cells": [
                {
                    "gpu": cell.gpu.id,
                    "model": cell.trial.model,
                    "other_gpu": cell.found,
                    **trial_object((cell.trial, cell.outcome)),
                }
                for cell in matrix.cells
            ],
        }
    )
