"""Runs a simulation in a process of its own, within a time and a memory limit, and tells apart the ways it can end.

A process of its own because torch stays in memory once imported, the shim for a CPU build must be loaded before it, and
a library that crashes or swells must not take the caller with it.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.torch_runs.simulation.job import (
    BY_NAME,
    CrashedError,
    KilledError,
    MemoryLimitError,
    MissingPackageError,
    OldReleaseError,
    TimedOutError,
)

if TYPE_CHECKING:
    import subprocess

GIB = 1 << 30
POLL_SECONDS = 0.05
REASON_CHARACTERS = 400
PACKAGES = ("torch", "transformers")
FIRST_TRANSFORMERS = (4, 46)  # bench/releases.py runs with it
# Nothing is fetched while a simulation runs: it needs no weights, and an answer must not depend on the network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Nor is anything compiled: without this, importing bitsandbytes (which PEFT does) loads torch's compilers for seconds.
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
HASH_SEED = "0"  # PEFT keeps its targets in sets: the same question must have the same answer


class Limits(NamedTuple):
    """What a simulation may take: wall-clock seconds, and bytes of host memory (resident)."""

    seconds: float = 600
    memory_bytes: int = 4 * GIB


class Answer(NamedTuple):
    """What the subprocess wrote, and what it took. ``peak_bytes`` is the most resident memory that was seen."""

    content: dict[str, Any]
    seconds: float
    peak_bytes: int


def worker_command() -> list[str]:
    """The simulator's own process.

    Raises:
        MissingPackageError: a library that it runs is not installed.
        OldReleaseError: it is, in a release that is too old.
    """
    import importlib.util
    from importlib import metadata

    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(package=package)
    found = metadata.version("transformers")
    if parse_version(found) < FIRST_TRANSFORMERS:
        raise OldReleaseError(package="transformers", found=found, first=".".join(map(str, FIRST_TRANSFORMERS)))
    return [sys.executable, "-m", "kb.torch_runs.simulation.worker"]


def ask(command: Sequence[str], request: str, limits: Limits) -> Answer:
    """Start ``command`` with a file's path as its last argument, hand it ``request``, and read what it puts there.

    Raises:
        SimulationError: the one that the process reported, or the way it ended: TimedOutError, MemoryLimitError,
            KilledError, CrashedError.
    """
    import subprocess

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kb-simulation-") as folder:
        path = os.path.join(folder, "answer.json")
        with open(os.path.join(folder, "errors.txt"), "w+b") as errors:
            process = subprocess.Popen(
                [*command, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=_environment(limits),
                start_new_session=True,
            )
            try:
                _hand_over(process, request)
                peak = _watch(process, limits, start)
            finally:
                _end(process)
            content = _content(path)
            if content is None:
                raise _ending(process.returncode, errors)
    if "fault" in content:
        raise BY_NAME.get(content["fault"], CrashedError)(**content["values"])
    return Answer(content, time.monotonic() - start, peak)


def _environment(limits: Limits) -> dict[str, str]:
    """The caller's, with this very package first on the path."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        **OFFLINE,
        **EAGER,
        "PYTHONPATH": path,
        "PYTHONHASHSEED": HASH_SEED,
        "KB_SIMULATION_MEMORY": str(limits.memory_bytes),
    }


def _hand_over(process: "subprocess.Popen[bytes]", request: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(request.encode())
        process.stdin.close()
    except BrokenPipeError:  # it ended before it read: its exit tells why
        pass


def _watch(process: "subprocess.Popen[bytes]", limits: Limits, start: float) -> int:
    """The most resident bytes seen until the process ended by itself.

    Raises:
        TimedOutError, MemoryLimitError: a limit was passed; the caller ends the process.
    """
    import subprocess

    import psutil

    peak = 0
    while True:
        with contextlib.suppress(psutil.Error):  # gone between two looks: `wait` will say so
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
        if peak > limits.memory_bytes:
            raise MemoryLimitError(limit_bytes=limits.memory_bytes)
        if time.monotonic() - start > limits.seconds:
            raise TimedOutError(seconds=limits.seconds)
        try:
            process.wait(POLL_SECONDS)
            return peak
        except subprocess.TimeoutExpired:
            continue


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and whatever it started, where it still runs."""
    import signal

    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, ProcessLookupError, PermissionError):  # no process groups here, or already gone
            process.kill()
        process.wait()


def _content(path: str) -> dict[str, Any] | None:
    """The answer; None where the process ended before it had written one."""
    try:
        with open(path, encoding="utf-8") as stream:
            content: dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return None
    return content


def _ending(code: int, errors: IO[bytes]) -> KilledError | CrashedError:
    """Why there is no answer: a signal, or an exit with a last line on standard error."""
    import signal

    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return KilledError(signal=name)
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return CrashedError(reason=lines[-1][:REASON_CHARACTERS] if lines else f"exit {code}")
