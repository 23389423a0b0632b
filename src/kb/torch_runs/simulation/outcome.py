"""From a trace to what the caller is told: peaks with their ledgers, top tensors, timeline; plain data for JSON."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kb.memory.engine.allocator import OutOfMemory
from kb.torch_runs.simulation.job import Job
from kb.torch_runs.simulation.simulator import Run, runs_of
from kb.torch_runs.simulation.timeline import (
    Block,
    Event,
    PhasePeak,
    alive_at,
    end_of,
    largest,
    peaks_of,
    timeline_of,
    write_snapshot,
)

LIBRARIES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes")


def outcome_of(job: Job) -> dict[str, Any]:
    """Run the job, and once more inside the GPU's memory where the first run reserved more than that.

    PyTorch gives cached blocks back before it fails, so a run whose reserved memory is too much may still fit; then the
    second run's figures are the answer.
    """
    start = time.monotonic()
    runs = runs_of(job)
    phases = _phases(runs, saves=job.setup.do_train)
    ran_out = False
    limit = job.allocator_limit_bytes
    if limit is not None and max(phase["reserved_bytes"] for phase in phases.values()) > limit:
        try:
            runs = runs_of(job, limit)
            phases = _phases(runs, saves=job.setup.do_train)
        except OutOfMemory:
            ran_out = True
    if job.snapshot_path:
        write_snapshot(runs[0].events, job.snapshot_path)
    return {
        "phases": phases,
        "ran_out": ran_out,
        "timeline": timeline_of(runs[0].events, _terms(runs[0])),
        "saved_bytes": max(run.passed.saved for run in runs),
        "gathered_bytes": max(run.passed.gathered for run in runs),
        "kept_head": runs[0].kept_head,
        "software": _software(),
        "seconds": time.monotonic() - start,
    }


def _phases(runs: Sequence[Run], *, saves: bool) -> dict[str, Any]:
    """Every phase by name; where two processes have the same, the one that takes more."""
    phases: dict[str, Any] = {}
    for run in runs:
        for name, peak in peaks_of(run.events).items():
            if name not in phases or peak.allocated_bytes > phases[name]["allocated_bytes"]:
                phases[name] = _phase(run, name, peak)
    if saves and "save" not in phases:  # it allocated nothing: what is there is its peak
        phases["save"] = _phase(runs[0], "save", end_of(runs[0].events))
    return phases


def _terms(run: Run) -> dict[int, str]:
    """The ledger's term of every allocation, by its number."""
    stacks = Stacks(run.sole_stack, run.vocabulary)
    made = ((number, event) for number, event in enumerate(run.events) if event.action == "alloc")
    return {number: term_of(event, run.roles.get(number), stacks) for number, event in made}


def _phase(run: Run, name: str, peak: PhasePeak) -> dict[str, Any]:
    stacks = Stacks(run.sole_stack, run.vocabulary)
    blocks = alive_at(run.events, peak.event)
    terms = {number: term_of(event, run.roles.get(number), stacks) for number, event in blocks}
    return {
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "moment": moment_of(run.events[peak.event], name),
        "terms": ledger_of(blocks, terms),
        "tops": largest(blocks, terms),
    }


def _software() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


REMAINDERS = "allocator_remainders"
BY_ROLE = {"weights": "parameters"}  # every other role is a term's own name
ENCODER_PARTS = ("encoder", "shared", "embed_tokens_encoder")
HEADS = ("lm_head", "embed_out", "score", "classifier", "cls", "qa_outputs", "predictions", "generator_lm_head")
WRAPPERS = ("base_model", "model", "module")  # what PEFT and transformers put around the stacks
LOSS_OPS = ("nll_loss", "log_softmax", "cross_entropy")


class Stacks:
    """Where a model's modules belong. ``sole`` is the stack of a model that has one: ``encoder`` or ``decoder``."""

    def __init__(self, sole: str | None, vocabulary: int) -> None:
        self.sole = sole
        self.vocabulary = vocabulary

    def of(self, module: str) -> str:
        """``encoder``, ``decoder`` or ``head``; empty outside of all of them."""
        parts = [part for part in module.split(".") if part and part not in WRAPPERS]
        if not parts:
            return ""
        if parts[0] in HEADS:
            return "head"
        if self.sole:
            return self.sole
        return "encoder" if parts[0] in ENCODER_PARTS else "decoder"


def term_of(event: Event, role: str | None, stacks: Stacks) -> str:
    """The ledger's term for the block of one allocation."""
    if role == "workspace" and event.op != "cublas_workspace":
        return "temporaries"  # a kernel's own, gone when it ends
    if role is not None:
        return BY_ROLE.get(role, role)
    phase, _, part = event.phase.partition(":")
    if part == "inputs":
        return "inputs"
    if phase in ("load", "save") or part == "optimizer":
        return "temporaries"
    if any(op in event.op for op in LOSS_OPS):
        return "loss" if phase == "train" else "logits"
    if part == "backward":
        return "temporaries"
    stack = stacks.of(event.module)
    if phase == "train":
        return f"activations_{stack or 'head'}"
    if stack == "encoder":
        return "activations_encoder"
    wide = event.requested >= 2 * stacks.vocabulary > 0  # at least a row of half-precision scores
    return "logits" if stack == "head" or (not stack and wide) else "temporaries"


def ledger_of(blocks: Sequence[Block], terms: Mapping[int, str]) -> dict[str, int]:
    """Bytes by term, largest first; what rounding and unsplit blocks add to the tensors is a term of its own."""
    sums: dict[str, int] = {}
    for number, event in blocks:
        size = event.requested or event.size
        sums[terms[number]] = sums.get(terms[number], 0) + size
        sums[REMAINDERS] = sums.get(REMAINDERS, 0) + event.size - size
    return {name: size for name, size in sorted(sums.items(), key=lambda item: -item[1]) if size}


def moment_of(event: Event, reported: str) -> str:
    """Where the peak of the phase ``reported`` lies, which ``event`` made: a key of i18n under ``moment.``."""
    phase, _, part = event.phase.partition(":")
    if phase != reported:  # it was there when the phase began
        part = ""
        phase = reported
    loss = any(op in event.op for op in LOSS_OPS)
    if part == "backward":
        return "loss_backward" if loss else "backward"
    if part == "optimizer":
        return "optimizer_step"
    if phase == "evaluate" and not event.module and "cat" in event.op:
        return "gathering"
    if phase in ("train", "evaluate"):
        return "loss" if loss else "forward"
    return {"load": "loading", "save": "saving", "generate": "decoding"}[phase]
