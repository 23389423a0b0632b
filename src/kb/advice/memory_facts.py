"""The facts under ``memory.`` and ``saving.``: one number or verdict of a prediction, by vocabulary name."""

from typing import Any

from kb.advice.fit import Fit
from kb.core.memory_report import MemoryReport
from kb.core.setup import TrainingSetup

# Which terms of a phase's ledger make up a fact.
TERMS_OF = {
    "logits": ("activations_head", "loss", "logits"),
    "gathered": ("gathered",),
    "cache": ("kv_cache_self", "kv_cache_cross"),
}


PHASES = {"inference": "generate", "eval_generate": "generate"}


def memory_fact(report: MemoryReport, name: str) -> Any:
    """A fact under ``memory.`` from a prediction. A phase that the run does not have takes no memory, and fits."""
    if name == "memory.status":
        return None if report.verdict.status == "unknown" else report.verdict.status
    if name == "memory.phase":
        return report.verdict.phase
    if name == "memory.term":
        return report.verdict.term
    if name == "memory.peak":
        return max((phase.process_used_bytes for phase in report.phases), default=None)
    _, part, field = name.split(".")
    if part == "host":
        host = report.host
        workers = sum(term.bytes for term in host.terms if term.name == "workers")
        return {
            "peak": host.peak_bytes,
            "low": host.low_bytes,
            "workers": workers,
        }[field]
    phase = report.phase(PHASES.get(part, part))
    if phase is None:
        return 0 if field != "status" else None if report.verdict.status == "unknown" else "fits"
    if field == "status":
        return None if phase.status == "unknown" else phase.status
    if field in TERMS_OF:
        return sum(term.bytes for term in phase.terms if term.name in TERMS_OF[field])
    return {
        "allocated": phase.peak_allocated_bytes,
        "peak": phase.process_used_bytes,
        "low": phase.low_bytes,
        "high": phase.high_bytes,
    }[field]


def ten_steps(fit: Fit, setup: TrainingSetup) -> int | None:
    """Bytes of process memory in evaluation when ten steps are joined: evaluation sets seldom have fewer."""
    report = fit.predict(setup._replace(eval_samples=10 * setup.per_device_eval_batch_size))
    phase = report and report.phase("evaluate")
    return phase.process_used_bytes if phase else None


def saving(fit: Fit, setup: TrainingSetup, name: str) -> int | None:
    """Bytes of process memory that one change would save in training, by predicting both."""
    train = fit.report and fit.report.phase("train")
    changes: dict[str, dict[str, Any]] = {
        "saving.gradient_checkpointing": {"gradient_checkpointing": True},
        "saving.optimizer_8bit": {"optim": "adamw_8bit"},
        "saving.adafactor": {"optim": "adafactor"},
        "saving.lora": {"method": "lora"},
    }
    if not train:
        return None
    changed = fit.predict(setup._replace(**changes[name]))
    after = changed and changed.phase("train")
    return train.process_used_bytes - after.process_used_bytes if after else None
