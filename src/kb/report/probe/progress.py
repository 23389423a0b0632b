"""One trial in one line: while a probe goes, on standard error, and as the outcome's cell of the table."""

from typing import TYPE_CHECKING

from kb.report.values import printable, size
from kb.report.words import Words

if TYPE_CHECKING:
    from kb.torch_runs.probe.trial import Outcome, Trial

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
