"""One trial in its process: the ways it can end are told apart, and nothing of it is left running."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from kb.core.setup_json import setup_from, setup_json
from kb.torch_runs.probe.events import ending_of, rate_of
from kb.torch_runs.probe.running import run_trial
from kb.torch_runs.probe.trial import Outcome, as_json, outcome_from, trial_from, trial_key
from probe_sample import GIB, environment, eventually, marked, own, scripted


def test_a_trial_that_fits_tells_its_peaks_with_the_scripts_deviation() -> None:
    outcome = run_trial(scripted(factor=1.07))
    assert (outcome.status, outcome.fits) == ("ok", True)
    assert outcome.phases == {
        "load": {"process_bytes": round(1.07 * GIB)},
        "train": {"process_bytes": round(5.35 * GIB)},
    }
    assert outcome.peak_bytes == round(5.35 * GIB)
    assert outcome.host == {}  # of a scripted run nothing outside means anything


@pytest.mark.parametrize(
    ("script", "status", "resource", "said"),
    [
        ({"limit_bytes": 4 * GIB}, "oom", "gpu", "CUDA out of memory"),
        ({"oom_at": [4]}, "oom", "gpu", "CUDA out of memory"),
        ({"host_oom_at": [4]}, "oom", "host", "MemoryError"),
        ({"crash_at": [4]}, "crash", None, "RuntimeError: scripted: the loss is NaN"),
        ({"kill_at": [4]}, "crash", None, "SIGKILL"),
    ],
)
def test_out_of_memory_and_crash_are_told_apart(
    script: dict[str, Any], status: str, resource: str | None, said: str
) -> None:
    outcome = run_trial(scripted(**script))
    assert (outcome.status, outcome.resource, outcome.phase) == (status, resource, "train")
    assert outcome.reason is not None and said in outcome.reason
    assert outcome.phases == {"load": {"process_bytes": GIB}}  # what was passed before stays known


def test_a_trial_over_its_time_is_a_hang_and_is_ended_though_it_ignores_sigterm() -> None:
    outcome = run_trial(scripted(seconds=6, hang_at=[4], child=True))
    assert (outcome.status, outcome.phase, outcome.exit_code) == ("hang", "train", None)


def test_helpers_that_a_run_leaves_behind_are_ended_with_it() -> None:
    mark = f"left-behind-{uuid.uuid4().hex}"
    code = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{mark}'], start_new_session=True)"
    )
    assert run_trial(own(sys.executable, "-c", code)).fits
    assert marked(mark) == []


def test_host_memory_over_its_limit_ends_the_trial() -> None:
    code = "import time\nblocks = []\nwhile True:\n  blocks.append(bytearray(20_000_000)); time.sleep(0.05)"
    outcome = run_trial(own(sys.executable, "-c", code, host_bytes=200_000_000))
    assert (outcome.status, outcome.resource) == ("oom", "host")
    assert outcome.host["peak_rss_bytes"] > 100_000_000


def test_a_command_that_cannot_be_started_is_a_crash_that_says_why() -> None:
    outcome = run_trial(own("no-such-program-anywhere"))
    assert (outcome.status, outcome.reason) == ("crash", "No such file or directory")


def test_an_exit_code_is_kept_and_the_last_error_is_the_reason() -> None:
    outcome = run_trial(own(sys.executable, "-c", "print('step 1'); raise ValueError('no labels')"))
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("crash", 1, "ValueError: no labels")
    assert outcome.output is not None and outcome.output.startswith("step 1\nTraceback")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_running_when_the_caller_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    mark = f"orphan-{uuid.uuid4().hex}"
    inner = (
        "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); "
        f"time.sleep(600)  # {mark}"
    )
    caller = (
        "import sys; from kb.torch_runs.probe.running import run_trial; from kb.torch_runs.probe.trial import Trial\n"
        f"run_trial(Trial('smoke', 'cpu', {{}}, command=(sys.executable, '-c', {inner!r})))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", caller], env=environment(TMPDIR=str(tmp_path)), stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(lambda: len(marked(mark)) >= 3)  # the caller, the keeper and the command
        process.send_signal(number)
        process.wait(30)
        assert eventually(lambda: marked(mark) == [])
        assert eventually(lambda: not any(name.startswith("kb-probe-") for name in os.listdir(tmp_path)))
    finally:
        process.kill()


def test_a_failed_allocation_is_known_by_every_library_s_words() -> None:
    for words in (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ):
        assert ending_of(1, f"Traceback (most recent call last):\n{words}\n")[:3] == ("oom", "gpu", words)
    for words in (
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
        "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.",
    ):
        assert ending_of(1, words)[:2] == ("oom", "host")
    assert ending_of(137, "", host_kills=1)[:2] == ("oom", "host")
    assert ending_of(137, "") == ("crash", None, "SIGKILL", "SIGKILL")
    assert ending_of(3, "") == ("crash", None, "exit 3", None)


def test_the_rate_is_read_from_what_the_trainer_prints() -> None:
    assert rate_of("{'train_runtime': '4.1', 'train_samples_per_second': '19.5'}\n") == 19.5
    assert rate_of("  train_samples_per_second =     7.25\n") == 7.25
    assert rate_of("no such line") is None


def test_trials_and_outcomes_survive_json() -> None:
    trial = scripted(crash_at=[1])
    assert trial_from(as_json(trial)) == trial
    assert setup_json(setup_from(trial.setup)) == {"per_device_train_batch_size": 4}
    outcome = Outcome("oom", 1.5, "gpu", "train", phases={"load": {"process_bytes": 1}})
    assert outcome_from(as_json(outcome)) == outcome


def test_limits_and_predictions_do_not_make_another_trial() -> None:
    trial = scripted()
    assert trial_key(trial._replace(predicted={}, limits=trial.limits._replace(seconds=1))) == trial_key(trial)
    assert trial_key(trial._replace(steps=3)) != trial_key(trial)
    assert trial_key(scripted(5)) != trial_key(trial)
