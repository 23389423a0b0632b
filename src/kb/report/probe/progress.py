"""One trial in one line: while a probe goes, on standard error, and as the outcome's cell of the table."""

from typing import TYPE_CHECKING

from kb.report.values import printable, size
from kb.report.words import Words

if TYPE_CHECKING:
    from kb.measurement.trial import Outcome, Trial

REASON_CHARACTERS = 160


def progress(number: int, trial: "Trial", outcome: "Outcome", words: Words) -> str:
    """``trial 2: batch 41: out of memory (GPU), in training, 12.1 s: CUDA out of memory …``"""
    host = trial.kind == "host"
    key = "probe.progress_workers" if host else "probe.progress_batch"
    tried = words(key, number=number, value=trial.workers if host else trial.batch)
    parts = [tried, ended(outcome, words), words("probe.seconds", seconds=outcome.seconds)]
    if outcome.fits and outcome.peak_bytes:
        parts.insert(2, size(outcome.peak_bytes))
    line = ", ".join(parts)
    told = outcome.reason if not outcome.fits and outcome.status != "hang" else None
    return f"{line}: {printable(told)[:REASON_CHARACTERS]}" if told else line


def ended(outcome: "Outcome", words: Words) -> str:
    """How it ended, of what, and in which phase."""
    kind = f"{outcome.status}_{outcome.resource}" if outcome.status == "oom" and outcome.resource else outcome.status
    text = words(f"probe.status.{kind}")
    if outcome.fits or outcome.phase is None:
        return text
    return words("probe.in_phase", status=text, phase=words.named("phase", outcome.phase))
