"""From a trace to what the caller is told: peaks with their ledgers, top tensors, timeline; plain data for JSON."""

import time
from collections.abc import Sequence
from typing import Any

from kb.torch_runs.simulation.job import Job
from kb.torch_runs.simulation.simulator import Run, runs_of
from kb.torch_runs.simulation.snapshot import write_snapshot
from kb.torch_runs.simulation.terms import Stacks, ledger_of, moment_of, term_of
from kb.torch_runs.simulation.timeline import PhasePeak, alive_at, end_of, peaks_of, timeline_of, top_tensors

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
        from kb.torch_runs.simulation.allocator import OutOfMemory

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
        "timeline": timeline_of(runs[0].events),
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


def _phase(run: Run, name: str, peak: PhasePeak) -> dict[str, Any]:
    stacks = Stacks(run.sole_stack, run.vocabulary)
    blocks = alive_at(run.events, peak.event)
    terms = {number: term_of(event, run.roles.get(number), stacks) for number, event in blocks}
    return {
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "moment": moment_of(run.events[peak.event], name),
        "terms": ledger_of(blocks, terms),
        "tops": top_tensors(blocks, terms),
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
