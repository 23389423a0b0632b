"""``kb.probe`` in words: the trials as a table, what they show, and the setting to start from as YAML."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb.core.memory_report import WORKING
from kb.report.estimate.text import run_parts
from kb.report.probe.json_report import found_lines, recommended_lines
from kb.report.terminal import INDENT, Style, columns, cut, joined, table, wrap
from kb.report.values import here, host_size, printable, size
from kb.report.words import Words

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Pair, Probed
    from kb.torch_runs.probe.trial import Outcome, Trial

LEAST_COLUMNS = 4


def probe_text(probed: "Probed", words: Words, style: Style) -> str:
    """The whole report, with a line break at its end."""
    blocks = [
        _heading(probed, words, style),
        _trials(probed, words, style),
        _failures(probed, words, style),
        found_lines(probed, words, style),
        recommended_lines(probed, words, style),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _heading(probed: "Probed", words: Words, style: Style) -> list[str]:
    card = probed.card
    parts = [printable(probed.name), words(f"probe.kind.{probed.kind.replace('-', '_')}")]
    if probed.backend == "fake":
        parts.append(words("probe.scripted_gpu", memory=size(card.total_bytes or 0)))
    elif card.name is not None:
        parts.append(words("probe.real_gpu", name=card.name, memory=size(card.total_bytes or 0)))
    elif probed.kind != "host":
        parts.append(words("probe.without_gpu"))
    lines = [style.paint(line, "heading") for line in wrap(joined(parts, style.dot), style.width)]
    if probed.setup is not None:
        about = joined(run_parts(probed.setup, words, one_sequence=probed.one_sequence), style.dot)
        lines += [style.paint(line, "dim") for line in wrap(about, style.width, INDENT)]
    for note in probed.notes:
        text = words("monitor.note", note=words(f"machine.{here(note)}"))
        lines += [style.paint(line, "dim") for line in wrap(text, style.width, INDENT, INDENT * 2)]
    if probed.backend == "fake":
        lines += [style.paint(line, "dim") for line in wrap(words("probe.nothing_measured"), style.width, INDENT)]
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
    rows = [_host_row(number, pair, probed, words) for number, pair in enumerate(probed.pairs, 1)]
    return without_empty([heads, *rows], style)


def _host_row(number: int, pair: "Pair", probed: "Probed", words: Words) -> list[str]:
    trial, outcome = pair
    main, worker = outcome.host.get("main", {}), outcome.host.get("worker", {})
    total = outcome.host.get("total_pss_bytes") or outcome.host.get("peak_pss_bytes") or 0
    rate = outcome.samples_per_second
    return [
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
        lines += [style.paint(line, "dim") for line in wrap(text, style.width, INDENT, INDENT * 2)]
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
