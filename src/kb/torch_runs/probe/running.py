"""Runs trials: each in a process of its own under a keeper, within its limits, and tells apart the ways it can end."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from kb.core.record import NamedTuple
from kb.torch_runs.probe import keeper
from kb.torch_runs.probe.events import (
    Told,
    could_not_start,
    ending_of,
    out_of_memory_kills,
    rate_of,
    read_events,
    tail_of,
)
from kb.torch_runs.probe.tree_watch import GpuWatch, HostWatch
from kb.torch_runs.probe.trial import Journal, Outcome, Trial, as_json, trial_key

POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0
OUTPUT_CHARACTERS = 4000
END = b"k"  # on the leash: end the command
# Nothing is fetched while a trial runs: weights are random, and a measurement must not depend on the network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
QUIET = {"TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true", "PYTHONUNBUFFERED": "1"}
WORKERS = {"fake": "kb.torch_runs.probe.fake_worker"}
WORKER, LOADER = "kb.torch_runs.probe.worker", "kb.torch_runs.probe.loader_worker"


class Runner(Protocol):
    """Whoever runs trials: on this machine, or on a cluster's."""

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        """Each trial with its outcome as soon as it ended, in any order."""

    def close(self) -> None:
        """End what still runs."""


class LocalRunner:
    """On this machine, one after another."""

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        for trial in trials:
            yield trial, run_trial(trial)

    def close(self) -> None:
        """Nothing runs between two trials."""


def measure(trials: Sequence[Trial], runner: Runner, journal: Journal | None = None) -> Iterator[tuple[Trial, Outcome]]:
    """Outcomes of all trials: first those that the journal has, then the others, each journalled before it is given.

    Raises:
        UserError: the journal could not be written.
    """
    done = journal.done if journal is not None else {}
    yield from ((trial, done[trial_key(trial)]) for trial in trials if trial_key(trial) in done)
    for trial, outcome in runner.run([trial for trial in trials if trial_key(trial) not in done]):
        if journal is not None:
            journal.append(trial, outcome)
        yield trial, outcome


def run_trial(trial: Trial) -> Outcome:
    """Run one trial here to its end. When this returns, or its process is gone, nothing of the trial is running."""
    start = time.monotonic()
    kills = out_of_memory_kills()
    with tempfile.TemporaryDirectory(prefix="kb-probe-", ignore_cleanup_errors=True) as folder:
        files = _Files(folder)
        with open(files.output, "wb") as output:
            leash = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, folder, *_command(trial, files)],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=_environment(trial),
                start_new_session=True,
            )  # fmt: skip
        host, gpu = HostWatch(leash.pid), GpuWatch(trial.device) if trial.backend == "cuda" else None
        try:
            passed = _watch(leash, trial, host, gpu, start)
        finally:
            _end(leash)
        seconds = time.monotonic() - start
        host.remember(files.peak)
        told, text = read_events(files.events), tail_of(files.output)
        outcome = _outcome(trial, _Ended(leash.returncode, text, passed, out_of_memory_kills() - kills), told, seconds)
    return _with_watched(outcome, trial, told, host, gpu)


class _Files:
    """Where a trial and the process that runs it leave each other what they have to say."""

    def __init__(self, folder: str) -> None:
        self.trial, self.events = os.path.join(folder, "trial.json"), os.path.join(folder, "events.jsonl")
        self.output = os.path.join(folder, "output.txt")
        self.peak = os.path.join(folder, keeper.PEAK_FILE)


class _Ended(NamedTuple):
    code: int
    output: str
    passed: Literal["time", "host"] | None  # the limit that was passed
    host_kills: int


def _command(trial: Trial, files: _Files) -> list[str]:
    if trial.command:
        return list(trial.command)
    with open(files.trial, "w", encoding="utf-8") as stream:
        json.dump(as_json(trial), stream)
    module = WORKERS.get(trial.backend, LOADER if trial.kind == "host" else WORKER)
    return [sys.executable, "-m", module, files.trial, files.events]


def _environment(trial: Trial) -> dict[str, str]:
    """The caller's; for a process of ours with this very package first on the path."""
    found = {**os.environ, **QUIET}
    if trial.backend == "cpu":
        found["CUDA_VISIBLE_DEVICES"] = ""
    elif trial.device is not None:
        found["CUDA_VISIBLE_DEVICES"] = trial.device
    if not trial.command:
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
        found |= {**OFFLINE, "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))}
    return found


def _watch(
    leash: "subprocess.Popen[bytes]", trial: Trial, host: HostWatch, gpu: GpuWatch | None, start: float
) -> Literal["time", "host"] | None:
    """Look until the process ended by itself (None), or passed a limit."""
    while True:
        now = time.monotonic()
        used = host.look(now) if trial.backend != "fake" else 0
        if gpu is not None:
            gpu.look(host.pids)
        if trial.limits.host_bytes is not None and used > trial.limits.host_bytes:
            return "host"
        if now - start > trial.limits.seconds:
            return "time"
        with contextlib.suppress(subprocess.TimeoutExpired):
            leash.wait(POLL_SECONDS if trial.backend != "fake" else POLL_SECONDS / 5)
            return None


def _end(leash: "subprocess.Popen[bytes]") -> None:
    """Have the keeper end everything, where it still runs."""
    assert leash.stdin is not None
    with contextlib.suppress(OSError):
        leash.stdin.write(END)
        leash.stdin.flush()
    try:
        leash.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:  # a process that the kernel cannot end: in a driver that hangs
        leash.kill()
        leash.wait()
    with contextlib.suppress(OSError):
        leash.stdin.close()


def _outcome(trial: Trial, ended: _Ended, told: Told, seconds: float) -> Outcome:
    """Status and reason; a limit that was passed comes before what the process itself said."""
    base = Outcome("ok", round(seconds, 3), phases=told.phases, **told.facts)
    if trial.command and (rate := rate_of(ended.output)) is not None:
        base = base._replace(samples_per_second=rate)
    complete = told.finished or (bool(trial.command) and ended.code == 0 and ended.passed is None)
    if complete:
        return base
    failed = base._replace(phase=told.phase, exit_code=ended.code)
    if trial.backend != "fake":
        failed = failed._replace(output=ended.output.strip()[-OUTPUT_CHARACTERS:] or None)
    if ended.passed == "time":
        return failed._replace(status="hang", reason=f"{trial.limits.seconds:g} s", exit_code=None)
    if ended.passed == "host":
        return failed._replace(status="oom", resource="host", reason=None, exit_code=None)
    if told.fault is not None:
        return failed._replace(**{name: told.fault[name] for name in ("status", "resource", "reason", "phase")})
    if (reason := could_not_start(ended.code, ended.output)) is not None:
        return failed._replace(status="crash", reason=reason)
    ending = ending_of(ended.code, ended.output, ended.host_kills)
    return failed._replace(**ending._asdict())


def _with_watched(outcome: Outcome, trial: Trial, told: Told, host: HostWatch, gpu: GpuWatch | None) -> Outcome:
    """What was seen from outside beside what the process told. Of a scripted run nothing outside means anything."""
    if trial.backend == "fake":
        return outcome
    outcome = outcome._replace(host={**host.found(), **outcome.host})
    if gpu is None:
        return outcome
    span = told.span("train", time.monotonic())
    outcome = outcome._replace(
        utilisation=gpu.mean(*span) if span else gpu.busy(), machine={**gpu.machine(), **outcome.machine}
    )
    gpu.close()
    if trial.command and gpu.peak_bytes:
        outcome = outcome._replace(phases={"train": {"process_bytes": gpu.peak_bytes}})
    return outcome
